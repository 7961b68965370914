"""The places of the copies of rescued records: an algebra of runs that agrees with one place for each offset (S88)."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.errors import LedgerError
from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.copies import NO_COPIES, Copies, CopyLog, CopyPlace, CopyRun
from ackline.ledger.fold import PartitionState, Pending, PendingKind, fold
from ackline.ledger.offsets import OffsetRange, ValuedRange, arrays_of, ranges_of
from ackline.ledger.outcomes import Outcome, OutcomeRow
from tests.tables.lane_rows import NOON

LOGS = [CopyLog("rescue", "id-1", 0), CopyLog("rescue", "id-1", 1), CopyLog("rescue", "id-2", 0)]
Places = dict[int, CopyPlace]


def copies_of(places: Places) -> Copies:
    return Copies.of([CopyRun(offset, offset + 1, log, at) for offset, (log, at) in places.items()])


def places_of(copies: Copies) -> Places:
    return {
        offset: CopyPlace(run.log, run.first + offset - run.start)
        for run in copies
        for offset in range(run.start, run.end)
    }


PLACES = st.dictionaries(st.integers(0, 30), st.builds(CopyPlace, st.sampled_from(LOGS), st.integers(0, 40)))
RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=4)


@given(PLACES, PLACES, st.integers(0, 31), st.integers(0, 31), st.integers(0, 40), st.integers(0, 40))
def test_the_algebra_of_runs_is_that_of_single_places(
    places: Places, more: Places, start: int, end: int, first: int, last: int
) -> None:
    copies, part = copies_of(places), arrays_of([OffsetRange(start, max(start, end))] if start < end else [])
    assert places_of(copies) == places
    assert copies.offsets == len(places)
    assert places_of(copies.within(part)) == {o: at for o, at in places.items() if start <= o < end}
    assert places_of(copies.minus(part)) == {o: at for o, at in places.items() if not start <= o < end}
    others = {o: at for o, at in more.items() if o not in places}
    assert places_of(copies.plus(copies_of(others))) == places | others
    assert all(copies.place_of(offset) == places.get(offset) for offset in range(32))
    for log, of_log in copies.by_log().items():
        expected = {o: at for o, at in places.items() if at.log == log}
        assert places_of(of_log) == expected
        outside = ranges_of(of_log.outside(first, last))
        gone = {o for o, at in expected.items() if not first <= at.offset < max(first, last)}
        assert {offset for part in outside for offset in range(part.start, part.end)} == gone


def test_neighbours_with_neighbouring_copies_are_one_run_and_no_offset_has_two() -> None:
    log, other, _ = LOGS
    copies = copies_of({3: CopyPlace(log, 7), 4: CopyPlace(log, 8), 5: CopyPlace(other, 9), 6: CopyPlace(other, 11)})
    assert list(copies) == [CopyRun(3, 5, log, 7), CopyRun(5, 6, other, 9), CopyRun(6, 7, other, 11)]
    assert str(copies.place_of(4)) == "rescue[0]@8"
    with pytest.raises(ValueError, match="two copies of offset 4"):
        copies.plus(Copies.of([CopyRun(4, 5, log, 0)]))


def state(*offsets: int, **more: Any) -> PartitionState:
    pending = Pending(PendingKind.RETRY, 1, NOON, "Late")
    runs = [ValuedRange(offset, offset + 1, pending) for offset in offsets]
    return PartitionState(10, runs, copies=copies_of({o: CopyPlace(LOGS[0], o) for o in offsets}), **more)


def test_a_state_has_the_copies_of_pending_records_alone_and_a_fold_carries_them_on() -> None:
    before = state(2, 3, 5)
    rows = [
        OutcomeRow(2, 2, Outcome.ACKED, NOON),
        OutcomeRow(3, 2, Outcome.FAILED, NOON, "Late"),
        OutcomeRow(11, 1, Outcome.FAILED, NOON, "Late"),
    ]
    retries = [ValuedRange(2, 4, 2)]
    after = fold(before, OffsetRange(10, 12), retries, rows, RetryPolicy(period=timedelta(hours=1)))
    assert places_of(after.copies) == {3: CopyPlace(LOGS[0], 3), 5: CopyPlace(LOGS[0], 5)}
    assert (after.floor, after.first_without_copy) == (3, 11)
    assert (state(2).first_without_copy, PartitionState(4).copies) == (10, NO_COPIES)


@pytest.mark.parametrize("outcome", [Outcome.EXPIRED, Outcome.COMPACTED])
def test_s88_no_record_that_has_a_copy_is_settled_as_gone(outcome: Outcome) -> None:
    gone = [OutcomeRow(2, 0, outcome, NOON)]
    with pytest.raises(LedgerError, match="offset 2 is settled as gone, and has a copy in the rescue topic"):
        fold(state(2, 3), OffsetRange(10, 10), [ValuedRange(2, 3, 2)], gone, RetryPolicy())
    skipped = [OutcomeRow(2, 0, Outcome.SKIPPED, NOON)]
    assert fold(state(2, 3), OffsetRange(10, 10), (), skipped, RetryPolicy()).copies.offsets == 1
