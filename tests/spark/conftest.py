"""One Spark session for the tests here, and a lab that runs jobs over topics and reads the outcomes that they store."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession

from ackline.local.broker import Broker
from ackline.spark.session import open_session
from tests.conftest import MakeTopic
from tests.spark.lab import Lab
from tests.support import journal

# Spark's Python workers get their environment when they start, and live longer than a test. So all tests share one
# journal, and each finds its calls there by its topic.
_folder = TemporaryDirectory(prefix="ackline-journal-")
_journal = f"{_folder.name}/journal"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores."""
    os.environ.setdefault("ACKLINE_SPARK_MASTER", "local[2]")
    session = open_session("ackline-tests")
    yield session
    session.stop()


@pytest.fixture
def lab(spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path) -> Lab:
    """Runs jobs, and commits their files to an outcomes table of this test alone."""
    spark.sparkContext.environment[journal.JOURNAL] = _journal
    return Lab(spark, broker, tmp_path / "audit", Path(_journal), topic)
