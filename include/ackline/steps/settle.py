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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ackline.audit.store import TurnOutcomes
from ackline.errors import GroupMoved, NoProof
from ackline.kafka.dead_letters import Letter
from ackline.kafka.exact import Found, Gone
from ackline.ledger import (
    CommitMark,
    Committed,
    OutcomeRow,
    PartitionState,
    Pending,
    PendingKind,
    SettledPartition,
    Settlement,
    TurnId,
    TurnKind,
    check_held,
    fold,
    is_ours,
)
from ackline.offsets import OffsetRange, Run, TopicPartition, join
from ackline.outcome import Outcome
from ackline.pipeline import RetryBlock
from ackline.planning import NO_LEADER, PARKED, PAUSED, Plan, PlannedPartition
from ackline.steps.parts import Parts

Decisions = dict[TopicPartition, list[OutcomeRow]]


@dataclass(frozen=True, slots=True)
class Settled:
    """The newest settlement, and what the broker holds after the commit, read back."""

    settlement: Settlement | None
    committed: Mapping[TopicPartition, Committed]


def settle(parts: Parts, turn: TurnId | None = None) -> Settled:
    """Settle the lane's open turn, if there is one, and commit the newest floor.

    With `turn`, only that one: where another run has settled it meanwhile and gone on, the next is that run's to prove.

    Raises NoProof where the turn's outcomes are not stored; GroupBusy, GroupMoved and NewerCommit where the commit may
    not be made: the settlement is stored by then, and a later run commits it.
    """
    newest = parts.store.newest()
    plan = parts.store.open_plan(newest) if newest else None
    if newest and plan and turn in (None, plan.turn):
        settle_turn(parts, plan, newest)
    try:
        return commit_newest(parts)
    except GroupMoved:
        if parts.pipeline.on_external_reset != "follow":
            raise
        return Settled(parts.store.newest(), {})  # the next run's plan takes the turn that follows


def settle_turn(parts: Parts, plan: Plan, before: Settlement) -> None:
    """Store decisions n and settlement n of an open plan; `before` is settlement n - 1."""
    if plan.kind is TurnKind.RUN and not parts.store.has_outcomes(plan.turn):
        raise NoProof(
            f"{plan.turn} has no stored outcomes, so nothing proves that it was handled; a task marked as successful "
            f"proves nothing. Run replay again"
        )
    found = parts.store.outcomes_of(plan.turn)
    if not parts.store.has_decisions(plan.turn):
        decisions = _decide(parts, plan, before, found)
        parts.store.store_decisions(plan, parts.run_id, decisions)
        found = parts.store.outcomes_of(plan.turn)  # those that are stored count, ours or a rival's
    states = _fold(plan, before, found)
    held = parts.group.committed(_existing(parts, {at: _topic_id(at, plan, before) for at in states}))
    partitions = {
        at: SettledPartition(
            _topic_id(at, plan, before),
            before.partitions[at].state.floor if at in before.partitions else state.floor,
            state,
            found.counts.get(at, {}),
            _gaps(plan.partitions.get(at), found.attempted_fresh.get(at, 0)),
            plan.partitions[at].seen if at in plan.partitions else before.partitions[at].seen,
            held.get(at),
            _evidence(plan),
            _paused(at, plan, before),
        )
        for at, state in states.items()
    }
    parts.store.store_settlement(
        Settlement(plan.turn, plan.kind, parts.run_id, parts.now(), partitions, parts.actor, plan.reason),
        plan,
    )


def void_turn(parts: Parts, plan: Plan, before: Settlement, reason: str) -> None:
    """Close a plan that can't be carried out: no state changes and none of its rows counts."""
    partitions = {
        at: replace(one, old_floor=one.state.floor, counts={}, gaps=0, evidence="void")
        for at, one in before.partitions.items()
    }
    parts.store.store_settlement(
        Settlement(plan.turn, TurnKind.VOID, parts.run_id, parts.now(), partitions, parts.actor, reason), plan
    )


