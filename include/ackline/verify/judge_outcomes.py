"""Rules on the rows of `outcomes`: each is well-formed, and each record has exactly one terminal outcome."""

import numpy as np

from ackline.verify.arrays import NEVER, count_covering
from ackline.verify.findings import Findings
from ackline.verify.lane_history import LaneHistory, PartitionHistory
from ackline.verify.outcome_rows import FAILED, IN_FLIGHT, OF_ATTEMPTS, OF_DECISIONS, OF_RANGES, count_by_turn


def check_rows_are_well_formed(partition: PartitionHistory, found: Findings) -> None:
    """I4: a row has a known outcome, with an attempt number and a range that this outcome allows."""
    rows, tp = partition.outcomes, partition.tp
    found.add_offsets("I4", "has an unknown outcome", tp, rows.offset[rows.outcome < 0])
    wrong = np.isin(rows.outcome, OF_ATTEMPTS) & (rows.attempt < 1)
    what = "has the outcome of an attempt (acked, failed, dropped or in_flight), but no attempt number"
    found.add_offsets("I4", what, tp, rows.offset[wrong])
    wrong = np.isin(rows.outcome, OF_DECISIONS) & (rows.attempt != 0)
    what = "has an outcome that no attempt can have (dead, expired, compacted or lost), but an attempt number"
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
    """I15: over all epochs, each record from the first start to the newest floor has a terminal outcome.

    A reset begins at another offset. What it passes over must be settled in the epoch that it ends.
    """
    for tp in sorted({tp for _, tp in lane.starts}):
        epochs = [lane.partition(epoch, tp) for epoch in sorted(e for e, of_tp in lane.starts if of_tp == tp)]
        last = epochs[-1].last
        floor = epochs[-1].start if last is None else last.floor
        if len(epochs) == 1 or epochs[0].start is None or floor is None:
            continue  # check_each_record_is_settled_or_pending judges a single epoch
        received = epochs[0].offsets_between(epochs[0].start, floor)
        settled = np.zeros(len(received), np.int64)
        for epoch in epochs:
            terminal = epoch.outcomes.terminal
            settled += count_covering(received, terminal.offset, terminal.end) + epoch.counted.count_covering(received)
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
