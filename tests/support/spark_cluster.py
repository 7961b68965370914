"""A standalone Spark cluster for tests: a master and workers, each of them like a machine of its own.

Where the system allows it, a worker has its own network, processes, host name and mounts: it reaches the test's machine
by an address, and does not see the folders that are hidden from it. Elsewhere the workers are plain processes.
"""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ackline.errors import FatalError
from ackline.local.connection import LOOPBACK
from ackline.local.processes import Server, Startable, free_ports, start, wait_until

READY_SECONDS = 180.0
_SPARK_CLASS = "spark-class"
"""pyspark's script, beside the interpreter."""
_NAMESPACES = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
_START = """
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip link set lo up
ip addr add "$ADDRESS/24" dev eth0
ip link set eth0 up
hostname "$NAME"
for folder in $HIDDEN; do mount -t tmpfs -o size=64m tmpfs "$folder"; done
exec "$@"
"""


def namespaces_work() -> bool:
    """Returns whether this process may give a worker a network and mounts of its own."""
    try:
        _ip("link", "add", name := f"ackl{secrets.token_hex(3)}", "type", "bridge")
        _ip("link", "delete", name)
        done = subprocess.run([*_NAMESPACES, "true"], capture_output=True, check=False)
    except (OSError, subprocess.CalledProcessError):
        return False
    return done.returncode == 0


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass(slots=True)
class Worker:
    """One worker, with the address and the host name of its machine."""

    name: str
    host: str
    address: str
    server: Server
    log: Path

    def kill(self) -> None:
        """Ends the worker with its executors and their Python processes by SIGKILL, as if its machine lost power."""
        self.server.kill()
        self.server.stop(0)

    def is_decided(self) -> bool:
        """Returns whether the master has accepted the worker, or the worker has ended."""
        accepted = "Successfully registered with master" in self.log.read_text(errors="replace")
        return accepted or not self.server.alive()


