"""Parsing DAG files is cheap, opens no socket, and makes the DAGs of all valid pipeline files beside a broken one."""

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable

from ackline.airflow.dags import all_dags, broken_files, make_dags, raise_broken_files
from ackline.airflow.driver_hook import driver_environment
from ackline.airflow.operate import OPERATE_PREFIX, operate_dag
from ackline.airflow.operators import RETRIES, use_folder_of
from ackline.errors import ConfigError
from ackline.pipeline.folder import load_pipeline, pipelines_folder
from tests.airflow.project import Project, parsed
from tests.support.seconds import slowness

FILES = ("replay.py", "broken_pipelines.py")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project without a broker, with the pipeline `orders`."""
    project = Project(tmp_path, "127.0.0.1:1")
    project.write("orders", "orders", schedule="*/10 * * * *", tags=["shop"], owner="Team Shop")
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    return project


def dag(project: Project) -> DAG:
    return make_dags(project.pipelines, "dags/replay.py").dags["replay__orders"]


@pytest.mark.parametrize("missing", ["airflow", "airflow.providers.apache.spark.hooks.spark_submit"])
def test_without_the_extra_a_dag_file_names_what_to_install(missing: str) -> None:
    file = f"import sys; sys.modules[{missing!r}] = None; from ackline.airflow.dags import all_dags"
    done = subprocess.run([sys.executable, "-c", file], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: the DAGs of Ackline need Airflow 3.3"), done.stderr
    assert 'pip install "ackline[airflow]"' in done.stderr


def test_parsing_opens_no_socket_loads_nothing_heavy_and_is_quick(here: Project) -> None:
    """The limit is 0.5 s beyond importing Airflow, twice what an idle machine takes, more on a slow one.
    One of eight tries keeps it."""
    for _ in range(8):
        result = parsed(*FILES)
        assert (result["dags"], result["heavy"], result["opened"]) == (["replay__orders"], [], [])
        if result["seconds"] < 0.5 * slowness():
            return
    raise AssertionError("parsing takes 0.5 s or longer")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("file", "dag_id"),
    [("backfill", "backfill__orders"), ("operate", "operate__orders"), ("maintenance", "ackline_maintenance")],
)
def test_parsing_opens_no_socket_and_loads_nothing_heavy(file: str, dag_id: str) -> None:
    result = parsed(f"{file}.py")
    assert (result["dags"], result["heavy"], result["opened"]) == ([dag_id], [], [])


def test_three_lines_make_the_dags_of_all_valid_pipeline_files_and_of_the_maintenance(
    here: Project, caplog: pytest.LogCaptureFixture
) -> None:
    (here.pipelines / "broken.yaml").write_text("name: broken")
    made = all_dags(str(here.pipelines), "dags/shop.py")
    assert sorted(made) == ["ackline_maintenance", "backfill__orders", "operate__orders", "replay__orders"]
    assert f"no DAG: {here.pipelines}/broken.yaml" in caplog.text


def test_a_task_and_its_driver_use_the_folder_that_made_the_dag(
    here: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKLINE_PIPELINES", str(tmp_path / "newest" / "pipelines"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    use_folder_of(load_pipeline(here.pipelines, "orders"))
    assert (pipelines_folder(), sys.path[0]) == (here.pipelines, str(here.include))
    assert driver_environment()["ACKLINE_PIPELINES"] == str(here.pipelines)


def test_the_folder_of_a_file_that_is_a_link_is_that_of_the_link(here: Project, tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: each file is a link into a folder of one version."""
    version = tmp_path / "..2026_01_31"
    version.mkdir()
    (here.pipelines / "orders.yaml").rename(version / "orders.yaml")
    (here.pipelines / "orders.yaml").symlink_to(version / "orders.yaml")
    assert load_pipeline(here.pipelines, "orders").folder == here.pipelines


def test_a_dag_has_the_three_tasks_in_order_and_one_run_at_a_time(here: Project) -> None:
    made = dag(here)
    assert [(task.task_id, task.downstream_task_ids) for task in made.topological_sort()] == [  # type: ignore[no-untyped-call]
        ("plan", {"replay"}), ("replay", {"settle"}), ("settle", set()),
    ]  # fmt: skip
    assert (made.max_active_runs, made.catchup) == (1, False)
    assert made.timetable == CronDataIntervalTimetable("*/10 * * * *", timezone="UTC")
    assert made.tags == {"ackline", "replay", "orders", "shop"}
    assert {task.owner for task in made.tasks} == {"Team Shop"}
    assert made.default_args["retries"] == RETRIES["retries"]
    assert made.dag_display_name == "orders / replay"


