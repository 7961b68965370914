"""Adopting a ledger while records are in flight: which tokens count no more, and what becomes of their records."""

from ackline import InFlight, Record
from ackline.actions.adopt_ledger import OutstandingTokens, adopt_ledger, prepare_adoption
from ackline.actions.report import adoption_object, adoption_text
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.fold import PendingKind
from tests.support.memory_lane import TP, WAITS, AnsweredLane


def copied(lane: AnsweredLane) -> AnsweredLane:
    """The lane, whose group a newer copy of its ledger has committed."""
    lane.run()
    lane.move_group(TP, 0, CommitMetadata(lane.adapters().store.ledger_id(), "lane", 0, 9).encode())
    return lane


def test_adopting_an_older_copy_names_the_records_whose_tokens_count_no_more_and_they_are_tried_again() -> None:
    lane = copied(AnsweredLane(WAITS, WAITS))
    shown = prepare_adoption(lane.adapters(), "restored")
    assert shown.outstanding == OutstandingTokens(2, 0)
    text = adoption_text(shown, done=False)
    assert "Records in flight whose tokens count no more: 2. " in text
    assert "They time out and are tried again, each under a new token." in text
    done = adopt_ledger(lane.adapters(), "restored")
    assert adoption_object(lane.adapters(), done, "restored", dry_run=False).unsigned_tokens == 2
    lane.answer(0)
    assert lane.at(11).run().answers == {"unsigned": 1, "timed_out": 2}
    lane.run()
    assert lane.calls()[2:] == [(0, 2), (1, 2)]
    lane.answer(0, attempt=2)
    lane.answer(1, attempt=2)
    lane.run()
    assert lane.floor() == 2


def test_adopting_an_older_copy_names_the_records_without_a_timeout_which_stay_in_flight() -> None:
    lane = copied(AnsweredLane(WAITS, WAITS, timeout="none"))
    shown = prepare_adoption(lane.adapters(), "restored")
    assert shown.outstanding == OutstandingTokens(2, 2)
    assert "2 of them have no timeout and stay in flight: end them with `ackline skip`" in adoption_text(shown, True)
    adopt_ledger(lane.adapters(), "restored")
    lane.answer(0)
    lane.at(10**6).run()
    assert lane.state().pending_by_kind()[PendingKind.IN_FLIGHT] == 2


def test_a_ledger_that_returns_over_commits_of_another_one_keeps_its_tokens() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.move_group(TP, 0, CommitMetadata("another", "lane", 0, 9).encode())
    assert prepare_adoption(lane.adapters(), "back").outstanding == OutstandingTokens(0, 0)
    adopt_ledger(lane.adapters(), "back")
    lane.answer(0)
    lane.run()
    assert lane.floor() == 1


def test_a_new_ledger_ignores_the_tokens_of_the_lost_one_and_reads_their_records_again() -> None:
    lane = AnsweredLane(WAITS)
    lane.world.new_id("of another ledger")
    lane.run()
    lost = lane.tokens[0, 1]
    metadata = CommitMetadata("lost", "lane", 0, 9).encode()
    lane = AnsweredLane(WAITS)
    lane.move_group(TP, 0, metadata)
    shown = prepare_adoption(lane.adapters(), "lost")
    assert shown.outstanding == OutstandingTokens(None, 0)
    assert "Tokens of records in flight that the other ledger has handed out count no more" in adoption_text(
        shown, True
    )
    adopt_ledger(lane.adapters(), "lost")
    lane.run()
    lane.answer_with(lost, "ack")
    lane.answer(0)
    assert lane.run().answers == {"unsigned": 1, "acked": 1}


def test_a_pipeline_without_an_ack_topic_has_no_outstanding_tokens() -> None:
    lane = AnsweredLane(WAITS)
    del lane.settings["ack_topic"], lane.settings["in_flight"]
    lane.world.handle = hand_on_nothing
    lane.move_group(TP, 0, CommitMetadata("lost", "lane", 0, 9).encode())
    shown = prepare_adoption(lane.adapters(), "lost")
    assert (shown.outstanding, "Tokens" in adoption_text(shown, True)) == (OutstandingTokens(0, 0), False)


def hand_on_nothing(_: Record) -> InFlight | None:
    return None
