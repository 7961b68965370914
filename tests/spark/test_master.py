"""Which masters are one machine, and which are refused."""

import pytest

from ackline.errors import ConfigError
from ackline.spark.master import MASTER, check_master, is_local, master_of_environment


def test_a_master_is_local_if_all_executors_are_on_this_machine() -> None:
    local = ("local", "local[2]", "local[*]", "local[2,4]", "local-cluster[2,1,1024]")
    assert all(is_local(master) for master in local)
    assert not any(is_local(master) for master in ("spark://localhost:7077", "yarn", "k8s://https://h", "localhost"))


def test_the_environment_names_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MASTER, raising=False)
    assert master_of_environment() == "local[*]"
    monkeypatch.setenv(MASTER, "spark://cluster:7077")
    assert master_of_environment() == "spark://cluster:7077"


@pytest.mark.parametrize("master", ["sc://host:15002/;token=abc;use_ssl=true", "sc://user@host"])
def test_spark_connect_is_refused_by_name_and_without_its_token(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    monkeypatch.setenv(MASTER, master)
    with pytest.raises(ConfigError, match=r"names sc://\w+.*, a Spark Connect server") as refused:
        master_of_environment()
    assert "abc" not in str(refused.value)
    with pytest.raises(ConfigError, match="the Airflow connection spark_default names sc://"):
        check_master(master, "the Airflow connection spark_default")


def test_the_variable_by_which_pyspark_chooses_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "local[*]")
    with pytest.raises(ConfigError, match="SPARK_REMOTE"):
        master_of_environment()
