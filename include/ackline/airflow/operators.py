"""The operators of the three steps. plan and settle run in the Airflow task, replay in a Spark driver of its own.

A step imports what it needs (Spark, Delta, the Kafka client) when it runs, not when its DAG is parsed. The operators
read the params `max_records`, `only_retries`, `partitions` and `table_gone` of a DAG run, and no other: a user who may
trigger `replay__NAME` decides when it runs, how little it reads and which tables are gone, not what it does.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, Context, TriggerRule
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    DownstreamTasksSkipped,
)

from ackline.airflow.driver import Secrets
from ackline.airflow.driver_hook import SPARK_CONNECTION, DriverHook, SparkSubmitOperator, raise_for_exit_status
from ackline.errors import AcklineError, ConfigError, TransientError, did_you_mean
from ackline.forms.form import RUN_FIELDS, Entered, Field
from ackline.lane.code import CODE
from ackline.lane.ways_out import LaneName, Way
from ackline.ledger.turns import LIVE
from ackline.pipeline.folder import audit_root, make_handlers_importable
from ackline.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from ackline.lane.adapters import Adapters
    from ackline.ledger.turns import Plan, Settlement, TurnId

ACTOR = "airflow"
DRIVER = str(Path(__file__).parent / "spark_jobs" / "replay.py")
"""The program that spark-submit runs: in the package, because an installation has no repository."""
RETRIES = {
    "retries": 4,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}
"""Airflow's retries of a transient error: about seven minutes. Others fail at once (`airflow_errors`)."""
LEASE_POLL = timedelta(minutes=2)
"""How long a replay task gives its worker slot away while another process replays its turn."""
BACKFILL_RUN = "backfill"
"""The type of the runs that Airflow's own backfill makes."""


TAG_LENGTH = 100
"""The most characters that Airflow takes in a tag."""


