"""The package as a team installs it: its wheel in an environment with Airflow, and a DAG file of three lines.

No file of the repository is on the import path. Pipeline files and handlers are in a folder of the team's, and
ACKLINE_PIPELINES names another one, as a bundle that has moved on.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ackline.local.processes import end, wait_until
from ackline.tables.lease import ProcessIdentity
from tests.airflow.project import CANARY, ROOT, Project, produce

DAG_FILE = """from ackline.airflow.dags import all_dags

globals().update(all_dags({folder!r}, __file__))
"""
MADE = """
import airflow.sdk, runpy
print(sorted(name for name, value in runpy.run_path("dags/shop.py").items() if isinstance(value, airflow.sdk.DAG)))
"""
PLUGINS = """
from airflow import plugins_manager
print("ackline" in [plugin.name for plugin in plugins_manager._get_plugins()[0]], plugins_manager.get_import_errors())
"""
HANDLER = """from pathlib import Path

def handle(record):
    with Path({file!r}).open("a") as calls:
        calls.write(f"{word} {{record.offset}}\\n")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, beside the packages of the lock."""
    folder = tmp_path_factory.mktemp("wheel")
    source, dist, env = folder / "source", folder / "dist", folder / "env"
    shutil.copytree(ROOT / "include", source / "include", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index", "--quiet"]
    subprocess.run(
        [*pip, "wheel", *offline, "--no-build-isolation", "-w", str(dist), str(source)], check=True, cwd=folder
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    found = env / "bin" / "python"
    ask = [str(found), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    locked = folder / "locked"  # without the project itself, whose plugin would be there twice
    locked.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("ackline-", "__editable__")):
            (locked / path.name).symlink_to(path)
    (site / "locked.pth").write_text(str(locked))
    [wheel] = map(str, dist.iterdir())
    install = [*pip, "--python", str(found), "install", *offline, "--ignore-installed", wheel]
    subprocess.run(install, check=True, cwd=folder)
    return found


@pytest.mark.real
@pytest.mark.slow
def test_the_demo_of_a_wheel_plans_its_first_turn_outside_a_checkout(python: Path, tmp_path: Path) -> None:
    """Its pipeline files and handlers are in the wheel: plan, a task of Airflow, imports the handler before it stores
    a turn. tests/e2e/test_demo.py runs the demo to its end."""
    with subprocess.Popen(
        [python, "-m", "ackline", "demo"], env=environment(python, {"TMPDIR": str(tmp_path)}), cwd=tmp_path,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as demo:  # fmt: skip
        leader = ProcessIdentity.of(demo.pid)
        try:
            planned = "ackline-demo-*/audit/orders/plans/_delta_log/*.json"
            assert wait_until(lambda: any(tmp_path.glob(planned)) or demo.poll() is not None, 400)
            demo.send_signal(signal.SIGTERM)
            printed, _ = demo.communicate(timeout=100)
        finally:
            end([leader] if leader else [], grace_seconds=60)
    assert demo.returncode == 128 + signal.SIGTERM, printed
    assert "nothing is left running" in printed
    assert not list(tmp_path.glob("ackline-demo-*"))


def environment(python: Path, more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "ACKLINE", "PYTHON"))}
    # spark-submit is a script of the packages of the lock.
    path = os.pathsep.join([str(python.parent), str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), **more}


def write(folder: Path, project: Project, source: str, word: str) -> Path:
    """Writes a pipeline file with its handler, which notes its calls with a word. Returns the folder of the file."""
    handlers, pipelines = folder / "handlers", folder / "pipelines"
    handlers.mkdir(parents=True)
    pipelines.mkdir()
    (handlers / "shop.py").write_text(HANDLER.format(file=str(project.folder / "calls"), word=word))
    kafka = {"connection": "kafka_default", "group_id": "orders-group", "topics": [source]}
    content = {"name": "orders", "kafka": kafka, "handler": "handlers.shop:handle", "dead_letter": "none"}
    (pipelines / "orders.yaml").write_text(yaml.safe_dump(content))
    return pipelines


@pytest.mark.real
@pytest.mark.slow
def test_a_wheel_and_a_dag_file_of_three_lines_give_dags_page_command_and_a_run(
    python: Path, project: Project, source: str
) -> None:
    """DAG run and command read the Kafka connection from a secrets backend, and nothing of it is shown (I13)."""
    home, dags = project.folder / "airflow", project.folder / "dags"
    dags.mkdir()
    pipelines = write(project.folder / "version-7", project, source, "pinned")
    moved_on = write(project.folder / "newest", project, source, "newest")
    (dags / "shop.py").write_text(DAG_FILE.format(folder=str(pipelines)))
    produce(project.bootstrap, source, {}, {})
    connections = project.folder / "connections.json"
    connections.write_text(json.dumps({"kafka_default": json.loads(project.environment["AIRFLOW_CONN_KAFKA_DEFAULT"])}))
    env = environment(python, {
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(connections)}),
        "ACKLINE_AUDIT": project.audit,
        "ACKLINE_PIPELINES": str(moved_on),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
    })  # fmt: skip

    def run(*command: str) -> str:
        done = subprocess.run(
            [python, *command], env=env, cwd=project.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        assert CANARY not in done.stdout
        return done.stdout

    assert str(ROOT) + "/include" not in run("-c", "import ackline, sys; print(ackline.__file__, sys.path)")
    assert run("-m", "ackline", "--version").startswith("ackline ")
    run("-m", "airflow", "db", "migrate")
    dag_ids = ["ackline_maintenance", "backfill__orders", "operate__orders", "replay__orders"]
    assert run("-c", MADE).splitlines()[-1] == str(dag_ids)
    assert run("-c", PLUGINS).splitlines()[-1] == "True {}"
    assert "ackline" in run("-m", "airflow", "providers", "list")
    run("-m", "airflow", "dags", "test", "replay__orders")
    assert (project.folder / "calls").read_text() == "pinned 0\npinned 1\n"
    produce(project.bootstrap, source, {})
    printed = run("-m", "ackline", "run", "orders")
    assert "starting Spark on local[*] (the connection spark_default is not defined)" in printed
    assert (project.folder / "calls").read_text() == "pinned 0\npinned 1\nnewest 2\n"
    assert not [file for file in home.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]
    assert "acked" in run("-m", "ackline", "audit", "orders", "--partition", "0", "--offsets", "1")
