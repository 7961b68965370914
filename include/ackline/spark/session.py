"""The Spark session that Ackline's jobs run in.

Under spark-submit, the submission decides on the cluster, the memory and the JARs. Otherwise `open_session` starts a
session on this machine. Both get the settings that Ackline's rules depend on. Spark logs its settings, so a secret is
never one.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

REQUIRED_SETTINGS = {
    # A speculative attempt beside the first would call the handler twice.
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    # A bad cast in a column handler must give null for its row, and must not fail the other rows.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
    # All sources but `kafka`: the older interface converts each record three times, a third of the reading time.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # An idle Kafka consumer keeps the records that it has fetched ahead, some 20 MiB. By default Spark keeps 64 idle
    # consumers, for five minutes.
    "spark.kafka.consumer.cache.capacity": "1",
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    "spark.redaction.regex": "(?i)secret|password|passwd|token|credential|access[.]?key|sasl|ssl|jaas|oauth|apikey",
}


def open_session(app_name: str = "ackline") -> SparkSession:
    """Returns the session of this process; starts one if there is none.

    Outside spark-submit the session is `local[*]` with 1 GiB, without a user interface and with a quiet log.
    ACKLINE_SPARK_MASTER and ACKLINE_SPARK_MEMORY override that. Raises ConfigError if the JARs of the Kafka source are
    not installed.
    """
    # Python workers use this interpreter. Without it they use the first `python3` on their PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    settings = REQUIRED_SETTINGS if _submitted() else REQUIRED_SETTINGS | _local_settings()
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
        # With this path the workers import the same handlers as this process.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(_import_paths()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
    }


def _import_paths() -> list[str]:
    """Returns the folders that this process imports from, without those of the interpreter."""
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    paths = dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path)
    return [path for path in paths if not installed & {Path(path), *Path(path).parents}]
