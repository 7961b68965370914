"""Spark properties that a pipeline file may not set, each with the reason. Pure."""

from collections.abc import Mapping

_SECOND_ATTEMPT = "a second attempt beside the first would call the handler twice for a record"
_MASTER = "the Airflow connection `spark_default`, or ACKLINE_SPARK_MASTER, names the master"
_CODE = "Ackline ships its own code and the folder of the handlers with the job; `archives` brings other packages"
_JARS = "Ackline gives Spark the JARs of its lock file, which are verified by hash"
_ENCRYPTION = (
    "the Kafka password travels in the tasks; to waive authentication and encryption, write `encryption: none`"
)
_KAFKA = "reads are exact only with Ackline's settings of the Kafka source"
_DELTA = "Ackline writes the tables itself, and no Delta setting of Spark applies to them"
_OUTCOMES = "batches, time zone and casts decide the outcomes of records, so Ackline sets them"
_DRIVER = "the JVM of the driver has started before it reads this; Ackline sets it"

REFUSED: Mapping[str, str] = {
    "spark.speculation": _SECOND_ATTEMPT,
    "spark.stage.maxAttempts": "Ackline decides how often Spark submits a stage",
    "spark.stage.maxConsecutiveAttempts": "Ackline decides how often Spark submits a stage",
    "spark.stage.ignoreDecommissionFetchFailure": "Ackline decides how often Spark submits a stage",
    "spark.master": _MASTER,
    "spark.remote": _MASTER,
    "spark.api.mode": _MASTER,
    "spark.app.name": "the pipeline's name is the name of the application",
    "spark.submit.deployMode": "the driver runs beside the command or the Airflow task, which ends it",
    "spark.submit.pyFiles": _CODE,
    "spark.yarn.dist.pyFiles": _CODE,
    "spark.archives": "write `archives` instead",
    "spark.yarn.dist.archives": "write `archives` instead",
    "spark.pyspark.python": "write `python` instead",
    "spark.pyspark.driver.python": "the driver runs in the Python that starts it",
    "spark.executorEnv.PYTHONPATH": _CODE,
    "spark.python.authenticate.socketTimeout": _ENCRYPTION,
    "spark.driver.memory": "write `driver_memory` instead",
    "spark.driver.cores": "it applies to deploy mode `cluster` alone, which Ackline does not use",
    "spark.executor.memory": "write `executor_memory` instead",
    "spark.executor.cores": "write `executor_cores` instead",
    "spark.driver.extraJavaOptions": _DRIVER,
    "spark.driver.defaultJavaOptions": _DRIVER,
    "spark.driver.extraClassPath": _DRIVER,
    "spark.driver.extraLibraryPath": _DRIVER,
    "spark.driver.userClassPathFirst": _DRIVER,
    "spark.sql.session.timeZone": _OUTCOMES,
    "spark.sql.ansi.enabled": _OUTCOMES,
    "spark.sql.execution.arrow.maxRecordsPerBatch": _OUTCOMES,
    "spark.sql.execution.arrow.maxBytesPerBatch": _OUTCOMES,
    "spark.sql.sources.useV1SourceList": _KAFKA,
    "spark.sql.extensions": _DELTA,
    "spark.redaction.regex": "Ackline sets it, so that no secret shows in Spark's logs and pages",
    "spark.logConf": "it writes all settings into the log",
}
"""Properties with the reason for which a pipeline file may not set them."""

REFUSED_PREFIXES: Mapping[str, str] = {
    "spark.speculation.": _SECOND_ATTEMPT,
    "spark.connect.": _MASTER,
    "spark.jars": _JARS,
    "spark.authenticate": _ENCRYPTION,
    "spark.network.crypto.": _ENCRYPTION,
    "spark.network.sasl.": _ENCRYPTION,
    "spark.io.encryption.": _ENCRYPTION,
    "spark.kafka.": _KAFKA,
    "spark.streaming.kafka.": _KAFKA,
    "spark.databricks.delta.": _DELTA,
    "spark.delta.": _DELTA,
    "spark.sql.catalog": _DELTA,
}
"""Beginnings of names of such properties."""

_SECRET = ("secret", "password", "passwd", "token", "credential", "accesskey", "access.key", "jaas", "apikey")
_NAMES_OF_SECRETS = ("spark.kubernetes.executor.secret", "spark.kubernetes.driver.secret")
"""Kubernetes mounts a secret by its name; these properties hold none."""

DYNAMIC_ALLOCATION = "spark.dynamicAllocation.enabled"
DYNAMIC_ALLOCATION_REASON = (
    "at most once, executors that come and go would repeat tasks; remove it, or write `guarantee: at_least_once`"
)


def allowed_spark_property(name: str) -> str:
    """Returns the name of a property that a pipeline file may set. Raises ValueError with the reason if it may not."""
    reason = _refusal_reason(name)
    if reason is not None:
        raise ValueError(f"this Spark property is refused: {reason}; remove it")
    return name


def _refusal_reason(name: str) -> str | None:
    if not name.startswith("spark."):
        return "the names of Spark properties begin with `spark.`"
    if name in REFUSED:
        return REFUSED[name]
    for prefix, reason in REFUSED_PREFIXES.items():
        if name.startswith(prefix):
            return reason
    if not name.startswith(_NAMES_OF_SECRETS) and any(word in name.lower() for word in _SECRET):
        return "its value looks like a secret, and would show in `ps` and in logs; spark-defaults.conf is its place"
    return None


def is_true(value: object) -> bool:
    """Returns whether Spark takes a value for true."""
    return str(value).strip().lower() == "true"
