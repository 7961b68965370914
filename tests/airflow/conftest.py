"""Fixtures of the DAG tests: a project, an Airflow without servers and one with them, and names."""

import uuid

import pytest

from ackline.local.broker import Broker
from tests.airflow.project import AirflowCommand, Project
from tests.airflow.served import migrate
from tests.conftest import MakeTopic


@pytest.fixture
def project(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of its own against the session's broker."""
    return Project(tmp_path_factory.mktemp("project"), broker.bootstrap)


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> AirflowCommand:
    """An Airflow that runs DAGs as `airflow dags test` does."""
    home = tmp_path_factory.mktemp("airflow")
    migrate(home)
    return AirflowCommand(home)


@pytest.fixture
def pipeline() -> str:
    """A pipeline name of this test alone: the tests share Airflow's database."""
    return f"p{uuid.uuid4().hex[:8]}"


@pytest.fixture
def source(topic: MakeTopic) -> str:
    """A topic of one partition."""
    return topic()