def new_dag(
    dag_id: str, file: str, kind: str, tags: Iterable[str] = (), owner: str | None = None, **settings: Any
) -> DAG:
    """Returns a DAG for the DAG file `file`. No task of its own waits for an earlier run of it.

    A DAG of a pipeline is listed as `PIPELINE / KIND`, so that a list sorted by name keeps the DAGs of a pipeline
    together, and has the pipeline and the `tags` of its file as tags. Without `owner` its tasks have the owner that
    Airflow's `[operators] default_owner` names.
    """
    pipeline = dag_id.partition("__")[2]
    if pipeline:
        settings = {"dag_display_name": f"{pipeline} / {kind}", **settings}
    tags = {"ackline", kind, *tags, *([pipeline[:TAG_LENGTH]] if pipeline else [])}
    arguments = {**settings.pop("default_args", RETRIES), **({} if owner is None else {"owner": owner})}
    dag = DAG(
        dag_id=dag_id, start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False,
        auto_register=False, tags=tags, default_args=arguments, **settings,
    )  # fmt: skip
    dag.fileloc = file
    return dag


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turns a lasting error into AirflowFailException, which Airflow does not retry. It retries a TransientError."""
    try:
        yield
    except TransientError:
        raise
    except AcklineError as error:
        raise AirflowFailException(str(error)) from None


@contextmanager
def stop_noted(pipeline: Pipeline, context: Context) -> Iterator[None]:
    """Notes beside the tables an error with which a step of the live lane stops, so that the page shows it, and sends
    it as a metric."""
    from ackline.airflow.connections import use_audit_connection
    from ackline.airflow.metrics import stop_published
    from ackline.tables.layout import LaneTables, noted_stop

    with stop_published(pipeline.name):
        use_audit_connection()
        with noted_stop(LaneTables(audit_root(), pipeline.name, LIVE), str(context["run_id"])):
            yield


def use_folder_of(pipeline: Pipeline) -> None:
    """Sets ACKLINE_PIPELINES to the folder of a DAG's pipeline file, for this process and the driver that it starts: a
    bundle keeps the versions of its files in folders of their own. Handlers are imported from there."""
    if pipeline.folder is not None:
        os.environ["ACKLINE_PIPELINES"] = str(pipeline.folder)
    make_handlers_importable()


def use_code_of(context: Context) -> None:
    """Sets ACKLINE_CODE to the name and version of the DAG bundle of a task, for this process and the driver that it
    starts. A bundle without versions has no such name: then the folder of the handlers names the code."""
    bundle: Any = getattr(context.get("ti"), "bundle_instance", None)
    if version := getattr(bundle, "version", None):
        os.environ[CODE] = f"bundle {bundle.name} {version}"


@contextmanager
def opened(pipeline: Pipeline, context: Context, actor: str = ACTOR, lane: str = LIVE) -> Iterator["Adapters"]:
    """Opens the adapters of a pipeline for one task. Its turns carry the run id of the DAG run."""
    from ackline.airflow.connections import kafka_connection, use_audit_connection
    from ackline.lane.adapters import open_adapters

    use_audit_connection()
    use_folder_of(pipeline)  # a listener, a retry class or a partition filter may live there
    use_code_of(context)
    with open_adapters(
        pipeline, kafka_connection(pipeline), run_id=context["run_id"], actor=actor, lane=lane
    ) as adapters:
        yield adapters


def replays_interval(context: Context) -> bool:
    """Returns whether the DAG run replays its data interval, and takes no turn of the live lane."""
    run_type = getattr(context.get("dag_run"), "run_type", None)
    return getattr(run_type, "value", run_type) == BACKFILL_RUN


def skip_in_interval_run(context: Context) -> None:
    """Raises AirflowSkipException in a run that replays an interval: a user may clear one of the tasks that `plan` has
    skipped, and it must not work on a turn of the live lane that another run has open."""
    if replays_interval(context):
        raise AirflowSkipException("this run replays its data interval in a backfill lane; see its task plan")


class PipelineOperator(BaseOperator):
    """An operator that works on one pipeline."""

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def entered(self, context: Context, fields: Iterable[Field]) -> Entered:
        """Returns what the form or the conf of the DAG run gives for `fields`.

        Raises ConfigError for a key of the conf that is no field and no param of the DAG, and for one whose value
        Airflow does not pass on. Airflow itself accepts both without a word, and the run would do more than was asked:
        `{"partition": [3]}` would skip all partitions.
        """
        params = context.get("params") or {}
        dag = self.get_dag()
        known = {*(field.name for field in fields if field.in_dag), *self.params, *(dag.params if dag else ())}
        conf = getattr(context.get("dag_run"), "conf", None) or {}
        for key in (*conf, *params):
            if key not in known:
                advice = did_you_mean(key, known) or f"; it has {', '.join(sorted(known))}"
                raise ConfigError(f"{key}: the DAG has no such param{advice}. Nothing was done", key=key)
            if key in conf and params.get(key) != conf[key]:
                raise ConfigError(
                    f"{key}: the conf of this run does not reach its params, because Airflow's option "
                    f"core.dag_run_conf_overrides_params is off. Nothing was done",
                    key=key,
                )
        return Entered(params, by_option=False)

    def log_change(self, text: str, confirmed: bool) -> None:
        """Logs what a task has changed, or what it would change."""
        self.log.info("%s%s", text, "" if confirmed else "\nNothing was changed: `confirm` is not set.")


def stored_as_empty(adapters: "Adapters", plan: "Plan | None") -> bool:
    """Returns whether there is nothing to replay: no turn is open, or its plan reads nothing.

    For such a plan it stores zero outcomes, because settle takes a turn as replayed only if outcomes are stored. It
    uses `plan` itself, because another run may have stored the next plan since.
    """
    if plan is not None and plan.empty:
        adapters.store.store_outcomes(plan.turn, [])
    return plan is None or plan.empty


class PlanOperator(PipelineOperator):
    """Stores the plan of the next turn, or adopts the open one. Returns a summary: offsets, no payload.

    If the plan reads nothing, stores its outcomes as well and skips the task `replay`, whose start would cost more than
    all the rest of the run.

    The params of the DAG run limit what a new plan reads, and the plan stores them. An open plan stays as it is.

    Skipped in a run of Airflow's own backfill: `ackline.airflow.interval.IntervalPlanOperator` replays its interval.
    """

    ui_color = "#d7e8f7"

    def execute(self, context: Context) -> dict[str, Any]:
        """Run plan. Imports the handler first, so that no turn is planned that can't be handled."""
        skip_in_interval_run(context)
        with airflow_errors(), stop_noted(self.pipeline, context):
            from ackline.airflow.results import planned_summary
            from ackline.forms.form import RunRequest, run_request
            from ackline.lane.adapters import effective_settings, run_warnings
            from ackline.pipeline.functions import check_functions
            from ackline.steps.plan import plan

            use_folder_of(self.pipeline)
            check_functions(*self.pipeline.functions)
            DriverHook(Secrets(), conn_id=SPARK_CONNECTION)  # refuses a master on which replay can't run
            # Airflow has checked the params against their schemas, unless a client has stored the run by other means.
            request = run_request(self.entered(context, RUN_FIELDS), self.pipeline.max_records_per_run)
            with opened(self.pipeline, context) as opened_adapters:
                adapters = replace(opened_adapters, request=request)
                self.log.info("settings in force: %s", effective_settings(adapters))
                planned = plan(adapters)
                if planned.plan and planned.adopted and RunRequest.of_plan(planned.plan.settings) != request:
                    self.log.warning(
                        "%s was open already: the params of this run do not apply to it", planned.plan.turn
                    )
                topics = {tp.topic for tp in planned.plan.partitions} if planned.plan else set()
                for text in run_warnings(adapters, topics):
                    self.log.warning("%s", text)
                summary = planned_summary(planned)
                has_no_work = stored_as_empty(adapters, planned.plan)
        self.log.info("planned: %s", summary)
        # A task of the user in between is not skipped.
        if has_no_work and (replays := [t.task_id for t in self.downstream_list if isinstance(t, ReplayOperator)]):
            context["ti"].xcom_push(key="return_value", value=summary)  # as a return would
            raise DownstreamTasksSkipped(tasks=replays)  # type: ignore[no-untyped-call]
        return summary


