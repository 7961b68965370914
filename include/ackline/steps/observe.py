"""What Kafka shows of a subscription, asked once for a plan, its preview or a status."""

from collections.abc import Mapping
from dataclasses import dataclass

from ackline.commit_rule import Committed
from ackline.offsets import LogBounds, TopicPartition
from ackline.steps.parts import Parts
from ackline.turns import Settlement


@dataclass(frozen=True, slots=True)
class KafkaView:
    """What Kafka shows of the subscription: topic ids, readable bounds (None without a leader), commits."""

    topic_ids: Mapping[str, str]
    bounds: Mapping[TopicPartition, LogBounds | None]
    committed: Mapping[TopicPartition, Committed]
    missing: tuple[str, ...]


def observe_kafka(parts: Parts, newest: Settlement | None) -> KafkaView:
    """The subscription as the broker shows it now; the number of requests does not depend on how far behind it is.

    A topic created again between the two requests goes by its old id here: replay asks for the id before and after it
    reads, and a plan that reads nothing is followed by one that stops at the new id.
    """
    parts.cluster.reachable()  # says within seconds, and by name, that a broker is away
    block = parts.pipeline.kafka
    known = {tp.topic for tp in newest.partitions} if newest else set()
    names = parts.cluster.names() if block.named_topics is None else block.named_topics
    topics = parts.cluster.topics(sorted({*(name for name in names if block.wants_topic(name)), *known}))
    leaders = {
        TopicPartition(name, number): leader
        for name, info in topics.items()
        for number, leader in info.partitions.items()
    }
    found = parts.cluster.bounds([tp for tp, leader in leaders.items() if leader])
    bounds = {
        tp: LogBounds(found[tp].start, found[tp].end, found[tp].leader_epoch) if tp in found else None for tp in leaders
    }
    committed = parts.group.committed(leaders)
    missing = [name for name in block.named_topics or () if name not in topics]
    named = [TopicPartition(name, number) for name, numbers in (block.partitions or {}).items() for number in numbers]
    missing += [str(tp) for tp in named if tp.topic in topics and tp not in leaders]
    return KafkaView({name: info.topic_id for name, info in topics.items()}, bounds, committed, tuple(missing))


def written_to(parts: Parts, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
    """Those partitions whose log is written up to an offset beyond its last stable one."""
    if parts.pipeline.kafka.isolation != "read_committed":
        return set()
    ends = parts.cluster.written_ends(offsets)
    return {tp for tp, offset in offsets.items() if ends[tp] >= offset}
