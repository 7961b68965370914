"""Where a partition starts that the ledger does not know: decided once, and stored before anything is planned."""

from collections.abc import Mapping

from ackline.errors import FatalError
from ackline.ledger import Committed, PartitionState, SettledPartition, Settlement, is_ours, of_ledger
from ackline.offsets import TopicPartition
from ackline.pipeline import KafkaBlock
from ackline.planning import LogBounds
from ackline.steps.acts import subscribed_before
from ackline.steps.look import Look, written_to
from ackline.steps.parts import Parts


def genesis_of(parts: Parts, newest: Settlement | None, look: Look) -> dict[TopicPartition, SettledPartition]:
    """Where each partition that the lane has not seen starts, decided once and for all."""
    known = newest.partitions if newest else {}
    known_topics = {at.topic for at in known}
    before = subscribed_before(parts, newest)
    started = {}
    for at, log in sorted(look.bounds.items()):
        if at in known or not parts.wants(at):
            continue
        held = look.held.get(at)
        found = _committed(parts, held, at.topic in known_topics)
        if found is None and log is not None:
            found = _start(parts, at, log, at.topic in known_topics, before)
        if found is None:
            continue  # without a leader nobody says where its log starts and ends
        offset, evidence = found
        if log is not None and offset > log.end and at not in written_to(parts, {at: offset}):
            raise FatalError(
                f"{at}: the group {parts.pipeline.kafka.group_id} holds offset {offset}, beyond the log end {log.end}: "
                f"the topic was truncated or recreated. Move the group to where the pipeline shall start",
                topic=at.topic,
                partition=at.partition,
                offset=offset,
            )
        ours = of_ledger(held, parts.pipeline.name, parts.store.ledger_id())
        seen = None if held is None or ours else held.offset
        state = PartitionState(offset)
        started[at] = SettledPartition(
            look.topic_ids[at.topic], offset, state, seen=seen, held=held, evidence=evidence,
            leader_epoch=log.leader_epoch if log is not None else None,
        )  # fmt: skip
    return started


def leaderless_of(
    parts: Parts, lane: Mapping[TopicPartition, SettledPartition], look: Look
) -> tuple[TopicPartition, ...]:
    """Those that are subscribed to, and can't join the lane: without a leader nobody knows where their log starts."""
    return tuple(at for at, log in sorted(look.bounds.items()) if log is None and at not in lane and parts.wants(at))


def _committed(parts: Parts, held: Committed | None, known_topic: bool) -> tuple[int, str] | None:
    """Where a partition that the ledger does not know starts by what the group holds (S30): at our own commit; at that
    of others only under `uncommitted_*`. In a new partition of a topic that the lane knows no commit says what this
    ledger has handled: none."""
    if held is None or known_topic:
        return None
    if is_ours(held, parts.pipeline.name):
        return held.offset, "this pipeline's own commit"
    return (held.offset, "the group's commit") if parts.pipeline.start.startswith("uncommitted_") else None


def _start(
    parts: Parts, at: TopicPartition, log: LogBounds, known_topic: bool, before: KafkaBlock | None
) -> tuple[int, str]:
    """Where it starts by its log: at the log start where all of it came after the lane began, else as `start` says."""
    if known_topic:
        return log.start, "new partition: log start"
    if before is not None and before.wants(*at):
        return log.start, f"the topic was missing{_or_filtered(before)} at the last turn: log start"
    start = parts.pipeline.start
    if parts.pipeline.start_timestamp is not None:
        found = parts.cluster.offsets_at([at], parts.pipeline.start_timestamp)[at]
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
