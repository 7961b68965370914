"""What records in flight do to the floor, operator actions, adoptions, backfills and limits. In memory."""

from datetime import timedelta

import pytest

from ackline import InFlight, Record
from ackline.actions.adopt_ledger import OutstandingTokens, adopt_ledger, prepare_adoption
from ackline.actions.report import adoption_object, adoption_text
from ackline.errors import RetentionPassed, TooFarBehind, TooManyFailures
from ackline.ledger.answers import SKIPPED_IN_TREE
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.fold import PendingKind
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.planning import IN_FLIGHT, IN_FLIGHT_FULL
from ackline.ledger.turns import TurnKind
from tests.support.memory import InFlightSkipped
from tests.support.memory_lane import NOON, OK, TP, TP1, WAITS, AnsweredLane, MemoryBackfill, in_flight


def test_a_record_in_flight_holds_the_floor_until_it_is_acked() -> None:
    lane = AnsweredLane(OK, WAITS, OK).after_run()
    assert (lane.floor(), lane.committed(), lane.state().next_due) == (1, 1, NOON + timedelta(seconds=10))
    lane.at(5).run()
    assert (lane.floor(), lane.offsets(), lane.newest().turn.n) == (1, [0, 1, 2], 2)
    lane.answer(1)
    lane.at(9).run()
    assert (lane.floor(), lane.committed(), lane.state().next_due) == (3, 3, None)
    assert lane.outcomes() == [(0, 1, "acked"), (1, 1, "in_flight"), (1, 1, "acked"), (2, 1, "acked")]
    assert lane.offsets() == [0, 1, 2]


def test_a_run_with_nothing_but_answers_to_read_starts_no_spark() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.answer(0)

    def refuse(*_: object) -> None:
        raise AssertionError("a Spark job")

    ran = lane.run(lane.adapters(run_job=refuse))
    assert (ran.calls, ran.outcomes, lane.floor()) == (0, {"acked": 1}, 1)
    assert ran.plans[0].partitions[TP].why == IN_FLIGHT


def test_in_flight_max_bounds_the_fresh_reads_of_each_partition_alone() -> None:
    lane = AnsweredLane(*[WAITS] * 5, partitions=2, in_flight={"max": 2})
    lane.produce(OK, WAITS, OK, tp=TP1)
    first, second = (lane.run().plans[0].partitions for _ in range(2))
    assert [first[tp].fresh for tp in (TP, TP1)] == [OffsetRange(0, 2)] * 2
    assert (second[TP].why, second[TP1].fresh) == (IN_FLIGHT_FULL, OffsetRange(2, 3))
    lane.answer(0)
    lane.run()
    lane.run()
    assert (in_flight(lane), lane.state().complete_to) == (2, 3)


def test_a_skip_ends_the_attempt_and_later_answers_are_stale() -> None:
    lane = AnsweredLane(WAITS, OK).after_run()
    lane.perform(TurnKind.SKIP, {TP: 1})
    assert (in_flight(lane), lane.floor()) == (0, 2)
    lane.answer(0)
    lane.run()
    assert lane.answered() == {"stale": 1}


def test_a_reset_ends_the_attempt_and_later_answers_are_stale() -> None:
    lane = AnsweredLane(WAITS).after_run()
    old = lane.tokens[0, 1]
    lane.perform(TurnKind.RESET, {TP: 0})
    lane.run()
    assert (in_flight(lane), lane.newest().turn.epoch) == (1, 1)
    lane.answer_with(old, "ack")
    lane.run()
    assert (in_flight(lane), lane.answered()) == (1, {"stale": 1})
    lane.answer(0)
    lane.run()
    assert lane.floor() == 1


def test_a_retry_changes_nothing_of_what_is_in_flight_and_a_paused_partition_takes_answers() -> None:
    lane = AnsweredLane(WAITS, b'{"fail": 1}', retry={"initial_delay": "1h"}).after_run()
    lane.perform(TurnKind.RETRY, whole=True)
    lane.perform(TurnKind.PAUSE)
    lane.answer(0)
    lane.run()
    assert lane.pending() == [(1, 2)]


def test_a_void_turn_gives_its_answers_back_and_its_tokens_are_stale() -> None:
    lane = AnsweredLane(WAITS, breaker={"failure_ratio": 0.5, "min_records": 2}).after_run()
    lane.produce(WAITS, b'{"fail": 1}', b'{"fail": 1}', b'{"fail": 1}')
    lane.answer(0)
    lane.run_fails(TooManyFailures, "too many failures")
    void = lane.tokens[1, 1]
    assert (lane.next_answer(), in_flight(lane)) == (0, 1)
    lane.settings.pop("breaker")
    lane.answer_with(void, "ack")
    lane.run()
    assert (lane.floor(), in_flight(lane), lane.answered()) == (1, 1, {"acked": 1, "stale": 1})


