"""Release (S89): a pending offset whose copy is stored holds no floor, and comes back to hold it never."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.copies import NO_COPIES, Copies, CopyLog, CopyRun
from ackline.ledger.fold import PartitionState, Pending, PendingKind, fold
from ackline.ledger.offsets import OffsetRange, OffsetRuns, ValuedRange, ranges_of, spread
from ackline.ledger.outcomes import Outcome, OutcomeRow
from tests.ledger.strategies import NOON

LOG = CopyLog("rescue", "id-1", 0)
POLICY = RetryPolicy(period=timedelta(hours=1), max_retries=100)
FEW_OR_MANY = st.sampled_from([1, 40])
"""How many offsets a drawn one stands for: the fold of few rows and the fold by columns."""
TURN = st.tuples(st.sets(st.integers(0, 8)), st.sets(st.integers(0, 8)), st.sets(st.integers(0, 60)), st.booleans())


def offsets_of(ranges: OffsetRuns) -> set[int]:
    return set(spread(ranges.ranges)[0].tolist())


def copies_of(offsets: set[int]) -> Copies:
    return Copies.of(CopyRun(offset, offset + 1, LOG, offset) for offset in offsets)


@given(st.lists(TURN, max_size=8), FEW_OR_MANY)
def test_s89_the_floor_is_the_lowest_offset_that_is_not_settled_and_not_released_and_it_never_falls(
    turns: list[tuple[set[int], set[int], set[int], bool]], width: int
) -> None:
    """Against sets of offsets: in each turn 9 units are new, of which some fail and some hold no record, some of what
    is pending is retried, some has a copy from then on, and the turn may release what has one."""
    state, pending, copied, released, records = PartitionState(0), dict[int, int](), set[int](), set[int](), set[int]()
    for failing, gaps, chosen, releases in turns:
        start, floor, unit = state.complete_to, state.floor, range(width)
        fresh = OffsetRange(start, start + 9 * width)
        failed = {start + part * width + offset for part in failing - gaps for offset in unit}
        missing = {start + part * width + offset for part in gaps for offset in unit}
        retried = {offset for offset in pending if offset % 61 in chosen}
        acked = {offset for offset in retried if offset % 2}
        rows = [OutcomeRow(o, 1, Outcome.FAILED, NOON, "E") for o in failed]
        rows += [
            OutcomeRow(o, pending[o] + 1, Outcome.ACKED if o in acked else Outcome.FAILED, NOON, "E") for o in retried
        ]
        retries = [ValuedRange(o, o + 1, pending[o] + 1) for o in sorted(retried)]
        state = fold(state, fresh, retries, rows, POLICY, gaps=len(missing))
        records |= set(range(fresh.start, fresh.end)) - missing
        pending = {o: made + (o in retried) for o, made in pending.items() if o not in acked} | dict.fromkeys(failed, 1)
        copied = (copied | {o for o in pending if o // width % 61 in chosen}) & pending.keys()
        released &= pending.keys()
        if releases:
            released |= copied
        copies = copies_of(copied)
        state = state.with_copies(copies, copies.ranges if releases else None)
        assert offsets_of(state.released) == released
        assert set(spread(state.pending.ranges)[0].tolist()) == pending.keys(), "what is released stays pending"
        assert state.floor == min(pending.keys() - released, default=state.complete_to)
        assert state.floor >= floor
        held = set(spread(state.holding.ranges)[0].tolist())
        assert held == pending.keys() - released
        above = len([offset for offset in records if offset >= state.floor])
        assert state.uncommitted >= above, "the window never takes a record for a gap (I8)"


def test_s89_a_released_offset_holds_no_floor_after_its_copy_is_lost() -> None:
    waits = Pending(PendingKind.RETRY, 1, NOON, "E")
    before = PartitionState(9, [ValuedRange(2, 4, waits), ValuedRange(6, 7, waits)])
    copied = copies_of({2, 3})
    after = before.with_copies(copied, copied.ranges)
    assert (before.floor, after.floor, after.first_without_copy) == (2, 6, 6)
    lost = after.with_copies(NO_COPIES)
    assert (lost.floor, lost.first_without_copy, ranges_of(lost.released.ranges)) == (6, 2, (OffsetRange(2, 4),))
    assert lost != lost.with_copies(NO_COPIES, copies_of({6}).ranges)
