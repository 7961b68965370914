"""What a replay needs of Spark beside DataFrames, in two forms: an application of this process, and a Connect server.

An application that this process has started has a Spark context. A client of Spark Connect has none: it sends plans to
a server that others use too. All that differs between the two is here, so the job, its lineage and the probe are the
same. `ServerApplication.check` raises an error that names what a server can't prove.
"""

import logging
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.errors import ConfigError
from ackline.handler import Handler, Tier, tier_of
from ackline.pipeline.properties import DYNAMIC_ALLOCATION, DYNAMIC_ALLOCATION_REASON, is_true
from ackline.spark.master import is_local, is_loopback
from ackline.spark.settings import import_paths
from ackline.worker.settings import Place, ReplayJob
from ackline.worker.streams import Streams

ProbeTask = Callable[[Iterable[int]], Iterator[tuple[str, str, str, int, float]]]

log = logging.getLogger(__name__)

_FIRST_EXECUTOR_SECONDS = 60.0
_QUIET_SECONDS = 2.0
_EXECUTOR_POLL_SECONDS = 0.2
_MAX_CORES, _MAX_TASKS = 10_000, 1_000
_SPECULATION = "spark.speculation"
ONE_ATTEMPT = ("spark.stage.maxAttempts", "spark.stage.maxConsecutiveAttempts")
"""Settings that must be 1 where there are steps (why: `ackline.spark.settings.REQUIRED_SETTINGS`)."""
HIDDEN_TEXT = "spark.sql.redaction.string.regex"
"""The setting of a session by which a server hides texts. The server puts the plan of each request into its event log
and its pages, and the options of the Kafka source hold passwords."""
EVERYTHING = "(?s).+"
TAG = f"ackline-{uuid.uuid4()}"
"""The tag of all that this process runs on a server. Other clients may use the same session at the same time."""


class Application(ABC):
    """The Spark application that runs a session's jobs."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    @property
    @abstractmethod
    def id(self) -> str:
        """The id of this application, or of this session on a server, which no other one has."""

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """Whether driver and executors are on one machine, with the same files and the same code."""

    @property
    @abstractmethod
    def cores(self) -> int:
        """How many tasks run at the same time, as far as Spark knows."""

    @property
    @abstractmethod
    def fixed_cores(self) -> int | None:
        """How many tasks run at the same time; None if that number may change or others share the cores."""

    @property
    def place(self) -> Place | None:
        """Where the tasks work; None where they are as Spark starts them."""
        return None

    @abstractmethod
    def setting(self, name: str) -> str | None:
        """Returns the value of a setting of Spark; None if it is not set."""

    def check(self, job: ReplayJob, handler: Handler | Streams) -> None:
        """Raises ConfigError if this application can't run the job under its guarantee, or with its steps."""
        # Spark moves tasks away from executors that it gives back, so it would repeat tasks in the normal course.
        if job.settings.once and is_true(self.setting(DYNAMIC_ALLOCATION)):
            raise ConfigError(f"`{DYNAMIC_ALLOCATION}` is on: {DYNAMIC_ALLOCATION_REASON}", key=DYNAMIC_ALLOCATION)

    @abstractmethod
    def watched(self) -> AbstractContextManager[None]:
        """Returns a context for jobs. An exception that leaves it cancels them."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Returns an object that tasks can hold, whose attribute `value` is the value."""

    def wait_for_executors(self, sleep: Callable[[float], None]) -> None:  # noqa: B027 - a server shows no executors
        """Waits until an executor is there, and for two seconds no other has come: they register one after another."""

    def executors(self) -> int:
        """Returns the number of executors that are registered; 0 for a server, which shows none."""
        return 0

    @abstractmethod
    def ask(self, task: ProbeTask) -> list[Any]:
        """Runs the probe's task in a Spark task for each core that Spark knows of, and returns the rows of all."""

    @abstractmethod
    def adds_only_columns(self, outcomes: DataFrame, records: DataFrame) -> bool:
        """Returns whether `outcomes` is a projection of `records` and nothing else."""

    @abstractmethod
    def user_function(self, outcomes: DataFrame) -> str | None:
        """Returns the kind of user function in the columns that were added; None without one."""


