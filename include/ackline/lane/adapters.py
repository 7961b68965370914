"""The adapters of one pipeline, opened together: what every step works on.

The settings in force are logged at the start of a run, with the warnings about them: a warning is about a setting that
is allowed and may lose records, given how the topics delete theirs.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from ackline.errors import ConfigError
from ackline.forms.form import EVERYTHING, RunRequest
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config, java_properties
from ackline.kafka.copies import CopyReader, rescue_topic
from ackline.kafka.dead_letters import DeadLetters, FoundLetter, LetterId, find_letter
from ackline.kafka.exact import ExactReader
from ackline.kafka.group import Group
from ackline.kafka.produce import OutputTopics, send_answers
from ackline.kafka.registry import Registry, registry_config, without_registry_settings
from ackline.lane.code import running_code
from ackline.lane.lease import TurnLease, WhenHeld
from ackline.lane.listeners import ListenerThread, load_listener
from ackline.lane.ways_out import advises_void
from ackline.ledger.answers import Keys, token_keys_of, warning_of_keys
from ackline.ledger.copies import Rescued
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId
from ackline.pipeline.folder import audit_root
from ackline.pipeline.functions import PartitionFilter, all_partitions, load_partition_filter
from ackline.pipeline.pipeline import Pipeline, pipeline_of_turn
from ackline.pipeline.properties import secret_of, without_own_settings
from ackline.pipeline.streams import Translation
from ackline.pipeline.warnings import warnings_of_connection, warnings_of_settings
from ackline.tables.layout import LeaseFile
from ackline.tables.store import LedgerStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackline.spark.job import ReplayResult
    from ackline.spark.progress import Handled
    from ackline.worker.settings import ReplayJob, TaskFolder
from collections.abc import Iterable

from ackline.errors import AcklineError
from ackline.pipeline import warnings
from ackline.scrub import scrub_setting

Clock = Callable[[], datetime]
Progress = Callable[["Handled"], None]
"""Called while Spark works, with how much of the turn is handled."""


def _replay_job(spark: "Callable[[], SparkSession]", job: "ReplayJob", on_progress: Progress | None) -> "ReplayResult":
    from ackline.spark.job import run_replay  # not at import: the command and the DAGs work without pyspark

    return run_replay(spark(), job, on_progress)


def _check_job(spark: "Callable[[], SparkSession]", job: "ReplayJob") -> None:
    from ackline.spark.job import check_executors, check_replay

    (check_replay if job.settings.once else check_executors)(spark(), job)


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of one pipeline and lane, opened for one run: all that a step reaches the world through.

    It is one value and not one for each step, because the steps call one another: a run plans, replays, settles and
    commits, and a plan may settle an action that it meets. So each of them would need what the others need. It holds
    nothing that follows from the tables or the broker. It holds the pipeline, the adapters that were opened for it, who
    runs it and what was requested, the clock, the functions that tests put in the place of Spark, and what was made
    from the code and the secrets that file and connection name, because that may fail only when they are opened.
    """

    pipeline: Pipeline
    store: LedgerStore
    cluster: Cluster
    group: Group
    kafka: Mapping[str, Any]
    """The properties of the Kafka clients."""
    run_id: str
    actor: str
    fixed_now: datetime | None = None
    """The time of the whole run, if the user has set one."""
    no_breaker: bool = False
    """Whether this run passes the breaker."""
    listener: ListenerThread | None = None
    setting_warnings: tuple[str, ...] = ()
    """Warnings that follow from the pipeline file and the connection alone."""
    clock: Clock = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep
    """Waits for a number of seconds."""
    run_job: "Callable[[Callable[[], SparkSession], ReplayJob, Progress | None], ReplayResult]" = _replay_job
    check_job: "Callable[[Callable[[], SparkSession], ReplayJob], None]" = _check_job
    """Starts Spark, and raises if the job can't be started, before anything is handed out."""
    code: Callable[[], str] = running_code
    """Returns the code that this process hands records to; empty if it is not known."""
    translation: Translation | None = None
    partition_filter: PartitionFilter = all_partitions
    request: RunRequest = EVERYTHING
    """What the user asks of this run."""
    lease: TurnLease | None = None
    """The lease of the turn that this run replays; None for a run without one."""
    key_hash_secret: bytes | None = field(default=None, repr=False)
    """What the keys of records are hashed with; None if the pipeline file has no `audit: {key_hash: true}`."""
    token_keys: Keys | None = field(default=None, repr=False)
    """What tokens of records in flight are signed with; None if the pipeline file has no `ack_topic`."""

    @property
    def commits(self) -> bool:
        """Whether the lane commits the group's offsets. Only the live lane does; a backfill never touches the group."""
        return self.store.lane == LIVE

    def of_turn(self, plan: Plan) -> Self:
        """Returns the adapters whose `pipeline` is what this open turn runs by, whatever the file has become."""
        with advises_void(plan.turn, ConfigError):
            return replace(self, pipeline=pipeline_of_turn(self.pipeline, plan))

    def notify(self, event: str, *details: Any) -> None:
        """Passes an event to the listener, if there is one. Call it only once the event is durable."""
        if self.listener is not None:
            self.listener.notify(event, *details)

    def is_subscribed(self, tp: TopicPartition) -> bool:
        """Returns whether the pipeline reads this partition. Raises ConfigError if the partition filter fails."""
        return self.pipeline.kafka.subscribes_to(*tp) and self.partition_filter(tp)

    def unchanged_partitions(self, topic_ids: Mapping[TopicPartition, str]) -> list[TopicPartition]:
        """Returns the partitions that the broker still has under the given topic id.

        In a topic that was created again, the lane's offsets mean nothing: nothing is read or committed there.
        """
        topics = self.cluster.topics(sorted({tp.topic for tp in topic_ids}))
        return [
            tp
            for tp, known in topic_ids.items()
            if tp.topic in topics and topics[tp.topic].topic_id == known and tp.partition in topics[tp.topic].partitions
        ]

    def task_folder(self, turn: TurnId) -> "contextlib.AbstractContextManager[TaskFolder | None]":
        """Returns a context that opens the folder in which the tasks of a turn at most once prove that they may start.

        Raises TransientError and FatalError if the folder can't be written.
        """
        from ackline.worker.settings import open_task_folder

        return open_task_folder(self.store.outcomes.uri, turn, once=True)

    def remove_task_folders(self, turn: TurnId) -> None:
        """Removes what a turn that is settled leaves of its Spark tasks."""
        from ackline.worker.settings import remove_task_folders

        remove_task_folders(self.store.outcomes.uri, turn)

    def reader(self) -> ExactReader:
        """Returns a reader of scattered offsets, under the pipeline's isolation level."""
        return ExactReader(self.kafka, self.pipeline.kafka.isolation)

    def copy_reader(self, rescued: Mapping[TopicPartition, Rescued]) -> CopyReader:
        """Returns a reader of scattered offsets that reads the copies of rescued records that are gone."""
        return CopyReader(self.reader, rescued)

    def copy_sender(self) -> OutputTopics:
        """Returns a sender to the rescue topic."""
        return rescue_topic(self.kafka)

    def dead_letter_sender(self, topic: str) -> DeadLetters:
        """Returns a sender of dead letters to `topic`."""
        return DeadLetters(self.kafka, topic)

    def send_answers(self, topic: str, answers: Sequence[tuple[str, str]]) -> None:
        """Sends (token, value) to the ack topic `topic`, as `ackline.kafka.produce.send_answers` does."""
        send_answers(self.kafka, topic, answers)

    def find_letter(self, topic: str, wanted: LetterId, given_up_at: datetime) -> FoundLetter | None:
        """Returns a dead letter from its topic, as `ackline.kafka.dead_letters.find_letter` does."""
        return find_letter(self.kafka, self.cluster, self.pipeline.kafka.isolation, topic, wanted, given_up_at)

    def newest_and_open_plan(self) -> tuple[Settlement | None, Plan | None]:
        """Returns the lane's newest settlement, None if it has not begun, and its open plan, None if no turn is."""
        newest = self.store.newest()
        return newest, self.store.open_plan(newest) if newest else None

    def now(self) -> datetime:
        """Returns the time by which this run decides, in UTC."""
        return self.fixed_now or self.clock()


