"""The floor, end to end: what is committed is the lowest offset that is not settled (S1–S8), whatever the log holds."""

from collections.abc import Mapping

import pytest

from ackline.errors import NoProof
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, Value, all_of, encoded, fails

FAILS_ONCE = {"fail": 1}
ALWAYS = {"fail": -1}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "100",
}


def test_s1_gaps_inside_a_proved_range_are_settled_and_a_failure_holds_the_floor(lab: MakeLab) -> None:
    """Storm, which must guess at gaps, commits 3 here; a proved range goes up to the failure."""
    one = lab()
    one.records(3)
    wire.aborted(one.broker.bootstrap, one.topic, [encoded({"n": 3})])  # 3, and its marker 4
    one.records(2, {0: FAILS_ONCE})
    one.run()
    assert one.offsets() == [0, 1, 2, 5, 6]
    assert one.committed() == 5
    assert one.settled().gaps == 2
    one.run()
    assert one.handled() == [(5, 2)]
    assert one.committed() == 7
    one.judge(settled=True)


def test_s2_s4_the_floor_of_a_log_that_starts_at_5_waits_for_the_lowest(lab: MakeLab) -> None:
    """Of 5 and 6 the first fails: the floor is 5, then 7. Then 7 alone is acked of 7 to 9: it is 8, then 10."""
    one = lab()
    one.records(7, {5: FAILS_ONCE})
    one.expire(5)
    one.run()
    assert (one.offsets(), one.committed()) == ([5, 6], 5)
    one.records(3, fails([1, 2], 1))
    one.run()
    assert (one.handled(), one.committed()) == ([(5, 2), (7, 1), (8, 1), (9, 1)], 8)
    one.run()
    assert (one.handled(), one.committed()) == ([(8, 2), (9, 2)], 10)
    one.judge(settled=True)


def test_s6_a_range_that_ends_in_aborted_records_and_markers_is_settled_to_its_end(lab: MakeLab) -> None:
    one = lab()
    one.records(2)
    wire.aborted(one.broker.bootstrap, one.topic, map(encoded, [{}, {}, {}]))
    one.run()
    assert one.offsets() == [0, 1]
    assert one.committed() == 6
    one.judge(settled=True)


def test_s6_a_range_of_nothing_but_an_aborted_transaction_is_settled(lab: MakeLab) -> None:
    one = lab()
    wire.aborted(one.broker.bootstrap, one.topic, map(encoded, [{}, {}]))
    ran = one.run()
    assert (ran.calls, one.committed()) == (0, 3)
    one.judge(settled=True)


def test_s3_where_nothing_is_acked_the_floor_stays(lab: MakeLab) -> None:
    one = lab(retry={"period": "1m", "initial_delay": "1m"})
    one.records(5, fails(range(5), -1))
    one.run()
    assert one.committed() == 0
    assert one.pending() == [0, 1, 2, 3, 4]
    assert one.rows() == all_of("failed", range(5))


def test_s8_a_replay_marked_successful_by_hand_proves_nothing(lab: MakeLab) -> None:
    one = lab()
    one.records(5)
    plan = one.plan()
    with pytest.raises(NoProof, match="no stored outcomes"):
        one.settle()
    assert one.committed() is None
    assert one.settlement().turn.n == plan.turn.n - 1
    one.run()  # adopts the open plan, whoever stored it
    assert one.offsets() == [0, 1, 2, 3, 4]
    assert {row["turn"] for row in one.table("plans")} == {plan.turn.n}
    assert one.committed() == 5
    one.judge(settled=True)


def test_s7_a_late_replay_of_an_older_turn_adds_no_row_that_counts(lab: MakeLab) -> None:
    """It holds plan 1 and its outcomes while others go on to turn 3; then it stores and settles what it has."""
    one = lab()
    one.records(4, {1: FAILS_ONCE})
    _sleeps_through(one)
    assert one.rows() == [Row(0, 1, "acked"), Row(1, 1, "failed"), Row(1, 2, "acked"), *all_of("acked", (2, 3, 4))]
    assert one.committed() == 5


def _sleeps_through(one: Lab) -> None:
    from ackline.steps import commit, replay, settle

    plan = one.plan()
    with one.parts("late") as late:
        before = late.store.newest()
        result = replay._run_spark_job(late, plan, one.spark, None)
        one.run()
        one.run()
        one.records(1)
        one.run()
        assert not late.store.store_outcomes(plan.turn, replay.add_actions(plan, result))
        settle.settle_turn(late, plan, before)
        commit.commit_newest(late)


def test_s40_compaction_of_a_pending_offset_lets_the_floor_pass(lab: MakeLab) -> None:
    one = lab(topic_config=COMPACTED, retry={"initial_delay": "1m", "period": "1m"})
    _keyed(one, {b"a": ALWAYS, b"b": FAILS_ONCE, b"c": {}})
    one.run()
    assert (one.committed(), one.pending()) == (0, [0, 1])
    _keyed(one, {b"a": {}})
    _compact(one, keeps=1)
    one.wait(60)
    one.run()
    assert Row(0, 0, "compacted") in one.rows()
    assert Row(1, 2, "acked") in one.rows()
    assert one.settled().state.floor == one.settled().state.complete_to


def test_s40_the_same_when_nothing_at_all_is_left_after_it(lab: MakeLab) -> None:
    """Only the end of the partition can prove that the offset is gone: no later record comes."""
    one = lab(topic_config=COMPACTED, retry={"initial_delay": "1m", "period": "1m"})
    _keyed(one, {b"k": ALWAYS, b"a": ALWAYS})
    one.run()
    assert one.pending() == [0, 1]
    wire.aborted(one.broker.bootstrap, one.topic, [wire.Write(b"{}", b"a")])
    one.produce(None)
    _keyed(one, {b"a": {}, b"k": {}})
    _compact(one, keeps=4)
    one.wait(60)
    one.run()
    assert [row for row in one.rows() if row.offset < 2 and row.attempt != 1] == [
        Row(0, 0, "compacted"),
        Row(1, 0, "compacted"),
    ]


def _keyed(one: Lab, values: Mapping[bytes, Value]) -> None:
    records = [wire.Write(encoded(value).value, key) for key, value in values.items()]
    wire.produce(one.broker.bootstrap, one.topic, records)


def _compact(one: Lab, keeps: int) -> None:
    """Roll the segment with a record of no interest, and wait until the cleaner has passed `keeps`' older ones."""
    from ackline.local.processes import wait_until

    def cleaned() -> bool:
        _keyed(one, {b"roll": {}})
        return min(read.offset for read in wire.read(one.broker.bootstrap, one.topic)) >= keeps

    assert wait_until(cleaned, 60)