class OwnApplication(Application):
    """The application of this process, through its Spark context."""

    @property
    def id(self) -> str:
        return str(self.spark.sparkContext.applicationId)

    @property
    def is_local(self) -> bool:
        return is_local(self._master)

    @property
    def _master(self) -> str:
        return str(self.spark.sparkContext.master)

    @property
    def cores(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    @property
    def fixed_cores(self) -> int | None:
        local = self._master.split("[")[0] == "local" and self.setting("spark.default.parallelism") is None
        return self.cores if local else None

    def setting(self, name: str) -> str | None:
        return self.spark.sparkContext.getConf().get(name)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Runs the block's jobs as a job group of their own."""
        context, group = self.spark.sparkContext, f"ackline-{uuid.uuid4()}"
        context.setJobGroup(group, "ackline replay", interruptOnCancel=True)
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the connection to the JVM may be what Ctrl-C has interrupted
                context.cancelJobGroup(group)
            raise
        finally:
            with suppress(Exception):
                context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    def share(self, value: Any) -> Any:
        return self.spark.sparkContext.broadcast(value)

    def executors(self) -> int:
        """Returns the number of registered executors; 0 on a local master, because the driver itself runs the tasks."""
        jsc: Any = self.spark.sparkContext._jsc
        return max(len(jsc.sc().statusTracker().getExecutorInfos()) - 1, 0)

    def wait_for_executors(self, sleep: Callable[[float], None]) -> None:
        if self.is_local:
            return
        polls, quiet, executors = int(_FIRST_EXECUTOR_SECONDS / _EXECUTOR_POLL_SECONDS), 0.0, 0
        for _ in range(polls):
            now = self.executors()
            quiet = quiet + _EXECUTOR_POLL_SECONDS if now == executors else 0.0
            executors = now
            if executors and quiet >= _QUIET_SECONDS:
                return
            sleep(_EXECUTOR_POLL_SECONDS)
        if not executors:
            log.warning("%s: no executor is there yet; Spark waits until the cluster has room", self._master)

    def ask(self, task: ProbeTask) -> list[Any]:
        tasks = min(max(self.cores, self.executors()), _MAX_TASKS)
        return self.spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(task).collect()

    def adds_only_columns(self, outcomes: DataFrame, records: DataFrame) -> bool:
        analyzed: Any = outcomes._jdf.queryExecution().analyzed()
        source: Any = records._jdf.queryExecution().analyzed()
        return bool(
            analyzed.nodeName() == "Project"
            and analyzed.children().size() == 1
            and analyzed.children().head().equals(source)
        )

    def user_function(self, outcomes: DataFrame) -> str | None:
        """Returns `Python`, `JVM` or None. Spark evaluates a user function some batches ahead of the Python stage that
        creates the marker of its part. Spark's own functions have no side effects, so they may be evaluated twice."""
        jvm: Any = self.spark._jvm
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        columns: Any = outcomes._jdf.queryExecution().analyzed().projectList()
        for kind, pattern in (("Python", patterns.PYTHON_UDF()), ("JVM", patterns.SCALA_UDF())):
            if any(columns.apply(i).containsPattern(pattern) for i in range(columns.size())):
                return kind
        return None


class ServerApplication(Application):
    """A session on a Spark Connect server. The server may be on another machine; other clients may use both."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._cores: int | None = None

    @property
    def id(self) -> str:
        session: Any = self.spark
        return str(session.session_id)

    @property
    def is_local(self) -> bool:
        """False for a server on this machine too: only the probe can prove that it has the same files."""
        return False

    @property
    def cores(self) -> int:
        """How many tasks run at the same time: by default Spark divides a range into a part for each core."""
        if self._cores is None:
            number = F.spark_partition_id().alias("number")
            [last] = self.spark.range(_MAX_CORES).select(number).agg(F.max("number").alias("last")).collect()
            self._cores = int(last["last"]) + 1
        return self._cores

    @property
    def fixed_cores(self) -> int | None:
        """None: the cores are shared with the jobs of other clients."""
        return None

    @property
    def place(self) -> Place | None:
        """That of this process if the server is on this machine: others see other files."""
        client: Any = self.spark
        return Place.of_this_process(import_paths()) if is_loopback(client.client.host) else None

    def setting(self, name: str) -> str | None:
        """Returns a setting of the session; None if it is not set. A session begins with those of the server."""
        value: Any = self.spark.conf.get(name, None)  # a default must be of the type of the setting
        return None if value is None else str(value)

    def check(self, job: ReplayJob, handler: Handler | Streams) -> None:
        super().check(job, handler)
        if is_true(self.setting(_SPECULATION)):
            raise ConfigError(
                f"the Spark Connect server has `{_SPECULATION}` on: a second attempt beside the first would call the "
                f"handler twice for a record; start the server without it",
                key=_SPECULATION,
            )
        if job.settings.topology is not None:
            for name in ONE_ATTEMPT:
                if self.setting(name) != "1":
                    raise ConfigError(
                        f"the Spark Connect server has not `{name}` 1, so after a lost shuffle parts of two executions "
                        f"of a step could meet; start the server with `--conf {name}=1`",
                        key=name,
                    )
        column = not isinstance(handler, Streams) and tier_of(handler) is Tier.COLUMN
        if column and job.settings.once:
            raise ConfigError(
                f"handler {job.settings.handler} is a column handler: under at_most_once a Spark Connect server can't "
                f"prove that its column calls no function of a user, which Spark may call twice. Use a record or Arrow "
                f"handler, or name a master instead of the server",
                key="handler",
            )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Runs the block's jobs with the tag of this process."""
        session: Any = self.spark
        session.addTag(TAG)
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the server may be what has failed
                session.interruptTag(TAG)
            raise
        finally:
            with suppress(Exception):
                session.removeTag(TAG)

    def share(self, value: Any) -> Any:
        """Returns a value that travels inside the function of each task: a server has no broadcast for its clients."""
        return SimpleNamespace(value=value)

    def ask(self, task: ProbeTask) -> list[Any]:
        """Runs the probe's task in a Spark task for each core, and returns the rows. An exception cancels the job."""

        def answers(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for _ in batches:
                pass
            names = ("host", "problem", "file", "size", "time")
            yield pa.RecordBatch.from_pydict(dict(zip(names, zip(*task([0]), strict=True), strict=True)))

        schema = "host string, problem string, file string, size bigint, time double"
        with self.watched():
            rows = self.spark.range(_MAX_CORES).mapInArrow(answers, schema).collect()
        self._cores = len(rows)  # `cores` would need a job of its own
        return rows

    def adds_only_columns(self, outcomes: DataFrame, records: DataFrame) -> bool:
        """Returns whether the server's analysis of `outcomes` is that of `records` with one projection on top. The
        session itself hides plans, and others use it. So a copy of it shows them, which runs no job whose text would
        get into the log."""
        session: Any = self.spark
        copy = session.cloneSession()
        try:
            copy.client.set_retry_policies(session.client.get_retry_policies())
            copy.conf.unset(HIDDEN_TEXT)
            return _nodes(copy, outcomes) == ["Project", *_nodes(copy, records)]
        finally:
            with suppress(Exception):
                copy.client.release_session()
            copy.client.close()  # pyspark's own `stop` fails for a copy

    def user_function(self, outcomes: DataFrame) -> str | None:
        """Returns None: `check` has refused the jobs for which a user function matters."""
        return None


_ANALYZED = re.compile(
    r"^== Analyzed Logical Plan ==$\n.*?\n(.*?)\n^== Optimized Logical Plan ==$", re.MULTILINE | re.S
)
_NODE = re.compile(r"^[ :]*(?:\+- |:- )?(\w+)", re.MULTILINE)


def _nodes(session: Any, rows: Any) -> list[str]:
    """Returns the names of the nodes of a plan as a session on a server analyses it, from the top. A literal that looks
    like a node only adds to the names, and so can hide none."""
    from pyspark.sql.connect.dataframe import DataFrame as ServerFrame

    explained: Any = ServerFrame(rows._plan, session)
    found = _ANALYZED.search(explained._explain_string(extended=True))
    return _NODE.findall(found[1]) if found else []


@lru_cache(maxsize=8)
def application_of(spark: SparkSession) -> Application:
    """Returns the application that runs the jobs of a session."""
    connect = type(spark).__module__.startswith("pyspark.sql.connect.")
    return ServerApplication(spark) if connect else OwnApplication(spark)
