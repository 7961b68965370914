"""Rules on the rows of `outcomes`, on attempts, and on the tables against the log.

Each row is well-formed, and each record has exactly one terminal outcome. Attempts have numbers, turns, due times and a
limit. Only what a consumer receives was read.
"""

import numpy as np

from ackline.verify.evidence import NEVER, Findings, Mask, count_covering, slice_between
from ackline.verify.lane_history import LaneHistory, PartitionHistory
from ackline.verify.rows import (
    FAILED,
    HELD_BACK,
    IN_FLIGHT,
    OF_ATTEMPTS,
    OF_DECISIONS,
    OF_RANGES,
    OutcomeRows,
    Pending,
    count_by_turn,
)


def check_rows_are_well_formed(partition: PartitionHistory, found: Findings) -> None:
    """I4: a row has a known outcome, with an attempt number and a range that this outcome allows."""
    rows, tp = partition.outcomes, partition.tp
    found.add_offsets("I4", "has an unknown outcome", tp, rows.offset[rows.outcome < 0])
    wrong = np.isin(rows.outcome, OF_ATTEMPTS) & (rows.attempt < 1)
    what = "has the outcome of an attempt (acked, failed, dropped or in_flight), but no attempt number"
    found.add_offsets("I4", what, tp, rows.offset[wrong])
    wrong = np.isin(rows.outcome, OF_DECISIONS) & (rows.attempt != 0)
    what = "has an outcome of no attempt (dead, expired, compacted, lost or held_back), but an attempt number"
    found.add_offsets("I4", what, tp, rows.offset[wrong])
    is_range, allowed = rows.end != rows.offset + 1, (rows.attempt == 0) & np.isin(rows.outcome, OF_RANGES)
    what = "has an end_offset that its outcome or its attempt number does not allow"
    found.add_offsets("I4", what, tp, rows.offset[(is_range & ~allowed) | (rows.end <= rows.offset)])


def check_no_outcome_is_stored_twice(partition: PartitionHistory, found: Findings) -> None:
    """I9, I11: no two rows have the same offset, attempt and outcome, so no outcome was made visible twice."""
    rows = partition.outcomes
    rows = rows.where(~(rows.answered & (rows.outcome == IN_FLIGHT)))  # an attempt may be renewed any number of times
    same = np.ones(max(len(rows.offset) - 1, 0), dtype=np.bool_)
    for column in (rows.offset, rows.attempt, rows.outcome, rows.end):
        same &= np.diff(column) == 0
    same &= (rows.outcome[1:] != HELD_BACK) | (np.diff(rows.turn) == 0)  # a record may be held back in many turns
    found.add_offsets("I9", "the same attempt and outcome are stored twice", partition.tp, rows.offset[1:][same])


def check_nothing_is_attempted_after_its_end(partition: PartitionHistory, found: Findings) -> None:
    """I9, I11: no attempt has a higher number than the attempt that settled the record."""
    tried = partition.outcomes.attempts
    again = (np.diff(tried.offset) == 0) & (tried.outcome[:-1] < FAILED)
    what = "was attempted again after the attempt that settled it"
    found.add_offsets("I9", what, partition.tp, tried.offset[1:][again])


def check_nothing_is_attempted_in_later_turns(partition: PartitionHistory, found: Findings) -> None:
    """I9: no attempt belongs to a later turn than the one that settled the record."""
    turns = partition.offset_turns
    late = turns.offset[(turns.settled < NEVER) & (turns.tried > turns.settled)]
    found.add_offsets("I9", "was attempted in a later turn than the one that settled it", partition.tp, late)


def check_epoch_has_start_and_state(partition: PartitionHistory, found: Findings) -> None:
    """I4: an epoch with outcomes or settlements has a start and a last state, without which nothing can be proved."""
    if partition.start is None or partition.last is None:
        what = f"the tables do not have the start or the last state of epoch {partition.epoch}"
        found.add("I4", what, partition.tp)


def check_outcomes_are_inside_the_epoch(partition: PartitionHistory, found: Findings) -> None:
    """I4: no offset below the start of the epoch, and none above its complete_to, is settled."""
    start, last, terminal = partition.start, partition.last, partition.outcomes.terminal
    if start is None or last is None:
        return  # check_epoch_has_start_and_state reports it
    outside = (terminal.offset < start) | (terminal.end > last.complete_to)
    what = f"has a terminal outcome, but epoch {partition.epoch} has read only [{start}, {last.complete_to})"
    found.add_offsets("I4", what, partition.tp, terminal.offset[outside])


def check_each_record_is_settled_or_pending(partition: PartitionHistory, found: Findings) -> None:
    """I4, I9: each record below complete_to is either settled, once, or pending, once: none is lost and none is both.

    The offsets come from the log and from the outcomes: retention may have deleted a record since it was settled.
    """
    start, last, tp = partition.start, partition.last, partition.tp
    if start is None or last is None:
        return  # check_epoch_has_start_and_state reports it
    terminal = partition.outcomes.terminal
    received = partition.offsets_between(start, last.complete_to)
    offsets = np.union1d(received, terminal.offset)
    settled = count_covering(offsets, terminal.offset, terminal.end) + partition.counted.count_covering(offsets)
    pending = last.pending.count_covering(offsets)
    found.add_offsets("I9", "has more than one terminal outcome", tp, offsets[settled > 1])
    found.add_offsets("I4", "is both settled and pending", tp, offsets[(settled > 0) & (pending > 0)])
    found.add_offsets("I4", "is pending more than once", tp, offsets[pending > 1])
    neither = np.isin(offsets, received) & (settled == 0) & (pending == 0)
    found.add_offsets("I4", "is neither settled nor pending, but below complete_to", tp, offsets[neither])


