"""`make bench`, tenth part: where the seconds of a DAG run go, under the real scheduler, on a local Spark.

The events are Airflow's times of tasks, the log entries of the tables by the time of their files, and the handler's
first call. Each figure is the time since the event before it, a median of some runs; the first run does not count. So
the start of a task has the import of Airflow and the reading of the DAG, and the first call has the start of Spark.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from tests.airflow.project import ROOT, Project, ServedAirflow
from tests.airflow.served import migrate
from tests.bench.figures import Figure, show_figures, sizes_from
from tests.bench.topic import produce

RECORDS = 1_000
"""New records of each run."""
AIM = 12
"""Seconds of a run."""
HANDLER = """
import pathlib

called = False

def handle(record):
    global called
    if not called:
        pathlib.Path(__file__).with_name("called").touch()
    called = True
"""
IMPORTS = {"airflow.sdk": "the start of Python", "ackline.airflow.operators": "airflow.sdk"}
"""A module that each task imports, and what was imported before it."""


def main() -> None:
    options = sizes_from("dag_run", __doc__, runs=(5, "runs that count"))
    with TemporaryDirectory(prefix="ackline-bench-") as folder, Broker(Path(folder) / "broker") as broker:
        home = Path(folder) / "airflow"
        home.mkdir()
        migrate(home)
        project = Project(Path(folder) / "project", broker.bootstrap)
        name, topic = f"bench{uuid.uuid4().hex[:8]}", f"bench-{uuid.uuid4().hex[:8]}"
        broker.create_topic(topic, 4)
        project.write(name, topic, "timed:handle")
        (project.include / "timed.py").write_text(HANDLER)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with ServedAirflow(home, project, {"PYTHONPATH": path}) as airflow:
            runs = [timeline(airflow, project, name, topic) for _ in range(options.runs + 1)][1:]
    begun = [events[0][0] for events in runs]
    whole = statistics.median(events[-1][0] - start for events, start in zip(runs, begun, strict=True))
    figures = [Figure("a DAG run", whole, "s", most=AIM)]
    for at, (_, event) in enumerate(runs[0][1:], 1):
        seconds = [events[at][0] - events[at - 1][0] for events in runs]
        since = statistics.median(events[at][0] - start for events, start in zip(runs, begun, strict=True))
        figures.append(Figure(event, statistics.median(seconds), "s", note=f"at {since:.1f} s"))
    for module, before in IMPORTS.items():
        figures.append(Figure(f"import {module}", cpu_of_import(module), "CPU s", note=f"after {before}"))
    show_figures(Console(), f"a DAG run of {RECORDS:,} records, local Spark, {options.runs} runs", figures)


def timeline(airflow: LocalAirflow, project: Project, name: str, topic: str) -> list[tuple[float, str]]:
    """Does a DAG run of new records. Returns its events with their times in seconds, in order."""
    produce(project.bootstrap, topic, RECORDS, 4)
    dag, begun = f"replay__{name}", time.time()
    if not list(project.folder.glob("audit/**/*.json")):
        airflow.unpause(dag)
    run = airflow.trigger(dag)
    if airflow.wait(dag, run, 300) != "success":
        sys.exit(f"the run ended with {airflow.task_states(dag, run)}")
    path = f"/dags/{dag}/dagRuns/{run}"
    whole = airflow.call("GET", path)
    events = [(_seconds(whole["queued_at"]), "triggered"), (_seconds(whole["end_date"]), "the run ends")]
    for task in airflow.call("GET", f"{path}/taskInstances")["task_instances"]:
        for key, text in (("queued_when", "is queued"), ("start_date", "starts"), ("end_date", "ends")):
            if task[key]:
                events.append((_seconds(task[key]), f"{task['task_id']} {text}"))
    events.append(
        (
            (project.include / "timed.py").with_name("called").stat().st_mtime,
            "the first call of the handler in the last worker",
        )
    )
    return sorted([*events, *_commits(Path(project.audit), begun)])


def _commits(audit: Path, since: float) -> Iterator[tuple[float, str]]:
    """Yields the log entries that were written since a time, by the kinds of their commits."""
    for entry in audit.glob("**/_delta_log/*.json"):
        written = entry.stat().st_mtime
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        kinds = sorted(action["txn"]["appId"].rpartition("/")[2] for action in actions if "txn" in action)
        if written >= since and kinds:
            yield written, f"{entry.parents[1].name}: {', '.join(kinds)}"


def _seconds(time_of_airflow: str) -> float:
    return datetime.fromisoformat(time_of_airflow).timestamp()


def cpu_of_import(module: str) -> float:
    """Returns the CPU seconds of an import in a new process, after what IMPORTS names."""
    before = IMPORTS[module]
    code = f"import {before}\n" if before in IMPORTS else ""
    code += f"import time\nbegun = time.process_time()\nimport {module}\nprint(time.process_time() - begun)"
    seconds = [float(subprocess.check_output([sys.executable, "-c", code], text=True).split()[-1]) for _ in range(3)]
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
