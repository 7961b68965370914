"""What a turn reads of the ack topic, when it refuses the topic, and what is done without it. In memory."""

import pytest

from ackline.actions.void import open_turn, void_open_turn
from ackline.errors import ConfigError
from ackline.in_flight.ack_topic import send_answer
from ackline.ledger.answers import parse_token
from ackline.ledger.fold import PendingKind
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import TurnKind
from ackline.pipeline.warnings import TopicPolicy
from tests.support.actor import Killed
from tests.support.memory_lane import ACKS, DEAD, NOON, OK, TP, WAITS, AnsweredLane, MemoryBackfill, in_flight


def test_i11_a_repeated_settle_takes_the_end_of_the_answers_from_the_stored_decisions() -> None:
    lane = AnsweredLane(WAITS, WAITS).after_run()
    lane.answer(0)
    lane.plan()
    lane.replay()
    lane.die("decisions", "after")
    with pytest.raises(Killed):
        lane.settle()
    lane.answer(1)
    lane.at(60)
    lane.settle()
    assert (lane.next_answer(), in_flight(lane), lane.answered()) == (1, 1, {"acked": 1})
    lane.run()
    assert (lane.floor(), lane.next_answer()) == (2, 2)


def test_the_ack_topic_created_again_is_named_and_read_from_its_start(caplog: pytest.LogCaptureFixture) -> None:
    lane = AnsweredLane(WAITS)
    lane.answer_with("x", "ack")
    lane.run()
    lane.create("acks")
    lane.answer(0)
    ran = lane.run()
    assert (lane.floor(), lane.next_answer()) == (1, 1)
    assert "the ack topic acks was created again" in ran.warnings[0]
    assert "the ack topic acks was created again" in caplog.text


@pytest.mark.parametrize("when", ["before the range is determined", "before they are read"])
def test_answers_that_retention_took_are_named_with_their_range_and_the_lane_goes_on(when: str) -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.answer(0, times=3)
    if when == "before they are read":
        lane.at(11).strike("fetch", lambda: lane.log(ACKS).expire(2))
    else:
        lane.log(ACKS).expire(2)
    assert lane.run().warnings == ["answers [0, 2) of the ack topic acks[0] are lost: retention took them"]
    assert (lane.floor(), lane.next_answer(), lane.answered()) == (1, 3, {"acked": 1})


def test_an_ack_topic_whose_log_was_truncated_is_named() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.answer_with("x", "ack")
    lane.answer_with("x", "ack")
    lane.run()
    lane.log(ACKS).elect(1)
    ran = lane.run()
    assert ran.warnings == ["answers of the ack topic acks[0] from 1 on are lost: its log was truncated from 2"]
    lane.answer(0)
    lane.run()
    assert lane.floor() == 1


def test_an_ack_topic_that_is_missing_or_compacted_is_refused_before_anything_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = AnsweredLane(WAITS)
    lane.world.delete_topic("acks")
    lane.run_fails(ConfigError, r"the ack topic acks of pipeline lane does not exist")
    lane.create("acks")
    adapters = lane.adapters()
    monkeypatch.setattr(type(adapters.cluster), "policies", lambda *_: {"acks": TopicPolicy(None, True)})
    lane.run_fails(ConfigError, r"is compacted")
    assert lane.world.tables.plans == {}


def test_the_ack_topic_may_change_only_while_nothing_is_in_flight() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.create("others")
    lane.settings["ack_topic"] = "others"
    assert lane.run_fails(ConfigError, "ack_topic was changed from acks to others").__class__ is ConfigError
    lane.settings["ack_topic"] = "acks"
    lane.answer(0)
    lane.run()
    lane.settings["ack_topic"] = "others"
    lane.produce(WAITS)
    lane.run()
    lane.log(TopicPartition("others", 0)).append(b"ack", NOON, key=lane.tokens[1, 1].encode())
    lane.run()
    assert lane.floor() == 2


def test_a_process_that_settles_late_after_another_one_reads_no_answer_twice() -> None:
    lane = AnsweredLane(WAITS, WAITS).after_run()
    lane.plan_and_replay()
    lane.answer(0)

    def other_settles() -> None:
        lane.settle(lane.adapters("other"))
        lane.answer(1)

    lane.strike("decisions", other_settles, "before")
    lane.settle(lane.adapters("late"))
    assert (lane.next_answer(), in_flight(lane), lane.answered()) == (1, 1, {"acked": 1})
    lane.run()
    assert (lane.floor(), lane.answered()) == (2, {"acked": 2})


