"""What the log does while a turn is open: between its plan and its replay, or before its commit (faults 17-21).

tests/e2e/test_log.py has the same between one run and the next. What each leaves behind the checker judges.
"""

from typing import Any

import pytest
from confluent_kafka import Consumer

from ackline.errors import GroupBusy, TopicChanged
from ackline.local.processes import wait_until
from ackline.steps import replay
from tests.contract.kafka_log import COMPACTED, compact
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of, encoded, fails

MINUTE = {"initial_delay": "1m", "period": "1m", "multiplier": 1}


def test_fault_17_retention_passes_retries_that_are_planned_already(lab: MakeLab) -> None:
    """The first is expired, the second handled, and what is fresh is not touched by it."""
    one = lab()
    one.records(6, fails([1, 3], 1))
    one.run()
    one.records(2)
    one.plan()
    one.expire(2)
    one.run()
    assert [row for row in one.rows() if row.offset in (1, 3)] == [
        Row(1, 0, "expired"),
        Row(1, 1, "failed"),
        Row(3, 1, "failed"),
        Row(3, 2, "acked"),
    ]
    assert one.settled().counts["expired"] == 1
    assert one.committed() == 8
    assert {row["turn"] for row in one.table("plans")} == {1, 2}
    one.judge(settled=True)


def test_fault_18_compaction_and_markers_are_gaps_of_the_planned_range_alone(lab: MakeLab) -> None:
    """Between plan and replay the cleaner takes a retry, a fresh record, and more is written above the plan's end."""
    one = lab(topic_config=COMPACTED, retry=MINUTE)
    written = [wire.Write(b'{"fail": 1}', b"a"), wire.Write(b'{"fail": 1}', b"b")]
    wire.produce(one.broker.bootstrap, one.topic, written)
    one.run()
    fresh = [wire.Write(b"{}", b"c"), wire.Write(b"{}", b"d")]
    wire.produce(one.broker.bootstrap, one.topic, fresh)  # 2, 3
    wire.aborted(one.broker.bootstrap, one.topic, [wire.Write(b"{}", b"e")])  # 4, and its marker 5
    one.wait(60)
    end = one.plan().partitions.popitem()[1].fresh.end  # type: ignore[attr-defined]
    wire.produce(one.broker.bootstrap, one.topic, [wire.Write(b"{}", b"a"), wire.Write(b"{}", b"c")])
    compact(one.broker, one.topic, [0, 2])
    one.replay()
    one.settle()
    assert one.rows() == sorted(
        [Row(0, 0, "compacted"), *all_of("failed", [0, 1]), Row(1, 2, "acked"), Row(3, 1, "acked")]
    )
    settled = one.settled()
    assert (end, settled.state.complete_to, settled.state.floor, settled.gaps) == (6, 6, 6, 3)
    assert one.committed() == 6
    one.judge()


def test_fault_19_a_transaction_that_is_aborted_under_an_open_plan_is_never_handled(lab: MakeLab) -> None:
    """I14: neither while it is open, nor once its records are history; the same for a retry that lies below it."""
    one = lab()
    one.records(2, fails([1], 1))
    one.run()
    opened = wire.transaction(one.broker.bootstrap, one.topic, map(encoded, [{"n": 2}, {"n": 3}]))
    one.records(1)  # 4 waits behind it
    plan = one.plan()
    assert [planned.fresh.end for planned in plan.partitions.values()] == [2]
    opened.abort_transaction(30)
    wire.stable(one.broker.bootstrap, one.topic)
    one.run()
    assert one.handled() == [(0, 1), (1, 1), (1, 2)]
    one.judge()
    one.run()
    assert one.handled() == [(4, 1)]
    assert one.committed() == 6
    one.judge(settled=True)


def test_fault_20_partitions_that_are_added_under_an_open_plan_are_read_by_the_next(lab: MakeLab) -> None:
    one = lab(start="latest")
    one.run()
    one.records(2)
    one.plan()
    wire.add_partitions(one.broker.bootstrap, one.topic, 2)
    one.records(3, partition=1)
    one.run()
    assert [(call.partition, call.offset) for call in one.calls()] == [(0, 0), (0, 1)]
    one.run()
    assert one.offsets(1) == [0, 1, 2]
    assert [one.committed(partition) for partition in (0, 1)] == [2, 3]
    one.judge(settled=True)


def test_fault_20_a_topic_created_again_while_it_is_read_proves_nothing(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one is as long as the old one, so that only its id tells: no outcome is stored, nothing committed."""
    one = lab()
    one.records(3)
    real = replay._run_spark_job

    def replaced(*given: Any) -> Any:
        result = real(*given)
        wire.delete_topic(one.broker.bootstrap, one.topic)
        one.broker.create_topic(one.topic)
        one.records(3)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(replay, "_run_spark_job", replaced)
        with pytest.raises(TopicChanged, match="created again"):
            one.run()
    assert (one.rows(), one.table("outcomes"), one.committed()) == ([], [], None)
    with pytest.raises(TopicChanged, match="ackline reset"):
        one.run()
    one.judged = True  # the log that the checker would need is gone


def test_fault_21_a_member_that_joins_before_the_commit_is_named_and_the_audit_is_whole(lab: MakeLab) -> None:
    """S37. Refused, said; the settlement stands, and whoever runs next commits it, once the member has left."""
    one = lab()
    one.records(3, fails([1], 1))
    one.plan()
    one.replay()
    member = Consumer({"bootstrap.servers": one.broker.bootstrap, "group.id": one.group, "client.id": "intruder"})
    with wire.closing(member):
        member.subscribe([one.topic])
        assert wait_until(lambda: member.poll(0.1) is None and bool(member.assignment()), 30)
        with pytest.raises(GroupBusy, match="intruder"):
            one.settle()
        assert one.committed() is None
        assert one.rows() == [Row(0, 1, "acked"), Row(1, 1, "failed"), Row(2, 1, "acked")]
        one.judge()
    one.run()
    assert one.committed() == 3
    one.judge(settled=True)
