"""Fixtures of the contract tests: clients of the session's broker, a schema registry, and a ledger store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ackline.audit.store import LedgerStore
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.kafka.exact import ExactReader
from ackline.kafka.group import Group
from ackline.kafka.registry import Registry
from ackline.local.broker import Broker
from ackline.local.ports import free_ports
from tests.contract import kafka_log
from tests.schema_registry import StubRegistry, stub_registry


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An audit root that does not exist yet."""
    return str(tmp_path / "audit")


@pytest.fixture
def store(root: str) -> LedgerStore:
    """The store of a lane that has not begun."""
    return LedgerStore(root, "orders", "live")


@pytest.fixture
def kafka(broker: Broker) -> dict[str, object]:
    """The client properties for the session's broker."""
    return kafka_log.config(broker)


@pytest.fixture
def cluster(kafka: dict[str, object]) -> Iterator[Cluster]:
    """The session's broker under read_committed."""
    with Cluster(kafka, "read_committed") as cluster:
        yield cluster


@pytest.fixture
def reader(kafka: dict[str, object]) -> Iterator[ExactReader]:
    """A reader of given offsets under read_committed."""
    with ExactReader(kafka, "read_committed") as reader:
        yield reader


@pytest.fixture
def our_group(kafka: dict[str, object], group: Callable[[], str]) -> Iterator[Group]:
    """A consumer group of this test."""
    with Group(kafka, group()) as our_group:
        yield our_group


@pytest.fixture
def unreachable() -> dict[str, object]:
    """The client properties for an address without a broker."""
    return client_config({"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"})


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    """The server of a schema registry of this test."""
    with stub_registry() as stub:
        yield stub


@pytest.fixture
def registry(stub: StubRegistry) -> Iterator[Registry]:
    """A client of `stub` that sends each request once."""
    registry = Registry({"url": stub.url, "max.retries": 0})
    yield registry
    registry.close()
