"""DAG bundles of Airflow: the driver uses the files of the bundle, and of its version, that made the DAG."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.dag_processing.bundles.base import BaseDagBundle
from airflow.dag_processing.bundles.local import LocalDagBundle

from ackline.airflow.dags import all_dags
from ackline.airflow.driver_hook import driver_environment
from ackline.airflow.operators import use_code_of
from ackline.audit.history import settled_turns
from ackline.lane.code import CODE, code_of_folder, running_code
from ackline.local.airflow_servers import LocalAirflow
from ackline.local.processes import wait_until
from ackline.pipeline.folder import make_handlers_importable
from tests.airflow.project import Project, produce
from tests.airflow.served import migrate
from tests.conftest import MakeTopic
from tests.support.environments import made_environment, packages_of

PROVIDER = Path(__file__).parents[1] / "support" / "git_bundle" / "requirements.txt"
DAG_FILE = """from ackline.airflow.dags import all_dags

globals().update(all_dags("pipelines", __file__))
"""
HANDLER = """from pathlib import Path

def handle(record):
    with Path({calls!r}).open("a") as calls:
        calls.write(f"{word} {{record.offset}}\\n")
"""
SECONDS = 400.0


class Files:
    """A folder with a DAG file, a pipeline file, and a handler that notes its calls with a word."""

    def __init__(self, folder: Path, name: str, topic: str, calls: Path) -> None:
        self.folder, self._calls = folder, calls
        kafka = {"connection": "kafka_default", "group_id": f"{name}-group", "topics": [topic]}
        content = {"name": name, "kafka": kafka, "handler": "handlers.shop:handle", "dead_letter": "none"}
        for part in ("pipelines", "handlers"):
            (folder / part).mkdir(parents=True)
        (folder / "shop.py").write_text(DAG_FILE)
        (folder / "handlers" / "__init__.py").touch()
        (folder / "pipelines" / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def write_handler(self, word: str) -> None:
        (self.folder / "handlers" / "shop.py").write_text(HANDLER.format(calls=str(self._calls), word=word))

    def commit(self, word: str) -> str:
        """Commits a handler that notes this word, and returns the commit."""
        self.write_handler(word)
        self.git("add", "--all")
        self.git("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "--message", word)
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()


def test_a_relative_folder_starts_at_the_folder_of_the_dag_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each version of a bundle is a folder of its own, and so are its pipeline files."""
    monkeypatch.setenv("ACKLINE_DAGS", "none")
    for version in ("1", "2"):
        files = Files(tmp_path / version, f"orders-{version}", "orders", tmp_path)
        assert set(all_dags("pipelines", str(files.folder / "shop.py"))) == {
            "ackline_maintenance", f"replay__orders-{version}",
        }  # fmt: skip


def test_the_folder_of_a_bundle_comes_before_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow puts it last on the import path, where a package `handlers` of the environment would hide its own."""
    monkeypatch.setenv("ACKLINE_PIPELINES", str(tmp_path / "pipelines"))
    monkeypatch.setenv("PYTHONPATH", "installed")
    monkeypatch.setattr(sys, "path", ["installed", str(tmp_path)])
    make_handlers_importable()
    assert sys.path == [str(tmp_path), "installed"]
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(tmp_path), "installed"])


def test_a_task_names_the_version_of_its_bundle_as_the_code_of_itself_and_of_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle without versions, such as a local one, leaves the name to the folder of the handlers."""
    (tmp_path / "handlers.py").write_text("")
    monkeypatch.setenv("ACKLINE_PIPELINES", str(tmp_path / "pipelines"))
    monkeypatch.setenv(CODE, "")
    use_code_of(context_of(LocalDagBundle(path=str(tmp_path), name="shop")))
    assert running_code() == code_of_folder(tmp_path) != ""
    use_code_of(context_of(LocalDagBundle(path=str(tmp_path), name="shop", version="3f2a")))
    assert running_code() == driver_environment()[CODE] == "bundle shop 3f2a"


def context_of(bundle: BaseDagBundle) -> Any:
    return {"ti": SimpleNamespace(bundle_instance=bundle)}


