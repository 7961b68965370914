"""Any turn, and many turns of a lane under faults, give what the naive ledger gives, offset by offset.

The faults: gaps, a log that grows and expires, handlers that fail, dead letters that are not acknowledged, and a clock
that stands still or jumps. Then the faults stop, and the floor must reach the end of the log (I12).
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind, fold
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRange, ValuedRanges, count
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.pending import PendingRuns
from ackline.ledger.planning import Limits
from tests.ledger.pure_lane import Call, Handle, NaiveLedger, Poll, PureLane, acks
from tests.ledger.strategies import REPEATABLE, after, by_offset, policies

RESULTS = [Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, Outcome.DROPPED, "dead"]
PENDING = [
    Pending(PendingKind.RETRY, 1, after(-5), "ValueError"),
    Pending(PendingKind.RETRY, 2, after(-1), None),
    Pending(PendingKind.RETRY, 1, after(30), None),
    Pending(PendingKind.DEAD_LETTER, 4, None, "ValueError"),
]


@dataclass(frozen=True)
class Turn:
    """A state and a turn from it."""

    before: PartitionState
    fresh: OffsetRange
    retries: ValuedRanges[int]
    rows: list[OutcomeRow]
    policy: RetryPolicy

    def fold(self) -> PartitionState:
        return fold(self.before, self.fresh, self.retries, self.rows, self.policy)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """A state with pending offsets, a turn over some of them and a fresh range, and outcomes that fit."""
    complete_to = draw(st.integers(0, 12))
    pending = {o: draw(st.sampled_from(PENDING)) for o in range(complete_to) if draw(st.booleans())}
    passed = draw(st.sampled_from([0, 0, 0, 3]))
    fresh = OffsetRange(complete_to + passed, complete_to + passed + draw(st.integers(0, 12)))
    rows = [] if not passed else [OutcomeRow(complete_to, 0, Outcome.EXPIRED, after(0), None, fresh.start)]
    retries = {
        o: state.attempts + 1
        for o, state in pending.items()
        if state.kind is PendingKind.RETRY and state.due is not None and state.due <= after(0) and draw(st.booleans())
    }
    for offset, attempt in {**retries, **dict.fromkeys(range(fresh.start, fresh.end), 1)}.items():
        rows.extend(draw(rows_of_record(offset, attempt, offset in retries)))
    for offset, state in pending.items():
        if state.kind is PendingKind.DEAD_LETTER and draw(st.booleans()):
            rows.append(OutcomeRow(offset, 0, Outcome.DEAD, after(0)))
    return Turn(
        PartitionState(complete_to, [ValuedRange(o, o + 1, state) for o, state in sorted(pending.items())]),
        fresh,
        tuple(ValuedRange(o, o + 1, attempt) for o, attempt in sorted(retries.items())),
        draw(st.permutations(rows)),
        draw(policies()),
    )


@st.composite
def rows_of_record(draw: st.DrawFn, offset: int, attempt: int, is_retry: bool) -> list[OutcomeRow]:
    """The rows of one record: none (a fresh one that was acked, or a gap), an attempt, or a retry's end without one."""
    result = draw(st.sampled_from([*RESULTS, Outcome.COMPACTED] if is_retry else [*RESULTS, None]))
    if result is None:
        return []
    if result is Outcome.COMPACTED:
        return [OutcomeRow(offset, 0, Outcome.COMPACTED, after(0))]
    if result == "dead":
        return [OutcomeRow(offset, attempt, Outcome.FAILED, after(0), "Dead")]
    error = "ValueError" if result is Outcome.FAILED else None
    return [OutcomeRow(offset, attempt, Outcome(result), after(draw(st.integers(-2, 0))), error)]


def naive(turn: Turn) -> NaiveLedger:
    ledger = NaiveLedger(turn.before.complete_to, by_offset(turn.before.pending))
    ledger.turn(turn.fresh, by_offset(turn.retries), turn.rows, turn.policy)
    return ledger


@REPEATABLE
@given(turns())
def test_the_fold_gives_the_state_of_the_naive_ledger_in_the_fewest_ranges(turn: Turn) -> None:
    state = turn.fold()
    assert naive(turn).agrees_with(state)
    assert state.pending == state.pending.joined()
    assert sum(state.pending_by_kind().values()) == len(naive(turn).pending)


@REPEATABLE
@given(turns(), st.randoms(use_true_random=False))
def test_s5_any_order_of_rows_gives_the_same_state(turn: Turn, random: Random) -> None:
    state = turn.fold()
    random.shuffle(turn.rows)
    assert turn.fold() == state