def commit_newest(parts: Parts) -> Settled:
    """Commit the floors of the newest settlement, whoever stored it, and read them back.

    Every partition is committed again, idle and parked ones too: Kafka forgets offsets that nobody commits.
    """
    newest = parts.store.newest()
    if newest is None:
        return Settled(None, {})
    there = _existing(parts, {at: one.topic_id for at, one in newest.partitions.items()})
    mark = mark_of(parts, newest)
    held = parts.group.committed(there)
    for at in there:
        if not may_restore(parts, held.get(at), mark):
            check_held(at, held.get(at), mark, newest.partitions[at].seen)
    floors = {at: Committed(newest.partitions[at].state.floor, mark.encode()) for at in there}
    if floors:
        parts.group.commit(floors)
    return Settled(newest, floors)


def mark_of(parts: Parts, newest: Settlement) -> CommitMark:
    """The metadata of a commit of the newest settlement."""
    return CommitMark(parts.store.ledger_id(), parts.pipeline.name, newest.turn.epoch, newest.turn.n)


def may_restore(parts: Parts, held: Committed | None, mark: CommitMark) -> bool:
    """Whether the file says that a foreign commit is to be overwritten. One of ours from elsewhere never is."""
    return parts.pipeline.on_external_reset == "restore" and held is not None and not is_ours(held, mark.pipeline)


def _existing(parts: Parts, topic_ids: Mapping[TopicPartition, str]) -> list[TopicPartition]:
    """Partitions that the broker still has, under the same topic id: elsewhere our offsets mean nothing."""
    topics = parts.cluster.topics(sorted({at.topic for at in topic_ids}))
    return [
        at
        for at, known in topic_ids.items()
        if at.topic in topics and topics[at.topic].topic_id == known and at.partition in topics[at.topic].partitions
    ]


# ---- folding ------------------------------------------------------------------------------------------------------


def _fold(plan: Plan, before: Settlement, found: TurnOutcomes) -> dict[TopicPartition, PartitionState]:
    """Every partition's state after the turn, by the settings that the plan was made with."""
    policy = RetryBlock.model_validate(plan.settings["retry"]).policy()
    states = {at: one.state for at, one in before.partitions.items()}
    for at, planned in plan.partitions.items():
        state = states.get(at, PartitionState(planned.complete_to))
        if plan.kind in (TurnKind.RUN, TurnKind.GENESIS):
            states[at] = fold(state, planned.fresh, planned.retries, found.rows.get(at, ()), policy)
        elif plan.kind is TurnKind.SKIP:
            to = max(state.complete_to, planned.fresh.end)
            states[at] = fold(state, OffsetRange(to, to), (), found.rows.get(at, ()), policy)
    return dict(sorted(states.items()))


def _gaps(planned: PlannedPartition | None, attempted: int) -> int:
    return len(planned.fresh) - attempted if planned else 0


def _paused(at: TopicPartition, plan: Plan, before: Settlement) -> bool:
    if at in plan.partitions and plan.kind in (TurnKind.PAUSE, TurnKind.RESUME):
        return plan.kind is TurnKind.PAUSE
    return at in before.partitions and before.partitions[at].paused


def _topic_id(at: TopicPartition, plan: Plan, before: Settlement) -> str:
    return plan.partitions[at].topic_id if at in plan.partitions else before.partitions[at].topic_id


def _evidence(plan: Plan) -> str:
    if plan.kind is TurnKind.RUN:
        return f"outcomes {plan.turn.n} and decisions {plan.turn.n} of run {plan.run_id}"
    return plan.reason


# ---- deciding -----------------------------------------------------------------------------------------------------


