"""The floor: what is committed is the lowest offset that is not settled (S1–S8), whatever the log holds."""

from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, encoded, fails
from tests.kafka.kafka_log import COMPACTED, compact


def test_s1_gaps_inside_a_proved_range_are_settled_and_a_failure_holds_the_floor(lab: MakeLab) -> None:
    """Storm, which must guess at gaps, commits 3 here; a proved range goes up to the failure."""
    lane = lab()
    lane.produce_records(3)
    wire.produce_aborted(lane.broker.bootstrap, lane.topic, [encoded({"n": 3})])  # 3, and its marker 4
    lane.produce_records(2, fails([0], 1))
    lane.run()
    assert lane.new_offsets() == [0, 1, 2, 5, 6]
    assert (lane.committed(), lane.settled().gaps) == (5, 2)
    lane.run()
    assert lane.new_calls() == [(5, 2)]
    assert lane.committed() == 7
    lane.judge(settled=True)


def test_s2_s4_the_floor_of_a_log_that_starts_at_5_waits_for_the_lowest(lab: MakeLab) -> None:
    """Of 5 and 6 the first fails: the floor is 5, then 7. Then 7 alone is acked of 7 to 9: it is 8, then 10."""
    lane = lab()
    lane.produce_records(7, fails([5], 1))
    lane.expire(5)
    lane.run()
    assert (lane.new_offsets(), lane.committed()) == ([5, 6], 5)
    lane.produce_records(3, fails([1, 2], 1))
    lane.run()
    assert (lane.new_calls(), lane.committed()) == ([(5, 2), (7, 1), (8, 1), (9, 1)], 8)
    lane.run()
    assert (lane.new_calls(), lane.committed()) == ([(8, 2), (9, 2)], 10)
    lane.judge(settled=True)


def test_s6_a_range_that_ends_in_aborted_records_or_holds_nothing_else_is_settled_to_its_end(lab: MakeLab) -> None:
    lane = lab()
    lane.produce_records(2)
    wire.produce_aborted(lane.broker.bootstrap, lane.topic, map(encoded, [{}, {}, {}]))
    lane.run()
    assert (lane.new_offsets(), lane.committed()) == ([0, 1], 6)
    wire.produce_aborted(lane.broker.bootstrap, lane.topic, map(encoded, [{}, {}]))
    assert (lane.run().calls, lane.committed()) == (0, 9)
    lane.judge(settled=True)


def test_s40_compaction_of_pending_offsets_lets_the_floor_pass_although_no_record_is_left_after_them(
    lab: MakeLab,
) -> None:
    """Only the end of the partition can prove that the offsets are gone."""
    lane = lab(topic_config=COMPACTED, retry={"initial_delay": "1m", "period": "1m"})
    bootstrap, topic = lane.broker.bootstrap, lane.topic
    wire.produce(bootstrap, topic, [wire.Write(b'{"fail": -1}', key) for key in (b"k", b"a")])
    lane.run()
    assert lane.pending() == [0, 1]
    wire.produce_aborted(bootstrap, topic, [wire.Write(b"{}", b"a")])
    lane.produce(None)
    wire.produce(bootstrap, topic, [wire.Write(b"{}", key) for key in (b"a", b"k")])
    compact(lane.broker, topic, range(4), lambda: wire.produce(bootstrap, topic, [wire.Write(b"{}", b"roll")]))
    lane.advance_clock(60)
    lane.run()
    assert [row for row in lane.rows() if row.offset < 2 and row.attempt != 1] == [
        Row(0, 0, "compacted"),
        Row(1, 0, "compacted"),
    ]
    assert lane.settled().state.floor == lane.settled().state.complete_to


def test_s40_compaction_in_one_of_two_partitions_leaves_the_other_untouched(lab: MakeLab) -> None:
    """Both fail at the same offsets. Gaps are counted where a range was read that held no record, and nowhere else."""
    lane = lab(partitions=2, topic_config=COMPACTED, retry={"initial_delay": "1m", "period": "1m"})
    bootstrap, topic = lane.broker.bootstrap, lane.topic
    written = [wire.Write(b'{"fail": 1}', b"a"), wire.Write(b"{}", b"b"), wire.Write(b'{"fail": 1}', b"c")]
    for partition in (0, 1):
        wire.produce(bootstrap, topic, written, partition)
    lane.run()
    assert [lane.pending(partition) for partition in (0, 1)] == [[0, 2], [0, 2]]
    assert [lane.settled(partition).gaps for partition in (0, 1)] == [0, 0]
    later = [wire.Write(b"{}", b"d"), wire.Write(b"{}", b"d"), wire.Write(b"{}", b"a")]
    wire.produce(bootstrap, topic, later)  # 3, 4 and 5; 0 and 3 go
    compact(lane.broker, topic, [0, 3], lambda: wire.produce(bootstrap, topic, [wire.Write(b"{}", b"roll")]))
    assert [record.offset for record in wire.read(bootstrap, topic, 1)] == [0, 1, 2]
    left = [record.offset for record in wire.read(bootstrap, topic)]
    end = wire.log_end(bootstrap, topic)
    lane.advance_clock(60)
    lane.run()
    assert [row for row in lane.rows() if row.offset in (0, 2)] == [
        Row(0, 0, "compacted"),
        Row(0, 1, "failed"),
        Row(2, 1, "failed"),
        Row(2, 2, "acked"),
    ]
    assert [row for row in lane.rows(1) if row.attempt != 1] == [Row(0, 2, "acked"), Row(2, 2, "acked")]
    handled = [row.offset for row in lane.rows() if row.offset >= 3]
    assert {4, 5} <= set(handled) <= set(left)
    assert (lane.settled().gaps, lane.settled(1).gaps) == (end - 3 - len(handled), 0)
    assert [lane.committed(partition) for partition in (0, 1)] == [end, 3]
