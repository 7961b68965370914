"""What Kafka shows of the subscription: read once for a plan, its preview or a status."""

from collections.abc import Mapping
from dataclasses import dataclass

from ackline.commit_rule import Committed
from ackline.offsets import LogBounds, TopicPartition
from ackline.steps.parts import Parts
from ackline.turns import Settlement


@dataclass(frozen=True, slots=True)
class KafkaView:
    """Topic ids, readable bounds and committed offsets of the subscription; bounds are None without a leader.

    `missing` are the topics and partitions that the pipeline file names and the broker does not have.
    """

    topic_ids: Mapping[str, str]
    bounds: Mapping[TopicPartition, LogBounds | None]
    committed: Mapping[TopicPartition, Committed]
    missing: tuple[str, ...]


def observe_kafka(parts: Parts, newest: Settlement | None) -> KafkaView:
    """Returns the subscription and the lane's topics, read from the broker. The lag needs no more requests.

    Topic ids are read before bounds. A topic that is created again in between is shown under its old id. Later checks
    detect that: replay compares the ids before and after it reads records, and after a plan that reads nothing, the
    next plan stops at the new id.
    """
    parts.cluster.reachable()  # fails within seconds, with the broker's name, if the broker is away
    block = parts.pipeline.kafka
    known = {tp.topic for tp in newest.partitions} if newest else set()
    names = parts.cluster.names() if block.named_topics is None else block.named_topics
    topics = parts.cluster.topics(sorted({*(name for name in names if block.subscribes_to_topic(name)), *known}))
    has_leader = {
        TopicPartition(name, number): leader
        for name, info in topics.items()
        for number, leader in info.partitions.items()
    }
    logs = parts.cluster.bounds([tp for tp, leader in has_leader.items() if leader])
    bounds = {
        tp: LogBounds(logs[tp].start, logs[tp].end, logs[tp].leader_epoch) if tp in logs else None for tp in has_leader
    }
    committed = parts.group.committed(has_leader)
    missing = [name for name in block.named_topics or () if name not in topics]
    named = [TopicPartition(name, number) for name, numbers in (block.partitions or {}).items() for number in numbers]
    missing += [str(tp) for tp in named if tp.topic in topics and tp not in has_leader]
    return KafkaView({name: info.topic_id for name, info in topics.items()}, bounds, committed, tuple(missing))


def written_beyond(parts: Parts, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
    """Returns the partitions whose log is written up to the given offset, beyond the last stable offset.

    Empty under `read_uncommitted`: there the readable end is the end of the log.
    """
    if parts.pipeline.kafka.isolation != "read_committed":
        return set()
    ends = parts.cluster.written_ends(offsets)
    return {tp for tp, offset in offsets.items() if ends[tp] >= offset}
