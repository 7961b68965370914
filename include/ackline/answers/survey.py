"""What `ackline init` and `ackline adopt` look at before a pipeline exists: a topic and a group. Changes nothing."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ackline.errors import ConfigError
from ackline.forms.scaffold import RecordShape, shape_of
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.kafka.exact import read_exactly
from ackline.kafka.fetching import Found
from ackline.kafka.group import Group
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.offsets import LogBounds, TopicPartition

ISOLATION = "read_committed"
MOST_RECORDS = 100
"""At most so many records of a topic are read, the first ones of each partition."""


@dataclass(frozen=True, slots=True)
class TopicSurvey:
    """A topic as it is now: its readable logs, and the shape of its first records."""

    name: str
    logs: Mapping[TopicPartition, LogBounds]
    shape: RecordShape

    @property
    def offsets(self) -> int:
        """How many offsets the logs have."""
        return sum(log.end - log.start for log in self.logs.values())


@dataclass(frozen=True, slots=True)
class GroupSurvey:
    """A group as it is now: its live members, what it has committed, and the logs of all partitions of its topics."""

    group_id: str
    members: tuple[str, ...]
    committed: Mapping[TopicPartition, Committed]
    logs: Mapping[TopicPartition, LogBounds]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of which the group has committed an offset, sorted."""
        return tuple(sorted({tp.topic for tp in self.committed}))

    def start(self, tp: TopicPartition) -> int:
        """Returns where a pipeline with `start: uncommitted_earliest` begins to read."""
        log = self.logs[tp]
        return max(self.committed[tp].offset, log.start) if tp in self.committed else log.start

    def lag(self, tp: TopicPartition) -> int:
        """Returns how many offsets of a partition the pipeline has to read."""
        return max(0, self.logs[tp].end - self.start(tp))

    @property
    def open_transactions(self) -> int:
        """How many offsets open transactions hold back above the readable ends: these are no part of the lag."""
        return sum(log.open_transaction for log in self.logs.values())

    def expired(self, tp: TopicPartition) -> int:
        """Returns how many offsets retention took that the group had not committed."""
        return max(0, self.logs[tp].start - self.committed[tp].offset) if tp in self.committed else 0

    @property
    def committers(self) -> tuple[str, ...]:
        """Who has made the commits, as far as their metadata tell: Kafka stores no name of a client."""
        names = {_committer(committed.metadata) for committed in self.committed.values()}
        return tuple(sorted(names))


def _committer(metadata: str) -> str:
    ours = CommitMetadata.decode_or_none(metadata)
    if ours is not None:
        return f"the pipeline {ours.pipeline} of Ackline (ledger {ours.ledger})"
    return "a client with metadata of its own" if metadata else "a client without metadata, as consumers are"


def topic_names(connection: Mapping[str, Any]) -> list[str]:
    """Returns the names of all topics but Kafka's own. Raises as `Cluster` does."""
    with Cluster(client_config(connection), ISOLATION) as cluster:
        cluster.reachable()
        return cluster.names()


def survey_topic(connection: Mapping[str, Any], topic: str) -> TopicSurvey:
    """Returns a topic as it is now. Reads at most MOST_RECORDS records. Raises ConfigError if it does not exist."""
    config = client_config(connection)
    with Cluster(config, ISOLATION) as cluster:
        cluster.reachable()
        info = cluster.topics([topic]).get(topic)
        if info is None:
            names = ", ".join(cluster.names()[:20]) or "none"
            raise ConfigError(f"--topic {topic}: it does not exist; the broker has: {names}", key="--topic")
        logs = cluster.bounds(TopicPartition(topic, number) for number in info.partitions)
    return TopicSurvey(topic, logs, shape_of(_first_values(config, logs)))


def survey_group(connection: Mapping[str, Any], group_id: str) -> GroupSurvey:
    """Returns a group as it is now. Raises ConfigError if it has no commit on a topic that exists."""
    config = client_config(connection)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(config, ISOLATION))
        cluster.reachable()
        group = stack.enter_context(Group(config, group_id))
        partitions = {name: info.partitions for name, info in cluster.topics(cluster.names()).items()}
        committed = group.committed(TopicPartition(name, number) for name, ns in partitions.items() for number in ns)
        members = tuple(group.members())
        topics = {tp.topic for tp in committed}
        if not topics:
            state = f"its live members: {', '.join(members)}" if members else "it has no live members"
            raise ConfigError(
                f"the group {group_id} has committed no offset of a topic that exists; {state}. Check its name, or "
                f"begin without it: `ackline init --topic TOPIC --group {group_id}`"
            )
        logs = cluster.bounds(TopicPartition(name, number) for name in topics for number in partitions[name])
    return GroupSurvey(group_id, members, committed, logs)


def _first_values(config: Mapping[str, object], logs: Mapping[TopicPartition, LogBounds]) -> Iterator[bytes | None]:
    each = max(1, MOST_RECORDS // max(1, len(logs)))
    wanted = {
        tp: list(range(log.start, min(log.end, log.start + each))) for tp, log in logs.items() if log.end > log.start
    }
    first = dict(list(wanted.items())[:MOST_RECORDS])
    for answer in read_exactly(config, ISOLATION, first) if first else ():
        if isinstance(answer, Found):
            yield answer.message.value()
