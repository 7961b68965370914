"""The log changes while a turn is open: between its plan and its replay, or before its commit (faults 17-21).

In tests/e2e/test_log.py it changes between two runs.
"""

from contextlib import closing
from datetime import timedelta

import pytest
from confluent_kafka import Consumer

from ackline.errors import GroupBusy, TopicChanged
from ackline.local.processes import wait_until
from ackline.spark import job
from tests.chaos.victims import beside_next_call
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of, encoded, fails
from tests.kafka.kafka_log import COMPACTED, compact

MINUTE = {"initial_delay": "1m", "period": "1m", "multiplier": 1}


def test_fault_17_retention_by_time_removes_segments_of_planned_retries_and_of_unread_records(lab: MakeLab) -> None:
    """The broker's own retention: `retention.ms` removes the segment of an hour ago from each of two partitions. In the
    first the plan of a run holds retries in it. In the second nothing was read yet."""
    lane = lab(partitions=2, topic_config={"retention.ms": "-1", "segment.ms": "60000"}, retry=MINUTE)
    bootstrap, topic = lane.broker.bootstrap, lane.topic
    hour_ago = int((lane.now - timedelta(hours=1)).timestamp() * 1000)
    old = [wire.Write(b'{"fail": 1}' if offset in (1, 2, 4) else b"{}", timestamp=hour_ago) for offset in range(5)]
    wire.produce(bootstrap, topic, old)  # 0 to 4
    lane.produce_records(3, fails([2], 1))  # 5 to 7, in the next segment
    lane.run()
    assert (lane.pending(), lane.committed()) == ([1, 2, 4, 7], 1)
    lane.advance_clock(60)
    lane.plan()
    wire.produce(bootstrap, topic, old[:1] * 6, partition=1)  # 0 to 5
    lane.produce_records(1, partition=1)
    wire.set_topic_config(bootstrap, topic, retention_ms=str(30 * 60 * 1000))
    assert wait_until(lambda: [wire.log_start(bootstrap, topic, tp) for tp in (0, 1)] == [5, 6], 200)

    lane.run()
    assert [row for row in lane.rows() if row.offset in (1, 2, 4, 7) and row.attempt != 1] == [
        *(Row(offset, 0, "expired") for offset in (1, 2, 4)),
        Row(7, 2, "acked"),
    ]
    assert (lane.settled().counts, lane.settled(1).counts, lane.committed()) == ({"expired": 3, "acked": 1}, {}, 8)
    lane.run()
    assert lane.rows(1) == [Row(0, 0, "expired", 6), Row(6, 1, "acked")]
    metrics = lane.settled(1).metrics or {}
    assert (lane.settled(1).counts, metrics["expired_in_ranges"]) == ({"expired": 6, "acked": 1}, 6)
    assert [lane.committed(partition) for partition in (0, 1)] == [8, 7]
    lane.judge(settled=True)


def test_fault_18_compaction_and_markers_are_gaps_of_the_planned_range_alone(lab: MakeLab) -> None:
    """Between plan and replay compaction removes a retry and a fresh record, and records come above the plan's end."""
    lane = lab(topic_config=COMPACTED, retry=MINUTE)
    written = [wire.Write(b'{"fail": 1}', b"a"), wire.Write(b'{"fail": 1}', b"b")]
    wire.produce(lane.broker.bootstrap, lane.topic, written)
    lane.run()
    fresh = [wire.Write(b"{}", b"c"), wire.Write(b"{}", b"d")]
    wire.produce(lane.broker.bootstrap, lane.topic, fresh)  # 2, 3
    wire.produce_aborted(lane.broker.bootstrap, lane.topic, [wire.Write(b"{}", b"e")])  # 4, and its marker 5
    lane.advance_clock(60)
    end = lane.plan().partitions.popitem()[1].fresh.end  # type: ignore[attr-defined]
    wire.produce(lane.broker.bootstrap, lane.topic, [wire.Write(b"{}", b"a"), wire.Write(b"{}", b"c")])
    compact(lane.broker, lane.topic, [0, 2])
    lane.replay()
    lane.settle()
    assert lane.rows() == sorted(
        [Row(0, 0, "compacted"), *all_of("failed", [0, 1]), Row(1, 2, "acked"), Row(3, 1, "acked")]
    )
    settled = lane.settled()
    assert (end, settled.state.complete_to, settled.state.floor, settled.gaps) == (6, 6, 6, 3)
    assert lane.committed() == 6
    lane.judge()


