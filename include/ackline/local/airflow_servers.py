"""A real Airflow on this machine, on SQLite: scheduler, API server, DAG processor and triggerer, each a process.

Each server leads a session, and its tasks run in that session. So `stop` can end every process, which `airflow
standalone` does not offer. Port, login and secrets are saved in the home: an Airflow started there again is the same.
"""

import os
import secrets
import signal
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ackline.errors import FatalError
from ackline.local.airflow_api import AirflowApi
from ackline.local.connection import LOOPBACK
from ackline.local.processes import Server, Startable, end, end_of, free_ports, save, start, wait_until
from ackline.stored import Stored
from ackline.tables.lease import ProcessIdentity

READY_SECONDS = 180.0
STOP_SECONDS = 10.0
SAVED = "airflow_stack.json"
"""The file in a home that holds a `SavedAirflow`."""
USERNAME = "admin"
SERVERS = ("api-server", "scheduler", "dag-processor", "triggerer")
"""The servers of an Airflow. The triggerer wakes deferred tasks; runs of Airflow's own backfill need it."""


@dataclass(frozen=True, slots=True)
class SavedAirflow(Stored):
    """Ports and secrets of the Airflow of a home. `processes` are pid and start of each server last started."""

    port: int
    log_port: int
    password: str
    viewer_password: str
    jwt_secret: str
    api_secret: str
    fernet_key: str
    processes: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def new(cls) -> "SavedAirflow":
        """Returns free ports and new secrets."""
        port, log_port = free_ports(2)
        return cls(
            port=port,
            log_port=log_port,
            password=secrets.token_urlsafe(12),
            viewer_password=secrets.token_urlsafe(12),
            jwt_secret=secrets.token_hex(32),
            api_secret=secrets.token_hex(32),
            fernet_key=urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        )

    @property
    def identities(self) -> list[ProcessIdentity]:
        """The servers as processes, each the leader of its session."""
        return [ProcessIdentity(pid, started) for pid, started in self.processes]

    @property
    def url(self) -> str:
        """The address of the API server and its pages."""
        return f"http://{LOOPBACK}:{self.port}"


