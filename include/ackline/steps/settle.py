"""settle: fold a turn's outcomes into the state, confirm dead letters, store the settlement, then commit the floor.

Its writes, in this order, and why:
1. dead letters, acknowledged by all replicas — before anything says `dead` (I6); killed here, they are sent again,
   with the same coordinates in their headers.
2. decisions n — a commit of their own, for zero rows too; whoever settles folds the decisions that are stored, so that
   two runs which saw different acknowledgements still store one and the same settlement.
3. settlement n — the authority. Killed before it, a repeat folds the same rows to the same state.
4. the group's offsets, to the *newest* floor, not this turn's: a late process then repeats what is right instead of
   moving the group back. Killed before it, any later run commits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ackline.audit.store import TurnOutcomes
from ackline.errors import GroupMoved, NoProof, TooManyFailures
from ackline.ledger import OutcomeRow
from ackline.metrics import last_fetch
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.steps.commit import Settled, commit_newest
from ackline.steps.decide import decide, states_after
from ackline.steps.events import tell_settled
from ackline.steps.expired import expired_of
from ackline.steps.measure import gaps_of, outcomes_of, report_of, with_metrics
from ackline.steps.parts import Parts
from ackline.turns import Plan, SettledPartition, Settlement, TurnId, TurnKind


def settle(parts: Parts, turn: TurnId | None = None, on_stored: Callable[[Settlement], None] | None = None) -> Settled:
    """Settle the lane's open turn, if there is one, and commit the newest floor.

    With `turn`, only that one: where another run has settled it meanwhile and gone on, the next is that run's to prove.
    `on_stored` is told of the settlement that this process has stored, before it is committed.

    Raises NoProof where the turn's outcomes are not stored; GroupBusy, GroupMoved and NewerCommit where the commit may
    not be made: the settlement is stored by then, and a later run commits it.
    """
    newest = parts.store.newest()
    plan = parts.store.open_plan(newest) if newest else None
    stored = settle_turn(parts, plan, newest) if newest and plan and turn in (None, plan.turn) else None
    if stored is not None and on_stored is not None:
        on_stored(stored)
    try:
        return replace(commit_newest(parts), stored=stored)
    except GroupMoved:
        if parts.pipeline.on_external_reset != "follow":
            raise
        return Settled(parts.store.newest(), {}, stored)  # the next run's plan takes the turn that follows


def settle_turn(parts: Parts, plan: Plan, before: Settlement) -> Settlement | None:
    """Store decisions n and settlement n of an open plan; `before` is settlement n - 1.

    Returns what was stored; None where another process was quicker, or no settlement that counts was to be stored.
    """
    if plan.kind is TurnKind.RUN and not parts.store.has_outcomes(plan.turn):
        raise NoProof(
            f"{plan.turn} has no stored outcomes, so nothing proves that it was handled; a task marked as successful "
            f"proves nothing. Run replay again"
        )
    report = report_of(parts, plan)
    found = outcomes_of(parts, plan, report)
    if not parts.store.has_decisions(plan.turn):
        _check_breaker(parts, plan, before, found)
        _check_expired(parts, plan, before, found.rows)  # before any dead letter is sent
        decisions = decide(parts, plan, before, found)
        _check_expired(parts, plan, before, decisions)
        parts.store.store_decisions(plan, parts.run_id, decisions)
        found = outcomes_of(parts, plan, report)  # those that are stored count, ours or a rival's
    states = states_after(plan, before, found)
    committed = parts.group.committed(parts.existing({tp: _topic_id(tp, plan, before) for tp in states}))
    partitions = {
        tp: SettledPartition(
            _topic_id(tp, plan, before),
            before.partitions[tp].state.floor if tp in before.partitions else state.floor,
            state,
            found.counts.get(tp, {}),
            gaps_of(plan, tp, found),
            plan.partitions[tp].acknowledged_foreign_offset
            if tp in plan.partitions
            else before.partitions[tp].acknowledged_foreign_offset,
            committed.get(tp),
            _evidence(plan),
            _paused(tp, plan, before),
            leader_epoch=_leader_epoch(tp, plan, before),
        )
        for tp, state in states.items()
    }
    partitions = with_metrics(parts, plan, before, partitions, found, report)
    now = parts.now()
    settlement = Settlement(plan.turn, plan.kind, parts.run_id, now, partitions, parts.actor, plan.reason)
    if not parts.store.store_settlement(settlement, plan):
        return None
    tell_settled(parts, plan, settlement, found)
    return settlement


def _check_breaker(parts: Parts, plan: Plan, before: Settlement, found: TurnOutcomes) -> None:
    """Close the turn as void and raise TooManyFailures where too many of its new records failed (S46).

    Only first attempts count, so that a turn of poisonous retries never trips it; what is `dropped` had no other. A
    claimed turn is never void: the group has moved over it.
    """
    breaker = parts.pipeline.breaker
    if breaker is None or parts.no_breaker or plan.kind is not TurnKind.RUN or parts.store.has_claim(plan.turn):
        return
    tried = sum(found.attempted_fresh.values())
    bad = sum(row.attempt == 1 and row.outcome is Outcome.FAILED for rows in found.rows.values() for row in rows)
    bad += sum(counts.get(Outcome.DROPPED, 0) for counts in found.counts.values())
    # Divided, not multiplied: 29 of 100 are a ratio of 0.29 then, and not more.
    if tried < breaker.min_records or bad / tried <= breaker.failure_ratio:
        return
    allowed = f"{breaker.failure_ratio * 100:g}%"
    reason = f"too many failures: {bad} of {tried} new records failed, the breaker allows {allowed}"
    void_turn(parts, plan, before, reason)
    raise TooManyFailures(
        f"{reason}. {plan.turn} is void: nothing of it was settled, dead-lettered or committed. Mend the handler and "
        f"run again, or let it through with --no-breaker"
    )


def _check_expired(
    parts: Parts, plan: Plan, before: Settlement, rows: Mapping[TopicPartition, Sequence[OutcomeRow]]
) -> None:
    """Close the turn as void and raise RetentionPassed where `rows` have what `on_expired` says not to settle.

    Dead letters that decisions were made of are sent again by the turn that settles their records.
    """
    error = expired_of(parts, plan, rows)
    if error is not None:
        void_turn(parts, plan, before, str(error))
        raise error


def void_turn(parts: Parts, plan: Plan, before: Settlement, reason: str) -> None:
    """Close a plan that can't be carried out: no state changes and none of its rows counts.

    What the plan found of the group stays found: a foreign value is answered only until a commit of ours was met.
    """
    known = before.partitions
    acknowledged_foreign_offset = {
        tp: plan.partitions[tp].acknowledged_foreign_offset
        if tp in plan.partitions
        else one.acknowledged_foreign_offset
        for tp, one in known.items()
    }
    partitions = {
        tp: replace(
            one,
            old_floor=one.state.floor,
            counts={},
            gaps=0,
            evidence="void",
            acknowledged_foreign_offset=acknowledged_foreign_offset[tp],
            metrics=last_fetch(one.metrics),
        )
        for tp, one in known.items()
    }
    parts.store.store_settlement(
        Settlement(plan.turn, TurnKind.VOID, parts.run_id, parts.now(), partitions, parts.actor, reason), plan
    )


def _paused(tp: TopicPartition, plan: Plan, before: Settlement) -> bool:
    if tp in plan.partitions and plan.kind in (TurnKind.PAUSE, TurnKind.RESUME):
        return plan.kind is TurnKind.PAUSE
    return tp in before.partitions and before.partitions[tp].paused


def _topic_id(tp: TopicPartition, plan: Plan, before: Settlement) -> str:
    return plan.partitions[tp].topic_id if tp in plan.partitions else before.partitions[tp].topic_id


def _leader_epoch(tp: TopicPartition, plan: Plan, before: Settlement) -> int | None:
    """The plan's, under which replay has read; what a plan left alone keeps its own."""
    planned = plan.partitions[tp].log.leader_epoch if tp in plan.partitions else None
    return planned if planned is not None or tp not in before.partitions else before.partitions[tp].leader_epoch


def _evidence(plan: Plan) -> str:
    if plan.kind is TurnKind.RUN:
        return f"outcomes {plan.turn.n} and decisions {plan.turn.n} of run {plan.run_id}"
    return plan.reason
