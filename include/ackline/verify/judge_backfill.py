"""Rules on backfill lanes: they read what was chosen and nothing else, and account for each chosen offset."""

import numpy as np

from ackline.verify.findings import Findings
from ackline.verify.lane_history import PartitionHistory


def check_outcomes_are_of_chosen_offsets(partition: PartitionHistory, found: Findings) -> None:
    """S70: each row is of offsets that were chosen, so overlapping backfills do not touch what is not theirs."""
    chosen, rows = partition.chosen, partition.outcomes
    if chosen is None:
        return
    inside = np.maximum(np.searchsorted(chosen.start, rows.offset, "right") - 1, 0)
    if len(chosen.start):
        outside = (rows.offset < chosen.start[inside]) | (rows.end > chosen.end[inside])
    else:
        outside = rows.offset >= 0
    found.add_offsets("S70", "has an outcome, but is no part of the lane", partition.tp, rows.offset[outside])


def check_each_chosen_offset_is_counted_once(partition: PartitionHistory, found: Findings) -> None:
    """S72: after each turn, each chosen offset has a terminal outcome, is a gap, is pending, or is unread."""
    chosen, terminal = partition.chosen, partition.outcomes.terminal
    if chosen is None:
        return
    gaps = 0
    for settlement in partition.settlements:
        gaps += settlement.gaps
        ended = terminal.turn <= settlement.turn
        settled = int((terminal.end - terminal.offset)[ended].sum())
        left = chosen.end - np.maximum(chosen.start, settlement.complete_to)
        unread = int(np.maximum(left, 0).sum())
        counted = settled + gaps + settlement.pending.size + unread
        if counted != chosen.size:
            what = (
                f"{chosen.size} offsets were chosen, but after turn {settlement.turn} {settled} are settled, "
                f"{gaps} are gaps, {settlement.pending.size} are pending and {unread} are unread"
            )
            found.add("S72", what, partition.tp)


def check_an_older_epoch_is_settled(partition: PartitionHistory, found: Findings) -> None:
    """I15: a new epoch of a backfill lane begins only after the one before it has settled each chosen offset."""
    chosen, last = partition.chosen, partition.last
    if chosen is None or partition.newest or last is None:
        return
    what = f"is still pending in epoch {partition.epoch}, but a later epoch of the lane has begun"
    found.add_offsets("I15", what, partition.tp, last.pending.start)
    end = int(max(chosen.end, default=0))
    if last.complete_to < end:
        what = f"is unread in epoch {partition.epoch}, but a later epoch of the lane has begun"
        found.add_offsets("I15", what, partition.tp, [last.complete_to])
