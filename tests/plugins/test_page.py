"""The audit page, served by a real Airflow: it needs a login, and runs nothing that records or errors hold."""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from ackline.audit.queries import AuditFilter
from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from ackline.pipeline import load
from ackline.steps.parts import open_parts
from ackline.steps.run import run
from ackline.ui import pages
from ackline.ui.lanes import Lane
from tests.conftest import MakeTopic
from tests.dags.project import Project, produce, served_airflow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def project(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project whose page is served."""
    project = Project(tmp_path_factory.mktemp("project"), broker.bootstrap)
    project.pipelines.mkdir(parents=True)
    return project


@pytest.fixture(scope="module")
def airflow(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    with served_airflow(tmp_path_factory.mktemp("airflow-page"), project) as airflow:
        yield airflow


def get(airflow: LocalAirflow, path: str, token: str | None = None, method: str = "GET") -> tuple[int, str]:
    """Returns status and body of one request."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(airflow.url + path, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_no_page_is_served_without_a_login(airflow: LocalAirflow) -> None:
    """Airflow serves a plugin's routes without a login, unless the routes themselves require one."""
    source = Path(pages.__file__).with_name("app.py").read_text()
    paths = re.findall(r'^@app\.(?!middleware|exception)\w+\("([^"]*)', source, re.MULTILINE)
    assert set(paths) >= {"/", "/pipelines/{name}"}
    for page in paths:
        for path in (page.format(name="orders"), f"{page.format(name='orders')}?topic=orders&partition=0&offset=1"):
            assert get(airflow, f"/ackline{path}")[0] in (401, 403), path
    for path in ("/ackline/docs", "/ackline/redoc", "/ackline/openapi.json"):
        assert get(airflow, path)[0] in (401, 403, 404), path


def test_the_page_shows_the_status_of_a_pipeline_and_the_outcome_of_a_record(
    airflow: LocalAirflow, project: Project, topic: MakeTopic
) -> None:
    """Retention deletes records 0 to 2 before they are read, so they are expired. The page changes nothing."""
    source = topic()
    file = project.write("orders", source)
    here = {"bootstrap.servers": project.bootstrap}

    def turn() -> None:
        with open_parts(load(file), here, run_id="manual__1", actor="test", audit=project.audit) as parts:
            run(parts, _no_spark)

    turn()
    produce(project.bootstrap, source, {}, {}, {})
    admin = AdminClient({"bootstrap.servers": project.bootstrap})
    for deleted in admin.delete_records([TopicPartition(source, 0, 3)]).values():
        deleted.result(30)
    turn()
    airflow.wait_for_dag("replay__orders")
    for token in (airflow.token(), airflow.viewer.token()):
        status, body = get(airflow, "/ackline/", token)
        assert (status, "orders" in body, source in body) == (200, True, True)
        status, body = get(airflow, f"/ackline/pipelines/orders?topic={source}&partition=0&offset=1", token)
        assert status == 200
        assert "<td>expired</td>" in body
        assert get(airflow, "/ackline/pipelines/nothing", token)[0] == 404
        assert get(airflow, "/ackline/pipelines/orders", token, "POST")[0] == 405


def _no_spark() -> "SparkSession":
    raise AssertionError("there is nothing to read")


def test_text_from_outside_is_escaped() -> None:
    """An exception's class or a run's id may be anything."""
    hostile = "<script>alert(1)</script>\"'"
    row = dict.fromkeys(pages.AUDIT_COLUMNS, hostile)
    page = pages.pipeline(Lane(hostile, None), [], AuditFilter(topic=hostile, partition=0), [row])
    assert "<script>" not in page
    assert 'value="&lt;script&gt;' in page


def test_a_decision_is_shown_without_the_number_of_an_attempt() -> None:
    row = dict.fromkeys(pages.AUDIT_COLUMNS) | {"offset": 7, "outcome": "dead", "error_message": "after 4 attempts"}
    rows = [row | {"attempt": 4, "outcome": "failed"}, row | {"attempt": 0}]
    page = pages.pipeline(Lane("orders", None), [], AuditFilter(partition=0), rows)
    assert "<td class=number>4</td><td>failed</td>" in page
    assert "<td></td><td>dead</td><td></td><td>after 4 attempts</td>" in page
