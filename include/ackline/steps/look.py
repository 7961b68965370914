"""What Kafka shows of a subscription, asked once for a plan, its preview or a status."""

from collections.abc import Mapping
from dataclasses import dataclass

from ackline.ledger import Committed, Settlement
from ackline.offsets import TopicPartition
from ackline.planning import LogBounds
from ackline.steps.parts import Parts


@dataclass(frozen=True, slots=True)
class Look:
    """What Kafka shows of the subscription: topic ids, readable bounds (None without a leader), commits."""

    topic_ids: Mapping[str, str]
    bounds: Mapping[TopicPartition, LogBounds | None]
    held: Mapping[TopicPartition, Committed]
    missing: tuple[str, ...]


def look_at_kafka(parts: Parts, newest: Settlement | None) -> Look:
    """The subscription as the broker shows it now; the number of requests does not depend on how far behind it is.

    A topic created again between the two requests goes by its old id here: replay asks for the id before and after it
    reads, and a plan that reads nothing is followed by one that stops at the new id.
    """
    parts.cluster.reachable()  # says within seconds, and by name, that a broker is away
    block = parts.pipeline.kafka
    known = {at.topic for at in newest.partitions} if newest else set()
    names = parts.cluster.names() if block.named_topics is None else block.named_topics
    topics = parts.cluster.topics(sorted({*(name for name in names if block.wants_topic(name)), *known}))
    leaders = {
        TopicPartition(name, number): leader
        for name, info in topics.items()
        for number, leader in info.partitions.items()
    }
    found = parts.cluster.bounds([at for at, leader in leaders.items() if leader])
    bounds = {
        at: LogBounds(found[at].start, found[at].end, found[at].leader_epoch) if at in found else None for at in leaders
    }
    held = parts.group.committed(leaders)
    missing = [name for name in block.named_topics or () if name not in topics]
    named = [TopicPartition(name, number) for name, numbers in (block.partitions or {}).items() for number in numbers]
    missing += [str(at) for at in named if at.topic in topics and at not in leaders]
    return Look({name: info.topic_id for name, info in topics.items()}, bounds, held, tuple(missing))


def written_to(parts: Parts, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
    """Those partitions whose log is written up to an offset beyond its last stable one."""
    if parts.pipeline.kafka.isolation != "read_committed":
        return set()
    ends = parts.cluster.written_ends(offsets)
    return {at for at, offset in offsets.items() if ends[at] >= offset}
