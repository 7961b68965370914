"""What the driver checks of its executors: before records are handed out, and when they have named their files.

The probe is a Spark job with a task for each core. It covers the executors that are there; for those that come later,
each task looks again before its first record (`ackline.worker.settings`).

A task syncs its files before it names them, but another machine may not see them at once: an NFS client remembers for
up to a minute that a name does not exist, and the listing of an object store may be old. So the driver waits for them.
"""

import logging
import pickle
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow
import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

import ackline
from ackline.delta.errors import IgnoredStorageErrors, folder_errors
from ackline.delta.folder import Folder
from ackline.errors import AcklineError, ConfigError
from ackline.spark.application import Application, ProbeTask
from ackline.spark.failure import error_of_spark, text_of
from ackline.worker.settings import KafkaSettings, ReplaySettings

WAIT_SECONDS = 60.0
WAIT_SECONDS_ONCE = 300.0
"""At most once the tasks can't run again, so what they have handled is lost if the driver gives up their files."""
_FILE_POLL_SECONDS = 1.0


def wait_until_sized(
    root: str,
    sizes: Mapping[str, int],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    seconds: float = WAIT_SECONDS,
) -> None:
    """Waits until each file of `sizes` (by its path below `root`) is there with its size in bytes. Call it before the
    commit that names the files: Delta readers fail on a file that is missing. Raises ConfigError if one is missing, or
    has another size, after `seconds`."""
    folder, until = Folder(root), clock() + seconds
    while True:
        there: dict[str, int] = {}
        with IgnoredStorageErrors():  # such as ESTALE, with which NFS answers about a folder that it must look up again
            there = folder.sizes(sizes)
        missing = {path: size for path, size in sizes.items() if there.get(path) != size}
        if not missing:
            return
        if clock() >= until:
            raise _not_shared(root, missing, there, seconds)
        folder.refresh(missing)
        sleep(_FILE_POLL_SECONDS)


def _not_shared(root: str, missing: Mapping[str, int], there: Mapping[str, int], seconds: float) -> ConfigError:
    path, size = next(iter(missing.items()))
    state = f"has {there[path]:,} bytes here" if path in there else "is not here"
    return ConfigError(
        f"executors and driver do not share ACKLINE_AUDIT: a task has written {root}/{path} with {size:,} bytes, and "
        f"after {seconds:.0f} s it {state} ({len(missing)} such files). Nothing was stored. Set ACKLINE_AUDIT to "
        f"a folder that all machines mount at the same path, or to an object store",
        key="ACKLINE_AUDIT",
    )


log = logging.getLogger(__name__)

_ROUNDS = 5
_FILES = ("ssl.keystore.location", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
"""Kafka properties that name files. Those that were not inlined must be on the executors."""

_TASK_HOST = re.compile(r"\(TID \d+\) \((\S+) executor")
_TASK_CAUSE = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|NotFound)): (.+)$", re.MULTILINE)
_SPARK_CAUSE = re.compile(r"(\[PYTHON_VERSION_MISMATCH\][^\n]*|Cannot run program[^\n]*)")


class Answer(NamedTuple):
    """What a task of the probe found: its host, the reason why the executor is unfit, the file that it wrote, and the
    time of its clock in seconds since 1970."""

    host: str
    problem: str
    file: str
    size: int
    time: float


