"""What each session has, on a master and on a Spark Connect server: settings, and the archive of code that travels.

Importing this loads no Spark.
"""

import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import ackline

REQUIRED_SETTINGS = {
    # A speculative attempt beside the first would call the handler twice.
    "spark.speculation": "false",
    # After a lost shuffle Spark would make a part of a stage again, and join parts of two executions: the acker could
    # ack a tree that no execution has handled whole. So the job fails, and the next run replays the turn.
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.maxAttempts": "1",
    # Adaptive execution would make each exchange between steps a job of its own. If an executor got lost between two of
    # them, Spark would make its part again in a new stage, whose limit of attempts begins anew.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # A bad cast in a column handler must give null for its row, and must not fail the other rows.
    "spark.sql.ansi.enabled": "false",
    # Spark would put fresh records and retries of one part each into the same task, in the column tier the fresh ones
    # first: out of the order of offsets, which a task refuses.
    "spark.sql.unionOutputPartitioning": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
    # All sources but `kafka`: the older interface converts each record three times, a third of the reading time.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # An idle Kafka consumer keeps the records that it has fetched ahead, some 20 MiB. By default Spark keeps 64 idle
    # consumers, for five minutes.
    "spark.kafka.consumer.cache.capacity": "1",
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    "spark.redaction.regex": "(?i)secret|password|passwd|token|credential|access[.]?key|sasl|ssl|jaas|oauth|apikey",
}

OF_SESSION = "spark.sql."
"""The prefix of the settings that a session on a Spark Connect server may have for itself."""

ENCRYPTION = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
"""Settings of a session whose executors are on other machines: tasks and options of the Kafka source hold passwords."""
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

DAEMON = {"spark.python.daemon.module": "ackline.spark.daemon"}
"""Has `ackline.spark.daemon` fork the Python workers of a local master. On a cluster it might not find Ackline: the
archive of a session reaches a worker after the fork."""

ARCHIVE = "ackline-code.zip"
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
_OLDEST = (1980, 1, 1, 0, 0, 0)


def build_archive(path: Path, handlers: Path) -> Path:
    """Writes Ackline's package, and the Python files below the folder `handlers`, into a ZIP archive at `path`. Hidden
    folders and virtual environments are left out, and so is any other file of the handlers' folder: it may hold
    secrets. Returns `path`. Raises OSError."""
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


def import_paths() -> list[str]:
    """Returns the folders that this process imports from, without those of the interpreter."""
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    paths = dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path)
    return [path for path in paths if not installed & {Path(path), *Path(path).parents}]


def data_beside(handlers: Path) -> list[str]:
    """Returns a line for each data file beside a Python file below the folder `handlers`, and in a folder beside one of
    a package: its path, size and time. An equal list stands for equal files."""
    files = sorted(_files(handlers))
    code = {file.parent for file in files if file.suffix == ".py"}
    lines = []
    for file in files:
        beside = file.parent in code or (file.parent.parent in code and file.parent.parent != handlers)
        if beside and file.suffix != ".py":
            with suppress(OSError):  # it has gone in between
                lines.append(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}")
    return lines


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not Path(parent, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(parent, name) for name in files if not name.startswith("."))
