"""The account of a backfill counts each chosen offset once, and two lanes are compared offset by offset."""

from collections import Counter
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.account import (
    ChangedRun,
    Chosen,
    Result,
    ResultRuns,
    account_of,
    chosen_of,
    compare,
    newest_results,
)
from ackline.ledger.fold import PartitionState, Pending, PendingKind
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange
from tests.ledger.strategies import NOON

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def pending(start: int, end: int, attempts: int, kind: PendingKind = PendingKind.RETRY) -> ValuedRange[Pending]:
    due = NOON + timedelta(minutes=attempts) if kind is PendingKind.RETRY else None
    return ValuedRange(start, end, Pending(kind, attempts, due, "E"))


def test_a_lane_that_has_just_begun_has_read_nothing() -> None:
    ranges = Chosen((OffsetRange(2, 5), OffsetRange(9, 10)))
    single = chosen_of((), PartitionState(8, (pending(1, 3, 0), pending(7, 8, 0))))
    states = {A: PartitionState(2), B: PartitionState(8, (pending(1, 3, 0), pending(7, 8, 0)))}
    account = account_of({A: ranges, B: single}, states, {}, 0)
    assert account.asked == {A: (OffsetRange(2, 5), OffsetRange(9, 10)), B: (OffsetRange(1, 3), OffsetRange(7, 8))}
    assert (account.offsets, account.balanced, account.settled) == (7, True, False)
    assert account.pending == {"retry": 0, "dead_letter": 0, "in_flight": 0, "held_back": 0, "unread": 7}


def test_what_was_read_is_settled_a_gap_or_pending_by_kind() -> None:
    chosen = Chosen((OffsetRange(0, 6), OffsetRange(10, 12)))
    state = PartitionState(6, (pending(1, 2, 2), pending(3, 4, 1, PendingKind.DEAD_LETTER)))
    account = account_of({A: chosen}, {A: state}, {"acked": 2, "failed": 9, "dead": 1}, 1)
    assert account.outcomes == {"acked": 2, "dead": 1}
    assert account.pending == {"retry": 1, "dead_letter": 1, "in_flight": 0, "held_back": 0, "unread": 2}
    assert (account.balanced, account.next_due) == (True, NOON + timedelta(minutes=2))


def test_an_account_that_misses_an_offset_does_not_balance() -> None:
    done = PartitionState(6)
    assert account_of({A: Chosen((OffsetRange(0, 6),))}, {A: done}, {"acked": 6}, 0).settled
    assert not account_of({A: Chosen((OffsetRange(0, 6),))}, {A: done}, {"acked": 5}, 0).balanced


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
    assert (diff.same, diff.only, list(listed)) == (1, (9_999_998, 0), [ChangedRun(TP, 5, 6, SKIPPED, ACKED)])
