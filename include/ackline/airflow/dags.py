"""DAGs from pipeline files: `replay__NAME` with the tasks plan >> replay >> settle, and the links to their page.

Airflow parses the files in dags/ every few seconds. So nothing here opens a connection or loads Spark, Delta or a Kafka
client: the tasks import what they need when they run.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.configuration import conf
from airflow.sdk import DAG, Asset, BaseOperatorLink, CronDataIntervalTimetable, get_parsing_context

from ackline.airflow.interval import IntervalPlanOperator
from ackline.airflow.operate import run_params
from ackline.airflow.operators import PlanOperator, ReplayOperator, SettleOperator, new_dag
from ackline.errors import ConfigError
from ackline.ledger.backoff import FOREVER
from ackline.ledger.turns import LIVE
from ackline.pipeline.folder import audit_root, lane_folder, load_folder, load_pipeline
from ackline.pipeline.pipeline import Pipeline

log = logging.getLogger(__name__)
DAG_PREFIX = "replay__"
DAG_PREFIXES = (DAG_PREFIX, "backfill__", "operate__")
"""The prefixes of all DAGs of a pipeline."""
OPTIONAL_DAGS = ("operate", "backfill")
"""The kinds of DAGs beside `replay` that ACKLINE_DAGS names; without it each pipeline has both."""
PAGE = "/ackline"
"""The path at which Airflow mounts the page, below its own base path."""


def page_path() -> str:
    """Returns the path of the page in a browser. Airflow itself may be served below a path."""
    return urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/") + PAGE + "/"


def pipeline_of_dag(dag_id: str) -> str | None:
    """Returns the pipeline of a DAG; None for a DAG that is not Ackline's."""
    return next((dag_id.removeprefix(prefix) for prefix in DAG_PREFIXES if dag_id.startswith(prefix)), None)


def external_views() -> list[dict[str, str]]:
    """Returns the views that Airflow shows in frames: one in its navigation, and a tab of each DAG and DAG run.

    Airflow replaces DAG_ID and RUN_ID. It shows the tabs of all DAGs; for a DAG that is not Ackline's, the page states
    that it has nothing.
    """
    page = page_path()
    return [
        {"name": "Ackline", "href": page, "destination": "nav", "category": "browse", "url_route": "ackline"},
        {"name": "Ackline", "href": f"{page}dags/{{DAG_ID}}", "destination": "dag", "url_route": "ackline_dag"},
        {"name": "Ackline", "href": f"{page}dags/{{DAG_ID}}/runs/{{RUN_ID}}", "destination": "dag_run",
         "url_route": "ackline_run"},
    ]  # fmt: skip


