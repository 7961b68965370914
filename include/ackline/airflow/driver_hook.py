"""The Spark driver beside a replay task: the hook that starts it, its settings, its environment, and how it ended.

The module imports the provider's operator and hook without opening a socket. The provider imports urllib3, which binds
a socket to find out whether the machine has IPv6. A DAG file must open no socket, because Airflow parses it every few
seconds. So urllib3 gets the answer of Python's own `socket.has_ipv6`.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from ackline.airflow import NEEDED
from ackline.airflow.driver import GRACE_SECONDS, LASTING, SECRETS, TASK, Secrets
from ackline.airflow.traces import trace_of_task, without_headers
from ackline.forms.connections import Connection as FoundConnection
from ackline.forms.connections import without_airflow
from ackline.pipeline.folder import handlers_folder
from ackline.spark.jars import java
from ackline.spark.master import (
    MASTER,
    SPARK_CONNECTION,
    check_deploy_mode,
    check_environment,
    check_master,
    connect_server,
    is_local,
    master_of,
)
from ackline.spark.settings import DAEMON
from ackline.tables.lease import ProcessIdentity

_probed = "urllib3.util.connection" in sys.modules
_has_ipv6, socket.has_ipv6 = socket.has_ipv6, False
try:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ModuleNotFoundError as error:
    raise ImportError(f"{NEEDED} ({error.name} is missing)", name=error.name) from None
finally:
    socket.has_ipv6 = _has_ipv6
if not _probed and "urllib3.util.connection" in sys.modules:
    sys.modules["urllib3.util.connection"].HAS_IPV6 = _has_ipv6  # type: ignore[attr-defined]

__all__ = ["SPARK_CONNECTION", "SparkSubmitHook", "SparkSubmitOperator"]


_logger = logging.getLogger(__name__)


def raise_for_exit_status(hook: SparkSubmitHook | None, error: AirflowException, void: str) -> NoReturn:
    """Raises the AcklineError of a driver if another try would fail too, else `error`. `void` is the command that
    closes the turn."""
    # The line in which the driver named the cause, out of all that spark-submit printed.
    lines = [line.strip() for line in str(error).splitlines() if line.strip().startswith("ackline: ")]
    text = lines[-1] if lines else "replay failed; see the log above"
    if isinstance(hook, DriverHook) and hook.exit_status in LASTING:
        raise LASTING[hook.exit_status](text) from None
    if isinstance(hook, DriverHook) and (hook.exit_status is None or hook.exit_status < 0 or hook.exit_status > 128):
        # The driver died of a signal, so its own error could not name the way out of a turn that kills each driver.
        _logger.warning("the driver was killed; if each retry ends so, `%s` closes the turn", void)
    raise error


class DriverHook(SparkSubmitHook):
    """The provider's hook, for a driver beside the task that has its own environment.

    Only that process gets the environment, and from a pipe the secrets. The provider would pass the environment as
    visible arguments to YARN and Kubernetes, and would copy Airflow's own secrets into it. With a Spark Connect server
    the driver is a client: Python runs it, without spark-submit and without a JVM. Raises ConfigError for deploy mode
    `cluster`.
    """

    def __init__(self, secrets: Secrets, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._secrets = secrets
        check_deploy_mode(self._connection["deploy_mode"])
        named, source = self._connection["master"], f"the Airflow connection {SPARK_CONNECTION}"
        self._server = connect_server(named, source)
        if self._server is not None:
            master = check_master(_with_login(self.get_connection(self._conn_id)), source)
            self._server, named = connect_server(master, source), str(self._server)
            self._secrets = replace(secrets, spark_master=master)
        else:
            check_master(named, source)
            check_environment()
            java()
            self._conf = driver_settings(named)
        # The driver needs the master before it has a Spark context, to choose the settings of its session.
        self._environment = {**driver_environment(), MASTER: named}

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """Returns the connection; a local master if it is not defined, for which the provider would take YARN."""
        try:
            return super().get_connection(conn_id)
        except AirflowNotFoundException:
            return Connection(conn_id=conn_id, conn_type="spark", host="local[*]")

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the driver until it ends. Raises AirflowException if its exit status is not 0."""
        with handed_over(replace(self._secrets, trace=trace_of_task()).encode()) as pipe:
            return super().submit(application, env={**self._environment, SECRETS: pipe}, **kwargs)

    def on_kill(self) -> None:
        """End the driver. A client of a Spark Connect server gets GRACE_SECONDS to end its job there."""
        if self._server is not None and self._submit_sp is not None:
            self._submit_sp.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._submit_sp.wait(GRACE_SECONDS)
        super().on_kill()

    def _build_spark_submit_command(self, application: str) -> list[str]:
        if self._server is None:
            return super()._build_spark_submit_command(application)
        self.log.info("the driver is a client of %s", self._server)
        return [sys.executable, application, *map(str, self._application_args or ())]

    @property
    def exit_status(self) -> int | None:
        """The exit status of the driver; None before it has ended."""
        return None if self._submit_sp is None else self._submit_sp.returncode


