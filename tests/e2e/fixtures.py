"""Fixtures that tests/e2e and tests/chaos share: one Spark session for all tests in this process, and labs."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pytest
from pyspark.sql import SparkSession

from ackline.local.broker import Broker
from ackline.spark import session
from ackline.testing import journal
from tests.e2e.lab import Lab, Spark

_folder = TemporaryDirectory(prefix="ackline-journal-")
_journal = str(Path(_folder.name) / "journal")
# Spark's Python workers live longer than a test and take their environment from the process that starts them, so there
# is one journal; labs tell their calls apart by topic.
os.environ[journal.JOURNAL] = _journal
os.environ.setdefault("ACKLINE_SPARK_MASTER", "local[2]")


class MakeLab(Protocol):
    """Makes a lab; its keywords are those of `Lab`."""

    def __call__(self, **settings: Any) -> Lab: ...


@pytest.fixture(scope="session")
def spark() -> Iterator[Spark]:
    """Gives the one session, which is started when first asked for."""
    opened: list[SparkSession] = []

    def get() -> SparkSession:
        found = session.open_session()
        found.sparkContext.environment[journal.JOURNAL] = _journal
        opened.append(found)
        return found

    yield get
    if opened:
        opened[-1].stop()


@pytest.fixture
def lab(broker: Broker, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLab]:
    """A factory of labs. After the test the independent checker judges each of them."""
    monkeypatch.setenv(journal.JOURNAL, _journal)
    made: list[Lab] = []

    def make(**settings: Any) -> Lab:
        folder = tmp_path / f"lab{len(made)}"
        folder.mkdir()
        made.append(Lab(broker, folder, spark, **settings))
        return made[-1]

    yield make
    for one in made:
        if not one.judged:
            one.judge()
