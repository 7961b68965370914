"""Where a partition starts that the ledger does not know: decided once, and stored before anything is planned."""

from collections.abc import Mapping
from dataclasses import replace

from ackline.commit_rule import Committed, is_of_ledger, is_ours
from ackline.errors import FatalError
from ackline.ledger import PartitionState
from ackline.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.pipeline import KafkaBlock
from ackline.steps.action_plans import new_plan
from ackline.steps.observe import KafkaView, written_to
from ackline.steps.parts import Parts
from ackline.turns import Plan, PlannedPartition, SettledPartition, Settlement, TurnKind


def genesis_of(parts: Parts, newest: Settlement | None, look: KafkaView) -> dict[TopicPartition, SettledPartition]:
    """Where each partition that the lane has not seen starts, decided once and for all."""
    known = newest.partitions if newest else {}
    known_topics = {tp.topic for tp in known}
    before = subscribed_before(parts, newest)
    started = {}
    for tp, log in sorted(look.bounds.items()):
        if tp in known or not parts.wants(tp):
            continue
        committed = look.committed.get(tp)
        found = _committed(parts, committed, tp.topic in known_topics)
        if found is None and log is not None:
            found = _start(parts, tp, log, tp.topic in known_topics, before)
        if found is None:
            continue  # without a leader nobody says where its log starts and ends
        offset, evidence = found
        if log is not None and offset > log.end and tp not in written_to(parts, {tp: offset}):
            raise FatalError(
                f"{tp}: the group {parts.pipeline.kafka.group_id} holds offset {offset}, beyond the log end {log.end}: "
                f"the topic was truncated or recreated. Move the group to where the pipeline shall start",
                topic=tp.topic,
                partition=tp.partition,
                offset=offset,
            )
        ours = is_of_ledger(committed, parts.pipeline.name, parts.store.ledger_id())
        acknowledged_foreign_offset = None if committed is None or ours else committed.offset
        state = PartitionState(offset)
        started[tp] = SettledPartition(
            look.topic_ids[tp.topic], offset, state,
            acknowledged_foreign_offset=acknowledged_foreign_offset, committed=committed, evidence=evidence,
            leader_epoch=log.leader_epoch if log is not None else None,
        )  # fmt: skip
    return started


def leaderless_of(
    parts: Parts, lane: Mapping[TopicPartition, SettledPartition], look: KafkaView
) -> tuple[TopicPartition, ...]:
    """Those that are subscribed to, and can't join the lane: without a leader nobody knows where their log starts."""
    return tuple(tp for tp, log in sorted(look.bounds.items()) if log is None and tp not in lane and parts.wants(tp))


def _committed(parts: Parts, committed: Committed | None, known_topic: bool) -> tuple[int, str] | None:
    """Where a partition that the ledger does not know starts by what the group holds (S30): at our own commit; at that
    of others only under `uncommitted_*`. In a new partition of a topic that the lane knows no commit says what this
    ledger has handled: none."""
    if committed is None or known_topic:
        return None
    if is_ours(committed, parts.pipeline.name):
        return committed.offset, "this pipeline's own commit"
    return (committed.offset, "the group's commit") if parts.pipeline.start.startswith("uncommitted_") else None


def _start(
    parts: Parts, tp: TopicPartition, log: LogBounds, known_topic: bool, before: KafkaBlock | None
) -> tuple[int, str]:
    """Where it starts by its log: at the log start where all of it came after the lane began, else as `start` says."""
    if known_topic:
        return log.start, "new partition: log start"
    if before is not None and before.wants(*tp):
        return log.start, f"the topic was missing{_or_filtered(before)} at the last turn: log start"
    start = parts.pipeline.start
    if parts.pipeline.start_timestamp is not None:
        found = parts.cluster.offsets_at([tp], parts.pipeline.start_timestamp)[tp]
        time = parts.pipeline.start_timestamp.isoformat()
        # None: no record at or after it; then the end, as for `latest` (S34)
        return (
            (log.end, f"log end, nothing since {time}")
            if found is None
            else (min(found, log.end), f"first since {time}")
        )
    return (log.start, "log start") if start.endswith("earliest") else (log.end, "log end")


def _or_filtered(before: KafkaBlock) -> str:
    # What a filter said then nobody knows: its code may be another by now. From the log start nothing is passed over.
    return ", or filtered out," if before.partition_filter else ""


def subscribed_before(parts: Parts, newest: Settlement | None) -> KafkaBlock | None:
    """The subscription of the last turn that looked for topics: one in it that the lane does not know was not there
    then (S32, S54). None where nobody has looked yet."""
    if newest is None:
        return None
    turn = newest.turn
    if turn.n == 0 and turn.epoch:
        turn = parts.store.reset_into(turn.epoch)
    settings = parts.store.plan(turn).settings["kafka"] if turn.n else parts.store.first_subscription(turn)
    if settings is None:  # not known any more: from the log start nothing is passed over
        return parts.pipeline.kafka
    return KafkaBlock.stored({**settings, "properties": {}})


def genesis_plan(parts: Parts, newest: Settlement, genesis: Mapping[TopicPartition, SettledPartition]) -> Plan:
    """The turn in which partitions join a lane that has begun."""
    partitions = {}
    for tp, one in genesis.items():
        start = one.state.complete_to
        bounds = LogBounds(start, start, one.leader_epoch)
        row = PlannedPartition(one.topic_id, OffsetRange(start, start), (), start, start, bounds, one.evidence)
        partitions[tp] = replace(
            row, committed=one.committed, acknowledged_foreign_offset=one.acknowledged_foreign_offset
        )
    return new_plan(parts, newest, TurnKind.GENESIS, partitions, "new partitions")