@dataclass(slots=True)
class SparkCluster(Startable):
    """A master, and the workers that `add_worker` starts. A context manager that ends all of them."""

    folder: Path
    separate: bool = field(default_factory=namespaces_work)
    """Whether each worker has a network and mounts of its own."""
    address: str = LOOPBACK
    """This machine's address in the network of the workers."""
    java_options: str = ""
    """JVM options of master and workers, beside those that they always have."""
    workers: list[Worker] = field(default_factory=list)
    _bridge: str = ""
    _port: int = 0
    _master: Server | None = None
    _started: int = 0

    @property
    def url(self) -> str:
        return f"spark://{self.address}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a driver uses this cluster. They name the folder of spark-defaults.conf."""
        return {"ACKLINE_SPARK_MASTER": self.url, "SPARK_CONF_DIR": str(self._defaults.parent)}

    @property
    def quick_environment(self) -> dict[str, str]:
        """The variables with which a driver that spark-submit does not start uses this cluster.

        They name the file with the settings. A folder of settings would come first in the class path of the JVM, so
        that it could not use an archive of classes.
        """
        return {
            "ACKLINE_SPARK_MASTER": self.url,
            "PYSPARK_SUBMIT_ARGS": f"--properties-file {self._defaults} pyspark-shell",
        }

    @property
    def _defaults(self) -> Path:
        """The file with the settings of master, workers and drivers."""
        return self.folder / "conf" / "spark-defaults.conf"

    def start(self) -> None:
        """Makes the network and the settings, and starts the master."""
        self._defaults.parent.mkdir(parents=True)
        self._defaults.write_text(
            "spark.authenticate true\nspark.network.crypto.enabled true\n"
            f"spark.authenticate.secret {secrets.token_hex(16)}\nspark.master.rest.enabled false\n"
            # A machine that is gone answers nothing, and Spark waits two minutes for it by default.
            "spark.shuffle.io.connectionCreationTimeout 15s\nspark.rpc.io.connectionCreationTimeout 15s\n"
        )
        try:
            self._make_network()
            self._start_master()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends workers, master and network. May be called repeatedly."""
        for worker in self.workers:
            worker.kill()
        self.workers.clear()
        if self._master is not None:
            self._master.stop(0)
            self._master = None
        if self._bridge:
            _ip("link", "delete", self._bridge)
            self._bridge = ""

    def add_worker(
        self, *, memory: str = "1g", hidden: Iterable[Path] = (), environment: Mapping[str, str] | None = None
    ) -> Worker:
        """Starts a worker with one core. In place of each folder of `hidden` it sees a private one, which is empty."""
        self._started += 1
        name = f"worker-{self._started}"
        address = f"{self.address.rpartition('.')[0]}.{self._started + 1}" if self.separate else LOOPBACK
        log, work = self.folder / f"{name}.log", self.folder / name
        work.mkdir()
        command = self._daemon("worker.Worker", "--host", address, "--cores", "1", "--memory", memory)
        command += ["--work-dir", str(work), "--webui-port", "0", self.url]
        env = self._environment_of(address) | dict(environment or {})
        if self.separate:
            env |= {"ADDRESS": address, "NAME": name, "HIDDEN": " ".join(map(str, hidden))}
            command = [*_NAMESPACES, "bash", "-euc", _START, "bash", *command]
        server = start(command, env=env, log=log, folder=self.folder)
        host = name if self.separate else socket.gethostname()
        worker = Worker(name, host, address, server, log)
        self.workers.append(worker)
        if self.separate:
            self._connect(server.pid)
        return worker

    def wait_for_workers(self) -> None:
        """Waits until the master has accepted every worker. Raises FatalError with the log of one that it has not."""
        for worker in self.workers:
            if not wait_until(worker.is_decided, READY_SECONDS) or not worker.server.alive():
                end = worker.log.read_text(errors="replace")[-800:]
                raise FatalError(f"{worker.name} did not register; {worker.log} ends with: {end}")

    def remove(self, worker: Worker) -> None:
        """Kills a worker, and forgets it."""
        worker.kill()
        self.workers.remove(worker)

    def kill_executor(self, folder: str) -> None:
        """Kills the JVM of the executor whose working folder this is by SIGKILL. Its worker goes on."""
        for process in psutil.process_iter(["cmdline"]):
            if any("CoarseGrainedExecutorBackend" in word for word in process.info["cmdline"] or ()):
                with suppress(psutil.Error):
                    if process.cwd() == folder:
                        process.kill()
                        return
        raise FatalError(f"no executor works in {folder}")

    def _make_network(self) -> None:
        if not self.separate:
            return
        number = secrets.randbelow(250) + 2
        self.address = f"198.18.{number}.1"  # a range that is reserved for tests of networks
        bridge = f"ackl{secrets.token_hex(3)}"
        _ip("link", "add", bridge, "type", "bridge")
        self._bridge = bridge
        _ip("address", "add", f"{self.address}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")

    def _connect(self, pid: int) -> None:
        """Connects the network of a process to the bridge, once the process has a network of its own."""
        own = os.readlink("/proc/self/ns/net")
        if not wait_until(lambda: os.readlink(f"/proc/{pid}/ns/net") != own, READY_SECONDS):
            raise FatalError(f"process {pid} got no network of its own")
        link = f"ackl{secrets.token_hex(3)}"
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _ip("link", "set", link, "master", self._bridge)
        _ip("link", "set", link, "up")

    def _start_master(self) -> None:
        self._port, web = free_ports(2)
        log = self.folder / "master.log"
        command = self._daemon("master.Master", "--host", self.address, "--port", str(self._port))
        command += ["--webui-port", str(web)]
        self._master = start(command, env=self._environment_of(self.address), log=log, folder=self.folder)
        up = "I have been elected leader"
        if not wait_until(lambda: up in log.read_text(errors="replace"), READY_SECONDS):
            raise FatalError(f"the master did not start; {log} ends with: {log.read_text(errors='replace')[-800:]}")

    def _daemon(self, name: str, *arguments: str) -> list[str]:
        return [_SPARK_CLASS, f"org.apache.spark.deploy.{name}", "--properties-file", str(self._defaults), *arguments]

    def _environment_of(self, address: str) -> dict[str, str]:
        """Returns the environment of a daemon: nothing of the project, and Spark's own settings."""
        others = ("ACKLINE_", "PYTHON", "SPARK_CONF_DIR")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        return kept | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {self.java_options}",
        }