def test_a_backfill_lane_reads_its_own_answers_and_leaves_those_of_the_live_lane_alone() -> None:
    live = AnsweredLane(WAITS, WAITS).after_run()
    of_live = dict(live.tokens)
    lane = MemoryBackfill(live, "b", "orders")
    account = lane.run()
    assert (account.pending["in_flight"], account.next_due) == (2, NOON + timedelta(seconds=10))
    assert lane.run() == account, "nothing is overdue, and there is no answer: no turn is taken"
    live.answer_with(of_live[0, 1], "ack")
    live.answer(1)
    account = lane.run()
    assert (account.pending["in_flight"], account.outcomes, live.floor()) == (1, {"acked": 1}, 0)
    live.run()
    assert live.floor() == 1
    live.at(11)
    account = lane.run()
    assert (account.pending["retry"] + account.pending["in_flight"], account.balanced) == (1, True)
    live.answer(0, attempt=max(attempt for offset, attempt in live.tokens if offset == 0))
    assert lane.run().settled


def test_a_cancelled_backfill_ends_what_is_in_flight() -> None:
    live = AnsweredLane(WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    lane.run()
    assert (lane.cancel().outcomes, lane.ended()) == ({"skipped": 1}, {0: "skipped"})


def test_a_record_in_flight_that_retention_took_counts_as_expired_only_once_it_is_to_be_retried() -> None:
    lane = AnsweredLane(WAITS, WAITS, OK, on_expired="fail").after_run()
    lane.log().expire(2)
    lane.answer(0)
    lane.run()
    assert (lane.floor(), in_flight(lane)) == (1, 1)
    lane.at(11).run()
    lane.run_fails(RetentionPassed, r"orders\[0\] \[1, 2\)")


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_record_in_flight_is_not_too_far_behind_and_its_answer_is_read(policy: str) -> None:
    lane = AnsweredLane(WAITS, *[OK] * 9).after_run()
    lane.settings["max_offset_behind"] = {"offsets": 5, "policy": policy}
    lane.run()
    assert (in_flight(lane), lane.floor(), TurnKind.SKIP in lane.kinds()) == (1, 0, False)
    lane.answer(0)
    lane.run()
    assert (lane.floor(), lane.answered()) == (10, {"acked": 1})


def test_a_skip_of_what_is_too_far_behind_ends_below_the_first_record_in_flight() -> None:
    lane = AnsweredLane(b'{"fail": -1}', OK, WAITS, OK, retry={"initial_delay": "1h"}).after_run()
    lane.produce(*[OK] * 10)
    lane.settings["max_offset_behind"] = {"offsets": 5, "policy": "skip"}
    lane.run()
    assert (lane.ranges(Outcome.SKIPPED), lane.floor(), in_flight(lane)) == ([(0, 1)], 2, 1)
    lane.answer(2)
    lane.run()
    assert lane.floor() == 14


def test_what_is_unread_behind_a_record_in_flight_may_still_be_too_far_behind() -> None:
    lane = AnsweredLane(WAITS, OK, timeout="none").after_run()
    lane.produce(*[OK] * 10)
    lane.settings["max_offset_behind"] = {"offsets": 5, "policy": "fail"}
    error = lane.run_fails(TooFarBehind, r"the first offset that is not in flight, 2 is 10 offsets behind")
    assert error.offset == 2


def test_an_ack_of_a_record_with_a_skipped_tree_skips_it_and_a_renewal_keeps_that() -> None:
    lane = AnsweredLane(WAITS, WAITS, WAITS)
    in_tree = lane.hand_on

    def hand_on(record: Record) -> InFlight | None:
        in_tree(record)
        return InFlightSkipped() if record.offset else InFlight()

    lane.world.handle = hand_on
    lane.run()
    assert [run.value.error_class for run in lane.state().pending] == [None, "Skip"]
    lane.answer(0)
    lane.answer(1, "renew 1h")
    lane.answer(2, "fail too late")
    lane.at(5).run()
    lane.answer(1)
    lane.at(60).run()
    assert lane.outcomes() == [
        (0, 1, "in_flight"), (0, 1, "acked"), (1, 1, "in_flight"), (1, 1, "in_flight"), (1, 1, "skipped"),
        (2, 1, "in_flight"), (2, 1, "failed"), (2, 2, "in_flight"),
    ]  # fmt: skip
    assert lane.state().floor == 2
    (skipped,) = [
        row for files in lane.world.tables.outcomes.values() for file in files for row in file.rows.get(TP, ())
        if row.outcome is Outcome.SKIPPED
    ]  # fmt: skip
    assert (skipped.error_class, skipped.reason) == ("Skip", SKIPPED_IN_TREE)


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