@REPEATABLE
@given(turns())
def test_i3_no_turn_lowers_the_floor_or_complete_to(turn: Turn) -> None:
    state = turn.fold()
    assert state.floor >= turn.before.floor
    assert state.complete_to >= turn.before.complete_to
    assert state.floor <= state.complete_to


@REPEATABLE
@given(turns())
def test_i4_what_failed_and_is_not_settled_is_pending_and_nothing_else(turn: Turn) -> None:
    state = turn.fold()
    pending = by_offset(state.pending).keys()
    failed = {row.offset for row in turn.rows if row.outcome is Outcome.FAILED}
    settled = {o for row in turn.rows if row.outcome.terminal for o in range(row.offset, row.end)}
    assert pending == (by_offset(turn.before.pending).keys() | failed) - settled
    assert all(o < state.complete_to for o in pending)


@REPEATABLE
@given(turns())
def test_i5_a_failed_record_waits_for_a_retry_only_if_the_policy_has_one_left(turn: Turn) -> None:
    pending = by_offset(turn.fold().pending)
    for row in turn.rows:
        if row.outcome is Outcome.FAILED and row.offset in pending:
            # An attempt may even be beyond the last one: the policy may have become stricter since it was planned.
            last = row.error_class == "Dead" or row.attempt > turn.policy.max_retries
            kind = PendingKind.DEAD_LETTER if last else PendingKind.RETRY
            assert (pending[row.offset].kind, pending[row.offset].attempts) == (kind, row.attempt)


@REPEATABLE
@given(turns(), st.floats(0, 1))
def test_i9_each_failure_has_the_due_time_that_its_own_attempt_gets_from_the_policy(turn: Turn, jitter: float) -> None:
    """With and without jitter: the fold asks once for neighbours whose attempts are equal, if chance plays no part."""
    policy = replace(turn.policy, jitter=jitter)
    state = fold(turn.before, turn.fresh, turn.retries, turn.rows, policy, "lane/0/t/0")
    pending = by_offset(state.pending)
    for row in turn.rows:
        if row.outcome is Outcome.FAILED and row.offset in pending and row.error_class != "Dead":
            seed = f"lane/0/t/0/{row.offset}/{row.attempt}"
            due = policy.next_attempt(row.attempt, row.handled_at, row.error_class, seed)
            assert pending[row.offset].due == due


@REPEATABLE
@given(turns())
def test_columns_of_rows_and_of_pending_runs_are_the_same_values(turn: Turn) -> None:
    columns, pending = OutcomeColumns.of(turn.rows), turn.before.pending
    runs = tuple(pending)
    assert list(columns) == [row._replace(reason=None) for row in turn.rows]
    halves = [columns[: len(columns) // 2], list(columns[len(columns) // 2 :])]
    assert (OutcomeColumns.concat(halves), PendingRuns.of(runs), tuple(pending)) == (columns, pending, runs)
    assert tuple(pending[index] for index in range(-len(pending), 0)) == runs
    by_columns = fold(PartitionState(turn.before.complete_to, runs), turn.fresh, turn.retries, columns, turn.policy)
    assert by_columns == turn.fold()


PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)]


