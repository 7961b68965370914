"""What the steps work on: a pipeline's adapters, opened together."""

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ackline.audit.store import LedgerStore
from ackline.errors import ConfigError
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.kafka.dead_letters import DeadLetters
from ackline.kafka.exact import ExactReader
from ackline.kafka.group import Group
from ackline.kafka.registry import Registry, registry_config, without_registry
from ackline.listener import ListenerThread, load_listener
from ackline.offsets import TopicPartition
from ackline.partition_filter import PartitionFilter, everything, load_partition_filter
from ackline.paths import audit_root
from ackline.pipeline import Pipeline
from ackline.setting_warnings import of_connection, of_settings
from ackline.translation import Translation
from ackline.turns import LIVE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackline.spark.job import ReplayJob, ReplayResult

Clock = Callable[[], datetime]
Progress = Callable[[int, int], None]
"""Called with (done, all) tasks while Spark works."""


def _on_spark(spark: "Callable[[], SparkSession]", job: "ReplayJob", on_progress: Progress | None) -> "ReplayResult":
    from ackline.spark.job import run_replay  # not at import: the command and the DAGs live without pyspark

    return run_replay(spark(), job, on_progress)


def _check_on_spark(spark: "Callable[[], SparkSession]", job: "ReplayJob") -> None:
    from ackline.spark.job import check_replay

    check_replay(spark(), job)


@dataclass(frozen=True, slots=True)
class Parts:
    """One pipeline, opened for one run. `fixed_now` is the time of the whole run where the user has set one."""

    pipeline: Pipeline
    store: LedgerStore
    cluster: Cluster
    group: Group
    kafka: Mapping[str, Any]
    run_id: str
    actor: str
    fixed_now: datetime | None = None
    no_breaker: bool = False
    listener: ListenerThread | None = None
    cautions: tuple[str, ...] = ()
    """What the file and the connection alone say a user should know."""
    clock: Clock = lambda: datetime.now(UTC)
    run_job: "Callable[[Callable[[], SparkSession], ReplayJob, Progress | None], ReplayResult]" = _on_spark
    check_job: "Callable[[Callable[[], SparkSession], ReplayJob], None]" = _check_on_spark
    """Raises what keeps a job from being started, before anything is handed out."""
    translation: Translation | None = None
    partition_filter: PartitionFilter = everything

    def notify(self, event: str, *said: Any) -> None:
        """Tell the listener of an event that is durable."""
        if self.listener is not None:
            self.listener.notify(event, *said)

    def wants(self, tp: TopicPartition) -> bool:
        """Whether a partition is subscribed to. Raises ConfigError where the partition filter does not answer."""
        return self.pipeline.kafka.wants(*tp) and self.partition_filter(tp)

    def there(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions that the broker has, under whatever topic id."""
        asked = list(partitions)
        topics = self.cluster.topics(sorted({tp.topic for tp in asked}))
        return [tp for tp in asked if tp.topic in topics and tp.partition in topics[tp.topic].partitions]

    def existing(self, topic_ids: Mapping[TopicPartition, str]) -> list[TopicPartition]:
        """Partitions that the broker still has, under the same topic id: elsewhere our offsets mean nothing."""
        topics = self.cluster.topics(sorted({tp.topic for tp in topic_ids}))
        return [
            tp
            for tp, known in topic_ids.items()
            if tp.topic in topics and topics[tp.topic].topic_id == known and tp.partition in topics[tp.topic].partitions
        ]

    def reader(self) -> ExactReader:
        """A reader of scattered offsets, under the pipeline's isolation."""
        return ExactReader(self.kafka, self.pipeline.kafka.isolation)

    def letters(self, topic: str) -> DeadLetters:
        """A sender to the dead-letter topic."""
        return DeadLetters(self.kafka, topic)

    def now(self) -> datetime:
        """The time that this run goes by, aware UTC."""
        return self.fixed_now or self.clock()


def new_run_id(origin: str) -> str:
    """A name for a run that nobody named, such as `cli__2026-01-31T12:00:00Z__4f2a`."""
    return f"{origin}__{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}__{secrets.token_hex(2)}"


def translation_of(pipeline: Pipeline, connection: Mapping[str, Any]) -> Translation | None:
    """The pipeline's streams with the schema registry's settings; None where records go to the one handler as they are.

    Raises ConfigError where a registry is needed and can't be used by what file and connection say.
    """
    translation = pipeline.translation
    if translation is None or not translation.needs_registry:
        return translation
    config = registry_config(pipeline.registry_url, connection)
    Registry(dict(config)).close()  # settings that don't hold are told now
    return replace(translation, registry=config)


@contextlib.contextmanager
def open_parts(
    pipeline: Pipeline,
    connection: Mapping[str, Any] | None = None,
    *,
    run_id: str,
    actor: str,
    now: datetime | None = None,
    audit: str | None = None,
    no_breaker: bool = False,
) -> Iterator[Parts]:
    """The parts of a pipeline, closed at the end.

    `connection` holds the properties of the Kafka connection that the pipeline names; it is not needed where the file
    names bootstrap servers itself. Raises ConfigError where it is missing.
    """
    if pipeline.kafka.bootstrap_servers is not None:
        connection = {"bootstrap.servers": pipeline.kafka.bootstrap_servers}
    if not connection or not connection.get("bootstrap.servers"):
        raise ConfigError(
            f"the Kafka connection {pipeline.kafka.connection} names no broker: set `bootstrap.servers` in its extra",
            key="kafka.connection",
        )
    pipeline.retry.policy()  # a class that does not import is told before anything is planned
    listener = load_listener(pipeline.listener)
    partition_filter = load_partition_filter(pipeline.kafka.partition_filter)
    config = client_config({**without_registry(connection), **pipeline.kafka.properties})
    translation = translation_of(pipeline, connection)
    said = (*of_settings(pipeline), *of_connection(pipeline, connection))
    store = LedgerStore(audit or audit_root(), pipeline.name, LIVE)
    with (
        contextlib.closing(Cluster(config, pipeline.kafka.isolation)) as cluster,
        contextlib.closing(Group(config, pipeline.kafka.group_id)) as group,
    ):
        parts = Parts(
            pipeline,
            store,
            cluster,
            group,
            config,
            run_id,
            actor,
            now,
            no_breaker,
            listener,
            said,
            translation=translation,
            partition_filter=partition_filter,
        )
        parts.notify("open", pipeline.name, run_id)
        try:
            yield parts
        finally:
            if listener is not None:
                listener.close()
