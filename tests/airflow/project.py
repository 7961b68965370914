"""A project for one test: pipeline files and handlers in a folder, and the environment of an Airflow that runs it."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from ackline.audit.queries import AuditFilter, audit_rows
from ackline.errors import FatalError
from ackline.local.airflow_servers import LocalAirflow
from tests.support import journal

ROOT = Path(__file__).parents[2]
CANARY = "canary-7Qx1-never-shown"
"""The password of the Kafka connection. The broker does not ask for it; it must show nowhere (I13)."""

PARSE = """
import airflow.configuration, airflow.sdk, json, runpy, sys, time
opened = []
sys.addaudithook(lambda event, args: event.startswith("socket.") and opened.append(event))
begun = time.process_time()
made = [value for file in sys.argv[1:] for value in runpy.run_path(file).values()]
seconds = time.process_time() - begun
dags = [value.dag_id for value in made if isinstance(value, airflow.sdk.DAG)]
heavy = sorted({"pyspark", "py4j", "deltalake", "confluent_kafka", "pyarrow", "pandas"} & set(sys.modules))
print(json.dumps({"dags": dags, "seconds": seconds, "heavy": heavy, "opened": opened}))
"""

SLOW_HANDLER = """
import pathlib, time

def handle(record):
    pathlib.Path(__file__).with_name("handling").touch()
    time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with `include/pipelines`, handlers beside it, a journal and an audit root; its broker is `bootstrap`."""

    folder: Path
    bootstrap: str

    @property
    def include(self) -> Path:
        return self.folder / "include"

    @property
    def pipelines(self) -> Path:
        return self.include / "pipelines"

    @property
    def audit(self) -> str:
        return str(self.folder / "audit")

    def write(self, name: str, topic: str, handler: str = "tests.support.journal:handle", **more: object) -> Path:
        """Write a pipeline file for a topic; its group is `NAME-group`. Returns the file."""
        self.pipelines.mkdir(parents=True, exist_ok=True)
        kafka = {"connection": "kafka_default", "group_id": f"{name}-group", "topics": [topic]}
        retry = {"initial_delay": "0s", "period": "1s", "max_retries": 2}
        content = {"name": name, "kafka": kafka, "handler": handler, "retry": retry, "dead_letter": "none", **more}
        path = self.pipelines / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables by which Airflow finds the project's files and its Kafka connection."""
        extra = {"bootstrap.servers": self.bootstrap, "security.protocol": "PLAINTEXT", "sasl.password": CANARY}
        return {
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": extra}),
            "ACKLINE_PIPELINES": str(self.pipelines),
            "ACKLINE_AUDIT": self.audit,
            journal.JOURNAL: str(self.folder / "journal"),
        }

    def calls(self) -> list[journal.Call]:
        return journal.read(self.folder / "journal")

    def outcomes(self, pipeline: str) -> list[tuple[int, int, str]]:
        """Returns (offset, attempt, outcome) of each effective row."""
        rows = list(audit_rows(self.audit, pipeline, AuditFilter()))
        return sorted((row["offset"], row["attempt"], row["outcome"]) for row in rows)

    def committed(self, pipeline: str, topic: str, partition: int = 0) -> int | None:
        """Returns the committed offset of the pipeline's group; None without a commit."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{pipeline}-group"})
        try:
            offset = consumer.committed([TopicPartition(topic, partition)], timeout=30)[0].offset
        finally:
            consumer.close()
        return offset if offset >= 0 else None


def parsed(*names: str) -> dict[str, Any]:
    """Parse files of dags/ in a new process. Returns the DAG ids, the heavy modules that were loaded, the sockets that
    were opened, and the seconds of computing beyond importing Airflow."""
    files = [str(ROOT / "dags" / name) for name in names]
    done = subprocess.run([sys.executable, "-c", PARSE, *files], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


class ServedAirflow(LocalAirflow):
    """An Airflow with its servers for a project, with this repository's plugins/ and a copy of its dags/. `env` adds to
    its environment. Only with `triggerer` a deferred task goes on.

    To parse these files takes a second of a core, which the tests beside this one lack, so Airflow does it once in two
    minutes, and when a test has written a pipeline file: it parses a file at once whose time has changed.
    """

    def __init__(
        self, home: Path, project: Project, env: Mapping[str, str] | None = None, triggerer: bool = False
    ) -> None:
        self._dags = shutil.copytree(ROOT / "dags", home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        pace = {
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
        }
        environment = {**project.environment, **pace, **(env or {})}
        super().__init__(
            home, dags_folder=self._dags, plugins_folder=ROOT / "plugins", env=environment, triggerer=triggerer
        )

    def parse(self, name: str) -> None:
        """Makes Airflow parse a DAG file again, within seconds."""
        os.utime(self._dags / f"{name}.py")

    def wait_for_dag(self, dag_id: str, seconds: float = 180) -> None:
        """Makes Airflow parse the file of the DAG until the DAG is there: a file that was written while its DAG file
        was parsed may have been missed."""
        file = dag_id.partition("__")[0]
        end = time.monotonic() + seconds
        while True:
            self.parse(file)
            try:
                return super().wait_for_dag(dag_id, 15)
            except FatalError:
                if time.monotonic() > end:
                    raise


def produce(bootstrap: str, topic: str, *orders: Mapping[str, object]) -> None:
    """Produce a record for each order, which the journal handler obeys, to partition 0."""
    producer = Producer({"bootstrap.servers": bootstrap, "max.in.flight": 1})
    for order in orders:
        producer.produce(topic, json.dumps(order).encode(), partition=0)
        assert producer.flush(30) == 0  # before the next: a record that is sent again could come later


class AirflowCommand:
    """An Airflow without servers: runs `airflow dags test`, which is `dag.test`, as a process."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def migrate(self) -> None:
        """Make Airflow's database."""
        self._done("db", "migrate", env={})

    def test(
        self,
        project: Project,
        pipeline: str,
        *options: str,
        env: Mapping[str, str] | None = None,
        prefix: str = "replay__",
    ) -> "DagTest":
        """Run the pipeline's DAG with this prefix once, with `env` added to its environment. The run may fail."""
        dag_id, env = f"{prefix}{pipeline}", {**project.environment, **(env or {})}
        done = self._done("dags", "test", dag_id, *options, env=env, check=False)
        return DagTest(self, dag_id, done.returncode, done.stdout)

    def query(self, sql: str, *arguments: str) -> list[Any]:
        """Returns rows of Airflow's database."""
        # Closed at once: an open connection spoils SQLite's locks for others that open the file in this process.
        with contextlib.closing(sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True)) as database:
            return database.execute(sql, arguments).fetchall()

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
        }

    def _done(self, *arguments: str, env: Mapping[str, str], check: bool = True) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env={**self.environment, **env},
            cwd=self.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=check,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DagTest:
    """One `airflow dags test`: its exit status and everything it printed."""

    airflow: AirflowCommand
    dag_id: str
    status: int
    printed: str

    @property
    def states(self) -> dict[str, str]:
        """The state of each task."""
        return dict(self.airflow.query("select task_id, state from task_instance where dag_id = ?", self.dag_id))

    def returned(self, task_id: str) -> Any:
        """Returns the return value of a task, from XCom."""
        sql = "select value from xcom where dag_id = ? and task_id = ? and key = 'return_value'"
        value = json.loads(self.airflow.query(sql, self.dag_id, task_id)[-1][0])
        return json.loads(value) if isinstance(value, str) else value


def processes() -> Iterator[tuple[int, str, str]]:
    """Yields (pid, command line, environment) of each process that this user may read."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            argv, env = ((folder / name).read_bytes().replace(b"\0", b" ").decode() for name in ("cmdline", "environ"))
        except (OSError, UnicodeDecodeError):
            continue
        yield int(folder.name), argv, env


def drivers(pipeline: str) -> dict[int, tuple[str, str]]:
    """Returns argv and environment of the processes of a pipeline's Spark driver: the JVM and the Python below it."""
    return {pid: (argv, env) for pid, argv, env in processes() if f"replay.py {pipeline} " in argv}
