"""What settle decides beside the attempts: what retention took first, what an operator skips, and what is dead.

A record is `dead` only once its dead letter was acknowledged by all replicas (I6), or where the file says that there is
none to be written.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ackline.audit.store import TurnOutcomes
from ackline.backoff import Backoff
from ackline.errors import ConfigError
from ackline.kafka.dead_letters import Letter
from ackline.kafka.exact import Found, Gone
from ackline.ledger import OutcomeRow, PartitionState, Pending, PendingKind, fold
from ackline.offsets import OffsetRange, Run, TopicPartition, join
from ackline.outcome import Outcome
from ackline.planning import NO_LEADER, PARKED, PAUSED
from ackline.retry import RetryBlock
from ackline.steps.log_checks import cut
from ackline.steps.parts import Parts
from ackline.turns import Plan, Settlement, TurnKind

Decisions = dict[TopicPartition, list[OutcomeRow]]

log = logging.getLogger(__name__)


def states_after(plan: Plan, before: Settlement, found: TurnOutcomes) -> dict[TopicPartition, PartitionState]:
    """Every partition's state after the turn, by the settings that the plan was made with."""
    policy = _policy(plan)
    states = {tp: one.state for tp, one in before.partitions.items()}
    for tp, planned in plan.partitions.items():
        state = states.get(tp, PartitionState(planned.complete_to))
        if plan.kind in (TurnKind.RUN, TurnKind.GENESIS):
            seed = f"{plan.turn.lane}/{plan.turn.epoch}/{tp.topic}/{tp.partition}"
            states[tp] = fold(state, planned.fresh, planned.retries, found.rows.get(tp, ()), policy, seed)
        elif plan.kind is TurnKind.SKIP:
            to = max(state.complete_to, planned.fresh.end)
            states[tp] = fold(state, OffsetRange(to, to), (), found.rows.get(tp, ()), policy)
    return dict(sorted(states.items()))


def _policy(plan: Plan) -> Backoff:
    try:
        return RetryBlock.stored(plan.settings["retry"]).policy()
    except ConfigError as error:  # the file may name another by now
        raise ConfigError(f"{plan.turn} was planned with it, and stays open: {error}", key=error.key) from None


def decide(parts: Parts, plan: Plan, before: Settlement, found: TurnOutcomes) -> Decisions:
    """What becomes of records beside their attempts: lost to retention, or dead once the broker has the dead letter."""
    if plan.kind is not TurnKind.RUN:
        return _skipped(parts, plan, before) if plan.kind is TurnKind.SKIP else {}
    decisions: Decisions = {}
    rows = {tp: list(one) for tp, one in found.rows.items()}
    for tp, planned in plan.partitions.items():
        if planned.complete_to < planned.fresh.start:
            expired = OutcomeRow(planned.complete_to, 0, Outcome.EXPIRED, parts.now(), None, planned.fresh.start)
            decisions.setdefault(tp, []).append(expired)
            rows.setdefault(tp, []).append(expired)
    states = states_after(plan, before, TurnOutcomes(rows, {}, {}))
    readable = {
        tp: state
        for tp, state in states.items()
        if tp in plan.partitions and plan.partitions[tp].why not in (PARKED, PAUSED, NO_LEADER)
    }
    for tp, row in _buried(parts, plan, readable):
        decisions.setdefault(tp, []).append(row)
    return decisions


def _skipped(parts: Parts, plan: Plan, before: Settlement) -> Decisions:
    """What a skip settles unhandled: what is pending below its target, and what was not read yet, by ranges.

    Offsets between them that were acked keep the one outcome they have.
    """
    decisions: Decisions = {}
    for tp, planned in plan.partitions.items():
        state, to = before.partitions[tp].state, planned.fresh.end
        pending = [Run(run.start, min(run.end, to), None) for run in state.pending if run.start < to]
        unread = [Run(state.complete_to, to, None)] if state.complete_to < to else []
        decisions[tp] = [
            OutcomeRow(run.start, 0, Outcome.SKIPPED, parts.now(), None, run.end, plan.reason)
            for run in join([*pending, *unread])
        ]
    return decisions


