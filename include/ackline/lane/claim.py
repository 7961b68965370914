"""How an at-most-once turn is claimed and handed out once, and how a turn ends that can't be carried out: void or lost.

At most once, the group moves to a plan's end before its first record is handed out, and never back. The writes, in this
order:
1. Claim n, a number of its own: the plan stays open. From here on the floor is the plan's end. A crash before it costs
   nothing; after it, any run commits the end, and the turn may no longer become void.
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

A void turn changes no state, none of its rows counts, and a later turn plans its offsets again. At least once,
settlement n alone closes the turn: it takes the number that settling the turn would take. What a driver stores after it
does not count. At most once, a void settlement alone would race with the driver that claims the turn and hands its
records out: both would win, and the next turn would hand the same records out again (I7). So the writes come in this
order:
1. Waiver n, which takes the number of claim n. A turn is either claimed or waived, and stays so. After a crash here,
   every process that meets the turn closes it, with the reason that the waiver holds. No process commits its end.
2. Settlement n, of kind void.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from ackline.errors import (
    AcklineError,
    ConfigError,
    FatalError,
    GroupBusy,
    GroupMoved,
    HandedOut,
    NewerCommit,
    RangeGone,
    TopicChanged,
    TurnVoided,
)
from ackline.lane.adapters import Adapters
from ackline.lane.commit import Publish, allowed_commits, commit_newest
from ackline.lane.turn_metrics import metrics_without_effect
from ackline.lane.ways_out import Way, void_advice
from ackline.ledger.offsets import TopicPartition, arrays_of, union
from ackline.ledger.outcomes import Outcome, RangeRows
from ackline.ledger.published import without_effect
from ackline.ledger.turns import (
    VOIDED_BY_OPERATOR,
    Marker,
    MarkerKind,
    OperatorLoss,
    Plan,
    Settlement,
    TurnId,
    TurnKind,
)
from ackline.pipeline.pipeline import claims

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
    if not adapters.pipeline.guarantee.claims:
        return work()

    def log_error(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        seconds = state.next_action.sleep if state.next_action else 0
        log.warning("%s. At most once no record is handed out again, so this is tried again in %.0f s", error, seconds)

    tries = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, AcklineError) and not isinstance(error, _FINAL)),
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(max=_MAX_WAIT_SECONDS),
        sleep=adapters.sleep,
        before_sleep=log_error,
        reraise=True,
    )
    return tries(work)


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

    If another process has taken the marker, raises HandedOut until `lost_after` has passed. Then records what was
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
        raise HandedOut(
            f"{plan.turn} was handed out by another process, which may still report; what it has not reported by "
            f"{until.isoformat(timespec='seconds')} is lost. Run again then, or record it as lost at once with "
            f"`{Way.VOID.of(plan.turn)}`"
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
    return adapters.store.operator_loss(plan.turn) if claims(plan) else None


def _lost_ranges(adapters: Adapters, plan: Plan, reason: str) -> dict[TopicPartition, RangeRows]:
    """Returns a `lost` row for each whole range that the plan hands out: the fresh one, and in a backfill lane the runs
    of offsets that are read for the first time by exact reads."""
    handed_out = {
        tp: union(arrays_of([planned.fresh]), arrays_of(planned.retries)) for tp, planned in plan.partitions.items()
    }
    return {
        tp: RangeRows(ranges, Outcome.LOST, adapters.now(), reason)
        for tp, ranges in handed_out.items()
        if len(ranges[0])
    }


def refuse_retries(plan: Plan) -> None:
    """Raises FatalError for a plan with second attempts: at most once hands nothing out twice (I7).

    A backfill lane reads offsets that were chosen by their outcome like retries, as attempt 1.
    """
    if any(run.value > 1 for planned in plan.partitions.values() for run in planned.retries):
        raise FatalError(f"{plan.turn} holds retries, and at most once makes none; nothing was handed out")


def void_turn(adapters: Adapters, plan: Plan, before: Settlement, reason: str) -> bool:
    """Closes a plan that can't be carried out as void. Returns whether the turn is void now: False if it is claimed, or
    if another process has settled it meanwhile."""
    waiver = Marker(MarkerKind.WAIVER, adapters.run_id, adapters.now(), adapters.actor, reason)
    if claims(plan):
        if waive(adapters, plan, waiver):
            close_if_waived(adapters, plan, before)
    else:
        store_void(adapters, plan, before, waiver)
    return adapters.store.is_settled(plan.turn) and adapters.store.settlement(plan.turn).kind is TurnKind.VOID


def waive(adapters: Adapters, plan: Plan, waiver: Marker) -> bool:
    """Takes the claim's number of an at-most-once turn. Returns whether the turn is waived, by this process or by
    another one; False if it is claimed."""
    return adapters.store.store_waiver(plan, waiver) or adapters.store.has_waiver(plan.turn)


def close_if_waived(adapters: Adapters, plan: Plan, before: Settlement) -> bool:
    """Closes an open turn as void if it was waived, with the reason that the waiver holds. Returns whether it was.

    Every step that meets an open turn calls this. The process that has waived it may have died before it could close
    the turn, and no other step may carry out a waived turn.
    """
    waiver = adapters.store.waiver_of(plan.turn) if claims(plan) else None
    if waiver is not None:
        store_void(adapters, plan, before, waiver)
    return waiver is not None


def store_void(adapters: Adapters, plan: Plan, before: Settlement, waiver: Marker) -> bool:
    """Stores the void settlement of an open plan. Returns False if settlement n is stored already.

    The void settlement takes number n of the settlements. So it races with a process that settles the turn: the first
    one stored decides, and the other one is refused.
    """
    partitions = {
        tp: replace(
            settled,
            old_floor=settled.state.floor,
            counts={},
            gaps=0,
            evidence=VOIDED_BY_OPERATOR if waiver.by_operator else "void",
            # What the plan has found out about the group stays true although the turn is void: a foreign offset is
            # acknowledged only until a plan has found a commit of this ledger.
            acknowledged_foreign_offset=acknowledged_foreign_offset(tp, plan, before),
            metrics=metrics_without_effect(plan, before, tp, adapters.now()),
            ranges=None,  # only a genesis holds what was chosen
            paused=settled.paused or (waiver.pause and tp in plan.partitions and not plan.partitions[tp].empty),
        )
        for tp, settled in before.partitions.items()
    }
    settlement = Settlement(
        plan.turn, TurnKind.VOID, adapters.run_id, adapters.now(), partitions, waiver.actor, waiver.reason,
        # Answers that the turn has read did not count, so the next turn reads them again.
        answers=before.answers.after_turn_without_answers() if before.answers else None,
        outputs=without_effect(before.outputs, adapters.store.given_up(before.turn) if before.outputs else ()),
        code=plan.code,
    )  # fmt: skip
    return adapters.store.store_settlement(settlement, plan)


def acknowledged_foreign_offset(tp: TopicPartition, plan: Plan, before: Settlement) -> int | None:
    """Returns the foreign offset that stays acknowledged: by the plan if it holds the partition, else as before."""
    partitions = plan.partitions if tp in plan.partitions else before.partitions
    return partitions[tp].acknowledged_foreign_offset


def check_not_voided(adapters: Adapters, turn: TurnId) -> None:
    """Raises TurnVoided if an operator has closed the turn, as void or as lost: the run that worked on it ends, and
    plans no other turn."""
    newest = adapters.store.newest()
    if newest is None or (newest.turn.epoch, newest.turn.n) < (turn.epoch, turn.n):
        return
    settlement = adapters.store.settlement(turn)
    if not settlement.closed_by_operator:
        return
    if settlement.kind is TurnKind.VOID:
        raise TurnVoided(
            f"{turn} was closed as void by {settlement.actor or 'an operator'}: {settlement.reason}. Nothing of it "
            f"counts, and nothing more was planned; the next run plans its offsets again"
        )
    # Without the actor: any process may settle a turn after an operator has recorded it as lost.
    raise TurnVoided(
        f"{turn} was recorded as lost by an operator: {settlement.reason}. What this run has handled of it does not "
        f"count, and nothing more was planned; the next run goes on after it"
    )


@contextmanager
def advises_void_if_file_changed(adapters: Adapters, plan: Plan) -> Iterator[None]:
    """Adds `void_advice` to a ConfigError if the pipeline file differs from the settings of the plan.

    Such an error advises to change the file, which is no way out of a turn that runs by the settings of its plan.
    """
    try:
        yield
    except ConfigError as error:
        now = adapters.pipeline.settings()
        if any(now[key] != value for key, value in plan.settings.items() if key in now):
            error.add_advice(
                f"{plan.turn} runs by the settings of its plan. The file has changed since, and counts from the next "
                f"turn on. {void_advice(plan.turn)}"
            )
        raise
