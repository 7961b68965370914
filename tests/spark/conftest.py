"""A lab that runs jobs over topics and reads the outcomes that they store. The session is that of tests/e2e."""

import os
from pathlib import Path

import pytest

from ackline.local.broker import Broker
from tests.conftest import MakeTopic
from tests.e2e.fixtures import spark
from tests.e2e.lab import Spark
from tests.spark.lab import SPARK, Lab
from tests.support import journal

__all__ = ["spark"]


@pytest.fixture
def lab(request: pytest.FixtureRequest, broker: Broker, spark: Spark, topic: MakeTopic, tmp_path: Path) -> Lab:
    """Runs jobs, and commits their files to an outcomes table of this test alone. Takes a runner as its parameter."""
    session = spark() if getattr(request, "param", SPARK) == SPARK else None
    return Lab(session, broker, tmp_path / "audit", Path(os.environ[journal.JOURNAL]), topic)
