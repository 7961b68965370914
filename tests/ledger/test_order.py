"""With an order, a record that failed holds back the later ones of its key: over turns, until it is settled (I19).

The lane here calls the handler as a task does, by a rule that is written down once more: the oracle of I19 knows no
ledger, only which offsets exist, their keys, and the calls and ends that it has seen.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind, fold
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRange, arrays_of
from ackline.ledger.order import NO_KEY, WHOLE_PARTITION, Order, Waiting, waiting_behind
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.planning import HELD_BACK, Limits, PartitionView, plan_partitions
from tests.ledger.strategies import NOON

TP = TopicPartition("orders", 0)
MINUTE = RetryPolicy(initial_delay=timedelta(minutes=1), period=timedelta(minutes=1), max_retries=5)


@dataclass
class OrderedLane:
    """A partition whose records have `keys`, None for none. `fails` has how often each offset fails."""

    keys: list[int | None]
    fails: Mapping[int, int] = field(default_factory=dict)
    order: Order = Order.KEY
    limit: int = 5_000_000
    policy: RetryPolicy = MINUTE
    in_flight: frozenset[int] = frozenset()
    state: PartitionState = field(default_factory=lambda: PartitionState(0))
    now: datetime = NOON
    calls: list[tuple[int, int]] = field(default_factory=list)
    reads: Counter[int] = field(default_factory=Counter)
    settled: set[int] = field(default_factory=set)
    checked: bool = True

    def key(self, offset: int) -> int:
        """What the task takes for the key of a record."""
        key = self.keys[offset]
        return WHOLE_PARTITION if self.order is Order.PARTITION else NO_KEY if key is None else key

    def turn(self, end: int | None = None, answers: bool = False) -> str | None:
        """Plans, calls and folds. Returns why it reads nothing, or None."""
        log, before = LogBounds(0, len(self.keys) if end is None else end), self.state
        limits = Limits(10_000_000, self.limit, order=self.order)
        planned = plan_partitions({TP: PartitionView("id", before, log)}, limits, self.now)[TP]
        left = before.pending.minus(arrays_of(planned.retries))
        waiting = Waiting(False) if self.order is Order.NONE else waiting_behind(left, self.order)
        behind, rows = dict(waiting.behind), list[OutcomeRow]()
        wanted = [*planned.retries, ValuedRange(planned.fresh.start, planned.fresh.end, 1)]
        for offset, attempt in ((o, each.value) for each in wanted for o in range(each.start, each.end)):
            self.reads[offset] += 1
            stored = self.key(offset)
            key = WHOLE_PARTITION if waiting.whole and stored != NO_KEY else stored
            if behind.get(key, offset) < offset:
                rows.append(OutcomeRow(offset, 0, Outcome.HELD_BACK, self.now, key=stored))
                continue
            self._call(offset, attempt, stored, rows)
            if rows and rows[-1].offset == offset and not rows[-1].outcome.terminal and key != NO_KEY:
                behind[key] = min(behind.get(key, offset), offset)
        self.state = fold(before, planned.fresh, planned.retries, rows, self.policy)
        self._end_letters_and_answers(planned.fresh.end, answers)
        self.settled = {*range(self.state.complete_to)} - {
            o for run in self.state.pending for o in range(run.start, run.end)
        }
        return planned.why

    def _call(self, offset: int, attempt: int, key: int, rows: list[OutcomeRow]) -> None:
        self.calls.append((offset, attempt))
        self._check_order(offset)
        if attempt <= self.fails.get(offset, 0):
            rows.append(OutcomeRow(offset, attempt, Outcome.FAILED, self.now, "ValueError", key=key))
        elif offset in self.in_flight:
            rows.append(OutcomeRow(offset, attempt, Outcome.IN_FLIGHT, self.now, due=None, key=key))
        else:
            self.settled.add(offset)
            if attempt > 1 or offset < self.state.complete_to:
                rows.append(OutcomeRow(offset, attempt, Outcome.ACKED, self.now, key=key))

    def _check_order(self, offset: int) -> None:
        """I19, by nothing but what was seen: each lower record of the key is settled before the call begins."""
        key = self.key(offset)
        lower = [o for o in range(offset) if self.key(o) == key] if key != NO_KEY else []
        early = [o for o in lower if o not in self.settled] if self.checked else []
        assert not early, f"{offset} was called before a lower one was settled"

    def _end_letters_and_answers(self, end: int, answers: bool) -> None:
        for kind, outcome in ((PendingKind.DEAD_LETTER, Outcome.DEAD), (PendingKind.IN_FLIGHT, Outcome.SKIPPED)):
            if kind is PendingKind.IN_FLIGHT and not answers:
                continue
            runs = self.state.pending.of_kind(kind)
            rows = [OutcomeRow(o, 0, outcome, self.now) for run in runs for o in range(run.start, run.end)]
            self.state = fold(self.state, OffsetRange(end, end), (), rows, self.policy)

    def turns(self, most: int = 300) -> Iterator[int]:
        for number in range(most):
            if len(self.settled) == len(self.keys):
                return
            yield number
            self.turn(answers=number % 3 == 2)
            self.now += timedelta(seconds=20)
        raise AssertionError("the floor does not reach the end")


def pending_of(lane: OrderedLane) -> dict[PendingKind, int]:
    return {kind: number for kind, number in lane.state.pending_by_kind().items() if number}


def test_s81_followers_of_a_record_that_fails_five_times_are_called_once_and_read_twice_more_at_most() -> None:
    followers = 1_000
    lane = OrderedLane([7, *[7, 8] * followers], {0: 5})
    lane.turn()
    assert pending_of(lane) == {PendingKind.RETRY: 1, PendingKind.HELD_BACK: followers}
    assert {offset for offset, _ in lane.calls} == {0, *range(2, 2 * followers + 1, 2)}  # key 8 is done in this turn
    assert {run.value.attempts for run in lane.state.pending if run.value.kind is PendingKind.HELD_BACK} == {0}
    assert len(list(lane.turns())) >= 5
    assert Counter(offset for offset, _ in lane.calls) == {0: 6, **dict.fromkeys(range(1, 2 * followers + 1), 1)}
    assert max(reads for offset, reads in lane.reads.items() if offset) == 2


def test_s82_a_record_that_dies_lets_its_key_go_on_and_what_retention_took_does_too() -> None:
    lane = OrderedLane([7, 7, 7], {0: 100}, policy=RetryPolicy(initial_delay=timedelta(0), max_retries=1))
    list(lane.turns())
    assert lane.calls == [(0, 1), (0, 2), (1, 1), (2, 1)]
    lane = OrderedLane([7, 7, 7], {0: 100})
    lane.turn()
    taken = OutcomeRow(0, 0, Outcome.EXPIRED, lane.now)
    lane.state = fold(lane.state, OffsetRange(3, 3), (), [taken], MINUTE)
    lane.settled.add(0)
    assert lane.state.next_due == lane.now
    list(lane.turns())
    assert lane.calls == [(0, 1), (1, 1), (2, 1)]


def test_an_ordered_partition_reads_nothing_fresh_while_a_record_of_it_waits() -> None:
    lane = OrderedLane([1, 2, 3, 4, 5, 6], {1: 2}, Order.PARTITION)
    lane.turn(end=4)
    assert pending_of(lane) == {PendingKind.RETRY: 1, PendingKind.HELD_BACK: 2}
    assert lane.turn() == HELD_BACK
    assert lane.state.complete_to == 4
    list(lane.turns())
    assert [offset for offset, _ in lane.calls] == [0, 1, 1, 1, 2, 3, 4, 5]


def test_what_was_pending_before_the_order_holds_back_its_whole_partition() -> None:
    """Its key is not known until it is read. To hold back too much is safe."""
    lane = OrderedLane([1, 2, None, 3, 1], {0: 2, 1: 1}, Order.NONE)
    lane.checked = False
    lane.turn(end=2)
    lane.state = PartitionState(2, list(lane.state.pending))
    lane.settled, lane.order = set(), Order.KEY
    assert lane.turn() == HELD_BACK
    lane.now += timedelta(minutes=1)
    list(lane.turns())
    assert [offset for offset, _ in lane.calls[2:]] == [0, 1, 2, 3, 0, 4]


def test_without_an_order_what_was_held_back_is_read_at_once() -> None:
    lane = OrderedLane([1, 1, 1], {0: 1})
    lane.turn()
    lane.order = Order.NONE
    lane.checked = False
    lane.turn()
    assert [offset for offset, _ in lane.calls] == [0, 1, 2]


@given(st.randoms(use_true_random=False))
def test_i19_no_call_of_a_key_begins_before_all_lower_ones_are_settled_and_all_are_in_the_end(draw: Random) -> None:
    records, few = draw.randint(1, 24), draw.randint(1, 5)
    keys = [None if draw.random() < 0.1 else draw.randint(1, few) for _ in range(records)]
    lane = OrderedLane(
        keys,
        {offset: draw.choice([0, 0, 0, 1, 2, 9]) for offset in range(records)},
        draw.choice([Order.KEY, Order.KEY, Order.PARTITION]),
        draw.choice([2, 7, 1_000, 1_000]),
        draw.choice([MINUTE, RetryPolicy(initial_delay=timedelta(0), max_retries=2)]),
        frozenset(offset for offset in range(records) if draw.random() < 0.1),
    )
    list(lane.turns(most=3_000))
    made = Counter(offset for offset, _ in lane.calls)
    assert all(
        attempt == 1 + sum(o == offset for o, _ in lane.calls[:at]) for at, (offset, attempt) in enumerate(lane.calls)
    )
    assert set(made) == set(range(records))


@pytest.mark.parametrize("order", [Order.KEY, Order.PARTITION])
def test_single_offsets_of_a_backfill_are_read_together_though_their_keys_are_not_known(order: Order) -> None:
    lane = OrderedLane([1, 2, 1, 2, 1, 2], {0: 1}, order)
    unread = Pending(PendingKind.RETRY, 0, NOON, None)
    lane.state = PartitionState(6, [ValuedRange(0, 6, unread)])
    lane.turn()
    assert [offset for offset, _ in lane.calls] == ([0, 1, 3, 5] if order is Order.KEY else [0])
    list(lane.turns())
    assert len(lane.calls) == 7


def test_a_dead_letter_that_is_not_acknowledged_holds_back_its_key() -> None:
    rows = [
        OutcomeRow(0, 1, Outcome.FAILED, NOON, ErrorClass.DEAD, key=7),
        OutcomeRow(1, 0, Outcome.HELD_BACK, NOON, key=7),
    ]
    state = fold(PartitionState(0), OffsetRange(0, 2), (), rows, MINUTE)
    assert waiting_behind(state.pending, Order.KEY).behind == {7: 0}
    assert state.next_due is None
    released = fold(state, OffsetRange(2, 2), (), [OutcomeRow(0, 0, Outcome.DEAD, NOON)], MINUTE)
    assert released.next_due == NOON


def test_of_a_key_the_lowest_comes_first_when_a_turn_can_not_read_all_that_waits() -> None:
    """A follower that was read before the one in front of it would be held back once more."""
    turns = []
    for limit in (5, 1_000):
        lane = OrderedLane([7] * 11, {0: 1, 1: 1}, limit=limit)
        turns.append(len(list(lane.turns())))
        assert [offset for offset, _ in lane.calls] == [0, 0, 1, 1, *range(2, 11)]
    assert turns[0] <= turns[1] + 2
