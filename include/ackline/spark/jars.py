"""Fetches and finds the JARs of Spark's Delta and Kafka support, and of a Kafka broker.

`ivy.xml` declares the dependencies, and `jars.lock` names each JAR that they resolve to, by version and SHA-256. The
Ivy inside pyspark fetches the JARs once, into a folder outside the project that is named after the lock. So a second
clone uses the same folder.

`python -m ackline.spark.jars fetch | verify | lock`; `fetch spark` and `verify spark` are about those of Spark alone,
which are all that a run needs. Environment variables: `ACKLINE_JARS` (another folder, or where Spark gets the JARs of a
run instead: `packages` or `cluster`), `ACKLINE_IVY_SETTINGS` (an Ivy settings file, for a site with its own mirror),
`JAVA_HOME`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ackline.errors import AcklineError, ConfigError

HERE = Path(__file__).parent
LOCK = HERE / "jars.lock"
KAFKA_SOURCE = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
# pyspark contains all other dependencies of Delta and the Kafka source, in the versions that Spark was built with.
WANTED_BY_SPARK = (*KAFKA_SOURCE, "delta-", "unitycatalog-")
CONFIGURATIONS = ("spark", "broker")
PACKAGES, CLUSTER = "packages", "cluster"
"""Values of ACKLINE_JARS that are no folder: Spark fetches the packages itself, or the cluster has the JARs."""
_USAGE = "usage: python -m ackline.spark.jars fetch [spark] | verify [spark] | lock"


@dataclass(frozen=True, slots=True, order=True)
class Jar:
    """A JAR that the lock names, in one line."""

    configuration: str
    organisation: str
    module: str
    revision: str
    sha256: str = ""

    @property
    def name(self) -> str:
        """The name in the lock: `CONFIGURATION/ORGANISATION:MODULE:REVISION`."""
        return f"{self.configuration}/{self.organisation}:{self.module}:{self.revision}"

    @property
    def file(self) -> str:
        """The path below the folder of JARs."""
        return f"{self.configuration}/{self.module}-{self.revision}.jar"


def locked() -> list[Jar]:
    """Returns every JAR of the lock, in the order of the lock."""
    jars = []
    for line in LOCK.read_text().splitlines():
        sha256, _, name = line.partition("  ")
        configuration, _, coordinates = name.partition("/")
        organisation, module, revision = coordinates.split(":")
        jars.append(Jar(configuration, organisation, module, revision, sha256))
    return jars


def java() -> str:
    """Returns the Java to start: that of JAVA_HOME, which Spark uses too, or the one on PATH. Raises ConfigError if
    there is none."""
    home = os.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else shutil.which("java")
    if command is None or not os.access(command, os.X_OK):
        where = f"at {command}, which JAVA_HOME names" if command else "on PATH"
        raise ConfigError(f"no Java {where}: install Java 17 or later, e.g. the package openjdk-17-jre-headless")
    return command


def cache_folder() -> Path:
    """Returns the folder for the JARs of this lock, whether they are in it or not. Raises ConfigError for a folder that
    Spark's settings can't name."""
    chosen = os.environ.get("ACKLINE_JARS")
    if chosen and chosen not in (PACKAGES, CLUSTER):
        folder = Path(os.path.expanduser(chosen)).absolute()
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = cache if cache.is_absolute() else Path(os.path.expanduser("~/.cache"))
        if not base.is_absolute():
            raise ConfigError(
                "this user has no home folder for the JARs: set HOME, or ACKLINE_JARS to their folder", key="HOME"
            )
        folder = base / "ackline" / f"jars-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    if "," in str(folder):
        raise ConfigError(
            f"the folder of the JARs {folder} has a comma, at which Spark splits its list of JARs: set ACKLINE_JARS to "
            f"a folder without one",
            key="ACKLINE_JARS",
        )
    return folder


def jars_of(configuration: str) -> list[Path]:
    """Returns the JARs of `spark` or of `broker`. Raises ConfigError if one is missing."""
    folder = cache_folder()
    jars = [folder / jar.file for jar in locked() if jar.configuration == configuration]
    if not all(jar.is_file() for jar in jars):
        raise ConfigError(f"JARs are missing from {folder}: {_fetch_text(configuration)}")
    return jars


def _fetch_text(configuration: str) -> str:
    return f"fetch them with `python -m ackline.spark.jars fetch {configuration}`"


def spark_jars() -> list[Path]:
    """Returns what `spark.jars` needs for Delta and the Kafka source. Raises ConfigError if a JAR is missing."""
    return jars_of("spark")


def kafka_source_jars() -> list[Path]:
    """Returns what `spark.jars` needs for the Kafka source alone. Raises ConfigError if a JAR is missing."""
    return [path for path in spark_jars() if path.name.startswith(KAFKA_SOURCE)]


def jar_settings(*, delta: bool = False) -> dict[str, str]:
    """Returns the Spark settings by which a session has the Kafka source, or with `delta` Delta's classes as well.

    By default they name the fetched JARs. With ACKLINE_JARS=packages they name the Maven packages, which Spark fetches
    with what they depend on, without a look at their hashes. With ACKLINE_JARS=cluster there are none: the file
    spark-defaults.conf or the class path of the cluster has the JARs. Raises ConfigError if a fetched JAR is missing.
    """
    source = os.environ.get("ACKLINE_JARS")
    if source == CLUSTER:
        return {}
    if source != PACKAGES:
        return {"spark.jars": ",".join(map(str, spark_jars() if delta else kafka_source_jars()))}
    settings = os.environ.get("ACKLINE_IVY_SETTINGS")
    return {"spark.jars.packages": packages(delta=delta)} | ({"spark.jars.ivySettings": settings} if settings else {})


def packages(*, delta: bool = False) -> str:
    """Returns the Maven packages of the Kafka source, and with `delta` of Delta, as `--packages` takes them."""
    modules = ("spark-sql-kafka", "delta-spark") if delta else ("spark-sql-kafka",)
    return ",".join(
        f"{jar.organisation}:{jar.module}:{jar.revision}" for jar in locked() if jar.module.startswith(modules)
    )


def broker_classpath() -> str:
    """Returns the class path of a Kafka broker. Raises ConfigError if a JAR is missing."""
    return str(jars_of("broker")[0].parent / "*")


def damaged(folder: Path, jars: Iterable[Jar]) -> list[Jar]:
    """Returns the JARs that are missing from the folder, or whose hash there differs from the lock."""
    return [jar for jar in jars if _sha256(folder / jar.file) != jar.sha256]


def verify(configurations: Collection[str] = CONFIGURATIONS) -> None:
    """Raises ConfigError if a JAR of these configurations is missing, or is not the one of the lock."""
    if wrong := damaged(cache_folder(), (jar for jar in locked() if jar.configuration in configurations)):
        missing = f"{wrong[0].file} is missing or damaged in {cache_folder()}"
        raise ConfigError(f"{missing}: {_fetch_text(wrong[0].configuration)}")


def fetch(configurations: Collection[str] = CONFIGURATIONS) -> int:
    """Fetches the JARs that are missing or damaged, of these configurations. Returns how many those were. A JAR gets
    its name only after its hash is checked, so an interrupted fetch leaves no wrong JAR. Raises AcklineError if a JAR
    can't be fetched, or if its hash differs from the lock."""
    folder, jars = cache_folder(), [jar for jar in locked() if jar.configuration in configurations]
    if not damaged(folder, jars):
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        wanted = damaged(folder, jars)
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
        raise AcklineError(
            f"the fetched {wrong[0].file} has another SHA-256 than in {LOCK.name}, so it was discarded; try again later"
        )
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
    """Runs the Ivy inside pyspark. Tries up to three times: each try keeps what the one before has fetched."""
    import pyspark

    ivy = next(iter(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")), None)
    if ivy is None:
        raise ConfigError("pyspark is installed without its Ivy JAR: install pyspark again")
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
    """Resolves `ivy.xml` anew and writes the lock. Returns the number of JARs in it."""
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
    """Runs `fetch`, `verify` or `lock`. Returns the exit status."""
    try:
        command, configurations = arguments[:1], arguments[1:] or CONFIGURATIONS
        if arguments in (["--help"], ["-h"]):
            print(_USAGE)
        elif arguments == ["lock"]:
            print(f"{LOCK.name} names {relock()} JARs")
        elif command not in (["fetch"], ["verify"]) or not {*configurations} <= {*CONFIGURATIONS}:
            raise ConfigError(_USAGE)
        elif command == ["verify"]:
            verify(configurations)
        elif count := fetch(configurations):
            print(f"fetched {count} JARs into {cache_folder()}")
    except AcklineError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
