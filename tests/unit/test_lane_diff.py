"""The comparison of two lanes, against dictionaries of offsets."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.account import ChangedRun, Result, ResultRuns, compare, newest_results
from ackline.ledger.offsets import TopicPartition

TP = TopicPartition("orders", 0)
ACKED, DEAD, SKIPPED = Result("acked", None), Result("dead", "ValueError"), Result("skipped", "Skip")
RESULTS = st.dictionaries(st.integers(0, 20), st.sampled_from([ACKED, DEAD, SKIPPED]), max_size=12)


def runs_of(results: dict[int, Result]) -> ResultRuns:
    return ResultRuns.of((offset, offset + 1, result) for offset, result in results.items())


def results_of(runs: ResultRuns) -> dict[int, Result]:
    found = {}
    for start, end, code in zip(runs.starts.tolist(), runs.ends.tolist(), runs.codes.tolist(), strict=True):
        found.update(dict.fromkeys(range(start, end), runs.results[code]))
    return found


@given(st.lists(RESULTS, max_size=4))
def test_the_newest_epoch_with_a_result_decides(epochs: list[dict[int, Result]]) -> None:
    expected: dict[int, Result] = {}
    for results in reversed(epochs):
        expected |= results
    assert results_of(newest_results(map(runs_of, epochs))) == expected


@given(RESULTS, RESULTS)
def test_each_offset_is_the_same_changed_or_in_one_lane_only(
    before: dict[int, Result], after: dict[int, Result]
) -> None:
    diff, listed = compare({TP: runs_of(before)}, {TP: runs_of(after)})
    both = before.keys() & after.keys()
    assert diff.same == sum(before[offset] == after[offset] for offset in both)
    assert diff.changed == Counter((before[o], after[o]) for o in both if before[o] != after[o])
    assert diff.only == (len(before.keys() - after.keys()), len(after.keys() - before.keys()))
    spread = {offset for run in listed for offset in range(run.start, run.end)}
    assert spread == {offset for offset in both if before[offset] != after[offset]}


def test_a_range_row_is_compared_with_single_rows_of_the_other_lane() -> None:
    skipped = ResultRuns.of([(0, 10_000_000, SKIPPED)])
    diff, listed = compare({TP: skipped}, {TP: ResultRuns.of([(5, 6, ACKED), (7, 8, SKIPPED)])})
    assert (diff.same, diff.only) == (1, (9_999_998, 0))
    assert list(listed) == [ChangedRun(TP, 5, 6, SKIPPED, ACKED)]
