"""Class data sharing for the JVMs that tests start: Spark's classes, parsed once for each machine.

A test's Spark spends most of its CPU time on loading some ten thousand classes: 13.5 s of a small job. With an archive
of them (Java's dynamic class data sharing) that job takes 5.5 s. The archive is a cache. A JVM without it, or with
other JARs than those of the archive, starts as ever: `-Xlog:disable` keeps its warning off the output.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pyspark
from filelock import FileLock

from ackline.spark.jars import cache_folder

FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
"""Spark and brokers live so briefly in tests that the second JIT compiler would take half of their time for nothing."""
LOAD_CLASSES = """
from pyspark import SparkContext
from ackline.spark.session import open_session

def same(batches):
    yield from batches

session = open_session("class-data")
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
_SECONDS = 240


def digest(text: str) -> str:
    """Returns a short name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def archive() -> Path:
    """Returns the file of the archive for this Java and this pyspark, whether it exists or not."""
    java = os.environ.get("JAVA_HOME") or shutil.which("java") or ""
    places = f"{Path(java).resolve()}\0{pyspark.__path__[0]}\0{pyspark.__version__}"
    return cache_folder().parent / f"class-data-{digest(places)}.jsa"


def options() -> str:
    """Returns the options for the JVM of Spark, with the archive. Drivers, executors, master and workers can use it."""
    return f"{FIRST_COMPILER} -Xlog:disable -XX:SharedArchiveFile={archive()}"


def make_archive() -> None:
    """Makes the archive unless it exists: some 20 s, once for each machine. Warns if it cannot be made.

    Several processes may call this at once. One of them makes the archive, and the others wait for it.
    """
    file = archive()
    if file.exists():
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock"), timeout=_SECONDS), tempfile.TemporaryDirectory(dir=file.parent) as at:
            if not file.exists():
                _make(file, Path(at, file.name))
    except (OSError, subprocess.SubprocessError) as error:
        warnings.warn(f"no class data archive, so each Spark starts slowly: {error}", stacklevel=2)


def _make(file: Path, scratch: Path) -> None:
    """Makes the archive under another name first: a JVM crashes with an archive that is cut off."""
    environment = {
        **os.environ,
        "ACKLINE_SPARK_MASTER": "local[2]",
        "PYTHONPATH": str(Path(__file__).parents[2] / "include"),
        "SPARK_SUBMIT_OPTS": f"{FIRST_COMPILER} -Xlog:disable -XX:ArchiveClassesAtExit={scratch}",
    }
    subprocess.run(
        [sys.executable, "-c", LOAD_CLASSES],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True,
    )  # fmt: skip
    scratch.replace(file)
