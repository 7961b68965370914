"""A session on a Spark Connect server: its settings, the code that travels with it, and its end.

A server is shared. So each setting is one of the session, which the server gives to no other, and code travels as an
artifact of the session: the server starts Python workers for each session apart, so a later version of a handler never
meets the modules of an earlier one. What a session can't set, the file of the pipeline may not ask for.
"""

import atexit
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ackline.errors import AcklineError, ConfigError, TransientError
from ackline.pipeline.blocks import SparkBlock
from ackline.pipeline.folder import handlers_folder
from ackline.spark.application import EVERYTHING, HIDDEN_TEXT, application_of
from ackline.spark.jars import packages
from ackline.spark.master import ConnectServer, is_local
from ackline.spark.settings import ARCHIVE, ENCRYPTION, OF_SESSION, REQUIRED_SETTINGS, build_archive

CONNECT_SECONDS = 5.0
_RETRIES = 6
"""How often pyspark repeats a request that did not reach the server, with pauses of 70 s in all. By default it goes on
for ten minutes, at the end of the process once more; but a server that starts again has lost the session."""
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""The variable by which pyspark's functions, such as those of a column handler, make columns for a server."""
_OWN_CODE = "spark.sql.artifact.isolation.enabled"
"""Spark's default: each session has code and Python workers of its own."""
_HIDDEN_OPTIONS = "spark.sql.redaction.options.regex"
_IN_CLEAR = (
    "and the Kafka password travels in the plan: connect by TLS (`sc://HOST:PORT/;use_ssl=true`), or write "
    "`spark: {encryption: none}` into the pipeline file to go without"
)

_opened: dict[str, SparkSession] = {}
"""The session of this process, by the address of its server."""


def open_server_session(server: ConnectServer, block: SparkBlock) -> SparkSession:
    """Returns the session of this process on the server; opens one if there is none. It ends with the process.

    Raises ConfigError if the pipeline file asks for what only the start of a server can set, or if a password would
    travel unencrypted, and TransientError if no server answers.
    """
    if server.url in _opened:
        return _opened[server.url]
    settings = _settings_of_session(server, block)
    if block.encryption == "required" and not (server.loopback or server.encrypted):
        raise ConfigError(f"the connection to the Spark Connect server {server} is not encrypted, {_IN_CLEAR}",
                          key="spark.encryption")  # fmt: skip
    try:
        _reach(server)
    except OSError as error:
        raise TransientError(
            f"no Spark Connect server answers at {server} ({error.strerror or error}): check that it runs; "
            f"`ackline dev spark` starts one on this machine"
        ) from None
    spark = None
    try:
        spark = _session_on(server)
        for name, value in settings.items():
            spark.conf.set(name, value)
        _check_encryption(spark, server, block)
        _check_kafka_source(spark, server)
        _ship_code(spark)
    except BaseException as error:
        if spark is not None:
            _end(spark, server)
        if isinstance(error, PySparkException):
            raise _not_opened(server, error) from None
        raise
    _opened[server.url] = spark
    atexit.register(_end, spark, server)
    return spark


def _session_on(server: ConnectServer) -> SparkSession:
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ServerSession

    os.environ[_CONNECT_MODE] = "1"
    session: Any = ServerSession.builder.remote(server.url).create()
    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
    return session  # type: ignore[no-any-return]  # it has all of SparkSession but the context


def _settings_of_session(server: ConnectServer, block: SparkBlock) -> dict[str, str]:
    """Returns the settings of the session. Raises ConfigError for one in the pipeline file that is no session's."""
    given = block.properties()
    others = [name for name in given if not name.startswith(OF_SESSION)]
    others += ["spark.driver.memory"] * (block.driver_memory is not None)
    others += ["spark.pyspark.python"] * (block.python is not None)
    if others:
        raise ConfigError(
            f"the block `spark` of the pipeline file sets {', '.join(sorted(others))}, which a session on the Spark "
            f"Connect server {server} can't set: set it where the server is started, and remove it from the file",
            key="spark",
        )
    required = {name: value for name, value in REQUIRED_SETTINGS.items() if name.startswith(OF_SESSION)}
    # Texts first: from then on, no plan of this session gets into the log or the pages of the server.
    hidden = {HIDDEN_TEXT: EVERYTHING, _HIDDEN_OPTIONS: f"(?i)url|{REQUIRED_SETTINGS['spark.redaction.regex'][4:]}"}
    return hidden | given | required | {_OWN_CODE: "true"}


def _check_encryption(spark: SparkSession, server: ConnectServer, block: SparkBlock) -> None:
    """Raises ConfigError if the server hands tasks, which hold passwords, to its executors unencrypted."""
    if block.encryption == "none" or is_local(_setting(spark, "spark.master")):
        return
    missing = [f"--conf {name}={value}" for name, value in ENCRYPTION.items() if _setting(spark, name) != value]
    if missing:
        raise ConfigError(
            f"the Spark Connect server {server} sends tasks to its executors unencrypted, and they hold the Kafka "
            f"password: start it with {' '.join(missing)}, or write `spark: {{encryption: none}}` into the pipeline "
            f"file to go without",
            key="spark.encryption",
        )


def _check_kafka_source(spark: SparkSession, server: ConnectServer) -> None:
    options = {"kafka.bootstrap.servers": "none:1", "subscribe": "none"}  # its columns need no broker
    try:
        _ = spark.read.format("kafka").options(**options).load().schema
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_NOT_FOUND":
            raise
        raise ConfigError(
            f"the Spark Connect server {server} has no Kafka source: start it with `--packages {packages()}`",
            key="spark.jars.packages",
        ) from None


def describe_server(server: ConnectServer) -> str:
    """Opens a session, so that all is checked that a run checks, and returns a line about the server.

    Raises what `open_server_session` raises.
    """
    spark = open_server_session(server, SparkBlock())
    return f"{server}: Spark {spark.version}, {application_of(spark).cores} cores, Kafka source"


def _setting(spark: SparkSession, name: str) -> str:
    return str(spark.conf.get(name, None))


def _ship_code(spark: SparkSession) -> None:
    """Gives the session the package and the folder of the handlers."""
    with tempfile.TemporaryDirectory(prefix="ackline-code-") as folder:
        spark.addArtifacts(str(build_archive(Path(folder, ARCHIVE), handlers_folder())), pyfile=True)


def _end(spark: SparkSession, server: ConnectServer) -> None:
    """Ends the session: the server removes its code, and cancels what it still runs."""
    session: Any = spark
    with suppress(Exception):
        _reach(server)
        session.interruptAll()
        session.stop()
    # Also if the server is gone: pyspark has a client that is not closed call its server when the process ends, and try
    # again for ten minutes.
    with suppress(Exception):
        session.client.close()


def _reach(server: ConnectServer) -> None:
    """Raises OSError within `CONNECT_SECONDS` if nothing listens: pyspark would try again for ten minutes."""
    socket.create_connection((server.host.strip("[]"), server.port), CONNECT_SECONDS).close()


def _not_opened(server: ConnectServer, error: PySparkException) -> AcklineError:
    reason = error.getCondition() or type(error).__name__
    if any(word in str(error) for word in ("UNAUTHENTICATED", "PERMISSION_DENIED")):
        return ConfigError(f"the Spark Connect server {server} refuses this client ({reason}): check user and token")
    return TransientError(
        f"the Spark Connect server {server} gave no session ({reason}): check that it is a server of the same version "
        f"of Spark, and that its log shows no error"
    )
