"""Fixtures of the contract tests: clients of the session's broker, a schema registry, a ledger store, and tables."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.kafka.exact import ExactReader
from ackline.kafka.group import Group
from ackline.kafka.registry import Registry
from ackline.local.broker import Broker
from ackline.local.processes import free_ports
from ackline.tables.store import LedgerStore
from tests.contract import kafka_log
from tests.contract.tables import Tables, in_memory, on_disk
from tests.object_store.store import ObjectStore
from tests.schema_registry import StubRegistry, stub_registry


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeats the tests of a module with `ROOTS` for each of these audit roots."""
    roots = getattr(metafunc.module, "ROOTS", None)
    chosen = any(mark.args[0] == "root" for mark in metafunc.definition.iter_markers("parametrize"))
    if roots and not chosen and "root" in metafunc.fixturenames:
        metafunc.parametrize("root", roots, indirect=True)


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An audit root that does not exist yet: on the disk, or in S3."""
    if getattr(request, "param", "disk") == "disk":
        return str(tmp_path / "audit")
    store: ObjectStore = request.getfixturevalue("s3")
    return f"{store.bucket(f'bucket-{uuid.uuid4()}')}/audit"


@pytest.fixture
def store(root: str) -> LedgerStore:
    """The store of a lane that has not begun."""
    return LedgerStore(root, "orders", "live")


@pytest.fixture(params=["memory", "delta"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Tables of either kind that do not exist yet."""
    return in_memory() if request.param == "memory" else on_disk(tmp_path / "audit")


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
