"""The Spark session that Ackline's jobs run in.

Under spark-submit the cluster, the memory and the JARs are what was submitted; otherwise a session of this machine is
started. Either way a few settings hold that the rules depend on. No secret is ever a setting: settings are logged.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

# What the semantics rest on, wherever the session comes from. A second attempt beside the first would call the handler
# twice; a bad cast in a column handler must give null, not fail its neighbours.
RULES = {
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
    # All sources but `kafka`: the older interface takes each record through three forms, a third of the read's time.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # Idle Kafka consumers keep what they fetched ahead, some 20 MiB each, by default 64 of them for five minutes.
    "spark.kafka.consumer.cache.capacity": "1",
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    "spark.redaction.regex": "(?i)secret|password|passwd|token|credential|access[.]?key|sasl|ssl|jaas|oauth|apikey",
}


def open_session(app_name: str = "ackline") -> SparkSession:
    """The session of this process, started if there is none.

    Outside spark-submit it is `local[*]` with 1 GiB, or what ACKLINE_SPARK_MASTER and ACKLINE_SPARK_MEMORY say, without
    a user interface and with a quiet log. Raises ConfigError where the JARs of the Kafka source are not installed.
    """
    # Workers start the interpreter named here, else whatever `python3` is first on their PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    settings = RULES if _submitted() else RULES | _local_settings()
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _local_settings() -> dict[str, str]:
    from ackline.spark.jars import kafka_source_jars

    log4j2 = Path(__file__).with_name("log4j2.properties")
    return {
        "spark.master": os.environ.get("ACKLINE_SPARK_MASTER", "local[*]"),
        "spark.driver.memory": os.environ.get("ACKLINE_SPARK_MEMORY", "1g"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j2.as_uri()} -XX:+UseParallelGC",
        "spark.jars": ",".join(str(jar) for jar in kafka_source_jars()),
        # So that workers find the handlers that this process finds.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(_own_paths()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
    }


def _own_paths() -> list[str]:
    """Where this process imports from, beside the interpreter's own folders."""
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    paths = dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path)
    return [path for path in paths if not installed & {Path(path), *Path(path).parents}]
