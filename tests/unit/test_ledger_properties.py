"""The fold as properties: for any turn, it says what the naive ledger says offset by offset."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ackline.backoff import RetryPolicy
from ackline.ledger import OutcomeRow, PartitionState, Pending, PendingKind, fold
from ackline.offsets import OffsetRange, Run, Runs, join
from ackline.outcome import Outcome
from tests.unit.naive_ledger import NaiveLedger
from tests.unit.strategies import REPEATABLE, after, policies

ANSWERS = [Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, Outcome.DROPPED, "dead"]
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
    retries: Runs[int]
    rows: list[OutcomeRow]
    policy: RetryPolicy

    def fold(self) -> PartitionState:
        """The state after."""
        return fold(self.before, self.fresh, self.retries, self.rows, self.policy)


def naive_state(complete_to: int, pending: Mapping[int, Pending]) -> PartitionState:
    return PartitionState(complete_to, join(Run(o, o + 1, one) for o, one in sorted(pending.items())))


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """A state with pending offsets, a turn over some of them and a fresh range, and outcomes that fit."""
    complete_to = draw(st.integers(0, 12))
    pending = {o: draw(st.sampled_from(PENDING)) for o in range(complete_to) if draw(st.booleans())}
    passed = draw(st.sampled_from([0, 0, 0, 3]))
    fresh = OffsetRange(complete_to + passed, complete_to + passed + draw(st.integers(0, 12)))
    rows = [] if not passed else [OutcomeRow(complete_to, 0, Outcome.EXPIRED, after(0), None, fresh.start)]
    retries = {
        o: one.attempts + 1
        for o, one in pending.items()
        if one.kind is PendingKind.RETRY and one.due is not None and one.due <= after(0) and draw(st.booleans())
    }
    for offset, attempt in {**retries, **dict.fromkeys(range(fresh.start, fresh.end), 1)}.items():
        rows.extend(draw(answers(offset, attempt, must=offset in retries)))
    for offset, one in pending.items():
        if one.kind is PendingKind.DEAD_LETTER and draw(st.booleans()):
            rows.append(OutcomeRow(offset, 0, Outcome.DEAD, after(0)))
    return Turn(
        naive_state(complete_to, pending),
        fresh,
        join(Run(o, o + 1, attempt) for o, attempt in sorted(retries.items())),
        draw(st.permutations(rows)),
        draw(policies()),
    )


@st.composite
def answers(draw: st.DrawFn, offset: int, attempt: int, must: bool) -> list[OutcomeRow]:
    """The rows of one record: none (acked, or no record), an attempt, or for a retry that it is gone."""
    said = draw(st.sampled_from([*ANSWERS, Outcome.COMPACTED] if must else [*ANSWERS, None]))
    if said is None:
        return []
    if said is Outcome.COMPACTED:
        return [OutcomeRow(offset, 0, Outcome.COMPACTED, after(0))]
    if said == "dead":
        return [OutcomeRow(offset, attempt, Outcome.FAILED, after(0), "Dead")]
    error = "ValueError" if said is Outcome.FAILED else None
    return [OutcomeRow(offset, attempt, Outcome(said), after(draw(st.integers(-2, 0))), error)]


def naive(turn: Turn) -> NaiveLedger:
    ledger = NaiveLedger(
        turn.before.complete_to,
        {o: run.value for run in turn.before.pending for o in range(run.start, run.end)},
    )
    retries = {o: run.value for run in turn.retries for o in range(run.start, run.end)}
    ledger.turn(turn.fresh, retries, turn.rows, turn.policy)
    return ledger


@REPEATABLE
@given(turns())
def test_the_fold_is_the_naive_ledgers(turn: Turn) -> None:
    assert naive(turn).agrees_with(turn.fold())


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
def test_i4_what_did_not_succeed_is_pending_and_nothing_else_is_new_there(turn: Turn) -> None:
    state = turn.fold()
    held = {o for run in state.pending for o in range(run.start, run.end)}
    failed = {row.offset for row in turn.rows if row.outcome is Outcome.FAILED}
    settled = {o for row in turn.rows if row.outcome.terminal for o in range(row.offset, row.end)}
    before = {o for run in turn.before.pending for o in range(run.start, run.end)}

    assert held == (before | failed) - settled
    assert all(o < state.complete_to for o in held)


@REPEATABLE
@given(turns())
def test_i5_a_failure_waits_for_a_retry_only_where_the_policy_has_one_left(turn: Turn) -> None:
    state = turn.fold()
    said = {o: run.value for run in state.pending for o in range(run.start, run.end)}
    for row in turn.rows:
        if row.outcome is Outcome.FAILED and row.offset in said:
            last = row.error_class == "Dead" or row.attempt == turn.policy.max_retries + 1
            exceeded = row.attempt > turn.policy.max_retries + 1  # the policy was made stricter meanwhile
            kind = PendingKind.DEAD_LETTER if last or exceeded else PendingKind.RETRY
            assert (said[row.offset].kind, said[row.offset].attempts) == (kind, row.attempt)


@REPEATABLE
@given(turns())
def test_pending_stays_in_the_fewest_runs(turn: Turn) -> None:
    state = turn.fold()
    assert state.pending == join(state.pending)
    assert sum(state.pending_by_kind().values()) == len(naive(turn).pending)
