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
