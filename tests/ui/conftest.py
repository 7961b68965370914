"""An Airflow that serves the page, with lanes that have a history.

`spark` is the Spark session; pytest finds it by name.
"""

import pytest

from ackline.ledger.offsets import TopicPartition
from ackline.local.airflow_servers import LocalAirflow
from tests.airflow.project import Project
from tests.e2e.fixtures import spark
from tests.ui.stored_lanes import StoredPartition, write_lane

__all__ = ["spark"]

HOSTILE = "<script>document.title = 'owned'</script>\u202egnitsixe ton\u202c \u200f" + "x" * 200_000
"""An error message that is markup, turns the direction of writing, and is long."""


@pytest.fixture(scope="session")
def project(served_project: Project) -> Project:
    """The project whose page is served: `orders` has failures and loses to retention, `payments` is up to date."""
    project = served_project
    for name in ("orders", "payments"):
        project.write(name, name, schedule=None)
    orders = {
        TopicPartition("orders", 0): StoredPartition(vary=90, read=150, fail_every=37),
        TopicPartition("orders", 1): StoredPartition(arrive=120, hold=141, die_every=61, retention=60),
        TopicPartition("orders", 2): StoredPartition(vary=80, read=1000),
        TopicPartition("orders", 3): StoredPartition(arrive=120, vary=60, read=140),
    }
    write_lane(project.audit, "orders", orders, turns=24)
    write_lane(
        project.audit, "payments", {TopicPartition("payments", n): StoredPartition() for n in range(3)}, turns=12
    )
    return project


@pytest.fixture(scope="session")
def airflow(project: Project, served: LocalAirflow) -> LocalAirflow:
    """The Airflow of the project. Its viewer may not read the DAG of `payments`."""
    served.wait_for_dag("replay__orders")
    served.wait_for_dag("replay__payments")
    return served
