"""Where things are: the project, its pipeline files, the tables, the handlers. Pure: asked at DAG-parse time, too."""

import os
import sys
from pathlib import Path

import ackline


def project_root() -> Path:
    """The folder that relative settings start from: the project's where the package lies in its include/, else the
    working directory."""
    include = Path(ackline.__file__).parents[1]
    return include.parent if include.name == "include" else Path.cwd()


def pipelines_folder() -> Path:
    """The folder of pipeline files: ACKLINE_PIPELINES, or include/pipelines of the project."""
    return project_root() / (os.environ.get("ACKLINE_PIPELINES") or "include/pipelines")


def handlers_folder() -> Path:
    """The folder from which `handlers.…` is imported: the one that holds the folder of pipeline files."""
    return pipelines_folder().resolve().parent


def audit_root() -> str:
    """Where the tables are: ACKLINE_AUDIT, a path or an object-store URI, or .ackline/audit of the project."""
    given = os.environ.get("ACKLINE_AUDIT") or ".ackline/audit"  # an empty one would make the project the ledger
    if given.startswith("file://"):
        given = given.removeprefix("file://")
    return given if "://" in given else str(project_root() / given)


def make_handlers_importable() -> None:
    """Put the handlers' folder on this process's path, and on that of the Python workers that Spark starts from it."""
    folder = str(handlers_folder())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    path = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
