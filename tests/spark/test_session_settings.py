"""The settings of a session, on this machine and on a cluster."""

import socket

import pytest

from ackline.pipeline.blocks import SparkBlock
from ackline.spark.session import ENCRYPTION, REQUIRED_SETTINGS, session_settings

NOTHING = SparkBlock()


@pytest.fixture
def master() -> str:
    return "spark://127.0.0.1:7077"


def test_on_this_machine_the_driver_listens_on_the_loopback_and_nothing_is_encrypted() -> None:
    settings = session_settings("local[2]", NOTHING, submitted=False)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert not settings.keys() & ENCRYPTION.keys()
    assert "spark.executorEnv.PYTHONPATH" in settings


def test_on_a_cluster_the_driver_has_the_address_of_its_route_to_the_master() -> None:
    """Executors of other machines connect to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect(("192.0.2.1", 7077))
        address = route.getsockname()[0]
    settings = session_settings("spark://192.0.2.1:7077", NOTHING, submitted=False)
    assert (settings["spark.driver.host"], "spark.driver.bindAddress" in settings) == (address, False)
    assert "spark.executorEnv.PYTHONPATH" not in settings


@pytest.mark.parametrize("cluster", ["yarn", "k8s://https://host", "spark://no-such-host.invalid:7077"])
def test_where_no_route_is_known_spark_chooses_the_address(cluster: str) -> None:
    assert "spark.driver.host" not in session_settings(cluster, NOTHING, submitted=False)


def test_the_file_may_name_the_driver_s_address(master: str) -> None:
    block = SparkBlock(conf={"spark.driver.host": "driver.example"})
    assert session_settings(master, block, submitted=False)["spark.driver.host"] == "driver.example"


@pytest.mark.parametrize("submitted", [True, False])
def test_on_a_cluster_tasks_are_authenticated_and_encrypted_unless_the_file_waives_it(
    master: str, submitted: bool
) -> None:
    """Kafka's password travels in them."""
    settings = session_settings(master, NOTHING, submitted=submitted)
    assert ENCRYPTION.items() <= settings.items()
    waived = session_settings(master, SparkBlock(encryption="none"), submitted=submitted)
    assert not waived.keys() & ENCRYPTION.keys()


def test_what_the_rules_need_is_set_last(master: str) -> None:
    block = SparkBlock.model_construct(
        driver_memory=None, executor_memory=None, executor_cores=None, archives=[], encryption="required",
        conf={"spark.speculation": "true", "spark.authenticate": "false"},
    )  # fmt: skip
    settings = session_settings(master, block, submitted=True)
    assert (REQUIRED_SETTINGS | ENCRYPTION).items() <= settings.items()


def test_the_block_decides_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKLINE_SPARK_MEMORY", "3g")
    block = SparkBlock(driver_memory="2g", executor_memory="4g")
    settings = session_settings("local[2]", block, submitted=False)
    assert (settings["spark.driver.memory"], settings["spark.executor.memory"]) == ("2g", "4g")
    assert session_settings("local[2]", NOTHING, submitted=False)["spark.driver.memory"] == "3g"
    assert "spark.driver.memory" not in session_settings("local[2]", block, submitted=True)
