"""A session on a Spark Connect server: its settings, the code that travels with it, and its other clients.

A server is shared. So each setting is one of the session, and code travels as an artifact of the session: the server
starts Python workers for each session apart, so a later version of a handler never meets the modules of an earlier one.
A pipeline file that needs a setting which no session can set is refused.

A session stays on the server when its client ends, because its Python workers take longer to start than a small turn,
and because Spark never ends their parent process. Its id is made of its settings, the code and the day: the next client
with the same ones finds it, and so do clients at the same time. Therefore no client changes a setting of a session that
is ready, and a client that ends cancels what it runs itself, and nothing else.
"""

import atexit
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ackline.delta.errors import temporary_folder
from ackline.errors import AcklineError, ConfigError, TransientError
from ackline.forms.connections import without_airflow
from ackline.pipeline.blocks import SparkBlock
from ackline.pipeline.folder import handlers_folder
from ackline.spark.application import EVERYTHING, HIDDEN_TEXT, TAG, application_of
from ackline.spark.jars import packages
from ackline.spark.master import DEV_SERVER, ConnectServer, SavedServer, dev_spark_folder, is_local
from ackline.spark.settings import (
    ARCHIVE,
    ENCRYPTION,
    OF_SESSION,
    REQUIRED_SETTINGS,
    build_archive,
    data_beside,
    import_paths,
)

CONNECT_SECONDS = 5.0
_RETRIES = 6
"""How often pyspark repeats a request that did not reach the server, with pauses of 70 s in all. By default it goes on
for ten minutes, at the end of the process once more; but a server that starts again has lost the session."""
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""The variable by which pyspark's functions, such as those of a column handler, make columns for a server."""
_OWN_CODE = "spark.sql.artifact.isolation.enabled"
"""Spark's default: each session has code and Python workers of its own."""
_HIDDEN_OPTIONS = "spark.sql.redaction.options.regex"
_READY = "spark.sql.ackline.ready"
"""The setting of a session that is set last: the session has all others, and the code."""
_IN_CLEAR = (
    "and the Kafka password travels in the plan: connect by TLS (`sc://HOST:PORT/;use_ssl=true`), or write "
    "`spark: {encryption: none}` into the pipeline file to go without"
)

_NOT_OF_HANDLERS = re.compile(
    r"(_?SPARK_|PYSPARK_|PYTHONPATH|PYTHONHASHSEED|ACKLINE_|TERM|TMUX|SSH_|XDG_|DBUS_|GPG_|WAYLAND_|VSCODE_|LC_TERM)|"
    r"(_|PWD|OLDPWD|SHLVL|COLORTERM|COLUMNS|LINES|LS_COLORS|WINDOWID|DISPLAY|STY|PS1|INVOCATION_ID|JOURNAL_STREAM)$"
)
"""Variables of a terminal, and those that Spark's scripts and Ackline set: they differ each time."""
_NAMED = 8

log = logging.getLogger(__name__)

_opened: dict[str, SparkSession] = {}
"""The session of this process, by the address of its server."""


def open_server_session(server: ConnectServer, block: SparkBlock) -> SparkSession:
    """Returns the session of this process on the server; opens one if there is none, or if the server has closed it. It
    stays when the process ends. Raises ConfigError if the pipeline file asks for what only the start of a server can
    set, or if a password would travel unencrypted, and TransientError if no server answers."""
    if (spark := _opened.pop(server.url, None)) is not None:
        if _is_open(spark, server):
            return _opened.setdefault(server.url, spark)
        _end(spark, server)
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
    with temporary_folder("ackline-code-") as folder:
        code = build_archive(folder / ARCHIVE, handlers_folder())
        # Its Python workers keep what modules have read.
        here = [*import_paths(), *data_beside(handlers_folder())] if server.loopback else []
        spark = _opened[server.url] = _shared_session(server, block, settings, code, here)
    _warn_of_environment(server)
    atexit.register(_end, spark, server)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # By default the process would end without `_end`, and the server would go on with the job.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return spark


def _is_open(spark: SparkSession, server: ConnectServer) -> bool:
    """Returns whether the server has the session. It closes one that no client has used for a while, by default for an
    hour, and a server that has started again has none."""
    try:
        _reach(server)
        return bool(spark.conf.get(_READY, ""))
    except (OSError, PySparkException):
        return False


