"""The archive of Ackline's package and of the handlers that travels with a job to the executors of a cluster.

So a cluster needs Python with the dependencies, and no copy of the project. Equal files give an equal archive, byte
for byte, so that a driver that starts again ships the same code.
"""

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from pyspark import SparkContext, SparkFiles

import ackline
from ackline.paths import handlers_folder

ARCHIVE = "ackline-code.zip"
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time that an archive can hold."""

_shipped: dict[str, "tempfile.TemporaryDirectory[str]"] = {}
"""By the id of a Spark application, the folder of its archive, which ends with this process."""


def ship_code(context: SparkContext) -> None:
    """Gives the executors of a Spark application the package and the handlers' folder, once."""
    application = str(context.applicationId)
    if application in _shipped:
        return
    # The driver serves the archive from this folder, also to executors that join later.
    folder = _shipped[application] = tempfile.TemporaryDirectory(prefix="ackline-code-")
    context.addPyFile(str(build_archive(Path(folder.name, ARCHIVE), handlers_folder())))
    # The driver goes on importing from the folders themselves.
    added = str(Path(SparkFiles.getRootDirectory(), ARCHIVE))
    sys.path[:] = [entry for entry in sys.path if entry != added]


def build_archive(path: Path, handlers: Path) -> Path:
    """Writes Ackline's package, and the Python files below the folder `handlers`, into a ZIP archive at `path`.

    Hidden folders and virtual environments are left out, and so is any other file of the handlers' folder: it may hold
    secrets. Returns `path`. Raises OSError.
    """
    package = Path(ackline.__file__).parent
    files = {f"ackline/{file.relative_to(package).as_posix()}": file for file in _files(package)}
    for file in _files(handlers) if handlers.is_dir() else ():
        if file.suffix == ".py":
            files.setdefault(file.relative_to(handlers).as_posix(), file)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not Path(parent, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(parent, name) for name in files if not name.startswith("."))