@pytest.fixture
def git(project: Project, topic: MakeTopic) -> Files:
    """A repository that is the source of a bundle."""
    files = Files(project.folder / "repository", "of-git", topic(), project.folder / "calls")
    files.git("init", "--quiet", "--initial-branch=main")
    return files


@pytest.fixture
def local(project: Project, topic: MakeTopic) -> Files:
    """A folder that is a bundle."""
    files = Files(project.folder / "local", "of-folder", topic(), project.folder / "local-calls")
    files.write_handler("local")
    return files


@pytest.fixture
def airflow(project: Project, git: Files, local: Files, tmp_path: Path) -> Iterator[LocalAirflow]:
    """An Airflow with two bundles, whose environment names no folder of pipeline files."""
    git.commit("first")
    bundle = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [
        {
            "name": "git",
            "classpath": "airflow.providers.git.bundles.git.GitDagBundle",
            "kwargs": {"tracking_ref": "main", "repo_url": str(git.folder), "refresh_interval": 1},
        },
        {"name": "local", "classpath": bundle, "kwargs": {"path": str(local.folder), "refresh_interval": 60}},
    ]
    kept = {name: value for name, value in project.environment.items() if name != "ACKLINE_PIPELINES"}
    provider = str(packages_of(made_environment(PROVIDER)))
    environment = {
        **kept,
        "ACKLINE_DAGS": "none",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(tmp_path / "bundles"),
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        "PYTHONPATH": os.pathsep.join([provider, os.environ["PYTHONPATH"]]),
    }
    home = tmp_path / "airflow"
    home.mkdir()
    migrate(home)
    with LocalAirflow(home, dags_folder=tmp_path / "none", env=environment, triggerer=False) as started:
        yield started


def words(files: Files) -> list[str]:
    return files._calls.read_text().splitlines()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_of_an_old_bundle_version_uses_its_pipeline_file_and_handler(
    airflow: LocalAirflow, project: Project, git: Files, local: Files
) -> None:
    """With Airflow's own bundles. A run that is cleared goes on with the version of the bundle that it began with."""
    topic, of_folder = (yaml.safe_load(next(files.folder.glob("pipelines/*")).read_text()) for files in (git, local))
    topic, of_folder = topic["kafka"]["topics"][0], of_folder["kafka"]["topics"][0]
    first_commit = git.git("rev-parse", "HEAD")
    produce(project.bootstrap, topic, {})
    produce(project.bootstrap, of_folder, {})
    for dag_id in ("replay__of-git", "replay__of-folder"):
        airflow.unpause(dag_id)
    old = airflow.trigger("replay__of-git")
    other = airflow.trigger("replay__of-folder")
    assert airflow.wait("replay__of-git", old, SECONDS) == "success", log(airflow, old)
    assert airflow.wait("replay__of-folder", other, SECONDS) == "success"
    assert words(git) == ["first 0"]
    assert words(local) == ["local 0"]

    second_commit = git.commit("second")
    assert wait_until(lambda: bundle_version(airflow) == second_commit, SECONDS)
    produce(project.bootstrap, topic, {})
    new = airflow.trigger("replay__of-git")
    assert airflow.wait("replay__of-git", new, SECONDS) == "success", log(airflow, new)
    assert words(git) == ["first 0", "second 1"]

    produce(project.bootstrap, topic, {})
    airflow.clear("replay__of-git", old)
    assert airflow.call("GET", f"/dags/replay__of-git/dagRuns/{old}")["bundle_version"] == first_commit
    assert airflow.wait("replay__of-git", old, SECONDS) == "success", log(airflow, old)
    assert words(git) == ["first 0", "second 1", "first 2"]
    codes = [turn.code for turn in settled_turns(project.audit, "of-git") if turn.records]
    assert codes == [f"bundle git {commit}" for commit in (first_commit, second_commit, first_commit)]


def bundle_version(airflow: LocalAirflow) -> str:
    return str(airflow.call("GET", "/dags/replay__of-git")["bundle_version"])


def log(airflow: LocalAirflow, run: str) -> str:
    states = airflow.task_states("replay__of-git", run)
    failed = next((task for task, state in states.items() if state not in ("success", None)), "plan")
    return airflow.log("replay__of-git", run, failed)
