"""The bounds of the dependencies: the package works with the oldest and with the newest of them, and beside Airflow."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
SUBSET = (
    "tests/pipeline/test_pipeline.py", "tests/forms/test_connections.py", "tests/pipeline/test_properties.py",
    "tests/pipeline/test_json.py", "tests/kafka/test_config.py", "tests/cli/test_run.py", "tests/cli/test_status.py",
    "tests/audit/test_key_rows.py", "tests/audit/test_sql.py", "tests/worker/test_call.py",
    "tests/airflow/test_operators.py",
)  # fmt: skip
"""Quick tests in memory that call each of the dependencies: the pipeline file, the command, tables, SQL, operators."""
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
SPARK = ("pyspark", "pyspark-client")
"""Two distributions of one package: the Spark that Ackline runs, and the part that Airflow's provider asks for."""
NEEDED_BY_SPARK = [
    needed for name in SPARK for needed in importlib.metadata.requires(name) or () if "extra ==" not in needed
]
pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]


def uv(*arguments: str, text: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([UV, *arguments], env=environment, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pins(text: str) -> dict[str, str]:
    """Returns the version of each package of a list in the form of pip."""
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))


@pytest.fixture
def without_spark(tmp_path: Path) -> tuple[str, ...]:
    """Options by which uv leaves Spark out.

    There is one pyspark within the bounds, the locked one. It comes as an archive of half a gigabyte, and uv unpacks
    and builds it anew in each resolution: some gigabytes of disk, for a version that is known.
    """
    listed = tmp_path / "excluded.txt"
    listed.write_text("\n".join(SPARK))
    return "--excludes", str(listed)


def lend_spark(python: Path) -> None:
    """Gives an environment the pyspark of the one that runs the tests."""
    lent = python.parents[1] / "lent"
    lent.mkdir()
    for folder in Path(str(importlib.metadata.distribution("pyspark").locate_file(""))).glob("pyspark*"):
        (lent / folder.name).symlink_to(folder)
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the sources, so that an editable installation of it is no other process's."""
    folder = tmp_path / "source"
    for name in ("include", "tests", "dags", "plugins", "spark_jobs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_the_package_works_at_each_end_of_its_bounds(
    resolution: str, source: Path, without_spark: tuple[str, ...], tmp_path: Path
) -> None:
    """With all extras and without a lock, as an installation into an environment of somebody's own."""
    tools = [f"{name}=={version}" for name, version in pins((ROOT / "requirements.in").read_text()).items()
             if name in TOOLS]  # fmt: skip
    uv("venv", "--quiet", "--python", sys.executable, str(tmp_path / "env"))
    python = tmp_path / "env" / "bin" / "python"
    package = f"{source}[airflow,schema-registry]"
    into = ("--quiet", "--python", str(python), "--resolution", resolution, *without_spark)
    uv("pip", "install", *into, "--editable", package, *tools, *NEEDED_BY_SPARK)
    lend_spark(python)
    done = subprocess.run(
        [python, "-m", "pytest", "-n", "0", "-m", "not real and not deep", "-p", "no:cacheprovider", *SUBSET],
        cwd=source, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert "passed" in done.stdout or "100%" in done.stdout


def test_the_package_changes_no_version_of_what_airflow_installs(
    without_spark: tuple[str, ...], tmp_path: Path
) -> None:
    """`pip install` beside Airflow would otherwise downgrade what the two share, as it did importlib-metadata."""
    airflow = f"apache-airflow=={pins((ROOT / 'requirements.in').read_text())['apache-airflow']}"
    compile_ = ("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", sys.executable)
    alone = tmp_path / "airflow.txt"
    alone.write_text(uv(*compile_, "-", text=airflow))
    wanted = "\n".join([f"ackline[airflow] @ {ROOT.as_uri()}", *NEEDED_BY_SPARK])
    both = pins(uv(*compile_, "--constraint", str(alone), *without_spark, "-", text=wanted))
    assert {name: both[name] for name in pins(alone.read_text()) if name in both} == pins(alone.read_text())
