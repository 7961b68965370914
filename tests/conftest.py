"""What all tests share: an environment apart from the user's own, and one broker for the session."""

import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest
from hypothesis import HealthCheck, settings

from ackline.local import broker as broker_module
from ackline.local.broker import Broker
from tests import class_data
from tests.object_store.store import ObjectStore, object_store
from tests.support.brokers import Brokers

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
# A test starts processes by the dozen, each of which would compile the project's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["SPARK_SUBMIT_OPTS"] = class_data.options()
broker_module.JVM.append(class_data.FIRST_COMPILER)
# A proxy can't reach the servers that the tests start.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
# py4j logs while the interpreter exits, when pytest has closed the standard error.
logging.getLogger("py4j").setLevel(logging.WARNING)


_WITHOUT_SPARK = {"unit", "project"}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes the archive of Spark's classes before the first test, if a test may start Spark."""
    folders = {item.path.relative_to(Path(__file__).parent).parts[0] for item in session.items}
    if folders - _WITHOUT_SPARK and not session.config.option.collectonly:
        class_data.make_archive()


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
