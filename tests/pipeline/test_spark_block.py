"""The block `spark:`: what it sets, and the properties that a file may not set."""

import pytest

from ackline.errors import ConfigError
from ackline.pipeline.pipeline import load
from ackline.pipeline.properties import REFUSED_FOR_SPARK, allowed_spark_property
from tests.support.pipeline_files import Write

AT_MOST_ONCE = ("handler: ", "guarantee: at_most_once\nhandler: ")


def test_memory_cores_archives_and_properties_become_spark_properties(write_file: Write) -> None:
    block = """
spark:
  driver_memory: 2g
  executor_memory: 4g
  executor_cores: 2
  python: ./environment/bin/python
  archives: [s3a://envs/a.tar.gz#environment, b.zip]
  conf: {spark.cores.max: 8, spark.task.maxFailures: 2, spark.dynamicAllocation.enabled: false}
"""
    spark = load(write_file(more=block)).spark
    assert (spark.driver_memory, spark.python) == ("2g", "./environment/bin/python")
    assert spark.properties() == {
        "spark.cores.max": "8",
        "spark.task.maxFailures": "2",
        "spark.dynamicAllocation.enabled": "false",
        "spark.executor.memory": "4g",
        "spark.executor.cores": "2",
        "spark.archives": "s3a://envs/a.tar.gz#environment,b.zip",
    }


def test_without_the_block_nothing_is_set(write_file: Write) -> None:
    spark = load(write_file()).spark
    assert (spark.properties(), spark.driver_memory, spark.encryption) == ({}, None, "required")


@pytest.mark.parametrize("name", [
    "spark.speculation", "spark.speculation.multiplier", "spark.stage.maxConsecutiveAttempts", "spark.master",
    "spark.submit.pyFiles", "spark.submit.deployMode", "spark.jars", "spark.jars.packages",
    "spark.authenticate", "spark.authenticate.secret", "spark.network.crypto.enabled",
    "spark.io.encryption.enabled", "spark.kafka.consumer.cache.capacity", "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled", "spark.sql.adaptive.enabled", "spark.sql.redaction.options.regex",
    "spark.sql.ackline.ready", "spark.databricks.delta.snapshotPartitions", "spark.executor.memory",
    "spark.driver.memory", "spark.redaction.regex", "spark.hadoop.fs.s3a.secret.key", "spark.my.password",
    "kafka.group.id",
])  # fmt: skip
def test_a_property_that_the_rules_need_is_refused_by_name_line_and_reason(write_file: Write, name: str) -> None:
    path = write_file(more=f"spark:\n  conf:\n    spark.cores.max: 2\n    {name}: 1\n")
    with pytest.raises(ConfigError) as refused:
        load(path)
    line = path.read_text().splitlines().index(f"    {name}: 1") + 1
    assert str(refused.value).startswith(f"{path}:{line}: spark.conf.{name}: this Spark property is refused: ")
    assert str(refused.value).endswith("; remove it")


def test_every_reason_is_a_sentence_of_its_own() -> None:
    for name in REFUSED_FOR_SPARK:
        with pytest.raises(ValueError, match=r"is refused: .{20,}; remove it"):
            allowed_spark_property(name)


def test_a_secret_of_kubernetes_is_mounted_by_its_name() -> None:
    name = "spark.kubernetes.executor.secrets.kafka"
    assert allowed_spark_property(name) == name


def test_i7_at_most_once_executors_that_come_and_go_are_refused(write_file: Write) -> None:
    block = "spark:\n  conf:\n    spark.dynamicAllocation.enabled: true\n"
    assert load(write_file(more=block)).spark.conf
    with pytest.raises(ConfigError, match=r":\d+: spark\.conf\.spark\.dynamicAllocation\.enabled: at most once"):
        load(write_file(AT_MOST_ONCE, more=block))


@pytest.mark.parametrize(("block", "reason"), [
    ("{executor_memory: 2}", "write text"),
    ("{executor_memory: 2 gigabytes}", "write an amount of memory with its unit"),
    ("{executor_cores: 0}", "write 1 or more"),
    ("{encryption: off}", "required or none"),
    ("{archives: ['a,b']}", "has a comma"),
    ("{cores: 2}", "unknown key"),
])  # fmt: skip
def test_a_value_that_spark_would_misread_is_refused(write_file: Write, block: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(write_file(more=f"spark: {block}\n"))


def test_i13_the_settings_of_plans_and_logs_name_properties_without_their_values(write_file: Write) -> None:
    settings = load(write_file(more="spark: {conf: {spark.cores.max: 4711}}\n")).settings()
    assert settings["spark"]["conf"] == ["spark.cores.max"]
    assert "4711" not in str(settings)
