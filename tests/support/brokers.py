"""A real Kafka cluster of three brokers (KRaft) on free loopback ports, for tests that one broker is not enough for:
leaders that move, replicas that lag, logs that are truncated.

Node 1 is the controller, holds the groups' offsets and is never stopped. Nodes 2 and 3 lead the partitions; a test may
stop and kill them.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ackline.errors import FatalError
from ackline.local.broker import READY_SECONDS, Broker
from ackline.local.processes import Startable, wait_until

ON_ALL = (2, 3, 1)
"""Replicas on all nodes; node 2 leads while it is up."""


class Brokers(Startable):
    """Three brokers below a folder; a context manager that starts and stops them.

    `config` adds to the settings of each broker. `heap_mb` limits the heap of each, in MiB.
    """

    def __init__(self, directory: Path, *, config: Mapping[str, str] | None = None, heap_mb: int = 256) -> None:
        first = Broker(directory / "1", config=config, heap_mb=heap_mb)
        others = {
            node: Broker(directory / str(node), config=config, heap_mb=heap_mb, joins=first, node=node)
            for node in (2, 3)
        }
        self.nodes: Mapping[int, Broker] = {1: first, **others}
        self._client: AdminClient | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> None:
        """Starts the brokers that do not run. Raises FatalError if one does not start, after ending all of them."""
        try:
            self.nodes[1].start()
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: self.nodes[node].start(), (2, 3)))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all brokers, the controller last. May be called repeatedly."""
        for node in (3, 2):
            self.nodes[node].kill()  # a shutdown would wait for a broker that takes over its partitions
        self.nodes[1].stop()

    def create_topic(
        self, name: str, config: Mapping[str, str] | None = None, replicas: Sequence[Sequence[int]] = (ON_ALL,)
    ) -> None:
        """Creates a topic with one partition for each list of nodes, and waits until the first node of each list leads.

        Raises KafkaException, e.g. if the topic exists.
        """
        assigned = [list(nodes) for nodes in replicas]
        topic = NewTopic(name, len(assigned), replica_assignment=assigned, config=dict(config or {}))
        self._admin().create_topics([topic])[name].result(30)
        for partition, nodes in enumerate(replicas):
            self.await_leader(name, nodes[0], partition)

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Returns the node that leads a partition, by the metadata of node 1; None if no node does."""
        metadata = self._admin().list_topics(topic, timeout=10).topics[topic].partitions.get(partition)
        return metadata.leader if metadata is not None and metadata.leader in self.nodes else None

    def await_leader(self, topic: str, node: int | None, partition: int = 0) -> None:
        """Waits until `node` leads a partition; None: until no node does. Raises FatalError if that takes too long."""
        if not wait_until(lambda: self.leader(topic, partition) == node, READY_SECONDS):
            raise FatalError(f"{topic}[{partition}] is led by {self.leader(topic, partition)}, not by {node}")

    def await_in_sync(self, topic: str, nodes: set[int], partition: int = 0) -> None:
        """Waits until exactly these nodes are in sync. Raises FatalError if that takes too long."""

        def in_sync() -> bool:
            metadata = self._admin().list_topics(topic, timeout=10).topics[topic].partitions[partition]
            return set(metadata.isrs) == nodes

        if not wait_until(in_sync, READY_SECONDS):
            raise FatalError(f"{topic}[{partition}]: the replicas in sync are not {sorted(nodes)}")

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient({"bootstrap.servers": self.nodes[1].bootstrap})
        return self._client
