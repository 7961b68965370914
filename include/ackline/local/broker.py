"""A real Kafka broker of one node (KRaft) on free loopback ports, for the demo, `ackline dev` and the tests.

Its settings are for one machine: each internal topic has one partition and one replica, a topic is never created
automatically, and the broker is ready within seconds. Data and ports are saved in its folder: a broker started there
again is the same cluster.
"""

import os
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ackline.errors import FatalError
from ackline.local.connection import LOOPBACK, SAVED, SavedBroker, listens
from ackline.local.processes import Server, Startable, end, end_of, free_ports, save, start, wait_until
from ackline.spark import jars
from ackline.tables.lease import ProcessIdentity

READY_SECONDS = 180.0
STOP_SECONDS = 20.0
SETTINGS = {
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    # With one partition there is a single coordinator to wait for, and the broker does not create 50 folders.
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a kill the node can register again only when its old session has ended.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    "log.cleaner.threads": "1",
}
JVM = ["-XX:+UseSerialGC"]
"""JVM options of a broker besides its heap. Tests add to them."""
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


class Broker(Startable):
    """The broker of a folder; a context manager that starts and stops it.

    `config` adds to the broker's settings. `heap_mb` limits its heap, in MiB. `port` is the port for clients; the
    default is the saved port of this folder, or a free one. A `detached` broker survives the process that starts it;
    see `running` and `stop_running`. A broker that `joins` another is node `node` of its cluster and no controller.
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
        saved = SavedBroker.read(self.directory / SAVED)
        client, controller = (saved.port, saved.controller_port) if saved else free_ports(2)
        self.port = port or client
        self._controller_port = controller

    @property
    def bootstrap(self) -> str:
        """The value of a client's `bootstrap.servers`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The broker's process number. Raises FatalError while it does not run."""
        if self._server is None:
            raise FatalError("the broker is not running")
        return self._server.pid

    @property
    def log(self) -> Path:
        """The file with the broker's output."""
        return self.directory / "broker.log"

    def start(self) -> None:
        """Starts the broker and waits until it coordinates consumer groups; does nothing if it runs.

        Raises FatalError with the end of its log if it does not start, and ConfigError if Java or the JARs are missing.
        """
        if self._server is not None and self._server.alive():
            return
        if other := running(self.directory):
            raise FatalError(f"a broker runs in {self.directory} already: process {other.pid}")
        self._format()
        heap = [f"-Xmx{self._heap_mb}m", f"-Xms{min(self._heap_mb, 256)}m", *JVM]
        logging = f"-Dlog4j2.configurationFile={(self.directory / 'log4j2.properties').as_uri()}"
        command = [*self._java(), *heap, logging, "kafka.Kafka", str(self._properties)]
        self._server = start(command, env=os.environ, log=self.log, folder=self.directory, detached=self._detached)
        try:
            process = self._server.identity
            saved = SavedBroker(self.port, self._controller_port, process.pid, process.started)
            save(self.directory / SAVED, saved)
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Shuts the broker down; only its folder is left. May be called repeatedly."""
        if self._server is not None:
            self._server.stop(STOP_SECONDS)
            self._server = None

    def kill(self) -> None:
        """Sends SIGKILL, like a crash. May be called repeatedly."""
        if self._server is not None:
            self._server.kill()
            self._server.stop(0)
            self._server = None

    def bounce(self) -> None:
        """Kills the broker and starts it again with the same data and ports."""
        self.kill()
        self.start()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Creates a topic and waits until each partition has a leader. Raises KafkaException, e.g. if it exists."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))])[name].result(30)

        def led() -> bool:
            topic = admin.list_topics(name, timeout=10).topics[name]
            leaders = [partition.leader for partition in topic.partitions.values()]
            return topic.error is None and len(leaders) == partitions and all(leader > 0 for leader in leaders)

        if not wait_until(led, READY_SECONDS):
            raise FatalError(f"topic {name} got no leader; see {self.log}")

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _java(self) -> list[str]:
        return [jars.java(), "-cp", jars.broker_classpath()]

    def _format(self) -> None:
        """Writes the settings, and formats the storage once for a folder; formatting that was interrupted is redone."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        controller, clients = self._joins or self, f"PLAINTEXT://{self.bootstrap}"
        settings = {
            **SETTINGS,
            "node.id": str(self._node),
            "log.dirs": str(data),
            # It is its own controller, unless it joins another broker.
            "process.roles": "broker,controller" if controller is self else "broker",
            "listeners": clients + (f",CONTROLLER://{LOOPBACK}:{self._controller_port}" * (controller is self)),
            "advertised.listeners": clients,
            "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{controller._controller_port}",
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

    def _cluster_id(self) -> str:
        """Returns the id of a new cluster, or that of the broker it joins, which must have been started before."""
        if self._joins is None:
            return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        stored = (self._joins.directory / "data" / "meta.properties").read_text()
        return next(line.partition("=")[2] for line in stored.splitlines() if line.startswith("cluster.id="))

    def _wait_until_ready(self) -> None:
        host = self.bootstrap.partition(":")[0]
        if wait_until(lambda: self._ended() or listens(self.port, host), READY_SECONDS) and not self._ended():
            probe = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "ackline-probe", "log_level": 0})
            try:
                ready = wait_until(lambda: self._ended() or _has_coordinator(probe), READY_SECONDS)
            finally:
                probe.close()
            if ready and not self._ended():
                return
        raise FatalError(f"the broker did not start; {self.log} ends with: {end_of(self.log)}")

    def _ended(self) -> bool:
        return self._server is None or not self._server.alive()


def running(directory: Path) -> SavedBroker | None:
    """Returns the broker that runs in a folder, also if another process started it; None if none runs."""
    saved = SavedBroker.read(directory / SAVED)
    return saved if saved is not None and identity_of(saved).alive() else None


def stop_running(directory: Path) -> bool:
    """Shuts down the broker of a folder, also if another process started it; returns whether one was running."""
    saved = running(directory)
    if saved is None:
        return False
    end([identity_of(saved)], STOP_SECONDS)
    return True


def identity_of(saved: SavedBroker) -> ProcessIdentity:
    """Returns the process of a saved broker, identified by its number and its start."""
    return ProcessIdentity(saved.pid, saved.started)


def _has_coordinator(probe: Consumer) -> bool:
    """Returns whether the group coordinator answers; until then, other requests for its offsets may crash a client."""
    try:
        probe.committed([TopicPartition("ackline-probe", 0)], timeout=2)
    except KafkaException:
        return False
    return True
