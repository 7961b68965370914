"""DAGs from pipeline files: `replay__NAME` with the tasks plan >> replay >> settle.

Asked by the files in dags/ each time they are parsed, so nothing here opens a connection or loads Spark, Delta or
a Kafka client: what the tasks need they import when they run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable

from ackline.airflow.operators import PlanOperator, ReplayOperator, SettleOperator
from ackline.paths import audit_root
from ackline.pipeline import Pipeline
from ackline.pipeline_folder import load_folder

RETRIES = {
    "retries": 4,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}
"""For what is transient: some seven minutes of patience. What is not fails its task at once (`operators.verdict`)."""


@dataclass(frozen=True, slots=True)
class Made:
    """The DAGs of a folder of pipeline files, by id, and what is wrong with the files that gave none."""

    dags: Mapping[str, DAG]
    broken: Mapping[Path, str]


def make_dags(folder: Path, file: str) -> Made:
    """A DAG for each pipeline file of `folder`, as those of the DAG file `file`. Never raises.

    One exception at the end of a file that made DAGs would take all of them away, so a broken pipeline file is only
    noted here; a second DAG file without DAGs reports it.
    """
    try:
        if not folder.is_dir():
            return Made({}, {folder: f"{folder}: no such folder; set ACKLINE_PIPELINES to that of the pipeline files"})
        loaded = load_folder(folder)
    except Exception as error:
        return Made({}, {folder: f"{folder}: {type(error).__name__}: {error}"})
    dags: dict[str, DAG] = {}
    broken = {path: str(error) for path, error in loaded.broken.items()}
    for pipeline in loaded.pipelines.values():
        try:
            dag = replay_dag(pipeline, file)
            dags[dag.dag_id] = dag
        except Exception as error:
            broken[folder / pipeline.name] = f"{folder}: pipeline {pipeline.name}: {type(error).__name__}: {error}"
    return Made(dags, broken)


def replay_dag(pipeline: Pipeline, file: str) -> DAG:
    """The DAG of one pipeline. Raises ValueError for a schedule that no calendar meets."""
    dag = DAG(
        dag_id=f"replay__{pipeline.name}",
        schedule=_timetable(pipeline.schedule),
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args=RETRIES,
        description=f"Replays {subscription(pipeline)} through {', '.join(pipeline.handlers)}",
        doc_md=documentation(pipeline),
        tags={"ackline", "replay"},
        auto_register=False,
    )
    dag.fileloc = file
    plan = PlanOperator(task_id="plan", pipeline=pipeline, dag=dag)
    replay = ReplayOperator(task_id="replay", pipeline=pipeline, dag=dag)
    settle = SettleOperator(task_id="settle", pipeline=pipeline, dag=dag, outlets=[audit_asset(pipeline.name)])
    plan >> replay >> settle
    return dag


def audit_asset(pipeline: str) -> Asset:
    """A pipeline's part of the audit table. DAGs that are scheduled on it run when a turn was settled."""
    root = audit_root()
    uri = root if "://" in root else Path(root).absolute().as_uri()
    return Asset(name=f"ackline/outcomes/{pipeline}", uri=f"{uri}/outcomes/pipeline={pipeline}", group="ackline")


def _timetable(schedule: str | None) -> CronDataIntervalTimetable | None:
    if schedule is None:
        return None
    timetable = CronDataIntervalTimetable(schedule, timezone="UTC")
    timetable.validate()
    return timetable


def subscription(pipeline: Pipeline) -> str:
    """What a pipeline reads, in words."""
    kafka = pipeline.kafka
    if kafka.pattern is not None:
        return f"topics matching {kafka.pattern}"
    if kafka.partitions is not None:
        return ", ".join(f"{topic} {numbers}" for topic, numbers in kafka.partitions.items())
    return ", ".join(kafka.topics or ())


def documentation(pipeline: Pipeline) -> str:
    """What a reader of the DAG's page wants to know. Kafka properties are named, their values may be secret."""
    kafka, retry = pipeline.kafka, pipeline.retry
    broker = f"the Airflow connection {kafka.connection}" if kafka.connection else kafka.bootstrap_servers or ""
    rows = {
        "reads": f"{subscription(pipeline)} ({kafka.isolation})",
        "from": broker,
        "commits for group": kafka.group_id,
        "Kafka properties": ", ".join(sorted(kafka.properties)) or "none",
        "handler": ", ".join(pipeline.handlers),
        "guarantee": pipeline.guarantee,
        "starts at": pipeline.start,
        "retries": f"as {retry.class_} says"
        if retry.class_
        else f"{retry.max_retries}; first after {_seconds(retry.initial_delay)}, then {_seconds(retry.period)} × "
        f"{retry.multiplier:g}^(n−1), at most {_seconds(retry.max_delay)}",
        "dead letters": pipeline.dead_letter_topic or "none: records given up leave no copy in Kafka",
        "tombstones": pipeline.tombstones,
        "takes at most": f"{pipeline.max_records_per_run:,} records, {pipeline.max_uncommitted:,} above the floor",
    }
    table = "\n".join(f"| {name} | {_code(value)} |" for name, value in rows.items())
    return (
        f"### {pipeline.name}\n\n| | |\n|---|---|\n{table}\n\n"
        "**plan** stores which offsets this turn reads, **replay** hands each record of exactly these to the handler "
        "and stores its outcome, **settle** decides about failures and commits the group up to the lowest offset that "
        "is not settled. "
        "Any task may be cleared at any time: an open turn is resumed, nothing that was stored is done twice.\n"
    )


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"


def _code(text: str) -> str:
    # As code, Markdown leaves it alone; only these two would end it, or the cell.
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"
