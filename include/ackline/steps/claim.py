"""At most once: the group is moved to a plan's end before its first record is handed out, and never back.

The writes, in order: claim n (a number of its own, the plan stays open), the group's commit, start marker n, and only
then the handler. Whoever finds the start marker taken hands nothing out: what was handed out and is not reported within
`lost_after` is `lost`, under the fence of outcomes n, so that a late report is refused. A crash loses at most the range
of one turn, and repeats nothing.
"""

from ackline.errors import FatalError, GroupBusy, GroupMoved, NewerCommit, TransientError
from ackline.ledger import OutcomeRow
from ackline.outcome import Outcome
from ackline.steps.commit import check_commit, commit_newest
from ackline.steps.parts import Parts
from ackline.turns import Plan, Settlement


def claim(parts: Parts, plan: Plan, newest: Settlement) -> None:
    """Store claim n and commit it; returns when the plan may be started, or somebody has started it.

    Raises what keeps the group from being committed; once the claim is stored, all of it is lost then. So that is asked
    before as well, live members included: a console consumer somebody forgot must not cost a turn. What somebody has
    started is that process's to report, whatever has become of the group since.
    """
    if parts.store.has_start(plan.turn):
        return
    if not parts.store.has_claim(plan.turn):
        try:
            check_commit(parts, newest)  # asked before, when nothing is at stake yet
            parts.group.refuse_members()
        except GroupMoved:
            if parts.pipeline.on_external_reset != "follow":
                raise
            # An act can't follow beside an open turn, so this one ends: claimed, its commit refused, and lost.
        except NewerCommit:
            if not parts.store.has_claim(plan.turn):  # else it may be that claim's
                raise
        parts.store.store_claim(plan)
    try:
        committed = commit_newest(parts).committed
        for tp, one in plan.partitions.items():
            if one.fresh and tp not in committed:  # parked since it was planned, and committed by others: theirs by now
                raise GroupMoved(f"{tp} is no longer subscribed, and somebody else has committed it")
    except (GroupBusy, GroupMoved, NewerCommit) as error:
        if parts.store.store_start(plan, parts.now()):  # whoever has the marker alone says what becomes of the records
            lose(parts, plan, str(error))
        raise


def start(parts: Parts, plan: Plan) -> bool:
    """Take the start marker: whether this process may hand the plan's records out, and no other ever.

    Where it is taken, returns False once what was handed out is recorded as lost; until then raises TransientError.
    """
    if parts.store.store_start(plan, parts.now()):
        return True
    # From the hand-out on: the plan may have waited for longer than the grace period before anybody took it.
    until = (parts.store.started_at(plan.turn) or plan.planned_at) + parts.pipeline.lost_after
    if parts.now() < until:
        raise TransientError(
            f"{plan.turn} was handed out by another process, which may still report; what it has not reported by "
            f"{until.isoformat(timespec='seconds')} is lost. Run again then"
        )
    lose(parts, plan, f"handed out, and not reported within {parts.pipeline.lost_after}")
    return False


def lose(parts: Parts, plan: Plan, reason: str) -> None:
    """Record the plan's ranges as lost, in the place of its outcomes; nothing where outcomes are stored."""
    rows = {
        tp: [OutcomeRow(one.fresh.start, 0, Outcome.LOST, parts.now(), None, one.fresh.end, reason)]
        for tp, one in plan.partitions.items()
        if one.fresh
    }
    parts.store.store_lost(plan, parts.run_id, rows)


def refuse_retries(plan: Plan) -> None:
    """Raise FatalError for a plan with retries: under this guarantee nothing is handed out twice."""
    if any(one.retries for one in plan.partitions.values()):
        raise FatalError(f"{plan.turn} holds retries, and at most once makes none; nothing was handed out")