@dataclass
class World:
    """A lane, the naive ledger of each of its partitions, and the calls of the handlers."""

    random: Random
    lane: PureLane = field(init=False)
    naive: dict[TopicPartition, NaiveLedger] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    calls: Counter[Call] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        pick = self.random.randint
        logs = {tp: LogBounds(start, start + pick(0, 8)) for tp in PARTITIONS[: pick(1, 3)] for start in [pick(0, 3)]}
        seconds = [timedelta(seconds=pick(0, 20)) for _ in range(3)]
        policy = RetryPolicy(seconds[0], seconds[1], 2.0, seconds[2], pick(0, 3))
        self.lane = PureLane(logs, policy, Limits(pick(1, 12), pick(1, 12)), shuffle=self.random)
        for tp, log in logs.items():
            self.starts[tp] = log.start
            self.naive[tp] = NaiveLedger(log.start)
            self._add_gaps(tp, log.start, log.end)

    def _add_gaps(self, tp: TopicPartition, start: int, end: int) -> None:
        self.lane.gaps |= {(tp, offset) for offset in range(start, end) if self.random.random() < 0.2}

    def handler(self) -> Handle:
        """A handler that fails at random, and always gives the same call the same outcome."""
        results: dict[Call, Outcome] = {}
        outcomes = [Outcome.ACKED, Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, Outcome.DEAD, Outcome.DROPPED]
        return lambda call: results.setdefault(call, self.random.choice(outcomes))

    def change(self) -> None:
        """Time passes, the logs grow, expire and are compacted, and dead letters begin or cease to be acknowledged."""
        self.lane.wait(self.random.choice([0, 1, 7, 30, 3_600]))
        self.lane.confirms = self.random.random() < 0.6
        for tp, log in self.lane.logs.items():
            end = log.end + self.random.choice([0, 0, 1, 6])
            self._add_gaps(tp, log.end, end)
            self.lane.grow(end, tp)
            if self.random.random() < 0.15:
                self.lane.expire(self.random.randint(log.start, end), tp)
            if self.random.random() < 0.15 and log.end:
                self.lane.gaps.add((tp, self.random.randint(0, log.end)))

    def turn(self, handle: Handle) -> Poll:
        """Poll once, check the plan, take the same turn in the naive ledgers and compare."""
        before = dict(self.lane.states)
        due = {tp: ledger.due(self.lane.now) for tp, ledger in self.naive.items()}
        read_before = {tp: self._records_above(tp, state.floor) for tp, state in before.items()}
        poll = self.lane.poll(handle)
        self.calls.update(poll.calls)
        read = sum(len(planned.fresh) + count(planned.retries) for planned in poll.planned.values())
        assert read <= self.lane.limits.max_records_per_run
        for tp, planned in poll.planned.items():
            retries = by_offset(planned.retries)
            assert retries.keys() <= due[tp], "I5: a retry before its due time"
            window = self.lane.limits.max_uncommitted
            assert not planned.fresh or read_before[tp] + len(planned.fresh) <= window, "I8: beyond the window"
            self.naive[tp].turn(planned.fresh, retries, poll.rows[tp], self.lane.policy)
            assert self.naive[tp].agrees_with(self.lane.states[tp])
            self._check(tp, before[tp], poll)
        return poll

    def _records_above(self, tp: TopicPartition, floor: int) -> int:
        """How many records at or above `floor` a handler has got."""
        return len({call.offset for call in self.calls if call.tp == tp and call.offset >= floor})

    def _check(self, tp: TopicPartition, before: PartitionState, poll: Poll) -> None:
        state, ledger = self.lane.states[tp], self.naive[tp]
        assert before.floor <= state.floor <= state.complete_to, "I3: a floor went back"
        read = self._records_above(tp, state.floor)
        assert read <= state.uncommitted <= state.complete_to - state.floor, "I8: records above the floor"
        handled = {call.offset for call in self.calls if call.tp == tp}
        for offset in range(self.starts[tp], state.complete_to):
            ends = ledger.ends.get(offset, [])
            if offset in ledger.pending:
                assert not ends, "I4: settled and pending"
            elif not ends:  # without a row it was acked at its first attempt, or it is a gap
                assert (Call(tp, offset, 1) in self.calls) or (tp, offset) in self.lane.gaps, "I2, I4: lost"
            assert len(ends) <= 1, "two terminal outcomes"
        assert not any(call.attempt > self.lane.policy.max_retries + 1 for call in poll.calls), "I5: too many attempts"
        assert all(self.calls[call] == 1 for call in poll.calls), "an attempt was made twice"
        assert all(offset < state.complete_to for offset in handled)

    def recover(self) -> int:
        """Run without faults until the floor is at the end of the log. Returns how many runs it took."""
        self.lane.confirms = True
        for runs in range(500):
            if all(state.floor == self.lane.logs[tp].end for tp, state in self.lane.states.items()):
                return runs
            self.lane.wait(20)  # longer than any delay of the policy
            self.turn(acks)
        pytest.fail("I12: the floor does not reach the end")


@pytest.mark.parametrize("seed", range(40))
def test_i1_to_i5_i8_and_i12_hold_under_faults(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(60):
        world.turn(world.handler())
        world.change()
    runs = world.recover()
    left = sum(log.end for log in world.lane.logs.values())
    # Each run settles something or passes over what retention took, so there are far fewer runs than offsets.
    assert runs <= left + 10


def test_each_kind_of_pending_and_each_terminal_outcome_occurs_in_these_worlds() -> None:
    kinds: set[PendingKind] = set()
    ends: set[Outcome] = set()
    for seed in range(10):
        world = World(Random(seed))
        for _ in range(30):
            world.turn(world.handler())
            world.change()
            kinds |= {pending.value.kind for state in world.lane.states.values() for pending in state.pending}
        ends |= {end for ledger in world.naive.values() for outcomes in ledger.ends.values() for end in outcomes}
    assert kinds == {PendingKind.RETRY, PendingKind.DEAD_LETTER}
    assert ends == {
        Outcome.ACKED, Outcome.SKIPPED, Outcome.DROPPED, Outcome.DEAD, Outcome.EXPIRED, Outcome.COMPACTED,
    }  # fmt: skip
