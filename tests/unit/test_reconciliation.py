"""The account of a backfill: each offset that was asked for is counted once."""

from datetime import timedelta

from ackline.ledger.account import Chosen, account_of, chosen_of
from ackline.ledger.fold import PartitionState, Pending, PendingKind
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange
from tests.unit.strategies import NOON

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
    assert account.pending == {"retry": 0, "dead_letter": 0, "in_flight": 0, "unread": 7}


def test_what_was_read_is_settled_a_gap_or_pending_by_kind() -> None:
    chosen = Chosen((OffsetRange(0, 6), OffsetRange(10, 12)))
    state = PartitionState(6, (pending(1, 2, 2), pending(3, 4, 1, PendingKind.DEAD_LETTER)))
    account = account_of({A: chosen}, {A: state}, {"acked": 2, "failed": 9, "dead": 1}, 1)
    assert account.outcomes == {"acked": 2, "dead": 1}
    assert account.pending == {"retry": 1, "dead_letter": 1, "in_flight": 0, "unread": 2}
    assert (account.balanced, account.next_due) == (True, NOON + timedelta(minutes=2))


def test_an_account_that_misses_an_offset_does_not_balance() -> None:
    done = PartitionState(6)
    assert account_of({A: Chosen((OffsetRange(0, 6),))}, {A: done}, {"acked": 6}, 0).settled
    assert not account_of({A: Chosen((OffsetRange(0, 6),))}, {A: done}, {"acked": 5}, 0).balanced