def new_run_id(origin: str) -> str:
    """Returns a generated name for a run, such as `cli__2026-01-31T12:00:00Z__4f2a`."""
    return f"{origin}__{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}__{secrets.token_hex(2)}"


def translation_of(pipeline: Pipeline, connection: Mapping[str, Any]) -> Translation | None:
    """Returns the pipeline's streams with the schema registry's settings; None if one handler takes the raw records.

    Raises ConfigError if a registry is needed and the settings of file and connection do not fit it.
    """
    translation = pipeline.translation
    if translation is None or not translation.needs_registry:
        return translation
    config = registry_config(pipeline.registry_url, connection)
    Registry(dict(config)).close()  # raises now, and not in the middle of a turn
    return replace(translation, registry=config)


@contextlib.contextmanager
def open_adapters(
    pipeline: Pipeline,
    connection: Mapping[str, Any] | None = None,
    *,
    run_id: str,
    actor: str,
    now: datetime | None = None,
    audit: str | None = None,
    no_breaker: bool = False,
    lane: str = LIVE,
    when_held: WhenHeld = WhenHeld.WAIT,
) -> Iterator[Adapters]:
    """Opens the adapters of a pipeline and lane, and closes them at the end of the context.

    `connection` holds the properties of the Kafka connection that the pipeline names. It is not needed if the file
    names bootstrap servers itself. `when_held` is what replay does if another process replays the turn. Raises
    ConfigError if it is missing, if it lacks a secret that `audit: {key_hash: true}` or `ack_topic` needs, and if code
    that the file names (retry class, listener, partition filter) does not import.
    """
    if pipeline.kafka.bootstrap_servers is not None:
        connection = {"bootstrap.servers": pipeline.kafka.bootstrap_servers}
    elif not connection or not connection.get("bootstrap.servers"):
        raise ConfigError(
            f"the Kafka connection {pipeline.kafka.connection} names no broker: set `bootstrap.servers` in its extra",
            key="kafka.connection",
        )
    pipeline.retry.policy()  # a class that does not import is refused before anything is planned
    listener = load_listener(pipeline.listener)
    partition_filter = load_partition_filter(pipeline.kafka.partition_filter)
    properties = without_registry_settings(without_own_settings(connection))
    config = client_config({**properties, **pipeline.kafka.properties}) | {"group.id": pipeline.kafka.group_id}
    java_properties(config)  # refuses, before anything is asked of the broker, what Spark's Kafka client does not have
    key_hash_secret = secret_of(connection, pipeline.kafka.connection) if pipeline.audit.key_hash else None
    token_keys = token_keys_of(connection, pipeline.kafka.connection) if pipeline.ack_topic else None
    translation = translation_of(pipeline, connection)
    of_keys = warning_of_keys(token_keys or ())
    setting_warnings = (
        *warnings_of_settings(pipeline),
        *warnings_of_connection(pipeline, connection),
        *([of_keys] if of_keys else ()),
    )
    store = LedgerStore(audit or audit_root(), pipeline.name, lane)
    with (
        contextlib.closing(Cluster(config, pipeline.kafka.isolation)) as cluster,
        contextlib.closing(Group(config, pipeline.kafka.group_id)) as group,
    ):
        adapters = Adapters(
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
            setting_warnings,
            translation=translation,
            partition_filter=partition_filter,
            lease=TurnLease(LeaseFile(store.folder), run_id, when_held),
            key_hash_secret=key_hash_secret,
            token_keys=token_keys,
        )
        adapters.notify("open", pipeline.name, run_id)
        try:
            yield adapters
        finally:
            if listener is not None:
                listener.close()