class SettleOperator(PipelineOperator):
    """Settles the open turn and commits the newest floor. Returns a summary: offsets and counts, no payload.

    Runs after a replay that plan has skipped, too: an empty turn is settled like any other.
    """

    ui_color = "#d9f0dd"

    def __init__(self, *, pipeline: Pipeline, trigger_rule: str = TriggerRule.NONE_FAILED, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, trigger_rule=trigger_rule, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Run settle. The outcomes that replay stored decide what is settled, not the state of its task."""
        skip_in_interval_run(context)
        with airflow_errors(), stop_noted(self.pipeline, context):
            from ackline.airflow.metrics import publish_metrics
            from ackline.airflow.results import settled_summary
            from ackline.steps.settle import settle

            with opened(self.pipeline, context) as adapters:
                stored: list[Settlement] = []
                # The turn that plan has returned, and what replay has planned after it. A turn that another run has
                # opened since is that run's to settle: replay may still be working on it.
                turn = planned_turn(adapters, context)
                try:
                    settled = settle(adapters, turn, stored.append, and_later=True)
                finally:  # a refused commit must hide neither what was settled nor the lag that grows meanwhile
                    publish_metrics(adapters, stored[0] if stored else None)
                summary = settled_summary(settled)
        self.log.info("settled: %s", summary)
        return summary


def planned_turn(adapters: "Adapters", context: Context) -> "TurnId | None":
    """Returns the turn that the task `plan` of this DAG run has planned or adopted; None if its summary is gone."""
    from ackline.ledger.turns import TurnId

    summary = context["ti"].xcom_pull(task_ids="plan")
    if not isinstance(summary, Mapping) or summary.get("turn") is None or "epoch" not in summary:
        return None
    return TurnId(adapters.pipeline.name, adapters.store.lane, summary["epoch"], summary["turn"])


class ReplayOperator(SparkSubmitOperator):
    """Replays the open plan in a Spark driver, if the plan reads anything.

    The Airflow connection `spark_default` names the master; without it the master is `local[*]`. The driver runs beside
    the task (client mode). Airflow retries a transient or an unexpected error, and no other.

    While another process replays the turn, the task is rescheduled: it holds no worker slot, uses up no retry, and
    looks again every LEASE_POLL. A look takes a slot until the other renews its lease, some 20 s. If the other does not
    renew it within a minute, the task goes on.
    """

    ui_color = "#fbe7c6"

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(application=DRIVER, conn_id=SPARK_CONNECTION, name=f"ackline-{pipeline.name}", **kwargs)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """Replays the open plan in a Spark driver, unless nothing is to be read."""
        skip_in_interval_run(context)
        with airflow_errors(), stop_noted(self.pipeline, context):
            if self._done_without_spark(context):
                return
        from ackline.airflow.metrics import stop_published

        with airflow_errors(), stop_published(self.pipeline.name):  # the driver notes its error itself
            self._submit(context)

    def on_kill(self) -> None:
        """End the JVM of spark-submit. The driver watches it, and ends itself then."""
        if self._hook is not None:
            super().on_kill()

    def _submit(self, context: Context) -> None:
        """Run the driver until it ends.

        Raises its AcklineError if another try would fail in the same way (exit statuses 2 to 5).
        """
        from ackline.airflow.connections import kafka_connection, use_audit_connection

        self._hook = DriverHook(
            Secrets(kafka_connection(self.pipeline), use_audit_connection()),
            conn_id=SPARK_CONNECTION,
            name=self.name,
            driver_memory=self.pipeline.spark.driver_memory or os.environ.get("ACKLINE_SPARK_MEMORY", "1g"),
            application_args=self._driver_arguments(context),
        )
        try:
            super().execute(context)
        except AirflowException as error:
            raise_for_exit_status(self._hook, error, Way.VOID.of(LaneName(self.pipeline.name, self._lane(context))))

    def _opened(self, context: Context) -> AbstractContextManager["Adapters"]:
        return opened(self.pipeline, context, lane=self._lane(context))

    def _lane(self, context: Context) -> str:
        return LIVE

    def _driver_arguments(self, context: Context) -> list[str]:
        """Returns the arguments of the driver. Every user of the machine can read them."""
        return [self.pipeline.name, f"--run-id={context['run_id']}"]

    def _done_without_spark(self, context: Context) -> bool:
        """Returns True if there is nothing to read. Stores an empty plan's outcomes, the proof for settle.

        Reschedules the task while another process replays the turn.
        """
        from ackline.lane.adapters import effective_settings

        with self._opened(context) as adapters:
            self.log.info("settings in force: %s", effective_settings(adapters))
            _, plan = adapters.newest_and_open_plan()
            if plan is not None and not stored_as_empty(adapters, plan) and not adapters.store.has_outcomes(plan.turn):
                # Here, because each opening of the adapters opens the listener.
                self._reschedule_if_held(adapters, plan)
                return False
        self.log.info("nothing to read: %s", plan.turn if plan else "no turn is open")
        return True

    def _reschedule_while_held(self, context: Context) -> None:
        with self._opened(context) as adapters:
            _, plan = adapters.newest_and_open_plan()
            if plan is not None:
                self._reschedule_if_held(adapters, plan)

    def _reschedule_if_held(self, adapters: "Adapters", plan: "Plan") -> None:
        holder = adapters.lease.living_holder(plan.turn) if adapters.lease is not None else None
        if holder is not None:
            self.log.warning("%s is being replayed by %s; this task looks again in %s", plan.turn, holder, LEASE_POLL)
            raise AirflowRescheduleException(datetime.now(UTC) + LEASE_POLL)  # type: ignore[no-untyped-call]
