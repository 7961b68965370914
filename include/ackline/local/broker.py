"""A real Kafka broker of one node (KRaft) on free loopback ports, for tests, the demo and `ackline dev`.

It is set for one machine: every internal topic has one partition and one copy, topics are made by hand only,
and it is ready within seconds. Data and ports belong to its folder: started there again it is the same
cluster.
"""

import json
import os
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ackline.errors import FatalError
from ackline.local.ports import LOOPBACK, free_ports
from ackline.local.processes import Identity, Server, end, start, wait_until
from ackline.spark import jars

READY_SECONDS = 60.0
STOP_SECONDS = 20.0
SAVED = "broker.json"
SETTINGS = {
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    # One partition each: a single coordinator to wait for, and no 50 folders to make.
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a kill the node waits for its own former session to end.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    "log.cleaner.threads": "1",
}
JVM = ["-XX:+UseSerialGC"]
"""Options of a broker's Java, beside its heap."""
LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
logger.server.name = kafka.server
logger.server.level = info
"""


class Broker:
    """A broker of its own in a folder; a context manager that starts it and stops it.

    `config` adds to the broker's settings, `heap_mb` bounds its heap in MiB, `port` is the clients' port
    (default: the one it had in this folder, or a free one). A `detached` broker survives the process that
    starts it: see `running` and `stop_running`. One that `joins` another is node number `node` of its cluster, and
    leaves the controlling to it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        config: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        port: int | None = None,
        detached: bool = False,
        joins: "Broker | None" = None,
        node: int = 1,
    ) -> None:
        self.directory = directory.absolute()
        self._joins, self._node = joins, node
        self._config = dict(config or {})
        self._heap_mb = heap_mb
        self._detached = detached
        self._server: Server | None = None
        saved = _saved(self.directory)
        client, controller = (saved.port, saved.controller_port) if saved else free_ports(2)
        self.port = port or client
        self._controller_port = controller

    @property
    def bootstrap(self) -> str:
        """What a client calls `bootstrap.servers`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """Its process. Raises FatalError while it does not run."""
        if self._server is None:
            raise FatalError("the broker is not running")
        return self._server.pid

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.directory / "broker.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it coordinates groups. Raises FatalError with the log's end if it does not.

        Raises ConfigError where Java or the JARs are missing.
        """
        if self._server is not None and self._server.alive():
            return
        if other := running(self.directory):
            raise FatalError(f"a broker runs in {self.directory} already: process {other.identity.pid}")
        self._format()
        heap = [f"-Xmx{self._heap_mb}m", f"-Xms{min(self._heap_mb, 256)}m", *JVM]
        logging = f"-Dlog4j2.configurationFile={(self.directory / 'log4j2.properties').as_uri()}"
        command = [*self._java(), *heap, logging, "kafka.Kafka", str(self._properties)]
        self._server = start(command, env=os.environ, log=self.log, folder=self.directory, detached=self._detached)
        try:
            self._save(self._server)
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it in good order; nothing of it is left but its folder. Any number of times."""
        if self._server is not None:
            self._server.stop(STOP_SECONDS)
            self._server = None

    def kill(self) -> None:
        """SIGKILL, as a crash would be. Any number of times."""
        if self._server is not None:
            self._server.kill()
            self._server.stop(0)
            self._server = None

    def bounce(self) -> None:
        """Kill it and start it again with its data and on its ports."""
        self.kill()
        self.start()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Make a topic and wait until each partition has a leader. Raises KafkaException, say if it exists."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))])[name].result(30)

        def led() -> bool:
            topic = admin.list_topics(name, timeout=10).topics[name]
            leaders = [partition.leader for partition in topic.partitions.values()]
            return topic.error is None and len(leaders) == partitions and all(leader > 0 for leader in leaders)

        if not wait_until(led, READY_SECONDS):
            raise FatalError(f"topic {name} got no leader; see {self.log}", topic=name)

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _java(self) -> list[str]:
        return [jars.java(), "-cp", jars.broker_classpath()]

    def _format(self) -> None:
        """Write the settings and, once for a folder, the storage. An interrupted formatting is done again."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        settings = {
            **SETTINGS,
            "node.id": str(self._node),
            "log.dirs": str(data),
            **self._listeners(),
            **self._config,
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (self.directory / "log4j2.properties").write_text(LOGGING)
        if (data / "meta.properties").exists():
            return
        tool = ["kafka.tools.StorageTool", "format", "-t", self._cluster_id(), "-c", str(self._properties)]
        if self._joins is None:
            tool.append("--standalone")
        command = [*self._java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", *tool]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise FatalError(f"the broker's storage was not formatted: {(done.stdout + done.stderr).strip()[-500:]}")

    def _listeners(self) -> dict[str, str]:
        """Where it listens, and where its controller does: here, unless it joins another."""
        controller = self._joins or self
        listens = f"PLAINTEXT://{self.bootstrap}"
        controls = f",CONTROLLER://{LOOPBACK}:{self._controller_port}" if controller is self else ""
        return {
            "process.roles": "broker,controller" if controller is self else "broker",
            "listeners": listens + controls,
            "advertised.listeners": listens,
            "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{controller._controller_port}",
        }

    def _cluster_id(self) -> str:
        """A new cluster's id, or that of the broker it joins, which has been started by then."""
        if self._joins is None:
            return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        stored = (self._joins.directory / "data" / "meta.properties").read_text()
        return next(line.partition("=")[2] for line in stored.splitlines() if line.startswith("cluster.id="))

    def _wait_until_ready(self) -> None:
        if wait_until(lambda: self._ended() or self._listens(), READY_SECONDS) and not self._ended():
            probe = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "ackline-probe", "log_level": 0})
            try:
                ready = wait_until(lambda: self._ended() or _has_coordinator(probe), READY_SECONDS)
            finally:
                probe.close()
            if ready and not self._ended():
                return
        end_of_log = self.log.read_text(errors="replace")[-800:].strip()
        raise FatalError(f"the broker did not start; {self.log} ends with: {end_of_log}")

    def _ended(self) -> bool:
        return self._server is None or not self._server.alive()

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex((LOOPBACK, self.port)) == 0

    def _save(self, server: Server) -> None:
        saved = SavedBroker(self.port, self._controller_port, server.identity.pid, server.identity.started)
        file = self.directory / SAVED
        scratch = file.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(saved)))
        scratch.replace(file)


