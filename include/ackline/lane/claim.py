"""At most once: the group moves to a plan's end before its first record is handed out, and never back.

The writes, in this order:
1. Claim n, a number of its own: the plan stays open. From here on the floor is the plan's end. A crash before it costs
   nothing; after it, any run commits the end, and the turn may no longer become void. A process that gives the turn up
   takes the same number, as a waiver (lane/void.py): then the turn is never handed out.
2. The group's commit. It comes before the first handler call, so that no restart of any consumer of the group reads
   these records again (I7).
3. Start marker n, fenced: one process ever takes it, and only that process hands the records out.
4. The handler calls, and then outcomes n.
A crash after 1 loses at most the range of this turn, and repeats nothing. What was handed out and is not reported
within `lost_after` becomes `lost`. That is stored as outcomes n, so the fence refuses a report that comes later.

The job runs once. If its report is not stored, every record of the range becomes `lost`, although each has an outcome.
So a broker or a store that is away for some minutes must not end the driver between the end of the job and the commit
of its outcomes: `retry_report` repeats what fails there. Under the other guarantees the next run repeats the turn, and
an error at once is better than a driver that waits.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from ackline.errors import (
    AcklineError,
    FatalError,
    GroupBusy,
    GroupMoved,
    NewerCommit,
    RangeGone,
    TopicChanged,
    TransientError,
)
from ackline.lane.adapters import Adapters
from ackline.lane.commit import Publish, allowed_commits, commit_newest
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import OperatorLoss, Plan, Settlement
from ackline.pipeline.pipeline import is_at_most_once

TRIES = 15
"""How often the work is tried. The waits between the tries add up to five minutes."""
_MAX_WAIT_SECONDS = 30
_FINAL = (RangeGone, TopicChanged)
"""Errors that state what is so, and not that it could not be found out."""

log = logging.getLogger(__name__)
T = TypeVar("T")


def retry_report(adapters: Adapters, work: Callable[[], T]) -> T:
    """Returns what `work` returns. Retries it only under at_most_once, and never after RangeGone or TopicChanged.

    `work` may have succeeded before it raised, so it must be repeatable. Raises the error of the last try.
    """
    if adapters.pipeline.guarantee != "at_most_once":
        return work()
    tries = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, AcklineError) and not isinstance(error, _FINAL)),
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(max=_MAX_WAIT_SECONDS),
        sleep=adapters.sleep,
        before_sleep=_log_error,
        reraise=True,
    )
    return tries(work)


def _log_error(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    seconds = state.next_action.sleep if state.next_action else 0
    log.warning("%s. At most once no record is handed out again, so this is tried again in %.0f s", error, seconds)


def claim(adapters: Adapters, plan: Plan, newest: Settlement, publish: Publish) -> bool:
    """Stores claim n and commits it. Returns whether the plan is claimed, and so may be started, or is started already;
    False if it was waived, or if its turn is over: then it may not be handed out. A backfill lane claims, so that no
    second process hands its records out, and commits nothing.

    Raises GroupBusy, GroupMoved or NewerCommit if the group may not be committed. Once the claim is stored, the whole
    range is recorded as lost before such an error is raised.
    """
    if adapters.store.is_claimable(plan.turn):
        if adapters.commits:
            _check_group(adapters, plan, newest)
        # The fence. If the number is taken, another process has claimed or waived the turn, for good.
        adapters.store.store_claim(plan)
    if not adapters.store.has_claim(plan.turn):
        return False
    # Another process has started the plan. Its report decides what becomes of the records, whatever has happened to
    # the group since. If this process recorded them as lost, it would lose records that the other one is handling.
    if adapters.store.has_start_marker(plan.turn) or not adapters.commits:
        return True
    try:
        committed = commit_newest(adapters, publish).committed
        for tp, planned in plan.partitions.items():
            # The partition was parked after it was planned, and another consumer has committed it. The group has not
            # moved over this range, so handing it out would break I7.
            if planned.fresh and tp not in committed:
                raise GroupMoved(f"{tp} is no longer subscribed, and another consumer has committed it")
    except (GroupBusy, GroupMoved, NewerCommit) as error:
        # The claim is stored and can't be committed, and a claimed turn is never void. An open turn would stop the
        # lane, so its range is recorded as lost at once. Only the process that takes the start marker does that: if
        # another process has the marker, it is handling the records, and its report decides.
        if adapters.store.store_start_marker(plan, adapters.run_id, adapters.now()):
            record_lost(adapters, plan, str(error))
        raise
    return True


def _check_group(adapters: Adapters, plan: Plan, newest: Settlement) -> None:
    """Checks everything that may refuse the claim's commit, live members of the group too, before the claim is stored.

    Without this check, a forgotten console consumer would cost a whole turn.
    """
    try:
        allowed_commits(adapters, newest)
        adapters.group.check_no_members()
    except GroupMoved:
        if adapters.pipeline.on_external_reset != "follow":
            raise
        # The action that follows the group can't run beside an open turn, so this turn must end first. It is claimed,
        # its commit is refused, and its range is recorded as lost.
    except NewerCommit:
        # Another process may have stored this claim and committed it since the ledger was read (S53).
        if adapters.store.is_claimable(plan.turn):
            raise


def take_start_marker(adapters: Adapters, plan: Plan) -> bool:
    """Takes the start marker. Returns True if this process, and no other ever, hands the plan's records out.

    If another process has taken the marker, raises TransientError until `lost_after` has passed. Then records what was
    handed out as lost, and returns False.
    """
    if adapters.store.store_start_marker(plan, adapters.run_id, adapters.now()):
        return True
    if adapters.store.has_outcomes(plan.turn):  # the other process has reported, or an operator has recorded it as lost
        return False
    # The grace period begins at the hand-out, not at the plan: a plan may wait in a queue for longer than `lost_after`
    # before a process takes it, and that process may still report.
    until = (adapters.store.started_at(plan.turn) or plan.planned_at) + adapters.pipeline.lost_after
    if adapters.now() < until:
        raise TransientError(
            f"{plan.turn} was handed out by another process, which may still report; what it has not reported by "
            f"{until.isoformat(timespec='seconds')} is lost. Run again then, or record it as lost at once with "
            f"`ackline void {adapters.pipeline.name} --reason …`"
        )
    record_lost(adapters, plan, f"handed out, and not reported within {adapters.pipeline.lost_after}")
    return False


def record_lost(adapters: Adapters, plan: Plan, reason: str, operator: OperatorLoss | None = None) -> bool:
    """Stores the plan's ranges as lost, as outcomes n. Returns False, and changes nothing, if outcomes n are stored.

    With `operator`, the same commit marks the turn as closed by an operator, for `operator_loss`.
    """
    return adapters.store.store_lost(plan, adapters.run_id, _lost_ranges(adapters, plan, reason), operator)


def replace_by_lost(adapters: Adapters, plan: Plan, operator: OperatorLoss) -> bool:
    """Stores the plan's ranges as lost, in place of outcomes n, files of which do not exist any more or are damaged.

    Returns False, and changes nothing, if decisions n are stored.
    """
    return adapters.store.replace_by_lost(
        plan, adapters.run_id, _lost_ranges(adapters, plan, operator.reason), operator
    )


def operator_loss(adapters: Adapters, plan: Plan) -> OperatorLoss | None:
    """Returns why an operator has recorded a claimed turn as lost; None if no operator has.

    Call it once decisions n are stored: the lost ranges are outcomes n or decisions n, so nothing changes after that.
    """
    return adapters.store.operator_loss(plan.turn) if is_at_most_once(plan) else None


def _lost_ranges(adapters: Adapters, plan: Plan, reason: str) -> dict[TopicPartition, list[OutcomeRow]]:
    """Returns a `lost` row for each whole range that the plan hands out: the fresh one, and in a backfill lane the runs
    of offsets that are read for the first time by exact reads."""
    lost = {}
    for tp, planned in plan.partitions.items():
        runs = [planned.fresh, *(OffsetRange(run.start, run.end) for run in planned.retries)]
        rows = [OutcomeRow(run.start, 0, Outcome.LOST, adapters.now(), None, run.end, reason) for run in runs if run]
        if rows:
            lost[tp] = rows
    return lost


def refuse_retries(plan: Plan) -> None:
    """Raises FatalError for a plan with second attempts: at most once hands nothing out twice (I7).

    A backfill lane reads offsets that were chosen by their outcome like retries, as attempt 1.
    """
    if any(run.value > 1 for planned in plan.partitions.values() for run in planned.retries):
        raise FatalError(f"{plan.turn} holds retries, and at most once makes none; nothing was handed out")
