"""The Spark session that Ackline's jobs run in, with the code that travels to its executors and a quiet JVM.

On a cluster the session carries an archive of Ackline's package and of the handlers, so the cluster needs Python with
the dependencies, and no copy of the project. Equal files give an equal archive, byte for byte, so that a driver that
starts again ships the same code.

The standard error of the JVM is filtered: before log4j is configured, Java prints warnings that no option turns off
and that would cross the progress bar. All other lines pass: an error of the JVM itself must be seen.
"""

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from ackline.delta.errors import check_temporary_folder
from ackline.forms.connections import without_airflow
from ackline.pipeline.blocks import SparkBlock
from ackline.pipeline.folder import handlers_folder
from ackline.spark.failure import error_of_start
from ackline.spark.master import address_towards, chosen_master, connect_server, is_local
from ackline.spark.settings import (
    ARCHIVE,
    DAEMON,
    ENCRYPTION,
    LOOPBACK,
    REQUIRED_SETTINGS,
    build_archive,
    import_paths,
)
from ackline.tables.lease import own_children

NOISE = (
    b"WARNING: Using incubator modules:",
    b"WARNING: A terminally deprecated method in sun.misc.Unsafe",
    b"WARNING: sun.misc.Unsafe::",
    b"WARNING: Please consider reporting this to the maintainers of class org.apache.spark.",
    b"WARNING: Please consider reporting this to the maintainers of class io.netty.",
    b"Picked up JAVA_TOOL_OPTIONS:",
    b"Picked up _JAVA_OPTIONS:",
)
"""The beginnings of texts that are dropped, each up to the end of its line."""
_NOISE = re.compile(b"|".join(map(re.escape, NOISE)))
_END = re.compile(rb"[\r\n]")
_LONGEST = max(map(len, NOISE))


