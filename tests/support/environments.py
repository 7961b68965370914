"""Environments of programs that only tests need, each made by the first test that needs it, below `.ackline/`."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[2]


def made_environment(requirements: Path) -> Path:
    """Returns the folder of a virtual environment with these hash-pinned requirements. Makes it once for each version
    of the file, named after the file's folder."""
    version = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    environments = ROOT / ".ackline" / requirements.parent.name
    folder, done = environments / version, environments / f"{version}.done"
    environments.mkdir(parents=True, exist_ok=True)
    with FileLock(environments / "lock"):
        if not done.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            _install(folder, requirements)
            done.touch()
    return folder


def _install(folder: Path, requirements: Path) -> None:
    """Installs the pinned packages by pip, which finds the registry as the set-up of the project does."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(requirements)], check=True, env=kept)


def packages_of(environment: Path) -> Path:
    """Returns the folder of the packages of an environment that has the Python of this process."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
