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
from dataclasses import dataclass, replace

from ackline.audit.store import TurnOutcomes
from ackline.errors import GroupMoved, NewerCommit, NoProof, TooManyFailures
from ackline.figures import last_fetch
from ackline.ledger import (
    CommitMark,
    Committed,
    OutcomeRow,
    SettledPartition,
    Settlement,
    TurnId,
    TurnKind,
    check_held,
    is_ours,
)
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.planning import Plan
from ackline.steps.decide import decide, states_after
from ackline.steps.events import tell_settled
from ackline.steps.expired import expired_of
from ackline.steps.figures import gaps_of, outcomes_of, report_of, with_figures
from ackline.steps.parts import Parts


@dataclass(frozen=True, slots=True)
class Settled:
    """The newest settlement, and what the broker holds after the commit, read back; `stored` is the settlement that
    this process has stored, which nobody else can say of the same turn."""

    settlement: Settlement | None
    committed: Mapping[TopicPartition, Committed]
    stored: Settlement | None = None


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
    held = parts.group.committed(parts.existing({at: _topic_id(at, plan, before) for at in states}))
    partitions = {
        at: SettledPartition(
            _topic_id(at, plan, before),
            before.partitions[at].state.floor if at in before.partitions else state.floor,
            state,
            found.counts.get(at, {}),
            gaps_of(plan, at, found),
            plan.partitions[at].seen if at in plan.partitions else before.partitions[at].seen,
            held.get(at),
            _evidence(plan),
            _paused(at, plan, before),
            leader_epoch=_leader_epoch(at, plan, before),
        )
        for at, state in states.items()
    }
    partitions = with_figures(parts, plan, before, partitions, found, report)
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
    seen = {at: plan.partitions[at].seen if at in plan.partitions else one.seen for at, one in known.items()}
    partitions = {
        at: replace(
            one,
            old_floor=one.state.floor,
            counts={},
            gaps=0,
            evidence="void",
            seen=seen[at],
            figures=last_fetch(one.figures),
        )
        for at, one in known.items()
    }
    parts.store.store_settlement(
        Settlement(plan.turn, TurnKind.VOID, parts.run_id, parts.now(), partitions, parts.actor, reason), plan
    )


def commit_newest(parts: Parts) -> Settled:
    """Commit the floors of the newest settlement or claim, whoever stored it, and read them back.

    Every partition is committed again, idle and parked ones too: Kafka forgets offsets that nobody commits.
    """
    come = None
    while True:
        newest = parts.store.newest()
        if newest is None:
            return Settled(None, {})
        try:
            committed = check_commit(parts, newest)
        except NewerCommit:
            before, come = come, come_to(parts)
            if come == before:
                raise
            continue
        if committed:
            parts.group.commit(committed)
            parts.tell("committed", committed)
        return Settled(newest, committed)


def come_to(parts: Parts) -> tuple[TurnId | None, bool]:
    """How far the ledger has come: its newest turn, and whether the next one is claimed.

    A commit is stored here before it is made there. So one that looks newer may be another run's, made since the ledger
    was read; it is another ledger's, or an old copy is read here, where it still does after a look at the same ledger.
    """
    newest = parts.store.newest()
    plan = parts.store.open_plan(newest) if newest else None
    return newest.turn if newest else None, plan is not None and parts.store.has_claim(plan.turn)


def check_commit(parts: Parts, newest: Settlement) -> dict[TopicPartition, Committed]:
    """What may be committed now: the floors of the newest settlement, or the ends of the plan that is claimed.

    What somebody else has committed of a parked partition is left alone, whatever the file says of moved groups: it
    may have become another pipeline's, and nothing follows it here. Raises GroupMoved, NewerCommit or GroupBusy.
    """
    there = parts.existing({at: one.topic_id for at, one in newest.partitions.items()})
    mark = mark_of(parts, newest)
    floors = {at: one.state.floor for at, one in newest.partitions.items()}
    seen = {at: one.seen for at, one in newest.partitions.items()}
    plan = parts.store.open_plan(newest)
    if plan is not None and plan.kind is TurnKind.RUN:  # it may have met a commit of ours: then nothing is answered
        seen |= {at: one.seen for at, one in plan.partitions.items()}
        if parts.pipeline.guarantee == "at_most_once" and parts.store.has_claim(plan.turn):
            floors |= {at: one.fresh.end for at, one in plan.partitions.items() if one.fresh}
            mark = replace(mark, n=plan.turn.n)
    held = parts.group.committed(there)
    allowed = [at for at in there if _may_commit(parts, at, held.get(at), mark, seen[at])]
    return {at: Committed(floors[at], mark.encode()) for at in allowed}


def _may_commit(parts: Parts, at: TopicPartition, held: Committed | None, mark: CommitMark, seen: int | None) -> bool:
    subscribed = parts.wants(at)
    if subscribed and may_restore(parts, held, mark):
        return True
    try:
        check_held(at, held, mark, seen)
    except GroupMoved:
        if subscribed:
            raise
        return False
    return True


def mark_of(parts: Parts, newest: Settlement) -> CommitMark:
    """The metadata of a commit of the newest settlement."""
    return CommitMark(parts.store.ledger_id(), parts.pipeline.name, newest.turn.epoch, newest.turn.n)


def may_restore(parts: Parts, held: Committed | None, mark: CommitMark) -> bool:
    """Whether the file says that a foreign commit is to be overwritten. One of ours from elsewhere never is."""
    return parts.pipeline.on_external_reset == "restore" and held is not None and not is_ours(held, mark.pipeline)


def _paused(at: TopicPartition, plan: Plan, before: Settlement) -> bool:
    if at in plan.partitions and plan.kind in (TurnKind.PAUSE, TurnKind.RESUME):
        return plan.kind is TurnKind.PAUSE
    return at in before.partitions and before.partitions[at].paused


def _topic_id(at: TopicPartition, plan: Plan, before: Settlement) -> str:
    return plan.partitions[at].topic_id if at in plan.partitions else before.partitions[at].topic_id


def _leader_epoch(at: TopicPartition, plan: Plan, before: Settlement) -> int | None:
    """The plan's, under which replay has read; what a plan left alone keeps its own."""
    planned = plan.partitions[at].log.leader_epoch if at in plan.partitions else None
    return planned if planned is not None or at not in before.partitions else before.partitions[at].leader_epoch


def _evidence(plan: Plan) -> str:
    if plan.kind is TurnKind.RUN:
        return f"outcomes {plan.turn.n} and decisions {plan.turn.n} of run {plan.run_id}"
    return plan.reason