def effective_settings(adapters: Adapters) -> str:
    """Returns all settings of a pipeline on one line, defaults included, as `KEY=VALUE` with the keys of the file.

    Of Kafka properties, from file and connection, only the names are shown, because their values may be secret; of the
    connection also the brokers. Any other value that looks like a secret is masked.
    """
    settings = dict(_flattened(adapters.pipeline.settings()))
    settings["kafka.bootstrap_servers"] = str(adapters.kafka.get("bootstrap.servers", ""))
    settings["kafka.connection.properties"] = ",".join(sorted(str(name) for name in adapters.kafka)) or "none"
    return " ".join(scrub_setting(key, value) for key, value in settings.items())


def _flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield from _flattened({str(number): item for number, item in enumerate(value)}, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", " ".join(_text(value).split())


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return "{}" if isinstance(value, Mapping) else str(value)


def run_warnings(adapters: Adapters, topics: Iterable[str]) -> list[str]:
    """Returns one sentence for each warning, naming the setting; `topics` are those that are read.

    Never raises. If the broker refuses to describe topics (DescribeConfigs), leaves out the warnings that depend on
    topics.
    """
    try:
        return [*adapters.setting_warnings, *topic_warnings(adapters, topics)]
    except AcklineError:
        return list(adapters.setting_warnings)


def topic_warnings(adapters: Adapters, topics: Iterable[str]) -> list[str]:
    """Returns the warnings that depend on retention and compaction of the topics.

    Raises AcklineError if the broker does not describe the topics.
    """
    dead_letter_topic = adapters.pipeline.dead_letter_topic
    policies = adapters.cluster.policies([*topics, *([dead_letter_topic] if dead_letter_topic is not None else [])])
    return list(warnings.warnings_of_topics(adapters.pipeline, policies))
