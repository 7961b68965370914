"""Deployments of Airflow as teams have them: PostgreSQL, Celery workers, and logins by Flask AppBuilder."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import psutil
import pytest

from ackline.local.airflow_api import AirflowApi
from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from ackline.local.processes import Server
from tests.airflow.gated import gated_pipeline, runs_at
from tests.airflow.project import Project, served_airflow
from tests.support.deployment import stack

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]

SOON = {
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "40",
}
"""Airflow finds a task without a scheduler, or without a process, within a minute; by default it takes five."""
BY_ROLES = {"AIRFLOW__CORE__AUTH_MANAGER": "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"}
READER = ("reader", "the-readers-password")


@pytest.fixture
def database() -> Iterator[dict[str, str]]:
    """The settings by which Airflow uses a PostgreSQL of its own."""
    with stack.postgres() as uri:
        yield {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": uri, **stack.with_packages()}


@pytest.fixture
def project(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("deployed"), broker.bootstrap)
    project.pipelines.mkdir(parents=True)
    return project


def test_with_postgresql_and_roles_a_killed_scheduler_loses_nothing_and_a_reader_sees_one_pipeline(
    project: Project, broker: Broker, database: dict[str, str]
) -> None:
    """LocalExecutor. The container of the scheduler ends in mid handler, with its tasks and Spark."""
    deployed = served_airflow(project.folder / "airflow", project, {**SOON, **BY_ROLES, **database})
    deployed.home.mkdir(parents=True)
    stack.airflow(deployed, "db", "migrate")
    (deployed.home / "migrated").touch()
    user = ["users", "create", "--firstname", "A", "--lastname", "B", "--email"]
    stack.airflow(deployed, *user, "a@example.org", "-u", deployed.username, "-p", deployed.password, "-r", "Admin")
    with deployed:
        lane, hidden = gated_pipeline(project, deployed, broker), gated_pipeline(project, deployed, broker)
        [waiting] = runs_at(("handling",), project, deployed, broker)
        deployed.kill_scheduler(tasks=True)
        assert not waiting.process.alive()
        waiting.lane.judge()
        waiting.lane.open("handling")
        deployed.start_ended()
        assert waiting.lane.wait(waiting.run) == "success"
        waiting.lane.check_all_acked(3, waiting.calls)

        stack.airflow(deployed, "roles", "create", "readers")
        for resource in (f"DAG:{lane.dag}", "Website"):
            stack.airflow(deployed, "roles", "add-perms", "readers", "-r", resource, "-a", "can_read")
        stack.airflow(deployed, *user, "r@example.org", "-u", READER[0], "-p", READER[1], "-r", "readers")
        assert lane.run() == hidden.run() == "success"
        check_page(deployed, AirflowApi(deployed.url, *READER), lane.name, hidden.name)


def check_page(deployed: LocalAirflow, reader: AirflowApi, name: str, hidden: str) -> None:
    """On every route the administrator sees both pipelines, the reader one, and nobody else anything."""
    assert name in page(deployed.url, "/", deployed.token())[1]
    assert hidden in page(deployed.url, "/", deployed.token())[1]
    status, text = page(deployed.url, "/", reader.token())
    assert (status, name in text, hidden in text) == (200, True, False)
    for route in ROUTES:
        of_name, of_hidden = (route.format(name=each) for each in (name, hidden))
        assert page(deployed.url, of_name, reader.token())[0] in (200, 404), route  # 404: no such record or run
        assert page(deployed.url, of_hidden, deployed.token())[0] in (200, 404), route
        status, text = page(deployed.url, of_hidden, reader.token())
        assert status in (403, 404), route
        assert "orders" not in text, route
        assert page(deployed.url, of_name, None)[0] in (401, 403), route


ROUTES = (
    "/pipelines/{name}", "/pipelines/{name}/failures?kind=failed",
    "/pipelines/{name}/partition?topic={name}&partition=0",
    "/pipelines/{name}/record?topic={name}&partition=0&offset=0", "/pipelines/{name}/turns/0/1",
    "/pipelines/{name}/run?run_id=none", "/dags/replay__{name}", "/dags/replay__{name}/runs/none",
)  # fmt: skip


def page(url: str, route: str, token: str | None) -> tuple[int, str]:
    """Returns status and text of a route of Ackline's page."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/ackline{route}", headers=headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def workers(project: Project, database: dict[str, str]) -> Iterator[tuple[LocalAirflow, dict[int, Server]]]:
    """An Airflow whose tasks run on two Celery workers, and these by their process ids."""
    with stack.redis(project.folder) as queue:
        celery = {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": queue,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database['AIRFLOW__DATABASE__SQL_ALCHEMY_CONN']}",
        }
        with served_airflow(project.folder / "airflow", project, {**SOON, **database, **celery}) as deployed:
            started = [stack.worker(deployed, name) for name in ("one", "two")]
            try:
                yield deployed, {server.pid: server for server in started}
            finally:
                for server in started:
                    server.stop(10)


def test_a_celery_worker_that_is_killed_in_mid_handler_loses_nothing_and_the_other_one_goes_on(
    project: Project, broker: Broker, workers: tuple[LocalAirflow, dict[int, Server]]
) -> None:
    deployed, servers = workers
    [waiting] = runs_at(("handling",), project, deployed, broker)
    above = {parent.pid for parent in psutil.Process(waiting.process.pid).parents()}
    [killed] = above & servers.keys()
    servers[killed].kill(session=True)
    assert not waiting.process.alive()
    waiting.lane.judge()
    waiting.lane.open("handling")
    assert waiting.lane.wait(waiting.run) == "success"
    waiting.lane.check_all_acked(3, waiting.calls)
