"""The operators of the three steps. plan and settle run in the Airflow task, replay in a Spark driver of its own.

What a step needs (Spark, Delta, Kafka's client) is imported when it runs, not when its DAG is parsed. Nothing here
reads the `conf` of a DAG run: whoever may trigger a DAG decides when it runs, not what it does.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, Connection, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

import ackline
from ackline.airflow.driver import CONFIGURATION, FATAL, KAFKA_CONFIG, TASK
from ackline.airflow.provider import SparkSubmitHook, SparkSubmitOperator
from ackline.airflow.watch import ProcessId
from ackline.errors import AcklineError, ConfigError, TransientError
from ackline.paths import handlers_folder, make_handlers_importable, project_root
from ackline.pipeline import Pipeline

if TYPE_CHECKING:
    from ackline.steps.parts import Parts
    from ackline.turns import Settlement

SPARK_CONNECTION = "spark_default"
ACTOR = "airflow"


@contextmanager
def verdict() -> Iterator[None]:
    """What is transient fails the task, which is then tried again; of what is not, Airflow makes no second try."""
    try:
        yield
    except TransientError:
        raise
    except AcklineError as error:
        raise AirflowFailException(str(error)) from None


@contextmanager
def opened(pipeline: Pipeline, context: Context) -> Iterator["Parts"]:
    """The pipeline's parts for one task; turns are attributed to the DAG run."""
    from ackline.airflow.connection import kafka_connection
    from ackline.steps.parts import open_parts

    make_handlers_importable()  # for a listener, a retry class, a partition filter; each task is a process of its own
    with open_parts(pipeline, kafka_connection(pipeline), run_id=context["run_id"], actor=ACTOR) as parts:
        yield parts


class PlanOperator(BaseOperator):
    """Store what the next turn reads, or adopt the open plan. Returns a summary: offsets, no payload."""

    ui_color = "#d7e8f7"

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the step. The handler is imported first, so that nothing is planned in vain."""
        with verdict():
            from ackline.airflow.summary import planned_summary
            from ackline.kafka.java import java_properties
            from ackline.steps.effective_settings import in_force
            from ackline.steps.plan import plan
            from ackline.steps.topic_warnings import warnings
            from ackline.translation import check_code

            make_handlers_importable()
            check_code(self.pipeline.handler, self.pipeline.translation, self.pipeline.isolated)
            with opened(self.pipeline, context) as parts:
                self.log.info("settings in force: %s", in_force(parts))
                java_properties(parts.kafka)  # refuses what Spark's client could not be told
                planned = plan(parts)
                topics = {tp.topic for tp in planned.plan.partitions} if planned.plan else set()
                for text in warnings(parts, topics):
                    self.log.warning("%s", text)
                summary = planned_summary(planned)
        self.log.info("planned: %s", summary)
        return summary


class SettleOperator(BaseOperator):
    """Settle the open turn and commit the newest floor. Returns a summary: offsets and counts, no payload."""

    ui_color = "#d9f0dd"

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the step. What replay stored decides, not the state of its task."""
        with verdict():
            from ackline.airflow.gauges import publish
            from ackline.airflow.summary import settled_summary
            from ackline.steps.settle import settle

            with opened(self.pipeline, context) as parts:
                stored: list[Settlement] = []
                try:
                    settled = settle(parts, on_stored=stored.append)
                finally:  # a commit that is refused must not hide what was settled, nor the lag that grows meanwhile
                    publish(parts, stored[0] if stored else None)
                summary = settled_summary(settled)
        self.log.info("settled: %s", summary)
        return summary


