"""Rules on the tables against the log: only what a consumer receives was read."""

import numpy as np

from ackline.verify.arrays import slice_between
from ackline.verify.findings import Findings
from ackline.verify.lane_history import PartitionHistory


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
