"""The options of a driver's JVM, and the archive of Spark's classes that makes it start in half the time.

A JVM that starts Spark spends most of its time on loading some ten thousand classes. Java's class data sharing keeps
them parsed in a file. The archive is a cache for this machine: a JVM of another Java, or with other JARs of Spark than
those of the archive, starts without it as ever. `python -m ackline.spark.jvm` makes it, and `make setup` runs that.
"""

import hashlib
import importlib.util
import logging
import os
import re
import subprocess
import sys
import tempfile
import zlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from ackline.errors import AcklineError, TransientError
from ackline.spark.jars import cache_folder, java

LOAD_CLASSES = """
from pyspark import SparkContext
from ackline.spark.session import open_session

def same(batches):
    yield from batches

session = open_session("classes")
rows = session.createDataFrame([(number, str(number)) for number in range(100)], ["a", "b"])
sums = rows.mapInArrow(same, rows.schema).repartition(3, "a").dropDuplicates(["b"]).groupBy("a").agg({"b": "max"})
assert len(sums.sortWithinPartitions("a").collect()) == 100
jvm = SparkContext._gateway.proc
session.stop()
SparkContext._gateway.shutdown()
jvm.stdin.close()
assert jvm.wait() == 0  # it has written the archive
"""
"""Opens a session as commands do, and runs a job with the operators of a replay."""
_SECOND_COMPILER = [
    "-XX:+IgnoreUnrecognizedVMOptions",  # a Java without HotSpot starts as well
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
]
"""Ten times the thresholds at which Java compiles a method once more, with its slow compiler. What runs for each record
gets there within some ten thousand records. What only starts Spark and plans a query does not, and to compile that is a
quarter of the CPU time of a run of 1,000 records."""
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""A JVM that can't use the archive says so in a warning that concerns no user."""
_SECONDS = 240
_CHECKSUM = ".crc32"
"""The suffix of the file with the checksum of an archive."""

log = logging.getLogger(__name__)


def driver_options() -> str:
    """Returns the Java options of a driver: a quiet log, a collector for throughput, a second compiler for what runs
    often, the archive if there is one."""
    log4j2 = Path(__file__).with_name("log4j2.properties")
    options = [f"-Dlog4j2.configurationFile={log4j2.as_uri()}", "-XX:+UseParallelGC", *_SECOND_COMPILER]
    return " ".join(map(_quoted, [*options, *archive_options()]))


def _quoted(option: str) -> str:
    """Returns an option as one of a list that is split at blanks, by the rules of Spark's launcher: its folder may have
    one."""
    return re.sub(r'([\\"])', r"\\\1", option).join('""') if re.search(r"\s", option) else option


def archive_options() -> list[str]:
    """Returns the options by which a JVM of Spark uses the archive; none if there is no archive for this Java."""
    try:
        found = archive()
    except AcklineError:  # there is no Java: the start of Spark raises this with its advice
        return []
    return [f"-XX:SharedArchiveFile={found}", *_SILENT.split()] if found is not None else []


def archive() -> Path | None:
    """Returns the archive for this Java and this pyspark; None if it does not exist, or is damaged, which is logged. A
    JVM crashes or hangs on a damaged archive, so a file beside it holds its checksum. Raises ConfigError without
    Java."""
    folder, _, name = _place()
    for file in folder.glob(f"{name}-*.jsa"):
        with suppress(OSError):  # it is being made, or another process has just removed it
            if file.with_suffix(_CHECKSUM).read_text() == _checksum(file):
                return file
            log.warning(
                "%s is damaged, so Spark starts without it and takes twice as long: `python -m ackline.spark.jvm` "
                "makes it again", file,
            )  # fmt: skip
    return None


def _checksum(file: Path) -> str:
    """Returns the checksum of a file, which takes 0.05 s for 150 MB."""
    return f"{zlib.crc32(file.read_bytes()):08x}"


def make_archive() -> bool:
    """Makes the archive unless it exists, in some 20 s. Returns whether this call has made it. Several processes may
    call this at once: one of them makes the archive, and the others wait for it. Raises TransientError if it can't be
    made, and ConfigError without Java or the JARs of Spark."""
    if archive() is not None:
        return False
    folder, prefix, name = _place()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{prefix}.lock", timeout=_SECONDS), tempfile.TemporaryDirectory(dir=folder) as scratch:
            if archive() is not None:
                return False
            made = Path(scratch, name)
            _dump(made)
            # Its checksum comes last, so no JVM ever meets a part of it.
            final, checksum = folder / f"{name}-{made.stat().st_size}.jsa", Path(scratch, "checksum")
            checksum.write_text(_checksum(made))
            final.with_suffix(_CHECKSUM).unlink(missing_ok=True)
            made.replace(final)
            checksum.replace(final.with_suffix(_CHECKSUM))
            # A JVM that uses an old one keeps it until it ends.
            for old in {*folder.glob(f"{prefix}-*.jsa")} - {final}:
                old.unlink()
                old.with_suffix(_CHECKSUM).unlink(missing_ok=True)
    except (OSError, subprocess.SubprocessError, TimeoutError) as error:
        raise TransientError(
            f"no archive of Spark's classes, so each start of Spark takes longer: {_reason(error)}. Nothing is broken; "
            f"`python -m ackline.spark.jvm` tries again"
        ) from None
    return True


def _reason(error: Exception) -> str:
    """Returns why the archive could not be made, in a line: the error of a program quotes the whole program."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return f"Spark ended with status {error.returncode}{f' ({lines[-1][:300]})' if lines else ''}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"Spark took more than {_SECONDS} s"
    return str(error)


def _place() -> tuple[Path, str, str]:
    """Returns the folder of the archive, which is that of the JARs, and two beginnings of names: of all archives of
    this Java and this pyspark, and of the one that fits. Java refuses an archive of another Java, or of JARs with other
    times, so one that was installed again at the same path needs an archive of its own."""
    program = Path(java()).resolve()
    spark = importlib.util.find_spec("pyspark")
    places = list(spark.submodule_search_locations or ()) if spark is not None else []
    installed = (program, *(Path(place, "jars") for place in places))
    # In seconds, as Java compares them: a container's image that is packed and unpacked keeps no fractions.
    times = [int(path.stat().st_mtime) for path in installed if path.exists()]
    prefix = f"classes-{_hash(program, places)}"
    return cache_folder(), prefix, f"{prefix}-{_hash(times, version('pyspark'))}"


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _dump(file: Path) -> None:
    environment = {
        **os.environ,
        "ACKLINE_SPARK_MASTER": "local[2]",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SPARK_SUBMIT_OPTS": f"{_SILENT} {_quoted(f'-XX:ArchiveClassesAtExit={file}')}",
    }
    subprocess.run(
        [sys.executable, "-c", LOAD_CLASSES],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True,
    )  # fmt: skip


def main() -> int:
    """Makes the archive, and prints that it did, or why it could not. Returns the exit status."""
    try:
        if make_archive():
            print("made an archive of Spark's classes: Spark starts in half the time")
    except AcklineError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
