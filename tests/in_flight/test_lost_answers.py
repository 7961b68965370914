"""Answers that the ack topic has lost or can't show: truncated logs, retention, partitions without a leader."""

import pytest

from ackline.ledger.answers import AckPosition
from ackline.ledger.fold import PendingKind
from ackline.ledger.offsets import TopicPartition
from tests.support.memory_lane import ACKS, WAITS, AnsweredLane

ACKS1 = TopicPartition("acks", 1)


def in_flight(lane: AnsweredLane) -> int:
    return lane.state().pending_by_kind()[PendingKind.IN_FLIGHT]


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
    assert lane.outcomes()[1] == (0, 1, "acked")
    assert (lane.next_answer(), lane.run().warnings) == (5, [])


def test_a_new_leader_of_the_ack_topic_with_the_whole_log_is_no_loss() -> None:
    lane = AnsweredLane(WAITS)
    lane.answer_with("of another", "ack")
    lane.run()
    lane.log(ACKS).elect()
    lane.answer(0)
    assert lane.run().warnings == []
    assert (lane.floor(), lane.answered()) == (1, {"acked": 1})


def test_a_position_of_an_earlier_version_has_no_leader_epochs() -> None:
    stored = AckPosition("acks", "id", {0: 3}, {0: 2}).as_json()
    assert AckPosition.of_json(stored).leader_epochs == {0: 2}
    del stored["leader_epochs"]
    assert AckPosition.of_json(stored) == AckPosition("acks", "id", {0: 3})


def test_answers_that_retention_takes_before_they_are_read_are_named_with_their_range() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.answer(0, times=3)
    lane.at(11).strike("fetch", lambda: lane.log(ACKS).expire(2))
    ran = lane.run()
    assert ran.warnings == ["answers [0, 2) of the ack topic acks[0] are lost: retention took them"]
    assert (lane.floor(), lane.answered()) == (1, {"acked": 1})


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
    assert lane.at(12).run().warnings == []
    assert (lane.floor(), lane.answered()) == (2, {"acked": 2})


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