def test_an_open_transaction_in_the_ack_topic_hides_answers_so_nothing_times_out() -> None:
    lane = AnsweredLane(WAITS, WAITS).after_run()
    lane.answer(0)
    lane.log(ACKS).append(b"ack", lane.world.now, key=b"of another producer", open_=True)
    lane.answer(1)
    ran = lane.at(11).run()
    assert ran.warnings == [
        "an open transaction hides answers of the ack topic acks[0] from 1 on: nothing times out in this turn"
    ]
    assert (lane.floor(), in_flight(lane), lane.answered()) == (1, 1, {"acked": 1})
    lane.log(ACKS).end_transaction(commit=False)
    assert (lane.at(12).run().warnings, lane.floor(), lane.answered()) == ([], 2, {"acked": 2})


def test_an_answer_that_comes_after_the_range_was_determined_is_not_overtaken_by_its_deadline() -> None:
    lane = AnsweredLane(WAITS, DEAD).after_replay()

    def others_wait() -> None:
        lane.answer(0)
        lane.at(11)

    lane.at(9).strike("letter", others_wait)
    lane.settle()
    assert in_flight(lane) == 1
    lane.run()
    assert (lane.floor(), lane.answered()) == (2, {"acked": 1})


def test_i6_a_settle_that_cannot_read_the_ack_topic_sends_no_letter() -> None:
    lane = AnsweredLane(WAITS, DEAD).after_replay()
    lane.world.delete_topic("acks")
    for _ in range(2):
        with pytest.raises(ConfigError, match="does not exist any more"):
            lane.settle()
    lane.create("acks")
    del lane.settings["ack_topic"], lane.settings["in_flight"]
    with pytest.raises(ConfigError, match="ack_topic was removed"):
        lane.settle()
    assert lane.letters() == []
    lane.settings["ack_topic"] = "acks"
    lane.settle()
    assert len(lane.letters()) == 1