class AuditLink(BaseOperatorLink):
    """The link `Audit` on the tasks: the turns that the task's run has settled."""

    name = "Audit"
    operators = [IntervalPlanOperator, PlanOperator, ReplayOperator, SettleOperator]  # noqa: RUF012 - declared so by Airflow

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the address of the run's page, on the server of Airflow's own pages."""
        name = ti_key.dag_id.removeprefix(DAG_PREFIX)
        return f"{page_path()}pipelines/{quote(name, safe='')}/run?{urlencode({'run_id': ti_key.run_id})}"


@dataclass(frozen=True, slots=True)
class FolderDags:
    """The DAGs of a folder of pipeline files, by id, and the errors of the files that have no DAG."""

    dags: Mapping[str, DAG]
    broken: Mapping[Path, str]


def make_dags(
    folder: Path, file: str, prefix: str = DAG_PREFIX, make: Callable[[Pipeline, str], DAG] | None = None
) -> FolderDags:
    """Returns a DAG for each pipeline file of `folder`, for the DAG file `file`. Never raises.

    `make` returns the DAG of a pipeline, `replay_dag` by default; its id is the pipeline's name after `prefix`.

    If a DAG file raises after it made DAGs, Airflow drops all of them. So this function collects the errors of broken
    pipeline files, and a second DAG file raises them. A task that parses the DAG file again gets its own DAG alone:
    another pipeline file can't stop it or make it slow. Makes none of a kind that ACKLINE_DAGS switches off.
    """
    kind = prefix.removesuffix("__")
    if kind in OPTIONAL_DAGS and kind not in _wanted():
        return FolderDags({}, {})
    own = get_parsing_context().dag_id
    name = own.removeprefix(prefix) if own is not None and own.startswith(prefix) else None
    pipelines, broken = _load(folder, name)
    dags = {}
    for pipeline in pipelines:
        with _collected(broken, folder, pipeline):
            dags[f"{prefix}{pipeline.name}"] = (make or replay_dag)(pipeline, file)
    return FolderDags(dags, broken)


def all_dags(folder: str | Path, file: str) -> Mapping[str, DAG]:
    """Returns the DAGs of all pipeline files of `folder`, and that of the maintenance, for a DAG file of three lines:

        from ackline.airflow.dags import all_dags

        globals().update(all_dags("pipelines", __file__))

    A relative folder starts at the folder of the DAG file, so each version of a bundle has its own. A pipeline file
    that is refused has no DAG; the log of the DAG processor names it, and with `raise_broken_files` in a second DAG
    file it is an import error in Airflow. Never raises, as `make_dags`.
    """
    from ackline.airflow.backfill import BACKFILL_PREFIX, backfill_dag
    from ackline.airflow.operate import OPERATE_PREFIX, maintenance_dag, operate_dag

    found, folder = dict[str, DAG](), Path(file).parent / folder
    for prefix, make in ((DAG_PREFIX, None), (OPERATE_PREFIX, operate_dag), (BACKFILL_PREFIX, backfill_dag)):
        found |= make_dags(folder, file, prefix, make).dags
    for text in broken_files(folder).values():
        log.warning("no DAG: %s", text)
    maintenance = maintenance_dag(file)
    return {**found, maintenance.dag_id: maintenance}


def raise_broken_files(folder: str | Path, file: str) -> None:
    """Raises ConfigError with the errors of the pipeline files that have no DAG, for a DAG file that makes none.
    Airflow shows it as an import error of that file. `folder` is as in `all_dags`."""
    if broken := broken_files(Path(file).parent / folder):
        raise ConfigError("pipeline files without a DAG:\n" + "\n".join(broken.values()))


def broken_files(folder: Path) -> Mapping[Path, str]:
    """Returns the errors of the pipeline files that have no DAG. Makes no DAG: that takes most of the time."""
    pipelines, broken = _load(folder, None)
    for pipeline in pipelines:
        with _collected(broken, folder, pipeline):
            _timetable(pipeline.schedule)
    for word in _wanted():
        if word not in (*OPTIONAL_DAGS, "none"):
            text = f"ACKLINE_DAGS: {word} is no kind of DAG; write operate, backfill, both with a comma, or none"
            broken[folder / "ACKLINE_DAGS"] = text
    return broken


def _wanted() -> list[str]:
    return os.environ.get("ACKLINE_DAGS", ",".join(OPTIONAL_DAGS)).replace(",", " ").split()


def _load(folder: Path, name: str | None) -> tuple[Collection[Pipeline], dict[Path, str]]:
    """Returns the valid pipelines of a folder, or `name` alone, and the errors of the others by file."""
    try:
        if not folder.is_dir():
            return [], {folder: f"{folder}: no such folder; correct it in the DAG file, or in ACKLINE_PIPELINES"}
        if name is not None:
            return [load_pipeline(folder, name)], {}
        loaded = load_folder(folder)
    except Exception as error:
        return [], {folder: f"{folder}: {type(error).__name__}: {error}"}
    return loaded.pipelines.values(), {path: str(error) for path, error in loaded.broken.items()}


@contextlib.contextmanager
def _collected(broken: dict[Path, str], folder: Path, pipeline: Pipeline) -> Iterator[None]:
    """Adds an error of the block to `broken` instead of raising it."""
    try:
        yield
    except Exception as error:
        broken[folder / pipeline.name] = f"{folder}: pipeline {pipeline.name}: {type(error).__name__}: {error}"


def replay_dag(pipeline: Pipeline, file: str) -> DAG:
    """Returns the DAG of one pipeline. Raises ValueError for a schedule that never comes."""
    dag = new_dag(
        f"{DAG_PREFIX}{pipeline.name}",
        file,
        "replay",
        pipeline.tags,
        pipeline.owner,
        schedule=_timetable(pipeline.schedule),
        max_active_runs=1,
        description=f"Replays {subscription_text(pipeline)} through {', '.join(pipeline.handlers)}",
        doc_md=documentation_of(pipeline),
        params=run_params(pipeline),
    )
    plan = IntervalPlanOperator(task_id="plan", pipeline=pipeline, dag=dag)
    replay = ReplayOperator(task_id="replay", pipeline=pipeline, dag=dag)
    settle = SettleOperator(task_id="settle", pipeline=pipeline, dag=dag, outlets=[audit_asset(pipeline.name)])
    plan >> replay >> settle
    return dag


def audit_asset(pipeline: str) -> Asset:
    """Returns the asset of a pipeline's rows in the audit table. A DAG scheduled on it runs after each settle."""
    root = audit_root()
    uri = root if "://" in root else Path(root).absolute().as_uri()
    return Asset(
        name=f"ackline/outcomes/{pipeline}", uri=f"{lane_folder(uri, pipeline, LIVE)}/outcomes", group="ackline"
    )


