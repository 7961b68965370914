"""What all tests share: an environment apart from the user's own, the servers of the session, and clients of them."""

import logging
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest
from _pytest.nodeid import NodeId
from hypothesis import HealthCheck, settings

from ackline.errors import AcklineError
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.kafka.exact import ExactReader
from ackline.kafka.group import Group
from ackline.kafka.registry import Registry
from ackline.local import broker as broker_module
from ackline.local.broker import Broker
from ackline.local.processes import free_ports
from ackline.spark.jvm import make_archive
from ackline.tables.store import LedgerStore
from tests.airflow.served import end_served, served, served_project, statsd, traces
from tests.kafka import kafka_log
from tests.support import class_data
from tests.support.brokers import Brokers
from tests.support.object_store.store import ObjectStore, object_store
from tests.support.pipeline_files import Write, writer
from tests.support.schema_registry import StubRegistry, stub_registry
from tests.support.seconds import pytest_runtest_makereport, pytest_terminal_summary

# The user's settings of Airflow, Ackline and object stores do not apply to the tests, except for the place of the JARs.
for _name in list(os.environ):
    if _name.startswith(("AIRFLOW", "ACKLINE_", "AWS_", "AZURE_", "GOOGLE_")) and _name not in (
        "ACKLINE_JARS",
        "ACKLINE_IVY_SETTINGS",
    ):
        del os.environ[_name]
_airflow_home = TemporaryDirectory(prefix="ackline-airflow-")
# Airflow creates its home when it is first imported.
os.environ["AIRFLOW_HOME"] = _airflow_home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
# Each process that a test starts finds the handlers of the tests, such as the journal.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# A test starts processes by the dozen, each of which would compile the project's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["SPARK_SUBMIT_OPTS"] = class_data.FIRST_COMPILER
broker_module.JVM.append(class_data.FIRST_COMPILER)
# A proxy can't reach the servers that the tests start.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
# py4j logs while the interpreter exits, when pytest has closed the standard error.
logging.getLogger("py4j").setLevel(logging.WARNING)


__all__ = [
    "pytest_runtest_makereport",
    "pytest_terminal_summary",
    "served",  # one each in a session, for tests/ui and tests/airflow, as the three below
    "served_project",
    "statsd",
    "traces",
]

_TESTS = Path(__file__).parent
_SPARK = {"spark", "two_workers", "machines"}
_AIRFLOW = {"airflow", "served"}
_SERVERS = _SPARK | _AIRFLOW | {"broker", "broker_to_kill", "cluster_of_three", "s3_server"}
"""The fixtures that start a server. Tests that start one by themselves have the mark `real`, and so has a test whose
root is in S3."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that need a server as `real`, and gives each test to a group that runs in one process.

    The tests with Spark are one group, and those with Airflow another, so that two processes share no kind of server.
    These two begin first, because they take longest. The tests of each other file are a group that fills the gaps.
    """
    order: dict[pytest.Item, int] = {}
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        chosen = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        if _SERVERS & fixtures or any(isinstance(each, str) and each == "s3" for each in chosen):
            item.add_marker("real")
        group = "airflow" if _AIRFLOW & fixtures else "spark" if _SPARK & fixtures else ""
        if item.config.getoption("loadgroup", False):
            # pytest-xdist 3.8 writes the group into `_nodeid`, which pytest has not had since 9.1.
            item._id = NodeId.parse(f"{item.nodeid}@{group or item.path.relative_to(_TESTS).as_posix()}")
        order[item] = ("spark", "airflow", "").index(group)
    items.sort(key=order.__getitem__)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes the archive of Spark's classes before the first test, if a test may start Spark."""
    if any(item.get_closest_marker("real") for item in session.items) and not session.config.option.collectonly:
        try:
            make_archive()
        except AcklineError as error:  # on a loaded machine it takes too long: everything works without it
            warnings.warn(str(error), stacklevel=1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends Airflow after the last test that uses it: idle it takes a fifth of a core, which the others lack."""
    uses, goes_on = (_AIRFLOW & set(getattr(each, "fixturenames", ())) for each in (item, nextitem))
    if uses and not goes_on:
        end_served()


class MakeTopic(Protocol):
    """Creates a topic for one test, and returns its name."""

    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str: ...


# A broker that is idle takes 3 % of a core; without a record in the metadata log every half second, 2 %.
IDLE = {"metadata.max.idle.interval.ms": "0"}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker. It compacts within two seconds, and deletes what `retention.ms` lets go within one."""
    settings = {
        "log.cleaner.backoff.ms": "100",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "1000",  # 30 s by default: no retention before that
    }
    with Broker(tmp_path_factory.mktemp("broker"), config=settings | IDLE) as broker:
        yield broker


@pytest.fixture(scope="module")
def broker_to_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The real broker of the fixture `fragile`. Few files use it, so it runs no longer than the tests of a file."""
    with Broker(tmp_path_factory.mktemp("fragile"), heap_mb=256, config=IDLE) as broker:
        yield broker


@pytest.fixture
def fragile(broker_to_kill: Broker) -> Broker:
    """A broker that is up and that a test may kill. It still has the topics of earlier tests of the file."""
    broker_to_kill.start()
    return broker_to_kill


@pytest.fixture
def topic(broker: Broker) -> MakeTopic:
    """A factory of topics."""

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        broker.create_topic(name, partitions, config)
        return name

    return make


@pytest.fixture
def group() -> Callable[[], str]:
    """A factory of names for consumer groups, each for one test."""
    return lambda: f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def cluster_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """The three real brokers of the fixture `brokers`. They run no longer than the tests of a file."""
    with Brokers(tmp_path_factory.mktemp("brokers"), config=IDLE) as brokers:
        yield brokers


@pytest.fixture
def brokers(cluster_of_three: Brokers) -> Brokers:
    """Three brokers, all of them up. A test may stop and kill nodes 2 and 3."""
    cluster_of_three.start()
    return cluster_of_three


@pytest.fixture(scope="session")
def s3_server() -> Iterator[ObjectStore]:
    """An S3 server, which keeps its objects in memory."""
    with object_store() as server:
        yield server


@pytest.fixture
def s3(s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The S3 server, which this process finds by its environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


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


@pytest.fixture
def write_file(tmp_path: Path) -> Write:
    """Writes pipeline files into `tmp_path`."""
    return writer(tmp_path)