def test_a_backfill_takes_no_turn_for_what_is_overdue_while_answers_are_hidden() -> None:
    live = AnsweredLane(WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    lane.run()
    live.log(ACKS).append(b"ack", NOON, key=b"of another producer", open_=True)
    live.at(11)
    turns = len(live.world.tables.plans)
    assert (lane.run().pending["in_flight"], len(live.world.tables.plans)) == (1, turns)
    live.log(ACKS).end_transaction(commit=False)
    assert lane.run().pending["in_flight"] == 1  # the second attempt
    assert live.offsets() == [0, 0]


@pytest.mark.parametrize("topic", [None, "others"])
def test_an_open_plan_is_not_handed_out_without_its_ack_topic(topic: str | None) -> None:
    lane = AnsweredLane(WAITS, in_flight={"timeout": "10s"})
    lane.create("others")
    lane.plan()
    block = lane.settings.pop("in_flight")
    lane.settings["ack_topic"] = topic
    with pytest.raises(ConfigError, match=f"ack_topic was changed from acks to {topic} while") as refused:
        lane.replay()
    assert (refused.value.key, lane.calls()) == ("ack_topic", [])
    lane.settings |= {"ack_topic": "acks", "in_flight": block}
    lane.replay()
    lane.settle()
    assert in_flight(lane) == 1


@pytest.mark.parametrize("is_open", [False, True])
def test_an_answer_is_not_sent_to_a_topic_that_the_lane_does_not_read(is_open: bool) -> None:
    lane = AnsweredLane(WAITS).after_run()
    if is_open:
        lane.plan()
    lane.create("others")
    token = parse_token(lane.tokens[0, 1])
    assert token is not None
    lane.settings["ack_topic"] = "others"
    with pytest.raises(ConfigError, match=r"reads its answers in acks, .*put acks back"):
        send_answer(lane.adapters(), [token], "ack")
    assert lane.log(TopicPartition("others", 0)).end == 0
    lane.settings["ack_topic"] = "acks"
    assert send_answer(lane.adapters(), [token], "ack") == "acks"


RESET = "take `ack_topic` out of the file and begin a new epoch with `ackline reset lane --to floor"


def without_ack_topic(lane: AnsweredLane) -> None:
    del lane.settings["ack_topic"], lane.settings["in_flight"]
    lane.world.handle = lambda record: None


def test_a_run_names_the_reset_that_goes_on_without_the_ack_topic() -> None:
    lane = AnsweredLane(WAITS, OK).after_run()
    lane.world.delete_topic("acks")
    lane.run_fails(ConfigError, RESET)
    without_ack_topic(lane)
    lane.run_fails(ConfigError, "begin a new epoch with `ackline reset lane --to floor")
    lane.perform(TurnKind.RESET, {TP: lane.floor()})
    lane.run()
    assert (lane.floor(), lane.committed()) == (2, 2)


def test_a_skip_of_what_is_in_flight_needs_no_ack_topic() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.world.delete_topic("acks")
    lane.perform(TurnKind.SKIP, {TP: 1})
    assert lane.floor() == 1


def test_a_settle_names_the_void_that_closes_its_turn_and_the_reset_goes_on() -> None:
    lane = AnsweredLane(WAITS).after_replay()
    lane.world.delete_topic("acks")
    with pytest.raises(ConfigError, match=r"does not exist any more.*close it with `ackline void lane --reason"):
        lane.settle()
    adapters = lane.adapters()
    void_open_turn(adapters, open_turn(adapters).plan.turn, "the ack topic is gone")
    without_ack_topic(lane)
    lane.run()
    assert lane.floor() == 1


def test_a_cancel_names_the_void_of_its_lane_and_then_works() -> None:
    live = AnsweredLane(WAITS, WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    live.die("decisions", "before")
    with pytest.raises(Killed):
        lane.run()
    live.world.delete_topic("acks")
    with pytest.raises(ConfigError, match="close it with `ackline void lane --lane backfill-b --reason"):
        lane.cancel()
    adapters = lane.adapters()
    void_open_turn(adapters, open_turn(adapters).plan.turn, "the ack topic is gone")
    assert lane.cancel().outcomes == {"skipped": 2}


def test_a_run_of_a_backfill_names_its_cancel_which_works() -> None:
    live = AnsweredLane(WAITS, WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    assert lane.run().pending[PendingKind.IN_FLIGHT] == 2
    live.world.delete_topic("acks")
    with pytest.raises(ConfigError, match="end the backfill with `ackline backfill lane --cancel b`"):
        lane.run()
    assert lane.cancel().outcomes == {"skipped": 2}


ACKS1 = TopicPartition("acks", 1)


def test_a_truncated_ack_log_that_has_grown_past_the_position_is_read_from_where_it_was_cut() -> None:
    lane = AnsweredLane(WAITS, WAITS).after_run()
    for _ in range(3):
        lane.answer_with("of another", "ack")
    lane.run()
    assert lane.next_answer() == 3
    lane.log(ACKS).elect(1)
    lane.answer(0)
    for _ in range(3):
        lane.answer_with("of another", "ack")
    ran = lane.at(11).run()
    assert ran.warnings == ["answers of the ack topic acks[0] from 1 on are lost: its log was truncated from 3"]
    assert (lane.outcomes()[1], lane.next_answer(), lane.run().warnings) == ((0, 1, "acked"), 5, [])


def test_a_new_leader_of_the_ack_topic_with_the_whole_log_is_no_loss() -> None:
    lane = AnsweredLane(WAITS)
    lane.answer_with("of another", "ack")
    lane.run()
    lane.log(ACKS).elect()
    lane.answer(0)
    assert (lane.run().warnings, lane.floor(), lane.answered()) == ([], 1, {"acked": 1})


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_beside_an_ack_partition_without_a_leader_answers_count_and_nothing_times_out(isolation: str) -> None:
    lane = AnsweredLane(WAITS, WAITS, kafka={"isolation": isolation})
    lane.create("acks", 2)
    lane.run()
    lane.log(ACKS1).append(b"ack", lane.world.now, key=lane.tokens[1, 1].encode())
    lane.log(ACKS1).has_leader = False
    lane.answer(0)
    ran = lane.at(11).run()
    assert ran.warnings == [
        "the ack topic acks[1] has no leader, so its answers can't be read yet: nothing times out in this turn"
    ]
    assert (lane.floor(), in_flight(lane), lane.answered()) == (1, 1, {"acked": 1})
    lane.log(ACKS1).has_leader = True
    assert (lane.at(12).run().warnings, lane.floor(), lane.answered()) == ([], 2, {"acked": 2})


def test_a_lane_begins_beside_an_ack_partition_without_a_leader_and_reads_it_from_its_start_later() -> None:
    lane = AnsweredLane(WAITS)
    lane.create("acks", 2)
    lane.log(ACKS1).append(b"ack", lane.world.now, key=b"of another")
    lane.log(ACKS1).has_leader = False
    lane.run()
    lane.log(ACKS1).append(b"ack", lane.world.now, key=lane.tokens[0, 1].encode())
    lane.log(ACKS1).has_leader = True
    lane.at(11).run()
    assert (lane.floor(), lane.answered()) == (1, {"acked": 1, "malformed": 1})
