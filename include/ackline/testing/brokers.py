"""A real Kafka cluster of three brokers (KRaft) on free loopback ports, for what one broker can't show: leaders that
move, replicas that lag, logs that are cut.

Node 1 is the controller, and holds the groups' offsets; it stays. Nodes 2 and 3 may be stopped and killed, and lead the
partitions.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ackline.errors import FatalError
from ackline.local.broker import READY_SECONDS, Broker
from ackline.local.processes import wait_until

ON_ALL = (2, 3, 1)
"""Replicas on all nodes, led by node 2 while it is there."""


class Brokers:
    """Three brokers below a folder; a context manager that starts them and stops them.

    `config` adds to the settings of each, `heap_mb` bounds the heap of each in MiB.
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
        """What a client calls `bootstrap.servers`: all three."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start those that do not run. Raises FatalError, with all of them ended, where one does not start."""
        try:
            self.nodes[1].start()
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: self.nodes[node].start(), (2, 3)))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all of them, the controller last. Any number of times."""
        for node in (3, 2):
            self.nodes[node].kill()  # nobody is left to hand its leadership to in good order
        self.nodes[1].stop()

    def create_topic(
        self,
        name: str,
        config: Mapping[str, str] | None = None,
        replicas: Sequence[Sequence[int]] = (ON_ALL,),
    ) -> None:
        """Make a topic with a partition on each of these lists of nodes, and wait until the first of each leads.

        Raises KafkaException, say if it exists.
        """
        assigned = [list(nodes) for nodes in replicas]
        made = NewTopic(name, len(assigned), replica_assignment=assigned, config=dict(config or {}))
        self._admin().create_topics([made])[name].result(30)
        for partition, nodes in enumerate(replicas):
            self.await_leader(name, nodes[0], partition)

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """The node that leads a partition, as node 1 knows it; None where nobody does."""
        found = self._admin().list_topics(topic, timeout=10).topics[topic].partitions.get(partition)
        return found.leader if found is not None and found.leader in self.nodes else None

    def await_leader(self, topic: str, node: int | None, partition: int = 0) -> None:
        """Wait until `node` leads a partition, or nobody. Raises FatalError where that does not come."""
        if not wait_until(lambda: self.leader(topic, partition) == node, READY_SECONDS):
            raise FatalError(f"{topic}[{partition}] is led by {self.leader(topic, partition)}, not by {node}")

    def await_in_sync(self, topic: str, nodes: set[int], partition: int = 0) -> None:
        """Wait until exactly these nodes are in sync. Raises FatalError where that does not come."""

        def in_sync() -> bool:
            found = self._admin().list_topics(topic, timeout=10).topics[topic].partitions[partition]
            return set(found.isrs) == nodes

        if not wait_until(in_sync, READY_SECONDS):
            raise FatalError(f"{topic}[{partition}] did not come to have the replicas {sorted(nodes)} in sync")

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient({"bootstrap.servers": self.nodes[1].bootstrap})
        return self._client