@contextmanager
def quiet_jvm() -> Iterator[None]:
    """Filters the standard error of processes that are started during the context, for as long as they live. What this
    process prints through `sys.stderr` is not filtered, and is written at once. Does nothing if this process has no
    standard error."""
    try:
        real = os.dup(2)
    except OSError:
        yield
        return
    source, sink = os.pipe()
    # A thread, because the JVM outlives the context. It ends when the last process that prints there has ended.
    passes_on = threading.Thread(target=_pass_on, args=(source, os.dup(real)), name="ackline-jvm-stderr", daemon=True)
    before = sys.stderr
    # Ctrl-C may come at any of these lines. What this process itself prints goes to the real standard error, so that
    # its last lines need no thread, which may not run yet or may end with the process before it has passed them on.
    own = os.fdopen(os.dup(real), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    try:
        passes_on.start()
        before.flush()
        sys.stderr = own
        os.dup2(sink, 2)
        os.close(sink)
        yield
    finally:
        os.dup2(real, 2)
        sys.stderr = before
        os.close(real)


def _pass_on(source: int, real: int) -> None:
    lines = LineFilter()
    with open(source, "rb", buffering=0) as stream:
        while chunk := stream.read(4096):
            _write(real, lines.passed(chunk))
    _write(real, lines.rest())
    os.close(real)


def _write(real: int, text: bytes) -> None:
    while text:
        text = text[os.write(real, text) :]


class LineFilter:
    """Drops the text from where NOISE begins to the end of its line. Holds back only what may be the start of NOISE.
    NOISE may begin anywhere in a line: a library of the JVM may write without ending its lines."""

    def __init__(self) -> None:
        self._held = b""
        self._drops = False
        """Whether the rest of the present line is dropped."""

    def passed(self, chunk: bytes) -> bytes:
        """Returns the text that may pass, of `chunk` and of what was held back before."""
        text, passed = self._held + chunk, b""
        self._held = b""
        while text:
            if self._drops:
                end = _END.search(text)
                self._drops, text = end is None, text[end.end() :] if end else b""
            elif found := _NOISE.search(text):
                passed += text[: found.start()]
                self._drops, text = True, text[found.end() :]
            else:
                start = _possible_start(text)
                self._held = text[start:]
                return passed + text[:start]
        return passed

    def rest(self) -> bytes:
        """Returns what was held back, at the end of the stream."""
        return self._held


def _possible_start(text: bytes) -> int:
    """Returns the index from which on the text may be a beginning of NOISE; the length of the text if there is none."""
    first = max(len(text) - _LONGEST, 0)
    return next(
        (at for at in range(first, len(text)) if any(noise.startswith(text[at:]) for noise in NOISE)), len(text)
    )


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


def open_session(
    app_name: str = "ackline", block: SparkBlock | None = None, more: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns the session of this process; starts one if there is none.

    Outside spark-submit the session has the master of `chosen_master` and 1 GiB, without a user interface and with a
    quiet log. ACKLINE_SPARK_MEMORY and `block` override that, and `more` overrides all. On a cluster the session
    carries Ackline's code and the handlers to the executors. On a Spark Connect server it is shared with other clients
    (`ackline.spark.connect`).

    Raises ConfigError if the JARs of the Kafka source are not installed, if the master is refused or if it needs a
    secret that is not configured, FatalError if temporary files can't be written, and TransientError if Spark does not
    start.
    """
    block = block or SparkBlock()
    master = chosen_master().url
    if (server := connect_server(master)) is not None:
        from ackline.spark.connect import open_server_session  # its libraries take a second to load

        return open_server_session(server, block)
    # Python workers use this interpreter, and without it the first `python3` on their PATH. On this machine they use
    # that of this process, whatever a variable of another project names.
    if is_local(master):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_PYTHON"] = block.python or os.environ["PYSPARK_PYTHON"]
    settings = session_settings(master, block, submitted="PYSPARK_GATEWAY_PORT" in os.environ) | dict(more or {})
    try:
        starts_jvm = SparkContext._gateway is None
        if starts_jvm:
            check_temporary_folder()  # where the JVM can't write its port, pyspark waits for it without end
        with quiet_jvm() if starts_jvm else nullcontext(), _no_jvm_without_gateway(), _no_connections(starts_jvm):
            conf = SparkConf().setAppName(app_name).setAll(list(settings.items()))
            # The context first: until pyspark's handler of Ctrl-C is replaced, nothing else may call the JVM.
            with _own_ctrl_c():
                SparkContext.getOrCreate(conf)
            session = SparkSession.builder.config(conf=conf).getOrCreate()
    except (Py4JJavaError, PySparkRuntimeError) as error:
        raise error_of_start(error, master) from None
    if not is_local(str(session.sparkContext.master)):
        ship_code(session.sparkContext)
    return session


@contextmanager
def _no_jvm_without_gateway() -> Iterator[None]:
    """Ends the JVM whose start is interrupted before this process is connected to it. pyspark has then removed the
    folder in which the JVM writes its port. So the JVM never comes to the line where it waits for the end of this
    process, and would stay for ever."""
    before = own_children()
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:
            for process in own_children() - before:
                process.send(signal.SIGKILL)
        raise


@contextmanager
def _no_connections(starts_jvm: bool) -> Iterator[None]:
    """Hides the variables of Airflow from the JVM that is started in the context, which starts the processes of the
    handlers with its own environment. The connections are read in this process alone."""
    before = dict(os.environ) if starts_jvm else {}
    hidden = before.keys() - without_airflow(before).keys()
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update({name: before[name] for name in hidden})


@contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """Puts the handler of SIGINT back that pyspark replaces when it starts a context. pyspark's handler calls the JVM
    in the middle of another call, on the same connection, so both calls fail or wait for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def session_settings(master: str, block: SparkBlock, *, submitted: bool) -> dict[str, str]:
    """Returns the settings of a session, without those that spark-submit decides on if the process was `submitted`."""
    settings = {} if submitted else _own_settings(master, block)
    settings |= block.properties() | REQUIRED_SETTINGS
    if not is_local(master) and block.encryption == "required":
        settings |= ENCRYPTION
    return settings


def _own_settings(master: str, block: SparkBlock) -> dict[str, str]:
    from ackline.spark.jars import jar_settings
    from ackline.spark.jvm import driver_options

    settings = {
        "spark.master": master,
        "spark.driver.memory": block.driver_memory or os.environ.get("ACKLINE_SPARK_MEMORY", "1g"),
        "spark.driver.extraJavaOptions": driver_options(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        **jar_settings(),
    }
    if is_local(master):
        # With this path the workers import the same handlers as this process.
        return settings | LOOPBACK | DAEMON | {"spark.executorEnv.PYTHONPATH": os.pathsep.join(import_paths())}
    address = address_towards(master)
    return settings | ({"spark.driver.host": address} if address else {})