def _buried(
    parts: Parts, plan: Plan, states: Mapping[TopicPartition, PartitionState]
) -> Iterator[tuple[TopicPartition, OutcomeRow]]:
    """A decision for each pending dead letter that is settled now; one the broker did not confirm stays pending."""
    wanted = {tp: dead for tp, state in states.items() if (dead := _dead_letters(state))}
    wanted = {tp: wanted[tp] for tp in _same(parts, plan, wanted, states)}
    topic = parts.pipeline.dead_letter_topic
    if topic is None:
        for tp, dead in wanted.items():
            for offset, pending in dead.items():
                yield tp, OutcomeRow(offset, 0, Outcome.DEAD, parts.now(), pending.error_class)
    elif wanted:
        gone: list[Gone] = []
        decided: list[tuple[TopicPartition, OutcomeRow]] = []
        refused: Counter[str] = Counter()
        with parts.letters(topic) as letters:
            for sent in letters.send(_letters(parts, plan, wanted, gone)):
                source = sent.letter.source
                if sent.confirmed and isinstance(source, Found):
                    tp, offset = source.topic_partition, source.offset
                    row = OutcomeRow(offset, 0, Outcome.DEAD, parts.now(), wanted[tp][offset].error_class)
                    decided.append((tp, row))
                elif not sent.confirmed:
                    refused[sent.error or "no answer"] += 1
        for error, number in refused.items():
            log.warning("%s: %d dead letters to %s stay pending: %s", plan.turn, number, topic, error)
        decided += [(one.topic_partition, OutcomeRow(one.offset, 0, one.outcome, parts.now())) for one in gone]
        # Asked again after reading: what was read while the log was exchanged settles nothing of the old one.
        same = set(_same(parts, plan, wanted, states))
        yield from ((tp, row) for tp, row in decided if tp in same)


def _same(
    parts: Parts, plan: Plan, wanted: Iterable[TopicPartition], states: Mapping[TopicPartition, PartitionState]
) -> list[TopicPartition]:
    """Those of `wanted` whose log is the one that the plan was made for, up to its end.

    At the offset of a topic that was created again, or of a log that was cut and has grown again, lies a stranger: its
    dead letters stay pending. So do those of a partition that has no leader to be asked.
    """
    topics = parts.cluster.topics({tp.topic for tp in wanted})
    same = {tp: topics.get(tp.topic) for tp in wanted}
    there = [
        tp
        for tp, topic in same.items()
        if topic and topic.topic_id == plan.partitions[tp].topic_id and topic.partitions.get(tp.partition)
    ]
    known = {tp: (states[tp].complete_to, plan.partitions[tp].log.leader_epoch) for tp in there}
    lost = cut(parts, known, parts.cluster.bounds(there))
    return [tp for tp in there if tp not in lost]


def _letters(
    parts: Parts, plan: Plan, wanted: Mapping[TopicPartition, Mapping[int, Pending]], gone: list[Gone]
) -> Iterator[Letter]:
    """Each record to be buried, read again from its topic; what is no longer there is noted in `gone`."""
    with parts.reader() as reader:
        for found in reader.read({tp: list(dead) for tp, dead in wanted.items()}):
            if isinstance(found, Gone):
                gone.append(found)
            else:
                yield _letter(plan, found, wanted[found.topic_partition][found.offset])


def _letter(plan: Plan, found: Found, why: Pending) -> Letter:
    """A record with the headers that say where it comes from and why it is dead."""
    tp = found.topic_partition
    _, timestamp = found.message.timestamp()
    said = {
        "pipeline": plan.turn.pipeline,
        "lane": plan.turn.lane,
        "epoch": plan.turn.epoch,
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": found.offset,
        "timestamp": timestamp,
        "attempts": why.attempts,
        "error_class": why.error_class or "",
        "turn": plan.turn.n,
    }
    return Letter(found, [(f"ackline.{name}", str(value).encode()) for name, value in said.items()])


def _dead_letters(state: PartitionState) -> dict[int, Pending]:
    return {
        offset: run.value
        for run in state.pending
        if run.value.kind is PendingKind.DEAD_LETTER
        for offset in range(run.start, run.end)
    }
