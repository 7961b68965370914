"""Kafka and Spark properties that would break the rules of Ackline, each with the reason. Pure.

Kafka client properties that would break Ackline's rules, each with the reason. Pure.

A pipeline file that sets one is refused. In a connection it is ignored: `ackline.kafka.config` leaves it out.

Spark properties that a pipeline file may not set, each with the reason. Pure.
"""

from collections.abc import Mapping

_POSITION = "only Ackline commits offsets, and only up to the floor"
_GROUP = "`group_id` of the pipeline file names the group, and no client of Ackline joins it"
_BYTES = "Ackline reads keys and values as bytes; `decode` converts them"
_CODE = "it would run code, or hide records, between Kafka and Ackline"
BROKER = "`connection` or `bootstrap_servers` names the broker"
_PRODUCER = "Ackline always sends dead letters idempotently, with acks=all"

REFUSAL_REASONS: Mapping[str, str] = {
    "group.id": _GROUP,
    "group.instance.id": _GROUP,
    "group.protocol": _GROUP,
    "group.protocol.type": _GROUP,
    "group.remote.assignor": _GROUP,
    "partition.assignment.strategy": _GROUP,
    "enable.auto.commit": _POSITION,
    "auto.commit.enable": _POSITION,
    "auto.commit.interval.ms": _POSITION,
    "enable.auto.offset.store": _POSITION,
    "offset.store.method": _POSITION,
    "offset.store.path": _POSITION,
    "offset.store.sync.interval.ms": _POSITION,
    "auto.offset.reset": "`start` sets the initial position, and nothing may skip records later",
    "enable.partition.eof": "exact reads need it on, as the proof that a record is gone",
    "isolation.level": "`kafka.isolation` of the pipeline file sets it",
    "allow.auto.create.topics": "Ackline reports a missing topic and does not create it",
    "topic.blacklist": "it would make topics look missing",
    "plugin.library.paths": _CODE,
    "interceptors": _CODE,
    "interceptor.classes": _CODE,
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "debug": "it floods the log and shows what the client sends",
    "bootstrap.servers": BROKER,
    "metadata.broker.list": BROKER,
    "acks": _PRODUCER,
    "request.required.acks": _PRODUCER,
    "enable.idempotence": _PRODUCER,
    "enable.gapless.guarantee": _PRODUCER,
    "transactional.id": _PRODUCER,
    "transaction.timeout.ms": _PRODUCER,
    "message.max.bytes": "the broker decides which records are too large",
}

PRODUCER_ONLY = frozenset({
    "acks", "batch.num.messages", "batch.size", "compression.codec", "compression.level", "compression.type",
    "delivery.report.only.error", "delivery.timeout.ms", "enable.gapless.guarantee", "enable.idempotence",
    "linger.ms", "message.send.max.retries", "message.timeout.ms", "partitioner",
    "queue.buffering.backpressure.threshold", "queue.buffering.max.kbytes", "queue.buffering.max.messages",
    "queue.buffering.max.ms", "queuing.strategy", "request.required.acks", "request.timeout.ms", "retries",
    "sticky.partitioning.linger.ms", "transaction.timeout.ms", "transactional.id",
})  # fmt: skip
"""Properties that only a producer takes."""

_OUR_VALUES = {
    "enable.auto.commit": "false",
    "auto.commit.enable": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "allow.auto.create.topics": "false",
    "enable.idempotence": "true",
    "acks": "all",
    "request.required.acks": "all",
}
"""The values that Ackline's own clients have. A connection with the same value needs no warning."""


def without_topic_prefix(name: str) -> str:
    """Returns the name under which Kafka's client applies a property: it takes `topic.acks` for `acks`."""
    return name.removeprefix("topic.")


def ignored_properties(properties: Mapping[str, object], group_id: str, isolation: str) -> dict[str, str]:
    """Returns the properties of a connection that Ackline ignores, each with the reason.

    Leaves out those whose value is what Ackline does anyway, and the broker's address, which is not ignored.
    """
    ours = {**_OUR_VALUES, "group.id": group_id, "isolation.level": isolation}
    ignored = {}
    for name, value in sorted(properties.items()):
        plain = without_topic_prefix(name)
        if value is None or plain not in REFUSAL_REASONS or REFUSAL_REASONS[plain] is BROKER:
            continue
        if str(value).lower() != ours.get(plain, "").lower():
            ignored[name] = REFUSAL_REASONS[plain]
    return ignored


def refused_properties(properties: Mapping[str, object]) -> dict[str, str]:
    """Returns the properties that a pipeline file may not set, each with the reason; empty if all are allowed.

    In an Airflow connection these names are no error, because other users may need them: `client_config` leaves them
    out, and `ignored_properties` reports them.
    """
    reasons = {}
    for name in properties:
        plain = without_topic_prefix(name)
        if name.startswith("schema.registry."):
            reasons[name] = "it belongs in the extra of the Kafka connection; `schema_registry` may hold the address"
        elif name.endswith("_cb"):
            reasons[name] = "a callback is code, not a property"
        elif plain in REFUSAL_REASONS:
            reasons[name] = REFUSAL_REASONS[plain]
        elif plain in PRODUCER_ONLY:
            reasons[name] = "only a producer has it, and these properties configure the consumer"
    return reasons


def broker_addresses(text: str) -> str:
    """Returns `text` if it may be a list of broker addresses.

    Raises ValueError if it holds a login, without quoting it: Kafka takes no login there, and addresses are shown.
    """
    if "@" in text:
        raise ValueError(
            "an address holds a login; write HOST:PORT, and put the login into `sasl.username` and `sasl.password`"
        )
    return text


_SECOND_ATTEMPT = "a second attempt beside the first would call the handler twice for a record"
_MASTER = "the Airflow connection `spark_default`, or ACKLINE_SPARK_MASTER, names the master"
_SPARK_CODE = "Ackline ships its own code and the folder of the handlers with the job; `archives` brings other packages"
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
    "spark.submit.pyFiles": _SPARK_CODE,
    "spark.yarn.dist.pyFiles": _SPARK_CODE,
    "spark.archives": "write `archives` instead",
    "spark.yarn.dist.archives": "write `archives` instead",
    "spark.pyspark.python": "write `python` instead",
    "spark.pyspark.driver.python": "the driver runs in the Python that starts it",
    "spark.executorEnv.PYTHONPATH": _SPARK_CODE,
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
