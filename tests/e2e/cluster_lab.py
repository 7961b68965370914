"""Machines of a cluster, and pipelines whose driver is a process of the command on one of them."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from ackline.local.broker import Broker
from ackline.local.connection import LOOPBACK
from ackline.local.processes import wait_until
from tests.e2e import wire
from tests.e2e.commands import ROOT
from tests.support import class_data, journal
from tests.support.spark_cluster import SparkCluster, Worker

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECONDS = 280.0
"""The time limit for a command; a run takes some 15 s on a quiet machine."""
QUICK_START = {"spark.executor.extraJavaOptions": class_data.options()}
HANDLER = '''
import json, os, time
import journal
from ackline import Record

def handle(record: Record) -> None:
    """Writes the call into the journal. For a record with a gate, waits until its file is there."""
    journal.handle(record)
    gate = json.loads(record.value).get("gate")
    while gate and not os.path.exists(gate):
        with open(gate + "-folder", "w") as file:
            file.write(os.getcwd())  # below the folder of the worker
        time.sleep(0.05)
'''
NEEDS_A_PACKAGE = HANDLER + "\nimport a_package_of_the_driver\n"


class ReachableBroker(Broker):
    """A broker that clients in the network of the workers reach."""

    address = LOOPBACK

    @property
    def bootstrap(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(slots=True)
class Machines:
    """The cluster and the broker. `shared` is seen by all machines, `private` by the driver's alone."""

    cluster: SparkCluster
    broker: Broker
    shared: Path
    private: Path

    def add_workers(self, count: int) -> list[Worker]:
        """Starts workers that see neither the project nor the private folder."""
        hidden = [ROOT / "include", self.private]
        workers = [self.cluster.add_worker(hidden=hidden) for _ in range(count)]
        self.cluster.wait_for_workers()
        return workers


@contextmanager
def cluster_of_two(folder: Path) -> Iterator[Machines]:
    for name in ("shared", "private"):
        (folder / name).mkdir()
    with SparkCluster(folder / "cluster", java_options=class_data.options()) as cluster:
        broker = ReachableBroker(folder / "broker", heap_mb=256)
        broker.address = cluster.address
        with broker:
            machines = Machines(cluster, broker, folder / "shared", folder / "private")
            machines.add_workers(2)
            yield machines


