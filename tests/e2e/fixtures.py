"""Fixtures of tests/e2e and tests/chaos: one Spark session for all tests of the process, and labs."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pytest
from pyspark.sql import SparkSession

from ackline.delta.object_store import use_options
from ackline.local.broker import Broker
from ackline.spark import job, session
from ackline.spark.job import ReplayResult
from ackline.worker.settings import ReplayJob
from tests.e2e.lab import Lab, Spark
from tests.support import journal
from tests.support.in_process import check_in_process, run_in_process

_folder = TemporaryDirectory(prefix="ackline-journal-")
_journal = str(Path(_folder.name) / "journal")
# Spark's Python workers outlive a test and inherit their environment, so all labs share one journal. Each lab finds its
# own calls by topic.
os.environ[journal.JOURNAL] = _journal
os.environ.setdefault("ACKLINE_SPARK_MASTER", "local[2]")


class MakeLab(Protocol):
    """Makes a lab; takes the keywords of `Lab`."""

    def __call__(self, **settings: Any) -> Lab: ...


@pytest.fixture(scope="session")
def spark() -> Iterator[Spark]:
    """A function that returns the session; its first call starts it."""
    opened: list[SparkSession] = []

    def get() -> SparkSession:
        spark = session.open_session()
        spark.sparkContext.environment[journal.JOURNAL] = _journal
        opened.append(spark)
        return spark

    yield get
    if opened:
        opened[-1].stop()


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Spark:
    """Runs the jobs of this process in it. Returns what stands for the function that returns the session."""

    def run(_spark: Any, replay_job: ReplayJob, _on_progress: Any = None) -> ReplayResult:
        try:
            return run_in_process(replay_job)
        finally:
            use_options(None)  # those of a job stay with the process

    no_session: Any = None
    monkeypatch.setattr(job, "run_replay", run)
    monkeypatch.setattr(job, "check_replay", lambda _, replay_job: check_in_process(replay_job))
    monkeypatch.setattr(job, "check_executors", lambda *_: None)
    monkeypatch.setattr(session, "open_session", lambda *_: no_session)
    return lambda: no_session


def _labs(broker: Broker, spark: Spark, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[MakeLab]:
    patch.setenv(journal.JOURNAL, _journal)
    labs: list[Lab] = []

    def make(**settings: Any) -> Lab:
        of_lab = folder / f"lab{len(labs)}"
        of_lab.mkdir()
        labs.append(Lab(broker, of_lab, spark, **settings))
        return labs[-1]

    yield make
    for made in labs:
        if not made.judged:
            made.judge()


@pytest.fixture
def lab(broker: Broker, in_process: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLab]:
    """A factory of labs whose jobs run in this process. The independent checker judges each of them after the test."""
    yield from _labs(broker, in_process, tmp_path, monkeypatch)


@pytest.fixture
def spark_lab(broker: Broker, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLab]:
    yield from _labs(broker, spark, tmp_path, monkeypatch)
