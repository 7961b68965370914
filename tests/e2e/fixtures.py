"""Fixtures of tests/e2e and tests/chaos: one Spark session for all tests of the process, and labs."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pytest
from pyspark.sql import SparkSession

from ackline.local.broker import Broker
from ackline.spark import session
from tests.e2e.lab import Lab, Spark
from tests.support import journal

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
def lab(broker: Broker, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLab]:
    """A factory of labs. The independent checker judges each of them after the test."""
    monkeypatch.setenv(journal.JOURNAL, _journal)
    labs: list[Lab] = []

    def make(**settings: Any) -> Lab:
        folder = tmp_path / f"lab{len(labs)}"
        folder.mkdir()
        labs.append(Lab(broker, folder, spark, **settings))
        return labs[-1]

    yield make
    for made in labs:
        if not made.judged:
            made.judge()