def _shared_session(
    server: ConnectServer, block: SparkBlock, settings: dict[str, str], code: Path, here: Sequence[str] = ()
) -> SparkSession:
    """Returns the session of all clients with these settings, this code and these files `here`, ready for jobs."""
    content, number = json.dumps([settings, *here], sort_keys=True).encode() + code.read_bytes(), 0
    while True:
        spark = _session_on(server, session_id(content, datetime.now(UTC).date(), number))
        try:
            _check_encryption(spark, server, block)
            if not spark.conf.get(_READY, ""):
                _prepare(spark, server, settings, code)
            return spark
        except BaseException as error:
            _end(spark, server)
            if not isinstance(error, PySparkException):
                raise
            if error.getCondition() != "INVALID_HANDLE.SESSION_CLOSED":
                raise _not_opened(server, error) from None
        # A server closes a session that no client has used for an hour, and lets no other have its id.
        number += 1


def _warn_of_environment(server: ConnectServer) -> None:
    """Logs the names of the variables whose values differ between this process and the server of `ackline dev spark`,
    from which its handlers have theirs."""
    saved = SavedServer.read(dev_spark_folder() / DEV_SERVER)
    if saved is None or not server.loopback or server.port != saved.port:
        return
    try:
        words = os.fsdecode(Path(f"/proc/{saved.pid}/environ").read_bytes()).split("\0")
    except OSError:  # it has just ended, or this is no Linux
        return
    then, now = dict(word.partition("=")[::2] for word in words if word), without_airflow(os.environ)
    names = {name for name in {*then, *now} if then.get(name) != now.get(name) and not _NOT_OF_HANDLERS.match(name)}
    if names:
        shown = ", ".join(sorted(names)[:_NAMED]) + f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        log.warning(
            "handlers run in the Spark server of `ackline dev spark`, with the environment of its start, which differs "
            "from that of this run in %s; `ackline dev down` and `ackline dev spark` start it with this one",
            shown,
        )


def session_id(content: bytes, day: date, number: int) -> uuid.UUID:
    """Returns the id of a session. It changes each day: so a client tries few closed sessions before an open one, and
    the session's files on the server do not become so old that a clean-up removes them."""
    digest = hashlib.sha256(f"{day} {number} ".encode() + content).digest()
    return uuid.UUID(bytes=digest[:16], version=4)


def _session_on(server: ConnectServer, id_: uuid.UUID) -> SparkSession:
    from pyspark.sql.connect.client.core import ChannelBuilder, DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ServerSession

    os.environ[_CONNECT_MODE] = "1"
    channel: Any = DefaultChannelBuilder(server.url)
    channel.set(ChannelBuilder.PARAM_SESSION_ID, str(id_))
    session: Any = ServerSession.builder.channelBuilder(channel).create()
    session.release_session_on_close = False
    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
    return session  # type: ignore[no-any-return]  # it has all of SparkSession but the context


def _prepare(spark: SparkSession, server: ConnectServer, settings: dict[str, str], code: Path) -> None:
    """Sets the settings of a session, and sends the code. Other clients may do the same at the same time."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    _check_kafka_source(spark, server)
    # A name of its own: the server refuses a file while another client sends one of the same name, and takes a file
    # that it has begun to receive for complete.
    own = code.with_name(f"{uuid.uuid4()}-{code.name}")
    shutil.copy(code, own)
    spark.addArtifacts(str(own), pyfile=True)
    spark.conf.set(_READY, "true")  # last: another client takes the session as it is from now on


def _settings_of_session(server: ConnectServer, block: SparkBlock) -> dict[str, str]:
    """Returns the settings of the session. Raises ConfigError if the pipeline file has one that no session can set."""
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
    """Opens a session, which checks all that a run checks, and returns a line about the server. Raises what
    `open_server_session` raises."""
    spark = open_server_session(server, SparkBlock())
    return f"{server}: Spark {spark.version}, {application_of(spark).cores} cores, Kafka source"


def _setting(spark: SparkSession, name: str) -> str:
    return str(spark.conf.get(name, None))


def _end(spark: SparkSession, server: ConnectServer) -> None:
    """Ends this client, and cancels what it still runs. The session stays for the next one."""
    session: Any = spark
    with suppress(Exception):
        _reach(server)
        session.interruptTag(TAG)
    # Also if the server is gone: pyspark has a client that is not closed call its server when the process ends, and try
    # again for ten minutes.
    with suppress(Exception):
        session.stop()


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
