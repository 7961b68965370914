"""Retries: a run reads what is due and nothing else, and what is exhausted gets a dead letter (S13–S19)."""

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, fails


def test_s13_attempts_one_to_four_then_dead_and_the_commit_passes_it(lab: MakeLab) -> None:
    """Beside it are records that the handler itself declares skipped or dead: they get one attempt."""
    lane = lab(retry={"max_retries": 3, "period": "10s", "multiplier": 2})
    lane.produce_records(5, {1: {"fail": -1}, 2: {"skip": True}, 3: {"dead": True}})
    for _ in range(4):
        lane.run()
        lane.advance_clock(80)
    assert lane.rows() == [
        Row(0, 1, "acked"),
        Row(1, 0, "dead"),
        *(Row(1, attempt, "failed") for attempt in range(1, 5)),
        Row(2, 1, "skipped"),
        Row(3, 0, "dead"),
        Row(3, 1, "failed"),
        Row(4, 1, "acked"),
    ]
    assert lane.committed() == 5
    letters = [letter.ackline_headers for letter in lane.letters()]
    assert [(letter["offset"], letter["error_class"]) for letter in letters] == [("3", "Dead"), ("1", "ValueError")]
    lane.judge(settled=True)


def test_s14_s17_s19_a_run_retries_what_failed_and_partitions_do_not_disturb_one_another(lab: MakeLab) -> None:
    """S14 is partition 0 of the first topic, S17 partition 1 of the second."""
    lane = lab(topics=2, partitions=2)
    first, second = lane.topics
    partitions = [(0, first), (1, first), (0, second), (1, second)]
    lane.produce_records(20, fails([0], 1), topic=first, partition=0)
    lane.produce_records(6, fails([4, 1], 1), topic=first, partition=1)
    lane.produce_records(10, fails([1], 1), topic=second, partition=1)
    lane.run()
    assert [lane.new_offsets(*tp) for tp in partitions] == [[*range(20)], [*range(6)], [], [*range(10)]]
    assert [lane.committed(*tp) for tp in partitions] == [0, 1, 0, 1]
    before = len(lane.calls())
    assert lane.run().calls == 4
    assert [call.offset for call in lane.calls()[before:] if call.partition == 1 and call.topic == first] == [1, 4]
    assert [lane.new_calls(*tp) for tp in partitions] == [[(0, 2)], [(1, 2), (4, 2)], [], [(1, 2)]]
    assert [lane.committed(*tp) for tp in partitions] == [20, 6, 0, 10]
    assert lane.run().calls == 0
    lane.judge(settled=True)