@pytest.mark.parametrize(("setting", "made"), [(None, 1), ("operate, backfill", 1), ("backfill", 0), ("none", 0)])
def test_the_dags_of_actions_can_be_switched_off_and_replay_can_not(
    here: Project, monkeypatch: pytest.MonkeyPatch, setting: str | None, made: int
) -> None:
    if setting is not None:
        monkeypatch.setenv("ACKLINE_DAGS", setting)
    assert len(make_dags(here.pipelines, "dags/operate.py", OPERATE_PREFIX, operate_dag).dags) == made
    assert len(make_dags(here.pipelines, "dags/replay.py").dags) == 1
    assert broken_files(here.pipelines) == {}


def test_a_misspelt_kind_of_dag_is_an_import_error_and_drops_no_replay_dag(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKLINE_DAGS", "operat")
    [error] = broken_files(here.pipelines).values()
    with pytest.raises(ConfigError, match=re.escape(error)):  # a relative folder starts at the DAG file's
        raise_broken_files(here.pipelines.name, str(here.pipelines.parent / "broken.py"))
    assert "operat is no kind of DAG" in error
    assert len(make_dags(here.pipelines, "dags/replay.py").dags) == 1


def test_tasks_are_retried_with_a_growing_delay(here: Project) -> None:
    """Transient errors are retried; `airflow_errors` fails a task at once for the others."""
    for task in dag(here).tasks:
        delay = (task.retry_delay, task.retry_exponential_backoff)
        assert (task.retries, *delay) == (4, timedelta(seconds=30), 2.0)


def test_settle_announces_the_audit_table(here: Project) -> None:
    """Other DAGs may be scheduled on it."""
    uris = [outlet.uri for outlet in dag(here).get_task("settle").outlets if isinstance(outlet, Asset)]
    assert uris == [f"file://{here.audit}/orders/outcomes"]


def test_a_pipeline_without_a_schedule_is_not_scheduled(here: Project) -> None:
    here.write("orders", "orders")
    assert dag(here).schedule is None


def test_the_page_of_a_dag_shows_its_settings_and_no_value_of_a_property(here: Project) -> None:
    """A property of a client may be a secret."""
    properties = {"properties": {"ssl.key.password": "hush"}}
    kafka = {"connection": "kafka_default", "group_id": "a|`b`", "topics": ["orders"], **properties}
    here.write("orders", "orders", kafka=kafka)
    page = dag(here).doc_md or ""
    handler = "tests.support.journal:handle"
    settings = ("orders", "kafka_default", "a\\|'b'", handler, "at_least_once", "ssl.key.password")
    assert [setting for setting in settings if setting not in page] == []
    assert "hush" not in page


@pytest.mark.parametrize(("text", "reasons"), [
    ("name: broken\nguarantee: exactly_once\n", ["broken.yaml:2: guarantee:"]),
    ("name: [broken\n", ["broken.yaml", "not YAML"]),
    ("", ["broken.yaml", "a pipeline file is a mapping"]),
])  # fmt: skip
def test_a_broken_file_leaves_the_others_and_is_reported_by_file_and_key(
    here: Project, text: str, reasons: list[str]
) -> None:
    """replay.py does not raise; broken_pipelines.py raises and makes no DAG."""
    (here.pipelines / "broken.yaml").write_text(text)
    made = make_dags(here.pipelines, "dags/replay.py")
    assert list(made.dags) == ["replay__orders"]
    assert [reason in "\n".join(made.broken.values()) for reason in reasons] == [True] * len(reasons)
    with pytest.raises(subprocess.CalledProcessError) as raised:
        parsed(*FILES)
    assert [reason in raised.value.stderr for reason in reasons] == [True] * len(reasons)


def test_no_folder_of_pipeline_files_is_reported_not_raised(here: Project) -> None:
    """A wrong ACKLINE_PIPELINES shows as an import error, too."""
    made = make_dags(here.folder / "gone", "dags/replay.py")
    assert not made.dags
    assert "ACKLINE_PIPELINES" in made.broken[here.folder / "gone"]


def test_the_page_of_a_dag_names_the_retry_class(here: Project) -> None:
    """The default numbers would be wrong."""
    here.write("orders", "orders", retry={"class": "policies:Own"})
    assert "| retries | `by the class policies:Own` |" in (dag(here).doc_md or "")
