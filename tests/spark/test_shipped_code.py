"""The archive that travels to the executors: what is in it, and that equal files give equal bytes."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from ackline.spark.session import build_archive


def handlers(folder: Path) -> Path:
    for name in (
        "handlers/orders.py", "handlers/__init__.py", "top.py", "handlers/.env", "secrets.pem", "data.csv",
        ".git/hook.py", "venv/lib/x.py", "other/lib/y.py", "handlers/__pycache__/orders.cpython-311.pyc",
    ):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("VALUE = 42\n")
    (folder / "other" / "pyvenv.cfg").write_text("")
    return folder


def test_it_holds_the_package_and_the_python_files_of_the_handlers_alone(tmp_path: Path) -> None:
    """No secret, no data and no virtual environment that lies beside the handlers leaves the machine."""
    names = ZipFile(build_archive(tmp_path / "a.zip", handlers(tmp_path / "project"))).namelist()
    assert {name for name in names if not name.startswith("ackline/")} == {
        "handlers/__init__.py", "handlers/orders.py", "top.py",
    }  # fmt: skip
    assert {"ackline/__init__.py", "ackline/worker/tasks.py"} <= set(names)
    assert not any("__pycache__" in name for name in names)


def test_equal_files_give_an_equal_archive(tmp_path: Path) -> None:
    folder = handlers(tmp_path / "project")
    first = build_archive(tmp_path / "a.zip", folder).read_bytes()
    os.utime(folder / "top.py", (1, 1))
    os.chmod(folder / "top.py", 0o600)
    assert build_archive(tmp_path / "b.zip", folder).read_bytes() == first


def test_a_python_without_the_project_imports_from_it(tmp_path: Path) -> None:
    archive = build_archive(tmp_path / "a.zip", handlers(tmp_path / "project"))
    code = "import sys; sys.path.insert(1, sys.argv[1]); import ackline.errors, top; print(ackline.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(archive)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(archive))
