"""A Spark Connect server on a loopback port, for `ackline dev spark` and the tests: a Spark that stays warm.

A client of the server can run code as this user, so it takes only clients that have its token. The token is in
the file that the folder of the server saves for its owner alone, where `ackline.spark.master` finds it.
"""

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from ackline.errors import ConfigError, FatalError
from ackline.forms.connections import without_airflow
from ackline.local.connection import LOOPBACK, listens
from ackline.local.processes import Server, Startable, end, end_of, free_ports, save, start, wait_until
from ackline.spark.jars import jar_settings
from ackline.spark.jvm import driver_options
from ackline.spark.master import DEV_SERVER, SavedServer, dev_spark_folder
from ackline.spark.settings import LOOPBACK as LOOPBACK_SETTINGS
from ackline.spark.settings import OF_SESSION, REQUIRED_SETTINGS
from ackline.tables.lease import ProcessIdentity

READY_SECONDS = 180.0
STOP_SECONDS = 10.0
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkServer(Startable):
    """The Spark Connect server of a folder; a context manager that starts and stops it.

    `settings` adds to the settings of Spark. `port` is the port for clients; the default is a free one. A `detached`
    server survives the process that starts it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        master: str = "local[*]",
        port: int | None = None,
        detached: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self._settings = dict(settings or {})
        self._master = master
        self._detached = detached
        self._token = secrets.token_urlsafe(24)
        self._server: Server | None = None
        self.port = port or free_ports(1)[0]

    @property
    def url(self) -> str:
        """The address for clients, with the token."""
        return f"sc://localhost:{self.port}/;token={self._token}"

    @property
    def log(self) -> Path:
        """The file with the server's output."""
        return self.directory / "spark.log"

    def start(self) -> None:
        """Starts the server and waits until it takes clients; does nothing if it runs.

        Raises FatalError with the end of its log if it does not start, and ConfigError if Java or the JARs are missing.
        """
        if self._server is not None and self._server.alive():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        options = [word for name, value in self._all_settings().items() for word in ("--conf", f"{name}={value}")]
        command = [str(Path(sys.executable).parent / "spark-submit"), "--class", _CLASS, *options, "spark-internal"]
        environment = without_airflow(os.environ) | {"SPARK_CONNECT_AUTHENTICATE_TOKEN": self._token}
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
        self._server = start(command, env=environment, log=self.log, folder=self.directory, detached=self._detached)
        try:
            if not wait_until(lambda: self._ended() or listens(self.port), READY_SECONDS) or self._ended():
                raise FatalError(f"the Spark Connect server did not start; {self.log} ends with: {end_of(self.log)}")
            process = self._server.identity
            saved = SavedServer(self.port, process.pid, process.started, self._token)
            save(self.directory / DEV_SERVER, saved)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the server with its Python processes. May be called repeatedly."""
        if self._server is not None:
            self._server.stop(STOP_SECONDS)
            self._server = None

    def _all_settings(self) -> dict[str, str]:
        return {
            "spark.master": self._master,
            "spark.driver.memory": os.environ.get("ACKLINE_SPARK_MEMORY", "1g"),
            "spark.driver.extraJavaOptions": driver_options(),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(self.port),
            # Spark never ends the Python daemon of a session that it closes: the next one would start another.
            "spark.connect.session.manager.defaultSessionTimeout": "1d",
            **LOOPBACK_SETTINGS,
            **jar_settings(),
            # What is left are settings of sessions.
            **{name: value for name, value in REQUIRED_SETTINGS.items() if not name.startswith(OF_SESSION)},
            **self._settings,
        }

    def _ended(self) -> bool:
        return self._server is None or not self._server.alive()


def running(directory: Path) -> SavedServer | None:
    """Returns the server that runs in a folder, also if another process started it; None if none runs."""
    saved = SavedServer.read(directory / DEV_SERVER)
    return saved if saved is not None and ProcessIdentity(saved.pid, saved.started).alive() else None


def stop_running(directory: Path) -> bool:
    """Ends the server of a folder, also if another process started it; returns whether one was running."""
    saved = running(directory)
    if saved is not None:
        end([ProcessIdentity(saved.pid, saved.started)], STOP_SECONDS)
    (directory / DEV_SERVER).unlink(missing_ok=True)
    return saved is not None


def dev_spark(port: int | None = None) -> str:
    """Starts the Spark Connect server of `ackline dev` unless it runs, and returns its address. It outlives this
    process. Raises ConfigError if it runs on another port already."""
    saved = running(dev_spark_folder())
    if saved is None:
        started = SparkServer(dev_spark_folder(), port=port, detached=True)
        started.start()
        saved = running(dev_spark_folder())
    if saved is None or port not in (None, saved.port):
        where = saved.address if saved else "nowhere"
        raise ConfigError(f"a Spark Connect server is up already, at {where}; stop it with `ackline dev down`",
                          key="--port")  # fmt: skip
    return saved.address