def _with_login(connection: Connection) -> str:
    """Returns the address of the Spark Connect server that a connection names, with user, token and TLS."""
    fields = (connection.login, connection.password, connection.extra_dejson, connection.host, connection.port)
    return master_of(FoundConnection(str(connection.conn_type), *fields))


def driver_settings(master: str) -> dict[str, str]:
    """Returns the Spark settings of the driver: the JARs of the Kafka source, and a quiet log. On a local master its
    ports are on loopback only; on a standalone master it has its address in that network, as in `ackline run`."""
    from ackline.spark.jars import jar_settings
    from ackline.spark.jvm import driver_options
    from ackline.spark.master import address_towards

    settings = {
        "spark.driver.extraJavaOptions": driver_options(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        **jar_settings(),
    }
    if is_local(master):
        settings |= DAEMON | {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
    elif address := address_towards(master):
        settings["spark.driver.host"] = address
    return settings


@contextmanager
def handed_over(content: str) -> Iterator[str]:
    """Yields the path of a named pipe whose first reader gets `content`, which is never on a disk. Only processes of
    this user can open it, and the reader removes it."""
    with TemporaryDirectory(prefix="ackline-") as folder:
        pipe = os.path.join(folder, "secrets")
        os.mkfifo(pipe, 0o600)

        def write() -> None:
            with suppress(OSError), open(pipe, "w", encoding="utf-8") as stream:  # waits for the reader
                stream.write(content)

        writer = threading.Thread(target=write, name="ackline-secrets", daemon=True)
        writer.start()
        try:
            yield pipe
        finally:
            # If the driver has ended before it has read anything, the writer still waits for a reader, or is about to.
            while writer.is_alive() and os.path.exists(pipe):
                reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
                writer.join(timeout=0.05)
                os.close(reader)
            writer.join(timeout=5)


def driver_environment() -> dict[str, str]:
    """Returns the environment of the driver: that of the task without AIRFLOW variables, which hold secrets, and
    without the login of a collector of traces."""
    kept = without_headers(without_airflow(os.environ))
    folders = [str(handlers_folder()), *filter(None, [kept.get("PYTHONPATH")])]
    # spark-submit is beside the interpreter. A scheduler may not have it on its PATH.
    commands = [os.path.dirname(sys.executable), kept.get("PATH", os.defpath)]
    kept |= {
        TASK: str(ProcessIdentity.of(os.getpid())),
        "PATH": os.pathsep.join(commands),
        "PYTHONPATH": os.pathsep.join(folders),
    }
    kept.setdefault("PYSPARK_PYTHON", sys.executable)
    # The driver is beside the task, so it has its Python. A variable of another project may name `jupyter`.
    kept["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return kept