@dataclass(frozen=True, slots=True)
class SavedBroker:
    """What a broker's folder says about the last one started in it."""

    port: int
    controller_port: int
    pid: int
    started: int

    @property
    def identity(self) -> Identity:
        """Its process."""
        return Identity(self.pid, self.started)

    @property
    def bootstrap(self) -> str:
        """What a client calls `bootstrap.servers`."""
        return f"{LOOPBACK}:{self.port}"


def running(directory: Path) -> SavedBroker | None:
    """The broker that runs in this folder, whoever started it; None when none does."""
    saved = _saved(directory)
    return saved if saved is not None and saved.identity.alive() else None


def stop_running(directory: Path) -> bool:
    """End the broker of this folder in good order, whoever started it; whether one was running."""
    saved = running(directory)
    if saved is None:
        return False
    end([saved.identity], STOP_SECONDS)
    return True


def _saved(directory: Path) -> SavedBroker | None:
    try:
        return SavedBroker(**json.loads((directory / SAVED).read_text()))
    except FileNotFoundError:
        return None


def _has_coordinator(probe: Consumer) -> bool:
    """Whether group offsets can be asked for. A client that asks for them in another way before may crash."""
    try:
        probe.committed([TopicPartition("ackline-probe", 0)], timeout=2)
    except KafkaException:
        return False
    return True