def probe_executors(
    application: Application,
    root: str,
    settings: ReplaySettings,
    kafka: KafkaSettings,
    imports_handler: bool,
    max_clock_skew: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Checks versions, imports, files and clocks of the executors that are there, and that they share the folder
    `root`. `imports_handler` is False for a column handler: it runs in the JVM, so executors need not import it. Raises
    ConfigError with the host and the cause, and what Spark's job raises. Leaves no file behind."""
    application.wait_for_executors(sleep)
    files = {name: str(kafka.properties[name]) for name in _FILES if name in kafka.properties}
    files = {name: path for name, path in files.items() if path != "probe"}
    folder = Folder(f"{root}/.probe-{uuid.uuid4()}")
    token, answers = "driver", list[Answer]()
    try:
        with folder_errors(root):
            folder.write_first(token, b"driver")
        task = _probe_task(_versions(), pickle.dumps((settings, imports_handler)), files, folder.uri, token)
        for number in range(_ROUNDS):
            executors, asked = application.executors(), time.time()
            try:
                found = [Answer(*row) for row in application.ask(task)]
            except (PySparkException, Py4JError) as error:
                raise _error_of_probe(error) from None
            answers += found
            _check(found)
            _check_clocks(found, asked, time.time(), max_clock_skew)
            # The first tasks of an executor start its Python, which hides a difference as large as that takes.
            was_slow = number == 0 and time.time() - asked > max_clock_skew
            if application.executors() <= executors and not was_slow:
                break
        wait_until_sized(folder.uri, {answer.file: answer.size for answer in answers})
    finally:
        for name in {token, *(answer.file for answer in answers)}:
            folder.remove(name)
        folder.remove_if_empty()


def _versions() -> dict[str, str]:
    """Returns what must be equal on driver and executors. The worker itself compares the minor version of Python."""
    return {
        "ackline": ackline.__version__,
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__.partition(".")[0],
    }


def _check(answers: Iterable[Answer]) -> None:
    problems = dict.fromkeys((answer.host, answer.problem) for answer in answers if answer.problem)
    if problems:
        hosts = "; ".join(f"the executor on {host}: {problem}" for host, problem in list(problems)[:3])
        raise ConfigError(f"the executors can't run this pipeline, and no record was handed out: {hosts}")


def _check_clocks(answers: Iterable[Answer], asked: float, answered: float, most: float) -> None:
    """Raises ConfigError if a clock was more than `most` seconds before or after the driver's, which has had the times
    `asked` and `answered` around the answers. By a clock that is behind, a record in flight times out at once and no
    backoff waits; by one that is ahead, both last too long."""
    for answer in answers:
        behind, ahead = asked - answer.time, answer.time - answered
        if max(behind, ahead) > most:
            where = f"{behind:,.0f} s behind" if behind > 0 else f"{ahead:,.0f} s ahead of"
            raise ConfigError(
                f"the clock of the executor on {answer.host} is at least {where} the driver's, more than "
                f"`spark.max_clock_skew` allows ({most:g} s), and no record was handed out: deadlines and backoffs "
                f"would be wrong. Set the clocks of both hosts by NTP",
                key="spark.max_clock_skew",
            )


def _error_of_probe(error: Exception) -> AcklineError:
    """Returns ConfigError with host and cause for an executor whose Python does not get as far as the probe. It may
    quote Spark's text, because the probe holds no record."""
    text = text_of(error)
    hosts, causes = _TASK_HOST.findall(text), _SPARK_CAUSE.findall(text)
    causes = causes or [f"{name}: {reason}" for name, reason in _TASK_CAUSE.findall(text) if name != "SparkException"]
    if not hosts or not causes or "ExecutorLostFailure" in text:
        return error_of_spark(error)
    return ConfigError(
        f"the executor on {hosts[-1]} can't run this pipeline, and no record was handed out: {causes[0].strip()}. "
        f"PYSPARK_PYTHON, or `spark.python` of the pipeline file, names the Python of the executors"
    )


def _probe_task(
    versions: Mapping[str, str], packed: bytes, files: Mapping[str, str], folder: str, token: str
) -> ProbeTask:
    """Returns the probe's task. It imports everything itself, so that it can report what does not import."""

    def probe(parts: Iterable[int]) -> Iterator[tuple[str, str, str, int, float]]:
        import importlib
        import pickle
        import socket
        import time
        import uuid

        content = b"executor"

        def check() -> str:
            for name, wanted in versions.items():
                version = importlib.import_module(name).__version__
                if version != wanted and version.partition(".")[0] != wanted:
                    raise RuntimeError(f"it has {name} {version}, and the driver {wanted}; install the same version")
            from ackline.delta.folder import Folder
            from ackline.worker.streams import load_functions_of_job

            importlib.import_module("ackline.trees.stages")  # with what tasks need
            importlib.import_module("ackline.worker.tasks")  # and the Kafka client
            settings, imports_handler = pickle.loads(packed)
            settings.enter()
            if imports_handler:
                load_functions_of_job(settings)
            for name, path in files.items():
                try:
                    open(path, "rb").close()
                except OSError as error:
                    raise RuntimeError(f"the file {path} of `{name}` can't be read: {error.strerror}") from None
            shared = Folder(folder)
            if shared.read(token) is None:
                raise RuntimeError(
                    f"it does not see {folder}/{token}, so executors and driver do not share ACKLINE_AUDIT: set it to "
                    f"a folder that all machines mount at the same path"
                )
            file = f"executor-{uuid.uuid4()}"
            shared.write(file, content)
            if shared.read(file) != content:
                raise RuntimeError(f"it can't read back what it wrote below {folder}")
            return file

        for _ in parts:
            try:
                answer = (socket.gethostname(), "", check(), len(content))
            except Exception as error:
                text = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
                answer = (socket.gethostname(), text, "", 0)
            yield *answer, time.time()

    return probe
