"""The fold as properties: for any turn it gives what the naive ledger gives, offset by offset."""

from dataclasses import dataclass, replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind, fold
from ackline.ledger.offsets import OffsetRange, ValuedRange, ValuedRanges, join
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.pending import PendingRuns
from tests.unit.naive_ledger import NaiveLedger
from tests.unit.strategies import REPEATABLE, after, by_offset, policies

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
        PartitionState(complete_to, join(ValuedRange(o, o + 1, state) for o, state in sorted(pending.items()))),
        fresh,
        join(ValuedRange(o, o + 1, attempt) for o, attempt in sorted(retries.items())),
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
    assert state.pending == join(state.pending)
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
    columns, pending = OutcomeColumns.of(turn.rows), PendingRuns.of(turn.before.pending)
    assert list(columns) == [row._replace(reason=None) for row in turn.rows]
    halves = [columns[: len(columns) // 2], list(columns[len(columns) // 2 :])]
    assert OutcomeColumns.concat(halves) == columns
    assert (tuple(pending), pending) == (turn.before.pending, turn.before.pending)
    assert [pending[index] for index in range(-len(pending), 0)] == list(turn.before.pending)
    by_columns = fold(PartitionState(turn.before.complete_to, pending), turn.fresh, turn.retries, columns, turn.policy)
    assert by_columns == turn.fold()