class ReplayOperator(SparkSubmitOperator):
    """Carry out the open plan in a Spark driver, where there is something to read.

    The master is that of the Airflow connection `spark_default`, `local[*]` where it is not defined. The driver runs
    beside the task (client mode). A broken configuration or a fatal error is not tried again, anything else is.
    """

    ui_color = "#fbe7c6"

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        application = str(project_root() / "spark_jobs" / "replay.py")
        super().__init__(application=application, conn_id=SPARK_CONNECTION, name=f"ackline-{pipeline.name}", **kwargs)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """Run the step."""
        with verdict():
            if self._done_without_spark(context):
                return
            self._hook = self._driver_hook(context)
        try:
            super().execute(context)
        except AirflowException as error:
            _raise_verdict(self._hook, error)

    def on_kill(self) -> None:
        """End spark-submit's JVM; the driver sees that and ends itself."""
        if self._hook is not None:
            super().on_kill()

    def _done_without_spark(self, context: Context) -> bool:
        """Whether no Spark is needed: no turn is open, its outcomes are stored already, or it reads nothing."""
        from ackline.steps.effective_settings import in_force

        with opened(self.pipeline, context) as parts:
            self.log.info("settings in force: %s", in_force(parts))
            newest = parts.store.newest()
            plan = parts.store.open_plan(newest) if newest else None
            if plan is not None and not plan.empty and not parts.store.has_outcomes(plan.turn):
                return False
            if plan is not None and plan.empty:  # this plan, not one that another run may have stored since
                parts.store.store_outcomes(plan.turn, [])
        self.log.info("nothing to read: %s", plan.turn if plan else "no turn is open")
        return True

    def _driver_hook(self, context: Context) -> "DriverHook":
        from ackline.airflow.connection import kafka_connection
        from ackline.spark.jars import kafka_source_jars

        return DriverHook(
            driver_environment(kafka_connection(self.pipeline)),
            conn_id=SPARK_CONNECTION,
            name=self.name,
            jars=",".join(str(jar) for jar in kafka_source_jars()),
            driver_memory=os.environ.get("ACKLINE_SPARK_MEMORY", "1g"),
            application_args=[self.pipeline.name, f"--run-id={context['run_id']}"],
        )


def _raise_verdict(hook: SparkSubmitHook | None, error: AirflowException) -> NoReturn:
    """Turn the driver's exit status into what Airflow does next."""
    if isinstance(hook, DriverHook) and hook.exit_status in (CONFIGURATION, FATAL):
        raise AirflowFailException(_reason(str(error))) from None
    raise error


def _reason(text: str) -> str:
    """The driver's own line of what went wrong, of all that spark-submit printed."""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line.startswith("ackline: ")), "replay failed; see the log above")


class DriverHook(SparkSubmitHook):
    """The provider's hook, for a driver beside the task, with an environment of its own.

    The environment goes to the process alone: the provider would put it among the arguments for YARN and Kubernetes,
    for all to see, and copy Airflow's own secrets into it. Raises ConfigError for deploy mode `cluster`.
    """

    def __init__(self, environment: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self._connection["deploy_mode"] == "cluster":
            raise ConfigError(
                f"the Airflow connection {SPARK_CONNECTION} says deploy mode `cluster`, where Kafka's password would "
                f"have to travel in an argument: set it to `client`; executors run on the cluster all the same",
                key="deploy-mode",
            )
        self._environment = dict(environment)
        self._conf = driver_settings(self._connection["master"])

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """The connection; this machine where it is not defined, while the provider would look for a YARN cluster."""
        try:
            return super().get_connection(conn_id)
        except AirflowNotFoundException:
            return Connection(conn_id=conn_id, conn_type="spark", host="local[*]")

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the driver until it ends. Raises AirflowException where its exit status is not 0."""
        return super().submit(application, env=self._environment, **kwargs)

    @property
    def exit_status(self) -> int | None:
        """The driver's, once it has ended."""
        return None if self._submit_sp is None else self._submit_sp.returncode


def driver_settings(master: str) -> dict[str, str]:
    """Spark settings of the driver: a quiet log, and, on this machine alone, no open port but the loopback's."""
    log4j2 = Path(ackline.__file__).parent / "spark" / "log4j2.properties"
    settings = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j2.as_uri()} -XX:+UseParallelGC",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
    }
    if master.startswith("local"):
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
    return settings


_AIRFLOWS = re.compile(r"_*AIRFLOW", re.IGNORECASE)


def driver_environment(connection: Mapping[str, Any] | None) -> dict[str, str]:
    """The task's environment without Airflow's part of it (its secrets), and with what the driver needs."""
    kept = {name: value for name, value in os.environ.items() if not _AIRFLOWS.match(name)}
    folders = [str(handlers_folder()), *filter(None, [kept.get("PYTHONPATH")])]
    # Where the interpreter is, spark-submit is, too; a scheduler need not have it on its PATH.
    commands = [os.path.dirname(sys.executable), kept.get("PATH", os.defpath)]
    kept |= {
        KAFKA_CONFIG: json.dumps(connection),
        TASK: str(ProcessId.of(os.getpid())),
        "PATH": os.pathsep.join(commands),
        "PYTHONPATH": os.pathsep.join(folders),
    }
    kept.setdefault("PYSPARK_PYTHON", sys.executable)
    kept.setdefault("PYSPARK_DRIVER_PYTHON", kept["PYSPARK_PYTHON"])
    return kept
