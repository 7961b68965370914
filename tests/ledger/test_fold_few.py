"""The fold of a turn that did little gives what the fold by columns gives: the same state, or the same error."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.errors import LedgerError
from ackline.ledger import fold_few
from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind, fold
from ackline.ledger.offsets import OffsetRange, ValuedRange
from ackline.ledger.outcomes import AnswerKind, Outcome, OutcomeColumns
from tests.ledger.strategies import REPEATABLE, after, offset_ranges

ANY_POLICY = st.sampled_from(
    [
        RetryPolicy(timedelta(seconds=5), timedelta(seconds=3), 2.0, timedelta(seconds=9), 2),
        RetryPolicy(timedelta(seconds=5), max_retries=2, jitter=0.5),
        RetryPolicy(timedelta(0), max_retries=3, by_error={"ValueError": None, "KeyError": RetryPolicy(max_retries=0)}),
        RetryPolicy(timedelta(days=4_000_000), max_delay=timedelta(days=4_000_000)),
    ]
)
ERRORS = st.sampled_from([None, "ValueError", "KeyError", "Dead"])
KINDS = [PendingKind.RETRY, PendingKind.DEAD_LETTER, PendingKind.IN_FLIGHT]  # with an order, columns do it all
PENDING = st.builds(
    Pending, st.sampled_from(KINDS), st.integers(1, 3), st.sampled_from([None, after(-9), after(9)]), ERRORS
)


@dataclass(frozen=True)
class Turn:
    """The arguments of a fold."""

    state: PartitionState
    fresh: OffsetRange
    retries: tuple[ValuedRange[int], ...]
    rows: tuple[OutcomeRow, ...]
    policy: RetryPolicy
    chosen: list[OffsetRange] | None = None

    def fold(self) -> Any:
        """Returns the state after the turn, with its runs as objects, or the text of the error."""
        try:
            after = fold(self.state, self.fresh, self.retries, self.rows, self.policy, "l/0/t/0", 1, self.chosen)
        except LedgerError as error:
            return str(error)
        return after.complete_to, tuple(after.pending), after.gaps_above_floor

    def fold_by_columns(self) -> Any:
        with patch.object(fold_few, "FEW", -1):
            return self.fold()

    def is_done_by_few(self) -> bool:
        rows, before = OutcomeColumns.of(self.rows), (self.state.complete_to, self.state.pending)
        return fold_few.fold_few(*before, self.fresh, self.retries, rows, self.policy, "", self.chosen) is not None


@st.composite
def rows_at(draw: st.DrawFn, offset: int, attempt: int | None, held: Pending | None) -> list[OutcomeRow]:
    """Rows that fit one offset: an attempt if one was planned, an answer if one is in flight by then, a decision."""
    rows, in_flight = [], held.attempts if held and held.kind is PendingKind.IN_FLIGHT else None
    if attempt is not None:
        made = [Outcome.ACKED, Outcome.FAILED, Outcome.FAILED, Outcome.SKIPPED, Outcome.DROPPED, Outcome.IN_FLIGHT]
        outcome, late = draw(st.sampled_from(made)), draw(st.sampled_from([None, after(7)]))
        due = late if outcome is Outcome.IN_FLIGHT else None
        rows.append(OutcomeRow(offset, attempt, outcome, after(draw(st.integers(-2, 0))), draw(ERRORS), due=due))
        in_flight = attempt if outcome is Outcome.IN_FLIGHT else in_flight
    if in_flight is not None and draw(st.booleans()):
        kind = draw(st.sampled_from(AnswerKind))
        ends = {AnswerKind.ACK: Outcome.ACKED, AnswerKind.RENEW: Outcome.IN_FLIGHT}.get(kind, Outcome.FAILED)
        due = after(60) if kind is AnswerKind.RENEW else None
        rows.append(OutcomeRow(offset, in_flight, ends, after(0), "AckFailed", due=due, answer=kind))
    if draw(st.integers(0, 4)) == 0:
        outcome = draw(st.sampled_from([Outcome.DEAD, Outcome.SKIPPED, Outcome.COMPACTED, Outcome.LOST]))
        end = draw(st.sampled_from([None, offset, offset + 1, offset + 3]))
        rows.append(OutcomeRow(offset, 0, outcome, after(0), None, end))
    return rows


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """A turn whose rows fit the state: retries, fresh records, holes, and ranges that expired or that no lane reads."""
    ranges = [run for run in draw(offset_ranges()) if len(run)][:5]
    complete_to = max((run.end for run in ranges), default=0) + draw(st.integers(0, 2))
    state = PartitionState(complete_to, [ValuedRange(run.start, run.end, draw(PENDING)) for run in ranges])
    held = {offset: run.value for run in state.pending for offset in range(run.start, run.end)}
    planned = [run for run in state.pending if run.value.kind is PendingKind.RETRY and draw(st.booleans())]
    retries = tuple(ValuedRange(run.start, run.end, run.value.attempts + 1) for run in planned)
    fresh = OffsetRange(start := complete_to + draw(st.sampled_from([0, 0, 2])), start + draw(st.integers(0, 6)))
    chosen = draw(st.sampled_from([None, None, [], [fresh], [OffsetRange(max(0, complete_to - 1), complete_to + 1)]]))
    rows = [OutcomeRow(complete_to, 0, Outcome.EXPIRED, after(0), None, fresh.start)] if start > complete_to else []
    attempts = {offset: run.value for run in retries for offset in range(run.start, run.end)}
    for offset in range(fresh.start, fresh.end):  # a fresh record without a row was acked, or is a hole
        attempts |= {offset: 1} if draw(st.booleans()) else {}
    for offset in sorted({*attempts, *held}):
        rows += draw(rows_at(offset, attempts.get(offset), held.get(offset)))
    return Turn(state, fresh, retries, tuple(draw(st.permutations(rows))), draw(ANY_POLICY), chosen)


@st.composite
def skewed(draw: st.DrawFn) -> Turn:
    """A turn of which one thing may not fit: a row that is missing, twice there, of another offset, attempt, outcome or
    kind, or another fresh range or retry."""
    turn = draw(turns())
    rows, index = list(turn.rows), draw(st.integers(0, max(0, len(turn.rows) - 1)))
    change = draw(
        st.sampled_from(["drop", "twice", "offset", "attempt", "outcome", "answer", "fresh", "retry", "none"])
    )
    if change == "fresh":
        start = max(0, turn.fresh.start + draw(st.sampled_from([-1, 1])))
        return replace(turn, fresh=OffsetRange(start, max(start, turn.fresh.end)))
    if change == "retry" and turn.retries:
        first, *rest = turn.retries
        return replace(turn, retries=(ValuedRange(first.start, first.end, first.value + 1), *rest))
    for row in rows[index : index + 1]:
        others = {
            "drop": [],
            "twice": [row, row._replace(outcome=draw(st.sampled_from(Outcome)))],
            "offset": [row._replace(offset=max(0, row.offset + draw(st.integers(-3, 3))))],
            "attempt": [row._replace(attempt=draw(st.integers(0, 4)))],
            "outcome": [row._replace(outcome=draw(st.sampled_from(Outcome)))],
            "answer": [row._replace(answer=draw(st.sampled_from([None, *AnswerKind])))],
        }
        rows[index : index + 1] = others.get(change, [row])
    return replace(turn, rows=tuple(rows))


MANY = settings(REPEATABLE, max_examples=400)


@MANY
@given(turns())
def test_a_turn_that_fits_gives_the_same_state_by_both_ways(turn: Turn) -> None:
    expected = turn.fold_by_columns()
    assert turn.fold() == expected
    few = len(turn.rows) + len(turn.state.pending) + len(turn.retries) <= fold_few.FEW
    assert turn.is_done_by_few() == (few and not isinstance(expected, str))


@MANY
@given(skewed())
def test_a_turn_that_may_not_fit_gives_the_same_state_or_error_by_both_ways(turn: Turn) -> None:
    expected = turn.fold_by_columns()
    assert turn.fold() == expected
    if isinstance(expected, str):
        assert not turn.is_done_by_few()


def test_both_properties_meet_each_error_of_a_fold_and_each_kind_of_pending() -> None:
    errors, kinds = set[str](), set[PendingKind]()

    @MANY
    @given(skewed())
    def collect(turn: Turn) -> None:
        found = turn.fold_by_columns()
        errors.update([found] if isinstance(found, str) else [])
        kinds.update(() if isinstance(found, str) else (run.value.kind for run in found[1]))

    collect()
    texts = (
        "starts below", "no such attempt is pending", "planned was", "two attempts", "settles nothing", "skipped over",
        "no outcome for the retry", "is not in flight", "two answers",
    )  # fmt: skip
    assert [text for text in texts if not any(text in error for error in errors)] == []
    assert kinds == set(KINDS)


@pytest.mark.parametrize("offsets", [fold_few.FEW + 1, 10**9])
def test_a_run_of_many_retries_is_left_to_the_columns_and_not_spread_offset_by_offset(offsets: int) -> None:
    held = PartitionState(offsets, [ValuedRange(0, offsets, Pending(PendingKind.RETRY, 1, after(0), None))])
    few = fold_few.fold_few(
        offsets, held.pending, OffsetRange(offsets, offsets), (ValuedRange(0, offsets, 2),), OutcomeColumns.of(()),
        RetryPolicy(), "", None,
    )  # fmt: skip
    assert few is None
