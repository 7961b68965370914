"""Deployments of Airflow as teams have them: PostgreSQL, Celery workers, logs in S3, and logins by Flask AppBuilder."""

import json
import uuid
from collections.abc import Iterator

import psutil
import pytest

from ackline.local.airflow_api import POLL_SECONDS, AirflowApi, ApiError
from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from ackline.local.processes import Server, wait_until
from tests.airflow.gated import GATES, SECONDS, gated_pipeline, runs_at
from tests.airflow.project import CANARY, Project, ServedAirflow
from tests.airflow.test_no_leaks import found_in, objects_of
from tests.support.deployment import stack
from tests.support.object_store.store import KEY, REGION, SECRET, ObjectStore
from tests.ui.test_page import VIEWS, get

pytestmark = pytest.mark.timeout(1200)

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


@pytest.mark.deep
def test_fault_35_with_postgresql_and_roles_a_killed_scheduler_loses_nothing_and_a_reader_sees_one_pipeline(
    project: Project, broker: Broker, database: dict[str, str]
) -> None:
    """LocalExecutor. The container of the scheduler ends with tasks in each step, and with Spark. The next scheduler
    finds that the tasks have no processes any more, and does them again."""
    deployed = ServedAirflow(project.folder / "airflow", project, {**SOON, **BY_ROLES, **database})
    stack.airflow(deployed, "db", "migrate")
    (deployed.home / "migrated").touch()
    user = ["users", "create", "--firstname", "A", "--lastname", "B", "--email"]
    stack.airflow(deployed, *user, "a@example.org", "-u", deployed.username, "-p", deployed.password, "-r", "Admin")
    with deployed:
        hidden = gated_pipeline(project, deployed, broker)
        waiting = runs_at(GATES, project, deployed, broker)
        shown = waiting[0].lane
        deployed.kill_scheduler(tasks=True)
        for at in waiting:
            assert not at.process.alive()
            at.lane.judge()
            at.lane.open(at.gate)
        deployed.start_ended()
        # Airflow misses the heartbeat of the killed task only after a while.
        stack.airflow(deployed, "roles", "create", "readers")
        stack.airflow(deployed, "roles", "add-perms", "readers", "-r", f"DAG:{shown.dag}", "Website", "-a", "can_read")
        stack.airflow(deployed, *user, "r@example.org", "-u", READER[0], "-p", READER[1], "-r", "readers")
        assert hidden.run() == "success"
        for at in waiting:
            assert at.lane.wait(at.run) == "success", at.gate
            at.lane.check_all_acked(3, at.calls)
        check_reader(deployed, shown.name, hidden.name)


def check_reader(deployed: LocalAirflow, name: str, hidden: str) -> None:
    """Checks that the reader has one pipeline on each route of the page and in Airflow's REST API, the administrator
    both, and a request without a login none."""
    reader = AirflowApi(deployed.url, *READER)
    for path in VIEWS.values():
        shown, not_shown = (f"/ackline{of_lane(path, each)}" for each in (name, hidden))
        assert get(deployed, shown)[0] == 401, path
        status, text, _ = get(deployed, shown, reader.token())
        names = path != "/failures"  # the failures of all pipelines, and these have none
        assert (status, name in text, hidden in text) == (200, names, False), path
        assert (hidden in get(deployed, not_shown, deployed.token())[1]) is names, path
        if not_shown != shown:  # the answer is the one for a pipeline that does not exist
            nothing = get(deployed, f"/ackline{of_lane(path, 'none')}", reader.token())[:2]
            assert get(deployed, not_shown, reader.token())[:2] == nothing, path
            assert nothing[0] == 404, path
    assert [dag["dag_id"] for dag in reader.call("GET", "/dags")["dags"]] == [f"replay__{name}"]
    with pytest.raises(ApiError, match="403"):
        reader.call("GET", f"/dags/replay__{hidden}")
    with pytest.raises(ApiError, match="403"):
        reader.trigger(f"replay__{name}")


def of_lane(path: str, name: str) -> str:
    """Returns an address of the page's tests for a pipeline of this test, which has one partition and one turn."""
    for other, own in (("partition=1", "partition=0"), ("offset=141", "offset=0"), ("turns/0/3", "turns/0/1")):
        path = path.replace(other, own)
    return path.format(name=name)


@pytest.fixture
def logs(s3_server: ObjectStore) -> str:
    """The folder in the object store to which tasks send their logs."""
    return f"{s3_server.bucket(f'bucket-{uuid.uuid4()}')}/logs"


def logging_to(folder: str, store: ObjectStore) -> dict[str, str]:
    """Returns the settings by which logs go to a folder of an object store, and do not stay on the worker."""
    extra = {"endpoint_url": store.endpoint, "region_name": REGION}
    connection = {"conn_type": "aws", "login": KEY, "password": SECRET, "extra": extra}
    return {
        "AIRFLOW_CONN_LOGS": json.dumps(connection),
        "AIRFLOW__LOGGING__REMOTE_LOGGING": "True",
        "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": folder,
        "AIRFLOW__LOGGING__REMOTE_LOG_CONN_ID": "logs",
        "AIRFLOW__LOGGING__DELETE_LOCAL_LOGS": "True",
    }


@pytest.fixture
def workers(
    project: Project, database: dict[str, str], logs: str, s3_server: ObjectStore
) -> Iterator[tuple[LocalAirflow, dict[int, Server]]]:
    """An Airflow whose tasks run on two Celery workers, and these by their process ids."""
    with stack.redis(project.folder) as queue:
        celery = {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": queue,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database['AIRFLOW__DATABASE__SQL_ALCHEMY_CONN']}",
        }
        settings = {**SOON, **database, **celery, **logging_to(logs, s3_server)}
        with ServedAirflow(project.folder / "airflow", project, settings) as deployed:
            started = [stack.worker(deployed, name) for name in ("one", "two")]
            try:
                yield deployed, {server.pid: server for server in started}
            finally:
                for server in started:
                    server.stop(10)


@pytest.mark.release
def test_a_celery_worker_that_is_killed_in_mid_handler_loses_nothing_and_the_other_one_goes_on(
    project: Project, broker: Broker, workers: tuple[LocalAirflow, dict[int, Server]], logs: str,
    s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The other worker does replay again, and settles. The logs of all three steps arrive in the object store, where
    Airflow's page finds them, and hold no secret (I13)."""
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

    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    tries = {"plan": 1, "replay": 2, "settle": 1}
    names = {
        f"object /dag_id={waiting.lane.dag}/run_id={waiting.run}/task_id={task}/attempt={n}.log"
        for task, n in tries.items()
    }
    assert wait_until(lambda: names <= dict(objects_of(logs)).keys(), SECONDS, POLL_SECONDS), dict(objects_of(logs))
    secrets = {"of Kafka": CANARY, "of the store": SECRET}
    for name, content in objects_of(logs):
        # Airflow puts stars where a task logs a secret of a connection as it is: that is a leak, too.
        assert (found_in(content, secrets), b"***" in content) == (set(), False), name
    assert "Spark-Submit cmd" in deployed.log(waiting.lane.dag, waiting.run, "replay", 2)