@dataclass(slots=True)
class Lane:
    """A pipeline whose driver is a process of the command `ackline` on this machine."""

    machines: Machines
    name: str
    handler: str = HANDLER
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    partitions: int = 2

    def __post_init__(self) -> None:
        broker, folder = self.machines.broker, self.shared
        folder.mkdir()
        (self.private / "pipelines").mkdir(parents=True)
        broker.create_topic(self.name, self.partitions)
        self.configure(self.handler)

    def configure(self, handler: str, **changed: Any) -> None:
        self.settings |= changed
        spark = {
            "executor_memory": "512m",
            "conf": {"spark.executorEnv.ACKLINE_JOURNAL": str(self.shared / "journal"), **QUICK_START},
            **self.settings.get("spark", {}),
        }
        broker = self.machines.broker.bootstrap
        settings = {
            "name": self.name,
            "kafka": {"bootstrap_servers": broker, "group_id": f"{self.name}-group", "topics": [self.name]},
            "handler": f"{self.module}:handle",
            "dead_letter": "none",
            **self.settings,
            "spark": spark,
        }
        (self.private / f"{self.module}.py").write_text(handler)
        # Executors get the folder of the handlers, and nothing of the tests.
        (self.private / "journal.py").write_text(Path(str(journal.__file__)).read_text())
        (self.private / "pipelines" / "pipeline.yaml").write_text(yaml.safe_dump(settings))

    @property
    def module(self) -> str:
        return f"handler_of_{self.name.replace('-', '_')}"

    @property
    def shared(self) -> Path:
        return self.machines.shared / self.name

    @property
    def private(self) -> Path:
        return self.machines.private / self.name

    @property
    def audit(self) -> Path:
        return self.shared / "audit"

    def hide_tables(self) -> Path | None:
        """Gives each process another folder of the tables. Returns the folder that a worker must hide to that end.

        Workers without mounts of their own take a path that each process resolves for itself: it leads below the
        working folder, and that of an executor is one of its worker's.
        """
        self.audit.mkdir()
        if self.machines.cluster.separate:
            return self.audit
        self.environment["ACKLINE_AUDIT"] = f"/proc/self/cwd/{self.audit.name}"
        return None

    @property
    def gate(self) -> Path:
        """The file for which a record with a gate waits."""
        return self.shared / "gate"

    def folder_at_gate(self) -> str:
        """Returns the working folder of the task that waits at the gate; "" before one does."""
        file = self.shared / "gate-folder"
        return file.read_text() if file.exists() else ""

    def produce(self, count: int, gate: int | None = None) -> None:
        """Produces records to each partition; the handler waits at offset `gate` of partition 0."""
        for partition in range(self.partitions):
            values = [{"gate": str(self.gate)} if n == gate and partition == 0 else {} for n in range(count)]
            wire.produce(
                self.machines.broker.bootstrap,
                self.name,
                [wire.Write(json.dumps(value).encode()) for value in values],
                partition,
            )

    def start(self, *arguments: str, now: datetime = START) -> "subprocess.Popen[str]":
        command = [str(Path(sys.executable).parent / "ackline"), "run", self.name, "--json", *arguments]
        command += ["--now", now.isoformat()]
        env = {
            **os.environ,
            **self.machines.cluster.quick_environment,
            "ACKLINE_PIPELINES": str(self.private / "pipelines"),
            "ACKLINE_AUDIT": str(self.audit),
            **self.environment,
        }
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, cwd=self.shared, stdout=pipe, stderr=pipe, text=True)

    def run(self, now: datetime = START) -> "Ended":
        return ended(self.start(now=now))

    def calls(self) -> Counter[tuple[int, int]]:
        return Counter((call.partition, call.offset) for call in journal.read(self.shared / "journal"))

    def wait_for_call(self, partition: int, offset: int) -> None:
        assert wait_until(lambda: (partition, offset) in self.calls(), SECONDS)

    def committed(self) -> int | None:
        tp = (self.name, 0)
        commit = wire.committed_offset(self.machines.broker.bootstrap, f"{self.name}-group", tp)
        return commit[0] if commit else None

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(str(self.audit / self.name / name)).to_pyarrow_table().to_pylist()
        return rows

    def violations(self, *arguments: str) -> list[str]:
        """Returns what the independent checker finds, which reads tables, topics, group and the journal of calls."""
        more = ["--no-dead-letters", "--journal", str(self.shared / "journal"), *arguments]
        report = checked(self.machines, self.name, f"{self.name}-group", self.name, self.audit, *more)
        return list(report["violations"])


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    errors: str
    printed: dict[str, Any]


def ended(process: "subprocess.Popen[str]") -> Ended:
    """Waits for a command. Kills it if it takes too long."""
    try:
        output, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    lines = output.strip().splitlines()
    return Ended(process.returncode, errors[-3000:], json.loads(lines[-1]) if lines else {})


def checked(machines: Machines, pipeline: str, group: str, topic: str, audit: Path, *more: str) -> dict[str, Any]:
    options = {"bootstrap": machines.broker.bootstrap, "audit": str(audit), "pipeline": pipeline, "group": group}
    arguments = [part for name, value in {**options, "topic": topic}.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "ackline.verify", *arguments, "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """A master with two workers, and a broker that they reach."""
    with cluster_of_two(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture
def two_workers(machines: Machines) -> Machines:
    """The cluster with two workers, those that an earlier test has killed replaced."""
    machines.add_workers(2 - len(machines.cluster.workers))
    return machines