@lru_cache(maxsize=1024)
def _timetable(schedule: str | None) -> CronDataIntervalTimetable | None:
    """Returns the timetable of a schedule. It has no state, so the DAGs of pipelines with the same schedule share it:
    to check a cron expression is a tenth of the cost of a DAG."""
    if schedule is None:
        return None
    timetable = CronDataIntervalTimetable(schedule, timezone="UTC")
    timetable.validate()
    return timetable


def subscription_text(pipeline: Pipeline) -> str:
    """Returns the topics, the pattern or the partitions that a pipeline reads, as text for a person."""
    kafka = pipeline.kafka
    if kafka.pattern is not None:
        return f"topics matching {kafka.pattern}"
    if kafka.partitions is not None:
        return ", ".join(f"{topic} {numbers}" for topic, numbers in kafka.partitions.items())
    return ", ".join(kafka.topics or ())


def documentation_of(pipeline: Pipeline) -> str:
    """Returns the documentation of a DAG. It has the names of Kafka properties only: their values may be secret."""
    kafka, retry = pipeline.kafka, pipeline.retry
    retries = "forever" if retry.max_retries == FOREVER else retry.max_retries
    broker = f"the Airflow connection {kafka.connection}" if kafka.connection else kafka.bootstrap_servers or ""
    rows = {
        "reads": f"{subscription_text(pipeline)} ({kafka.isolation})",
        "from": broker,
        "commits for group": kafka.group_id,
        "Kafka properties": ", ".join(sorted(kafka.properties)) or "none",
        "handler": ", ".join(pipeline.handlers),
        "guarantee": pipeline.guarantee,
        "starts at": pipeline.start,
        "retries": f"by the class {retry.class_}"
        if retry.class_
        else f"{retries}; first after {_seconds(retry.initial_delay)}, then {_seconds(retry.period)} × "
        f"{retry.multiplier:g}^(n−1), at most {_seconds(retry.max_delay)}",
        "dead letters": pipeline.dead_letter_topic or "none: a dead record leaves no copy in Kafka",
        "tombstones": pipeline.tombstones,
        "takes at most": f"{pipeline.max_records_per_run:,} records, {pipeline.max_uncommitted:,} above a floor",
    }
    # Markdown does not interpret code. Only a backtick would end it, and a bar would end the table cell.
    escaped = str.maketrans({"`": "'", "|": "\\|"})
    table = "\n".join(f"| {name} | `{value.translate(escaped)}` |" for name, value in rows.items())
    return (
        f"### {pipeline.name}\n\n| | |\n|---|---|\n{table}\n\n"
        "**plan** stores which offsets this turn reads. **replay** passes exactly these records to the handler and "
        "stores an outcome for each. **settle** decides about failures and commits the group up to the lowest offset "
        "that is not settled. "
        "Any task may be cleared at any time: the run resumes an open turn, and repeats nothing that was stored.\n\n"
        "**Airflow's own backfill** replays each data interval in a backfill lane of its own, and leaves the group "
        f"alone. Its runs start the DAG `backfill__{pipeline.name}`, and end when their lane is settled.\n"
    )


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"
