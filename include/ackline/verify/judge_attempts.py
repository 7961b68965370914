"""Rules on attempts: their numbers, their turns, their due times and their limit."""

import numpy as np

from ackline.verify.arrays import Mask
from ackline.verify.findings import Findings
from ackline.verify.lane_history import PartitionHistory
from ackline.verify.outcome_rows import OutcomeRows
from ackline.verify.turn_rows import Pending


def check_attempts_are_consecutive(partition: PartitionHistory, found: Findings) -> None:
    """I5: the attempts of a record are numbered 1, 2, 3 … without a hole, so no attempt went unrecorded."""
    tried = partition.outcomes.attempts
    step = np.where(_is_first_row(tried), tried.attempt, np.diff(tried.attempt, prepend=0))
    found.add_offsets("I5", "attempts are not 1, 2, 3 …", partition.tp, tried.offset[step != 1])


def check_attempts_are_in_later_turns(partition: PartitionHistory, found: Findings) -> None:
    """I5: each attempt of a record belongs to a later turn than the attempt before it."""
    tried = partition.outcomes.attempts
    backwards = ~_is_first_row(tried) & (np.diff(tried.turn, prepend=-1) <= 0)
    what = "has an attempt that is not in a later turn than the attempt before it"
    found.add_offsets("I5", what, partition.tp, tried.offset[backwards])


def _is_first_row(rows: OutcomeRows) -> Mask:
    """Return, for each row, whether it is the first one of its offset."""
    return np.asarray(np.diff(rows.offset, prepend=-1) != 0)


def check_attempts_within_limit(partition: PartitionHistory, max_retries: int, found: Findings) -> None:
    """I5: no record has more than `max_retries` + 1 attempts."""
    tried = partition.outcomes.attempts
    over = tried.offset[tried.attempt > max_retries + 1]
    found.add_offsets("I5", f"has more than {max_retries + 1} attempts", partition.tp, over)


def check_retries_were_pending_and_due(partition: PartitionHistory, found: Findings) -> None:
    """I5: each retry was pending after the turn before, as the next attempt, and did not begin before it was due.

    A single offset of a backfill lane is pending before its first attempt, too.
    """
    tried = partition.outcomes.attempts
    retries = tried if partition.reads_single_offsets else tried.where(tried.attempt > 1)
    for turn in np.unique(retries.turn).tolist():
        before = partition.settlements_before(turn)
        if before:
            _check_retries(partition, retries.where(retries.turn == turn), before[-1].pending, found)


def _check_retries(partition: PartitionHistory, retries: OutcomeRows, pending: Pending, found: Findings) -> None:
    """Check the retries of one turn against the offsets that were pending when this turn began."""
    if not len(pending.start):
        what = "was retried, but nothing was pending after the turn before"
        found.add_offsets("I5", what, partition.tp, retries.offset)
        return
    index = np.maximum(np.searchsorted(pending.start, retries.offset, "right") - 1, 0)
    inside = (pending.start[index] <= retries.offset) & (retries.offset < pending.end[index])
    known = inside & pending.retry[index] & (pending.attempts[index] == retries.attempt - 1)
    what = "was retried, but no retry with its number of attempts was pending"
    found.add_offsets("I5", what, partition.tp, retries.offset[~known])
    early = known & (retries.handled_at < pending.due[index])
    found.add_offsets("I5", "was retried before its due time", partition.tp, retries.offset[early])
