"""Rules on a pipeline that must be finished (`--settled`): nothing may be open, pending or behind."""

from ackline.verify.evidence import Log, TopicPartition
from ackline.verify.findings import Findings
from ackline.verify.judge_commits import own_turn
from ackline.verify.judge_turns import turns_by_epoch
from ackline.verify.lane_history import LaneHistory


def check_no_turn_is_open(lane: LaneHistory, found: Findings) -> None:
    """I12: the last turn of each epoch has a settlement."""
    for turns in turns_by_epoch(lane.evidence):
        if turns.last not in turns.settled:
            found.add("settled", f"turn {turns.last} of epoch {turns.epoch} is still open")


def check_nothing_is_pending(lane: LaneHistory, tp: TopicPartition, log: Log, found: Findings) -> None:
    """I12: the last settlement has the log's end as floor and as complete_to, and no pending offset."""
    settlements = lane.partition(lane.newest_epoch, tp).settlements
    if not settlements and lane.evidence.lane != "live":
        return  # nothing of the partition was chosen
    if not settlements:
        found.add("settled", "no settlement of the newest epoch has this partition", tp)
        return
    last = settlements[-1]
    found.add_offsets("settled", "is still pending", tp, last.pending.start)
    chosen = lane.partition(lane.newest_epoch, tp).chosen
    end = log.end if chosen is None else int(max(chosen.end, default=0))
    for name, value in (("floor", last.floor), ("complete_to", last.complete_to)):
        if value != end:
            what = "the log ends" if chosen is None else "what was chosen ends"
            found.add("settled", f"{name} is {value}, but {what} at {end}", tp)


def check_commit_is_the_log_end(lane: LaneHistory, tp: TopicPartition, log: Log, found: Findings) -> None:
    """I12: the pipeline and ledger that are judged have committed the log's end. Only the lane `live` commits."""
    if lane.evidence.lane != "live" or not lane.partition(lane.newest_epoch, tp).settlements:
        return  # check_nothing_is_pending reports a partition without settlement
    if log.committed != log.end or own_turn(lane.evidence, log) is None:
        committed = "nothing" if log.committed is None else f"{log.committed} with metadata {log.metadata!r}"
        what = f"the group has committed {committed}; this ledger must have committed the log's end, {log.end}"
        found.add("settled", what, tp)


def judge_settled(lane: LaneHistory, found: Findings) -> None:
    """Apply all rules on a finished pipeline."""
    check_no_turn_is_open(lane, found)
    for tp, log in lane.evidence.logs.items():
        check_nothing_is_pending(lane, tp, log, found)
        check_commit_is_the_log_end(lane, tp, log, found)