def _decide(parts: Parts, plan: Plan, before: Settlement, found: TurnOutcomes) -> Decisions:
    """What becomes of records beside their attempts: lost to retention, or dead once the broker has the dead letter."""
    if plan.kind is not TurnKind.RUN:
        return _skipped(parts, plan, before) if plan.kind is TurnKind.SKIP else {}
    decisions: Decisions = {}
    rows = {at: list(one) for at, one in found.rows.items()}
    for at, planned in plan.partitions.items():
        passed = before.partitions[at].state.complete_to if at in before.partitions else planned.complete_to
        if passed < planned.fresh.start:
            expired = OutcomeRow(passed, 0, Outcome.EXPIRED, parts.now(), None, planned.fresh.start)
            decisions.setdefault(at, []).append(expired)
            rows.setdefault(at, []).append(expired)
    states = _fold(plan, before, TurnOutcomes(rows, {}, {}))
    readable = {
        at: state
        for at, state in states.items()
        if at in plan.partitions and plan.partitions[at].why not in (PARKED, PAUSED, NO_LEADER)
    }
    for at, row in _buried(parts, plan, readable):
        decisions.setdefault(at, []).append(row)
    return decisions


def _skipped(parts: Parts, plan: Plan, before: Settlement) -> Decisions:
    """What a skip settles unhandled: what is pending below its target, and what was not read yet, by ranges.

    Offsets between them that were acked keep the one outcome they have.
    """
    decisions: Decisions = {}
    for at, planned in plan.partitions.items():
        state, to = before.partitions[at].state, planned.fresh.end
        pending = [Run(run.start, min(run.end, to), None) for run in state.pending if run.start < to]
        unread = [Run(state.complete_to, to, None)] if state.complete_to < to else []
        decisions[at] = [
            OutcomeRow(run.start, 0, Outcome.SKIPPED, parts.now(), None, run.end, plan.reason)
            for run in join([*pending, *unread])
        ]
    return decisions


def _buried(
    parts: Parts, plan: Plan, states: Mapping[TopicPartition, PartitionState]
) -> Iterator[tuple[TopicPartition, OutcomeRow]]:
    """A decision for each pending dead letter that is settled now; one the broker did not confirm stays pending."""
    # At the offset of a topic that was created again lies a stranger: its dead letters stay pending.
    there = _existing(parts, {at: plan.partitions[at].topic_id for at in states})
    wanted = {at: dead for at in there if (dead := _dead_letters(states[at]))}
    topic = parts.pipeline.dead_letter_topic
    if topic is None:
        for at, dead in wanted.items():
            for offset, pending in dead.items():
                yield at, OutcomeRow(offset, 0, Outcome.DEAD, parts.now(), pending.error_class)
    elif wanted:
        gone: list[Gone] = []
        with parts.letters(topic) as letters:
            for sent in letters.send(_letters(parts, plan, wanted, gone)):
                source = sent.letter.source
                if sent.confirmed and isinstance(source, Found):
                    at, offset = source.topic_partition, source.offset
                    yield at, OutcomeRow(offset, 0, Outcome.DEAD, parts.now(), wanted[at][offset].error_class)
        for one in gone:
            yield one.topic_partition, OutcomeRow(one.offset, 0, one.outcome, parts.now())


def _letters(
    parts: Parts, plan: Plan, wanted: Mapping[TopicPartition, Mapping[int, Pending]], gone: list[Gone]
) -> Iterator[Letter]:
    """Each record to be buried, read again from its topic; what is no longer there is noted in `gone`."""
    for found in parts.reader().read({at: list(dead) for at, dead in wanted.items()}):
        if isinstance(found, Gone):
            gone.append(found)
            continue
        at = found.topic_partition
        why = wanted[at][found.offset]
        _, timestamp = found.message.timestamp()
        said = {
            "pipeline": plan.turn.pipeline,
            "lane": plan.turn.lane,
            "epoch": plan.turn.epoch,
            "topic": at.topic,
            "partition": at.partition,
            "offset": found.offset,
            "timestamp": timestamp,
            "attempts": why.attempts,
            "error_class": why.error_class or "",
            "turn": plan.turn.n,
        }
        yield Letter(found, [(f"ackline.{name}", str(value).encode()) for name, value in said.items()])


def _dead_letters(state: PartitionState) -> dict[int, Pending]:
    return {
        offset: run.value
        for run in state.pending
        if run.value.kind is PendingKind.DEAD_LETTER
        for offset in range(run.start, run.end)
    }
