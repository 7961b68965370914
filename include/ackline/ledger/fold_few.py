"""The fold of a turn that did little in a partition: some rows, runs and retries, one object after the other. Pure.

A turn over thousands of partitions has a failure or none in most of them. An operation of NumPy costs as much for one
row as for a hundred, and the fold by columns (`ackline.ledger.fold`) makes sixty of them. The state after the turn is
the same by both ways. What does not fit its turn is left to the fold by columns, which raises the error of it.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from ackline.ledger.backoff import Backoff, RetryPolicy
from ackline.ledger.offsets import ChosenRanges, OffsetRange, ValuedRanges, clipped
from ackline.ledger.outcomes import ErrorClass, Outcome, OutcomeColumns
from ackline.ledger.pending import (
    LATEST,
    MICROSECOND,
    NEVER,
    NOTHING_PENDING,
    PendingKind,
    PendingRuns,
    PendingState,
    microseconds,
    time_of,
)

FEW = 32
"""The most rows, runs and retries together. For twice as many, the fold by columns takes about as long."""
_Range: TypeAlias = tuple[int, int]


class _Run(NamedTuple):
    """Offsets that are pending in one state; `due` as `PendingRuns.dues`."""

    start: int
    end: int
    state: PendingState
    due: int


class _Attempt(NamedTuple):
    """A row of an attempt, or the row that ends or renews one in flight. Times as `OutcomeColumns` has them."""

    number: int
    outcome: Outcome
    error_class: str | None
    handled_at: int
    deadline: int


class _LeftToColumns(Exception):
    """The turn did much in the partition, or something that does not fit."""


def fold_few(
    complete_to: int,
    pending: PendingRuns,
    fresh: OffsetRange,
    retries: ValuedRanges[int],
    rows: OutcomeColumns,
    policy: Backoff,
    seed: str,
    chosen: ChosenRanges,
) -> PendingRuns | None:
    """Returns what is pending after a turn, by the arguments of `ackline.ledger.fold.fold`. Returns None if the turn
    did more than FEW things in the partition, or if its rows do not fit the state: the caller folds the columns then.
    """
    if len(rows) + len(pending) + len(retries) > FEW or fresh.start < complete_to:
        return None
    if pending.keys is not None or rows.keys is not None:
        return None
    if fresh.start == complete_to and not (len(rows) or len(retries)):
        return pending
    columns = (pending.starts.tolist(), pending.ends.tolist(), pending.codes.tolist(), pending.dues.tolist())
    runs = [_Run(start, end, pending.states[code], due) for start, end, code, due in zip(*columns, strict=True)]
    try:
        planned = _planned(retries, runs)
        attempts, answers, decided = _checked(rows, fresh, planned)
        _check_nothing_is_left_out(planned, attempts, decided, clipped(chosen, complete_to, fresh.start))
        after = _after(runs, attempts, answers, policy, seed)
    except _LeftToColumns:
        return None
    if not len(rows):
        return pending
    left = _outside(sorted([*decided, *((offset, offset + 1) for offset in after)]), runs)
    left += [run for run in after.values() if run is not None and not _is_in(run.start, decided)]
    return _joined(sorted(left))


def due_after(offset: int, attempt: int, handled_at: int, error_class: str | None, policy: Backoff, seed: str) -> int:
    """Returns when the next attempt is due after one that failed at `handled_at`; NEVER if none is left. Both times are
    in microseconds since 1970. The seed makes the jitter the same whenever settle computes this again (I9)."""
    if error_class == ErrorClass.DEAD:
        return NEVER
    if isinstance(policy, RetryPolicy) and not policy.uses_seed:
        wait = policy.wait(attempt, error_class)
        return NEVER if wait is None else min(handled_at + wait // MICROSECOND, LATEST)
    failed_at = time_of(handled_at)
    assert failed_at is not None
    return microseconds(policy.next_attempt(attempt, failed_at, error_class, f"{seed}/{offset}/{attempt}"))


def _planned(retries: ValuedRanges[int], runs: list[_Run]) -> dict[int, int]:
    """Returns the number of the attempt that was planned at each offset, and is the next one there."""
    planned = dict[int, int]()
    for retry in retries:
        if len(planned) + len(retry) > FEW:
            raise _LeftToColumns
        for offset in range(retry.start, retry.end):
            held = _run_at(offset, runs)
            if held is None or held.state[:2] != (PendingKind.RETRY, retry.value - 1):
                raise _LeftToColumns
            planned[offset] = retry.value
    return planned


def _checked(
    rows: OutcomeColumns, fresh: OffsetRange, planned: dict[int, int]
) -> tuple[dict[int, _Attempt], dict[int, _Attempt], list[_Range]]:
    """Returns the planned attempts and the answers by offset, and the ranges that settle has decided, sorted."""
    attempts, answers, decided = dict[int, _Attempt](), dict[int, _Attempt](), list[_Range]()
    for offset, end, number, handled_at, code, deadline, answer in rows.values():
        outcome, error_class = rows.results[code]
        if not number:
            if answer or not outcome.terminal:
                raise _LeftToColumns
            decided.append((offset, offset + 1 if end < 0 else end))
            continue
        if outcome is Outcome.HELD_BACK:
            raise _LeftToColumns
        made = answers if answer else attempts
        first = 1 if fresh.start <= offset < fresh.end else 0
        if offset in made or not (answer or planned.get(offset, first) == number):
            raise _LeftToColumns
        made[offset] = _Attempt(number, outcome, error_class, handled_at, deadline)
    return attempts, answers, sorted(ends for ends in decided if ends[0] < ends[1])


def _check_nothing_is_left_out(
    planned: dict[int, int], attempts: dict[int, _Attempt], decided: list[_Range], passed: list[OffsetRange]
) -> None:
    """Checks that each retry has an outcome or a decision, and each offset that was passed over has a decision."""
    for offset in planned:
        if offset not in attempts and not _is_in(offset, decided):
            raise _LeftToColumns
    for part in passed:
        at = part.start
        for start, end in decided:
            if start <= at < end:
                at = end
        if at < part.end:
            raise _LeftToColumns


def _run_at(offset: int, runs: list[_Run]) -> _Run | None:
    return next((run for run in runs if run.start <= offset < run.end), None)


def _is_in(offset: int, ranges: list[_Range]) -> bool:
    return any(start <= offset < end for start, end in ranges)


def _after(
    runs: list[_Run], attempts: dict[int, _Attempt], answers: dict[int, _Attempt], policy: Backoff, seed: str
) -> dict[int, _Run | None]:
    """Returns what is pending at each offset with an attempt or an answer; None where the record is settled."""
    after = {offset: _run_after(offset, made, policy, seed) for offset, made in attempts.items()}
    for offset, answered in answers.items():
        held = after[offset] if offset in after else _run_at(offset, runs)
        if held is None or held.state[:2] != (PendingKind.IN_FLIGHT, answered.number):
            raise _LeftToColumns
        after[offset] = _run_after(offset, answered, policy, seed)
    return after


def _run_after(offset: int, made: _Attempt, policy: Backoff, seed: str) -> _Run | None:
    if made.outcome is Outcome.IN_FLIGHT:
        kind, due = PendingKind.IN_FLIGHT, made.deadline
    elif made.outcome is Outcome.FAILED:
        due = due_after(offset, made.number, made.handled_at, made.error_class, policy, seed)
        kind = PendingKind.DEAD_LETTER if due == NEVER else PendingKind.RETRY
    else:
        return None
    return _Run(offset, offset + 1, PendingState(kind, made.number, made.error_class), due)


def _outside(holes: list[_Range], runs: list[_Run]) -> list[_Run]:
    """Returns the runs without the offsets of `holes`, which are sorted, and may overlap."""
    left = list[_Run]()
    for start, end, state, due in runs:
        for low, high in holes:
            if start < min(low, end):
                left.append(_Run(start, min(low, end), state, due))
            start = max(start, high)
        if start < end:
            left.append(_Run(start, end, state, due))
    return left


def _joined(runs: list[_Run]) -> PendingRuns:
    """Returns sorted, disjoint runs as columns, in as few runs as possible."""
    if not runs:
        return NOTHING_PENDING
    joined = runs[:1]
    for run in runs[1:]:
        last = joined[-1]
        if last.end == run.start and last[2:] == run[2:]:
            joined[-1] = last._replace(end=run.end)
        else:
            joined.append(run)
    states = dict[PendingState, int]()
    codes = [states.setdefault(run.state, len(states)) for run in joined]
    starts, ends, _, dues = zip(*joined, strict=True)
    return PendingRuns(
        np.array(starts, dtype=np.int64),
        np.array(ends, dtype=np.int64),
        np.array(codes, dtype=np.int32),
        np.array(dues, dtype=np.int64),
        list(states),
    )
