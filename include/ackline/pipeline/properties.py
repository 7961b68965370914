"""What a file and a connection may hold for Kafka and Spark: properties, and secrets of Ackline. Pure.

A pipeline file that sets a property which would break Ackline's rules is refused, with the reason. In a connection,
which others share, such a property is ignored: `ackline.kafka.config` leaves it out.

The extra of a connection may hold the secret of the keyed hash by which the audit table finds a record without holding
its key. The hash is the HMAC-SHA256 of the key's raw bytes, cut to 128 bits and written in 32 hexadecimal digits: two
keys of a billion share a hash with a probability of about 1 in 10^21. Without the secret a reader of the table can't
test which key a hash is of, however few keys there are.
"""

import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any

from ackline.errors import ConfigError

BROKER = "`connection` or `bootstrap_servers` names the broker"


def _reason_by_name(names_by_reason: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in names_by_reason.items() for name in names.split()}


REFUSAL_REASONS = _reason_by_name({
    "`group_id` of the pipeline file names the group, and no client of Ackline joins it":
        "group.id group.instance.id group.protocol group.protocol.type group.remote.assignor "
        "partition.assignment.strategy",
    "only Ackline commits offsets, and only up to the floor":
        "enable.auto.commit auto.commit.enable auto.commit.interval.ms enable.auto.offset.store offset.store.method "
        "offset.store.path offset.store.sync.interval.ms",
    "`start` sets the initial position, and nothing may skip records later": "auto.offset.reset",
    "exact reads need it on, as the proof that a record is gone": "enable.partition.eof",
    "`kafka.isolation` of the pipeline file sets it": "isolation.level",
    "Ackline reports a missing topic and does not create it": "allow.auto.create.topics",
    "it would make topics look missing": "topic.blacklist",
    "it would run code, or hide records, between Kafka and Ackline":
        "plugin.library.paths interceptors interceptor.classes",
    "Ackline reads keys and values as bytes; `decode` converts them":
        "key.deserializer value.deserializer key.serializer value.serializer",
    "it floods the log and shows what the client sends": "debug",
    BROKER: "bootstrap.servers metadata.broker.list",
    "Ackline always sends dead letters idempotently, with acks=all":
        "acks request.required.acks enable.idempotence enable.gapless.guarantee transactional.id "
        "transaction.timeout.ms",
    "the broker decides which records are too large": "message.max.bytes",
})  # fmt: skip

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


_OBSERVERS = frozenset({"error_cb", "throttle_cb", "stats_cb", "log_cb", "on_commit"})
_MANAGED = re.compile(r"\.kafka(-serverless)?\.[a-z0-9-]+\.amazonaws\.com|managedkafka.*cloud\.goog", re.IGNORECASE)
"""Brokers to which Airflow's Kafka provider logs in by a Python callback of its own, with OAUTHBEARER."""


