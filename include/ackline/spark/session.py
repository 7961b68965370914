"""The Spark session that Ackline's jobs run in.

Under spark-submit, the submission decides on the cluster, the memory of the driver and the JARs. Otherwise
`open_session` starts a session itself. Both get the settings that Ackline's rules depend on, and those of the block
`spark:`. Spark logs its settings and takes them as arguments, so a secret is never one.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from ackline.errors import AcklineError, ConfigError, TransientError
from ackline.process_identity import own_children
from ackline.spark.driver_address import address_towards
from ackline.spark.jvm_stderr import quiet_jvm
from ackline.spark.shipped_code import ship_code
from ackline.spark_block import SparkBlock
from ackline.spark_master import is_local, master_of_environment

REQUIRED_SETTINGS = {
    # A speculative attempt beside the first would call the handler twice.
    "spark.speculation": "false",
    # After a lost shuffle Spark would make a part of a stage again, and join parts of two executions: the acker could
    # ack a tree that no execution has handled whole. So the job fails, and the next run replays the turn.
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.maxAttempts": "1",
    "spark.sql.session.timeZone": "UTC",
    # A bad cast in a column handler must give null for its row, and must not fail the other rows.
    "spark.sql.ansi.enabled": "false",
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

ENCRYPTION = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
"""Settings of a session whose executors are on other machines: tasks and options of the Kafka source hold passwords."""
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

_SECRET = "spark.authenticate.secret"


def open_session(
    app_name: str = "ackline", block: SparkBlock | None = None, more: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns the session of this process; starts one if there is none.

    Outside spark-submit the session is `local[*]` with 1 GiB, without a user interface and with a quiet log.
    ACKLINE_SPARK_MASTER, ACKLINE_SPARK_MEMORY and `block` override that, and `more` overrides all. On a cluster the
    session carries Ackline's code and the handlers to the executors. Raises ConfigError if the JARs of the Kafka source
    are not installed, if the master is refused or if it needs a secret that is not configured, and TransientError if
    Spark does not start.
    """
    block = block or SparkBlock()
    master = master_of_environment()
    if block.python is not None and not is_local(master):
        os.environ["PYSPARK_PYTHON"] = block.python
    # Python workers use this interpreter. Without it they use the first `python3` on their PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = session_settings(master, block, submitted="PYSPARK_GATEWAY_PORT" in os.environ) | dict(more or {})
    try:
        with quiet_jvm() if SparkContext._gateway is None else nullcontext(), _no_jvm_without_gateway():
            conf = SparkConf().setAppName(app_name).setAll(list(settings.items()))
            # The context first: until pyspark's handler of Ctrl-C is replaced, nothing else may call the JVM.
            with _own_ctrl_c():
                SparkContext.getOrCreate(conf)
            session = SparkSession.builder.config(conf=conf).getOrCreate()
    except Py4JJavaError as error:
        raise _not_started(master, str(error)) from None
    if not is_local(str(session.sparkContext.master)):
        ship_code(session.sparkContext)
    return session


@contextmanager
def _no_jvm_without_gateway() -> Iterator[None]:
    """Ends the JVM whose start is interrupted before this process is connected to it.

    pyspark has then removed the folder in which the JVM writes its port. The JVM fails to write it, never comes to the
    line where it waits for the end of this process, and would stay for ever.
    """
    before = own_children()
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:
            for process in own_children() - before:
                process.send(signal.SIGKILL)
        raise


@contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """Puts the handler of SIGINT back that pyspark replaces when it starts a context.

    pyspark's handler calls the JVM in the middle of another call, on the same connection. Both calls then read answers
    that are not theirs: they fail, or they wait for ever. The JVM and its job end with this process anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def session_settings(master: str, block: SparkBlock, *, submitted: bool) -> dict[str, str]:
    """Returns the settings of a session; `submitted` leaves those to spark-submit that it decides on."""
    settings = {} if submitted else _own_settings(master, block)
    settings |= block.properties() | REQUIRED_SETTINGS
    if not is_local(master) and block.encryption == "required":
        settings |= ENCRYPTION
    return settings


def _own_settings(master: str, block: SparkBlock) -> dict[str, str]:
    from ackline.spark.jars import kafka_source_jars

    log4j2 = Path(__file__).with_name("log4j2.properties")
    settings = {
        "spark.master": master,
        "spark.driver.memory": block.driver_memory or os.environ.get("ACKLINE_SPARK_MEMORY", "1g"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j2.as_uri()} -XX:+UseParallelGC",
        "spark.jars": ",".join(str(jar) for jar in kafka_source_jars()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
    }
    if is_local(master):
        # With this path the workers import the same handlers as this process.
        return settings | LOOPBACK | {"spark.executorEnv.PYTHONPATH": os.pathsep.join(_import_paths())}
    address = address_towards(master)
    return settings | ({"spark.driver.host": address} if address else {})


def _not_started(master: str, text: str) -> AcklineError:
    if _SECRET in text:
        return ConfigError(
            f"the master {master} needs `{_SECRET}` in spark-defaults.conf, with the value that its master and workers "
            f"have: the Kafka password travels in the tasks. To go without, write `spark: {{encryption: none}}` into "
            f"the pipeline file",
            key="spark.encryption",
        )
    return TransientError(
        f"Spark did not start on {master}: check that the master runs, and that it has the same "
        f"`spark.authenticate` settings as the driver"
    )


def _import_paths() -> list[str]:
    """Returns the folders that this process imports from, without those of the interpreter."""
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    paths = dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path)
    return [path for path in paths if not installed & {Path(path), *Path(path).parents}]
