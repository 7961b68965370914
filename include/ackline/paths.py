"""Where the project, its pipeline files, its tables and its handlers are.

Airflow calls these functions while it parses DAG files, so they read environment variables and open no file.
"""

import os
import sys
from pathlib import Path

import ackline
from ackline.errors import ConfigError
from ackline.turns import LIVE

OBJECT_STORES = ("s3", "gs", "az", "abfs", "abfss")
"""The schemes of the object stores that can hold the tables."""


def project_root() -> Path:
    """The folder that relative settings start from: the project, if the package is in its `include/`; else the working
    directory."""
    include = Path(ackline.__file__).parents[1]
    return include.parent if include.name == "include" else Path.cwd()


def pipelines_folder() -> Path:
    """The folder of the pipeline files: ACKLINE_PIPELINES, or `include/pipelines` of the project."""
    return project_root() / (os.environ.get("ACKLINE_PIPELINES") or "include/pipelines")


def handlers_folder() -> Path:
    """The folder from which `handlers.…` is imported: the parent of the folder of pipeline files."""
    return pipelines_folder().resolve().parent


def audit_root() -> str:
    """The folder of the tables: ACKLINE_AUDIT, a path or an object-store URI, or `.ackline/audit` of the project.

    Raises ConfigError if it is a URI that can't name the folder of a table.
    """
    # An empty variable counts as unset: as a relative path it would make the project itself the folder of the tables.
    root = os.environ.get("ACKLINE_AUDIT") or ".ackline/audit"
    if root.startswith("file://"):
        root = root.removeprefix("file://")
    return _checked_uri(root) if "://" in root else str(project_root() / root)


def _checked_uri(root: str) -> str:
    """Returns the URI of a folder in an object store, without a slash at its end and with `s3` for Hadoop's `s3a`."""
    scheme, _, path = root.partition("://")
    scheme = {"s3a": "s3"}.get(scheme, scheme)
    bucket = path.partition("/")[0]
    reason, shown = None, root.partition("?")[0]  # what follows a `?` may be a signature
    # A secret may contain a slash, so the `@` after it may come later. Azure's CONTAINER@ACCOUNT is no login.
    if ":" in bucket or ("@" in bucket and scheme not in ("abfs", "abfss")):
        reason, shown = (
            "it holds a login. Remove it, and set the login as docs/settings.md describes",
            f"{scheme}://***",
        )
    elif scheme not in OBJECT_STORES:
        reason = f"Unknown scheme: {scheme}. Use a path, or a URI with one of {', '.join(OBJECT_STORES)}"
    elif "?" in path or "#" in path:
        reason = "it has a `?` or a `#`, which a URI of a folder cannot contain. Remove it"
    elif not path.strip("/"):
        reason = f"it names no bucket. Write {scheme}://BUCKET/FOLDER"
    if reason is not None:
        raise ConfigError(f"ACKLINE_AUDIT={shown} can't be used: {reason}", key="ACKLINE_AUDIT")
    return f"{scheme}://{path.rstrip('/')}"


def lane_folder(root: str, pipeline: str, lane: str) -> str:
    """Returns the folder, or the URI in an object store, of the three tables of a lane."""
    folder = f"{root.rstrip('/')}/{pipeline}"
    return folder if lane == LIVE else f"{folder}/{lane}"


def make_handlers_importable() -> None:
    """Put the handlers' folder on the import path of this process, and of the Python workers that Spark starts from
    it."""
    folder = str(handlers_folder())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    path = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