def properties_of_connection(name: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties that the extra of the Kafka connection `name` holds, without the callbacks that only
    observe: their names would be paths of Python functions, and Ackline imports none of them.

    Raises ConfigError if the connection logs in by a Python callback, which the Java client of Spark can't call.
    """
    mechanism = str(extra.get("sasl.mechanism") or extra.get("sasl.mechanisms") or "").upper()
    by_callback = mechanism == "OAUTHBEARER" and str(extra.get("sasl.oauthbearer.method")).lower() != "oidc"
    managed = by_callback and _MANAGED.search(str(extra.get("bootstrap.servers", "")))
    if managed or extra.get("oauth_cb") is not None:
        raise ConfigError(
            f"the Kafka connection {name} logs in by a Python callback (oauth_cb, or that of Airflow's Kafka provider "
            f"for Amazon MSK and Google Cloud), which Spark's Kafka source can't call; use "
            f"`sasl.oauthbearer.method: oidc`, SASL PLAIN, SCRAM or certificates",
            key="kafka.connection",
        )
    return {key: value for key, value in extra.items() if key not in _OBSERVERS}


REFUSED_FOR_SPARK = _reason_by_name({
    "a second attempt beside the first would call the handler twice for a record":
        "spark.speculation spark.speculation.*",
    "Ackline decides how often Spark submits a stage":
        "spark.stage.maxAttempts spark.stage.maxConsecutiveAttempts spark.stage.ignoreDecommissionFetchFailure",
    "the Airflow connection `spark_default`, or ACKLINE_SPARK_MASTER, names the master":
        "spark.master spark.remote spark.api.mode spark.connect.*",
    "the pipeline's name is the name of the application": "spark.app.name",
    "the driver runs beside the command or the Airflow task, which ends it": "spark.submit.deployMode",
    "Ackline ships its own code and the folder of the handlers with the job; `archives` brings other packages":
        "spark.submit.pyFiles spark.yarn.dist.pyFiles spark.executorEnv.PYTHONPATH",
    "Ackline gives Spark the JARs of its lock file, verified by hash; ACKLINE_JARS=packages or cluster changes that":
        "spark.jars*",
    "write `archives` instead": "spark.archives spark.yarn.dist.archives",
    "write `python` instead": "spark.pyspark.python",
    "the driver runs in the Python that starts it": "spark.pyspark.driver.python",
    "the Kafka password travels in the tasks; to waive authentication and encryption, write `encryption: none`":
        "spark.python.authenticate.socketTimeout spark.authenticate* spark.network.crypto.* spark.network.sasl.* "
        "spark.io.encryption.*",
    "write `driver_memory` instead": "spark.driver.memory",
    "it applies to deploy mode `cluster` alone, which Ackline does not use": "spark.driver.cores",
    "write `executor_memory` instead": "spark.executor.memory",
    "write `executor_cores` instead": "spark.executor.cores",
    "the JVM of the driver has started before it reads this; Ackline sets it":
        "spark.driver.extraJavaOptions spark.driver.defaultJavaOptions spark.driver.extraClassPath "
        "spark.driver.extraLibraryPath spark.driver.userClassPathFirst",
    "steps must run as one job, so Ackline sets it": "spark.sql.adaptive.enabled",
    "batches, time zone and casts decide the outcomes of records, so Ackline sets them":
        "spark.sql.session.timeZone spark.sql.ansi.enabled spark.sql.execution.arrow.maxRecordsPerBatch "
        "spark.sql.execution.arrow.maxBytesPerBatch",
    "reads are exact only with Ackline's settings of the Kafka source":
        "spark.sql.sources.useV1SourceList spark.kafka.* spark.streaming.kafka.*",
    "Ackline writes the tables itself, and no Delta setting of Spark applies to them":
        "spark.sql.extensions spark.databricks.delta.* spark.delta.* spark.sql.catalog*",
    "Ackline sets it, so that no secret shows in Spark's logs and pages": "spark.redaction.regex spark.sql.redaction.*",
    "it writes all settings into the log": "spark.logConf",
    "Ackline keeps notes of its own under such names": "spark.sql.ackline.*",
})  # fmt: skip
"""Properties that a pipeline file may not set, with the reason. A `*` stands for any rest of a name."""

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
    for refused, reason in REFUSED_FOR_SPARK.items():
        if name == refused or (refused.endswith("*") and name.startswith(refused[:-1])):
            return reason
    if not name.startswith(_NAMES_OF_SECRETS) and any(word in name.lower() for word in _SECRET):
        return "its value looks like a secret, and would show in `ps` and in logs; spark-defaults.conf is its place"
    return None


def is_true(value: object) -> bool:
    """Returns whether Spark takes a value for true."""
    return str(value).strip().lower() == "true"


SECRET = "ackline.key_hash_secret"
"""The extra of the Kafka connection that holds the secret."""
PREFIX = "ackline."
"""What the names of Ackline's own extras begin with. Kafka's clients refuse them."""
_LEAST = 16

KeyHash = Callable[[bytes], int]


def key_hash(secret: bytes) -> KeyHash:
    """Returns the function that hashes a key under this secret: the first 64 bits of its HMAC-SHA256, as a signed
    number. So a question for one of 10⁹ keys gets rows of another key once in 10¹⁰ times."""
    keyed = hmac.new(secret, digestmod="sha256")

    def hashed(key: bytes) -> int:
        copy = keyed.copy()  # the secret is hashed once, which halves the time a key takes
        copy.update(key)
        return int.from_bytes(copy.digest()[:8], "big", signed=True)

    return hashed


def secret_of(connection: Mapping[str, Any], name: str | None) -> bytes:
    """Returns the secret in the extra of the Kafka connection `name`.

    Raises ConfigError if the extra has none, or one of fewer than 16 characters. The message quotes nothing of it.
    """
    secret = connection.get(SECRET)
    if not isinstance(secret, str) or len(secret) < _LEAST:
        problem = f"has no `{SECRET}`" if secret is None else f"has a `{SECRET}` that is no text of {_LEAST} characters"
        raise ConfigError(
            f"the extra of the Kafka connection {name or '(none)'} {problem}: set it to a random text of at least "
            f"{_LEAST} characters, and keep it: under another secret the same key has another hash",
            key="audit.key_hash",
        )
    return secret.encode()


def without_own_settings(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of a connection without Ackline's own, which hold secrets that no Kafka client needs."""
    return {name: value for name, value in properties.items() if not name.startswith(PREFIX)}