def check_no_epoch_leaves_records_over(lane: LaneHistory, found: Findings) -> None:
    """I15: over all epochs, each record from the lowest start to the newest floor has a terminal outcome, unless the
    newest one has released it.

    A reset begins at another offset. What it passes over must be settled in the epoch that it ends.
    """
    for tp in sorted({tp for _, tp in lane.starts}):
        # In the log that older epochs have read, the same offsets may be of other records.
        numbers = sorted(e for e, of_tp in lane.starts if of_tp == tp and e >= lane.first_of_log.get(tp, 0))
        epochs = [lane.partition(epoch, tp) for epoch in numbers]
        last, starts = epochs[-1].last, [epoch.start for epoch in epochs if epoch.start is not None]
        floor = epochs[-1].start if last is None else last.floor
        if len(epochs) == 1 or not starts or floor is None:
            continue  # check_each_record_is_settled_or_pending judges a single epoch
        received = epochs[0].offsets_between(min(starts), floor)
        settled = np.zeros(len(received), np.int64)
        for epoch in epochs:
            terminal = epoch.outcomes.terminal
            settled += count_covering(received, terminal.offset, terminal.end) + epoch.counted.count_covering(received)
        if last is not None:  # what an older epoch has released is pending in no other
            settled += last.is_released(received)
        found.add_offsets(
            "I15", "has a terminal outcome in no epoch, but is below the floor", tp, received[settled == 0]
        )


def check_counts_match_rows(partition: PartitionHistory, found: Findings) -> None:
    """I4: the counts in a settlement are the numbers of offsets in the rows that its turn stored, by outcome."""
    stored = count_by_turn(partition.outcomes)
    counts_by_turn = {settlement.turn: settlement.counts for settlement in partition.settlements}
    for turn, counts in counts_by_turn.items():
        if counts is not None and turn not in partition.counted.turn and counts != stored.get(turn, {}):
            what = f"turn {turn} counts {dict(counts)}, but its rows give {stored.get(turn, {})}"
            found.add("I4", what, partition.tp)


def check_counts_match_records(partition: PartitionHistory, found: Findings) -> None:
    """I4: a turn that kept no rows counts an outcome for each record of its range, and no more than there are.

    With compaction, records may have vanished since: then only a count that is too low is a violation.
    """
    log, ranges = partition.log, partition.counted
    counts_by_turn = {settlement.turn: settlement.counts for settlement in partition.settlements}
    for turn, start, end in zip(ranges.turn.tolist(), ranges.start.tolist(), ranges.end.tolist(), strict=True):
        counts = counts_by_turn.get(turn)
        if log is None or counts is None or log.start > start:
            continue  # the counts are not stored any more, or retention has deleted records of the range
        counted = sum(counts.get(word, 0) for word in ("acked", "skipped", "dropped"))
        records = len(partition.offsets_between(start, end))
        if counted < records or (log.aborted is None and counted > records):
            what = f"turn {turn} counts {counted} outcomes of [{start}, {end}), which holds {records} records"
            found.add("I4", what, partition.tp)


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
    return np.asarray(np.diff(rows.offset, prepend=-1) != 0)


def check_attempts_within_limit(partition: PartitionHistory, max_retries: int, found: Findings) -> None:
    """I5: no record has more than `max_retries` + 1 attempts."""
    tried = partition.outcomes.attempts
    over = tried.offset[tried.attempt > max_retries + 1]
    found.add_offsets("I5", f"has more than {max_retries + 1} attempts", partition.tp, over)


def check_retries_were_pending_and_due(partition: PartitionHistory, found: Findings) -> None:
    """I5: each retry was pending after the turn before, as the next attempt, and did not begin before it was due.

    A single offset of a backfill lane is pending before its first attempt, too, and so is what was held back.
    """
    tried, held_back = partition.outcomes.attempts, partition.outcomes.held_back.offset
    again = (tried.attempt > 1) | np.isin(tried.offset, held_back)
    retries = tried if partition.reads_single_offsets else tried.where(again)
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
    held = pending.held[index]
    known = inside & (pending.retry[index] | held) & (pending.attempts[index] == retries.attempt - 1)
    what = "was retried, but no retry with its number of attempts was pending"
    found.add_offsets("I5", what, partition.tp, retries.offset[~known])
    early = known & ~held & (retries.handled_at < pending.due[index])
    found.add_offsets("I5", "was retried before its due time", partition.tp, retries.offset[early])


def check_complete_to_is_in_log(partition: PartitionHistory, found: Findings) -> None:
    """I14: complete_to of the newest epoch is not beyond the last stable offset, so no turn read past it."""
    log, last = partition.log, partition.last
    if log is None or last is None or partition.start is None or not partition.newest:
        return  # an older epoch may be of a log that was deleted and created again
    if last.complete_to > log.end:
        what = f"is complete_to, but the log ends at {log.end}"
        found.add_offsets("I14", what, partition.tp, [last.complete_to])


def check_only_received_records_are_handled(partition: PartitionHistory, found: Findings) -> None:
    """I14: a handler gets only records that a consumer receives: none past the last stable offset, none aborted."""
    log, offsets = partition.log, np.unique(partition.outcomes.attempts.offset)
    if log is None:
        return
    what = f"was handled, but the log ends at {log.end}"
    found.add_offsets("I14", what, partition.tp, offsets[offsets >= log.end])
    inside = slice_between(offsets, log.start, log.end)
    # Compaction removes records that were handled: then only the aborted ones are certain to be wrong.
    wrong = np.setdiff1d(inside, log.offsets) if log.aborted is None else np.intersect1d(inside, log.aborted)
    found.add_offsets("I14", "was handled, but no consumer receives a record there", partition.tp, wrong)
