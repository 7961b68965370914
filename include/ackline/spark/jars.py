"""The JARs: which ones, where they are, and how they get there.

`ivy.xml` says what is wanted, `jars.lock` what that comes to: one JAR a line, by version and SHA-256. They
are fetched by the Ivy inside pyspark, once, into a folder outside the tree that is named after the lock, so
that a second clone finds them.

`python -m ackline.spark.jars fetch | verify | lock`. Settings: `ACKLINE_JARS` (another folder),
`ACKLINE_IVY_SETTINGS` (an Ivy settings file for a site with a mirror of its own), `JAVA_HOME`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ackline.errors import AcklineError, ConfigError

HERE = Path(__file__).parent
LOCK = HERE / "jars.lock"
KAFKA_SOURCE = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
# All else that Delta and the Kafka source ask for is in pyspark already, in the version that Spark was
# built with.
WANTED_BY_SPARK = (*KAFKA_SOURCE, "delta-", "unitycatalog-")
CONFIGURATIONS = ("spark", "broker")


@dataclass(frozen=True, slots=True, order=True)
class Jar:
    """One line of the lock."""

    configuration: str
    organisation: str
    module: str
    revision: str
    sha256: str = ""

    @property
    def name(self) -> str:
        """As the lock writes it."""
        return f"{self.configuration}/{self.organisation}:{self.module}:{self.revision}"

    @property
    def file(self) -> str:
        """Where it is kept, seen from the folder of JARs."""
        return f"{self.configuration}/{self.module}-{self.revision}.jar"


def locked() -> list[Jar]:
    """Every JAR of the lock, in its order."""
    jars = []
    for line in LOCK.read_text().splitlines():
        sha256, _, name = line.partition("  ")
        configuration, _, coordinates = name.partition("/")
        organisation, module, revision = coordinates.split(":")
        jars.append(Jar(configuration, organisation, module, revision, sha256))
    return jars


def java() -> str:
    """The Java to start: that of JAVA_HOME, as Spark does it, or the one on PATH. Raises ConfigError."""
    home = os.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else shutil.which("java")
    if command is None or not os.access(command, os.X_OK):
        raise ConfigError(f"no Java at {command}: install Java 17 or later" if command else "install Java 17 or later")
    return command


def cache_folder() -> Path:
    """Where the JARs of this lock belong, whether they are there or not."""
    chosen = os.environ.get("ACKLINE_JARS")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = cache if cache.is_absolute() else Path.home() / ".cache"
    return base / "ackline" / f"jars-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"


def jar_folder() -> Path:
    """The folder of the JARs, all of them there. Raises ConfigError when one is missing."""
    folder = cache_folder()
    if any(not (folder / jar.file).is_file() for jar in locked()):
        raise ConfigError(f"JARs are missing from {folder}: run `make setup`")
    return folder


def spark_jars() -> list[Path]:
    """What `spark.jars` must hold for Delta and the Kafka source. Raises ConfigError when one is missing."""
    folder = jar_folder()
    return [folder / jar.file for jar in locked() if jar.configuration == "spark"]


def kafka_source_jars() -> list[Path]:
    """What `spark.jars` must hold for the Kafka source alone. Raises ConfigError when one is missing."""
    return [path for path in spark_jars() if path.name.startswith(KAFKA_SOURCE)]


def broker_classpath() -> str:
    """The class path of a Kafka broker. Raises ConfigError when a JAR is missing."""
    return str(jar_folder() / "broker" / "*")


def damaged(folder: Path, jars: Iterable[Jar]) -> list[Jar]:
    """Those that are missing from the folder or are not what the lock says."""
    return [jar for jar in jars if _sha256(folder / jar.file) != jar.sha256]


def fetch() -> int:
    """Make the folder whole, and say how many JARs were fetched for it: 0 when it was.

    A JAR appears under its name only after its hash was found right, so that an interrupted fetch leaves
    nothing false. Raises AcklineError when a JAR can't be had or is not what the lock says.
    """
    folder = cache_folder()
    if not damaged(folder, locked()):
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        wanted = damaged(folder, locked())
        for abandoned in folder.glob(".fetching-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        if wanted:
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as scratch:
                _fetch_into(folder, wanted, Path(scratch))
    return len(wanted)


def _fetch_into(folder: Path, wanted: list[Jar], scratch: Path) -> None:
    module = scratch / "ivy.xml"
    module.write_text(_module_of(wanted))
    settings = os.environ.get("ACKLINE_IVY_SETTINGS", str(HERE / "ivysettings.xml"))
    pattern = str(scratch / "[conf]" / "[artifact]-[revision].[ext]")
    _ivy(scratch / "cache", "-settings", settings, "-ivy", str(module), "-retrieve", pattern)
    if wrong := damaged(scratch, wanted):
        raise AcklineError(f"{wrong[0].file} is not what {LOCK.name} says; nothing was kept of it. Try again later")
    for configuration in CONFIGURATIONS:
        (folder / configuration).mkdir(exist_ok=True)
    for jar in wanted:
        (scratch / jar.file).replace(folder / jar.file)


def _module_of(jars: list[Jar]) -> str:
    root = ET.Element("ivy-module", version="2.0")
    ET.SubElement(root, "info", organisation="ackline", module="locked")
    configurations = ET.SubElement(root, "configurations")
    for name in CONFIGURATIONS:
        ET.SubElement(configurations, "conf", name=name)
    dependencies = ET.SubElement(root, "dependencies")
    for jar in jars:
        ET.SubElement(
            dependencies,
            "dependency",
            {"org": jar.organisation, "name": jar.module, "rev": jar.revision},
            conf=f"{jar.configuration}->default",
            transitive="false",
        )
    return ET.tostring(root, encoding="unicode")


def _ivy(cache: Path, *arguments: str) -> None:
    """Run the Ivy inside pyspark; up to three times, since what came the first time is kept."""
    import pyspark

    ivy = next(iter(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")), None)
    if ivy is None:
        raise ConfigError("this pyspark has no Ivy among its JARs: run `make setup`")
    command = [java(), "-jar", str(ivy), "-cache", str(cache), "-confs", *CONFIGURATIONS, *arguments]
    output = ""
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            return
        output = done.stdout + done.stderr
    reasons = [line.strip() for line in output.splitlines() if "not found" in line or "rror" in line]
    raise AcklineError("the JARs could not be fetched: " + "; ".join(reasons[:3] or ["Ivy failed"]))


def _resolved(cache: Path) -> Iterator[Jar]:
    for configuration in CONFIGURATIONS:
        report = ET.parse(cache / f"ackline-jars-{configuration}.xml")
        for module in report.iter("module"):
            for revision in module.iter("revision"):
                name = module.get("name", "")
                wanted = configuration == "broker" or name.startswith(WANTED_BY_SPARK)
                if wanted and revision.get("evicted") is None:
                    yield Jar(configuration, module.get("organisation", ""), name, revision.get("name", ""))


def relock() -> int:
    """Resolve `ivy.xml` anew and write the lock; says how many JARs it names."""
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch, "cache")
        pattern = str(Path(scratch, "[conf]", "[artifact]-[revision].[ext]"))
        _ivy(cache, "-ivy", str(HERE / "ivy.xml"), "-retrieve", pattern)
        jars = sorted(_resolved(cache))
        lines = [f"{_sha256(Path(scratch, jar.file))}  {jar.name}\n" for jar in jars]
    LOCK.write_text("".join(lines))
    return len(jars)


def _sha256(path: Path) -> str:
    if not path.is_file():
        return "missing"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: list[str]) -> int:
    """`fetch`, `verify` or `lock`; the exit status."""
    try:
        if arguments == ["fetch"]:
            if count := fetch():
                print(f"fetched {count} JARs into {cache_folder()}")
        elif arguments == ["verify"]:
            if wrong := damaged(cache_folder(), locked()):
                raise ConfigError(f"{wrong[0].file} is missing or damaged in {cache_folder()}: run `make setup`")
        elif arguments == ["lock"]:
            print(f"{LOCK.name} names {relock()} JARs")
        else:
            raise ConfigError("usage: python -m ackline.spark.jars fetch | verify | lock")
    except AcklineError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