class LocalAirflow(AirflowApi, Startable):
    """The Airflow of a home; a context manager that starts and stops it.

    `env` adds to the environment of its processes, and so to Airflow's settings. The caller's AIRFLOW variables are
    ignored. A `detached` Airflow survives the process that starts it; see `running` and `stop_running`. Without
    `triggerer` no deferred task goes on; it saves some 200 MB and seconds.
    """

    def __init__(
        self,
        home: Path,
        *,
        dags_folder: Path,
        plugins_folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        detached: bool = False,
        triggerer: bool = True,
    ) -> None:
        self.home = home.absolute()
        saved = SavedAirflow.read(self.home / SAVED) or SavedAirflow.new()
        self._saved = replace(saved, port=port or saved.port, processes=[])
        super().__init__(self._saved.url, USERNAME, self._saved.password)
        self.viewer = AirflowApi(self.url, "viewer", self._saved.viewer_password)
        self._folders = (dags_folder.absolute(), (plugins_folder or self.home / "plugins").absolute())
        self._env = dict(env or {})
        self._detached = detached
        self._names = SERVERS if triggerer else tuple(name for name in SERVERS if name != "triggerer")
        # A killed server stays here until `stop`, because the tasks that it has started still run.
        self._servers: list[tuple[str, Server]] = []

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which the command `airflow` works on this Airflow."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        local = ",".join(filter(None, [inherited.get("NO_PROXY"), LOOPBACK, "localhost"]))
        path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
        python = {"PATH": path, "PYSPARK_PYTHON": sys.executable, "NO_PROXY": local, "no_proxy": local}
        return inherited | python | self._settings() | self._env

    def start(self) -> None:
        """Starts all servers and waits until they are healthy. Raises FatalError with the end of their logs."""
        if running(self.home):
            raise FatalError(f"an Airflow runs in {self.home} already")
        self.home.mkdir(parents=True, exist_ok=True)
        logins = {USERNAME: self._saved.password, "viewer": self._saved.viewer_password}
        save(self.home / "logins.json", logins)
        self._migrate()
        since = datetime.now(UTC)
        try:
            for name in self._names:
                self._start(name)
            self._wait_until_healthy(since)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all servers, their tasks and the processes of the tasks. May be called repeatedly."""
        end([server.identity for _, server in self._servers], STOP_SECONDS)
        for _, server in self._servers:
            server.stop(0)
        self._servers.clear()

    def kill_scheduler(self, tasks: bool = False) -> None:
        """Sends SIGKILL to the scheduler, like a crash: the tasks that it has started go on.

        With `tasks`, also to these and to all that they have started, as when the scheduler's container ends.
        """
        for name, server in self._servers:
            if name == "scheduler":
                server.kill(session=tasks)

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Stops all servers for as long as the context lasts, so that they write nothing; their tasks go on.

        SQLite refuses a process that reads and then writes in one transaction if another one has written in between.
        `airflow backfill create` is such a process, and the servers write several times a second.
        """
        groups = [server.identity.pid for _, server in self._servers if server.alive()]
        for group in groups:
            os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            for group in groups:
                os.killpg(group, signal.SIGCONT)

    def start_ended(self) -> None:
        """Starts each server again that has ended, as a process manager does, and waits until all are healthy.

        A server that ends while this waits is started again, too. Raises FatalError with the end of the logs.
        """
        since = datetime.now(UTC)

        def healthy() -> bool:
            for name in self._ended():
                self._start(name)
            return self.healthy(since)

        if not wait_until(healthy, READY_SECONDS, poll_seconds=0.2):
            raise self._not_healthy(self._names)

    def log_of(self, server: str) -> Path:
        """Returns the file with the output of a server."""
        return self.home / f"{server}.log"

    def _settings(self) -> dict[str, str]:
        dags, plugins = self._folders
        saved = self._saved
        settings = {
            "core.dags_folder": dags,
            "core.plugins_folder": plugins,
            "core.load_examples": False,
            "core.executor": "LocalExecutor",
            "core.parallelism": 4,
            "core.fernet_key": saved.fernet_key,
            "core.execution_api_server_url": f"{self.url}/execution/",
            "core.simple_auth_manager_users": f"{USERNAME}:admin,viewer:viewer",
            "core.simple_auth_manager_passwords_file": self.home / "logins.json",
            "database.sql_alchemy_conn": f"sqlite:///{self.home / 'airflow.db'}",
            "database.load_default_connections": False,
            "api.host": LOOPBACK,
            "api.port": saved.port,
            "api.base_url": self.url,
            "api.workers": 1,
            "api.secret_key": saved.api_secret,
            "api_auth.jwt_secret": saved.jwt_secret,
            "dag_processor.refresh_interval": 5,
            "dag_processor.min_file_process_interval": 5,
            "dag_processor.parsing_processes": 1,
            "logging.base_log_folder": self.home / "logs",
            "logging.worker_log_server_port": saved.log_port,
            "usage_data_collection.enabled": False,
        }
        names = {key: f"AIRFLOW__{key.replace('.', '__').upper()}" for key in settings}
        return {"AIRFLOW_HOME": str(self.home)} | {names[key]: str(value) for key, value in settings.items()}

    def _migrate(self) -> None:
        done = self.home / "migrated"
        if done.exists():
            return
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        with (self.home / "migrate.log").open("wb") as log:
            status = subprocess.run(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            ).returncode
        if status != 0:
            raise FatalError(f"`airflow db migrate` failed: {end_of(self.home / 'migrate.log')}")
        done.touch()

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "airflow", name]
        environment, log = self.environment, self.log_of(name)
        server = start(command, env=environment, log=log, folder=self.home, detached=self._detached)
        self._servers.append((name, server))
        processes = [(server.identity.pid, server.identity.started) for _, server in self._servers]
        save(self.home / SAVED, replace(self._saved, processes=processes))

    def _wait_until_healthy(self, since: datetime) -> None:
        healthy = wait_until(lambda: bool(self._ended()) or self.healthy(since), READY_SECONDS, poll_seconds=0.2)
        if not healthy or self._ended():
            raise self._not_healthy(self._ended() or self._names)

    def _ended(self) -> list[str]:
        return [name for name, server in dict(self._servers).items() if not server.alive()]

    def _not_healthy(self, names: Iterable[str]) -> FatalError:
        logs = "\n".join(f"{name}: {end_of(self.log_of(name))}" for name in names)
        return FatalError(f"Airflow did not start; {self.home} has the logs:\n{logs}")


def running(home: Path) -> AirflowApi | None:
    """Returns the Airflow that runs in a home, also if another process started it; None if no server runs."""
    saved = SavedAirflow.read(home / SAVED)
    if saved is None or not any(identity.alive() for identity in saved.identities):
        return None
    return AirflowApi(saved.url, USERNAME, saved.password)


def stop_running(home: Path) -> bool:
    """Ends the Airflow of a home and its tasks, also if another process started it; returns whether it was running."""
    saved = SavedAirflow.read(home / SAVED)
    if saved is None:
        return False
    was_running = running(home) is not None
    end(saved.identities, STOP_SECONDS)
    return was_running