def test_fault_19_a_transaction_that_is_aborted_under_an_open_plan_is_never_handled(lab: MakeLab) -> None:
    """I14: neither while it is open, nor after it was aborted. A retry below it is handled."""
    lane = lab()
    lane.produce_records(2, fails([1], 1))
    lane.run()
    opened = wire.open_transaction(lane.broker.bootstrap, lane.topic, map(encoded, [{"n": 2}, {"n": 3}]))
    lane.produce_records(1)  # 4 waits behind it
    plan = lane.plan()
    assert [planned.fresh.end for planned in plan.partitions.values()] == [2]
    opened.abort_transaction(30)
    wire.wait_until_stable(lane.broker.bootstrap, lane.topic)
    lane.run()
    assert lane.new_calls() == [(0, 1), (1, 1), (1, 2)]
    lane.judge()
    lane.run()
    assert (lane.new_calls(), lane.committed()) == ([(4, 1)], 6)
    lane.judge(settled=True)


def test_fault_20_partitions_that_are_added_under_an_open_plan_are_read_by_the_next(lab: MakeLab) -> None:
    lane = lab(start="latest")
    lane.run()
    lane.produce_records(2)
    lane.plan()
    wire.add_partitions(lane.broker.bootstrap, lane.topic, 2)
    lane.produce_records(3, partition=1)
    lane.run()
    assert [(call.partition, call.offset) for call in lane.calls()] == [(0, 0), (0, 1)]
    lane.run()
    assert (lane.new_offsets(1), [lane.committed(partition) for partition in (0, 1)]) == ([0, 1, 2], [2, 3])
    lane.judge(settled=True)


def test_fault_20_a_topic_created_again_while_it_is_read_proves_nothing(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new log is as long as the old one; only the topic id differs. Nothing is stored or committed."""
    lane = lab()
    lane.produce_records(3)

    def create_again() -> None:
        wire.delete_topic(lane.broker.bootstrap, lane.topic)
        lane.broker.create_topic(lane.topic)
        lane.produce_records(3)

    beside_next_call(monkeypatch, job, "run_replay", after=create_again)
    with pytest.raises(TopicChanged, match="created again"):
        lane.run()
    assert (lane.rows(), lane.table("outcomes"), lane.committed()) == ([], [], None)
    with pytest.raises(TopicChanged, match="ackline reset"):
        lane.run()
    lane.judged = True  # the checker would need the deleted log


def test_fault_21_a_member_that_joins_before_the_commit_is_named_and_the_audit_is_whole(lab: MakeLab) -> None:
    """S37: the commit is refused, and the settlement stays. The next run commits it when the member has left."""
    lane = lab()
    lane.produce_records(3, fails([1], 1))
    lane.plan()
    lane.replay()
    member = Consumer({"bootstrap.servers": lane.broker.bootstrap, "group.id": lane.group, "client.id": "intruder"})
    with closing(member):
        member.subscribe([lane.topic])
        assert wait_until(lambda: member.poll(0.1) is None and bool(member.assignment()), 30)
        with pytest.raises(GroupBusy, match="intruder"):
            lane.settle()
        assert lane.committed() is None
        assert lane.rows() == [Row(0, 1, "acked"), Row(1, 1, "failed"), Row(2, 1, "acked")]
        lane.judge()
    lane.run()
    assert lane.committed() == 3
    lane.judge(settled=True)
