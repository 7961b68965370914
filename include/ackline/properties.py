"""Kafka client properties that would break the rules, each with the reason. Pure: pipeline files are checked with it.

How a client is configured from the others is `ackline.kafka.config`'s business.
"""

from collections.abc import Mapping

_POSITION = "Ackline alone moves offsets, and only up to the floor"
_GROUP = "the group is the pipeline file's `group_id`, and no client of Ackline joins it"
_BYTES = "records reach the handler as they are in the log"
_CODE = "it would run code or hide records between Kafka and Ackline"
BROKER = "the broker is named by `connection` or `bootstrap_servers`"
_PRODUCER = "dead letters are always sent idempotently with acks=all"

REASONS: Mapping[str, str] = {
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
    "auto.offset.reset": "where a pipeline starts is `start`; nothing may jump over records later",
    "enable.partition.eof": "exact reads need it on, as proof that a record is gone",
    "isolation.level": "it is `isolation` in the pipeline file",
    "allow.auto.create.topics": "a topic that is missing is reported, not created",
    "topic.blacklist": "it would make topics look missing",
    "plugin.library.paths": _CODE,
    "interceptors": _CODE,
    "interceptor.classes": _CODE,
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "debug": "it floods the log and shows what is on the wire",
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


_AGREED = {
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
"""What Ackline does anyway: a connection that says so is followed."""


def bare(name: str) -> str:
    """The name that Kafka's client goes by: it takes `topic.enable.auto.commit` for `enable.auto.commit`."""
    return name.removeprefix("topic.")


def ignored(properties: Mapping[str, object], group_id: str, isolation: str) -> dict[str, str]:
    """The properties of a shared connection that are not followed, each with the reason; those that say what is done
    anyway are none."""
    agreed = {**_AGREED, "group.id": group_id, "isolation.level": isolation}
    return {
        name: REASONS[bare(name)]
        for name, value in sorted(properties.items())
        if bare(name) in REASONS and REASONS[bare(name)] is not BROKER and value is not None
        if str(value).lower() != agreed.get(bare(name), "").lower()
    }


def refused(properties: Mapping[str, object]) -> dict[str, str]:
    """The properties a pipeline file may not set, each with the reason; empty when all is well.

    The same names in an Airflow connection are no error: it is shared with others who need them. They are
    dropped there (`client_config`), and said (`ignored`).
    """
    reasons = {name: REASONS[bare(name)] for name in properties if bare(name) in REASONS}
    for name in properties:
        if name.startswith("schema.registry."):
            reasons[name] = "it belongs into the Kafka connection's extra; the address may also be in `schema_registry`"
        elif name.endswith("_cb"):
            reasons[name] = "a callback is code, not a property"
        elif bare(name) in PRODUCER_ONLY and name not in reasons:
            reasons[name] = "it is a producer's property; this is how records are read"
    return reasons


def broker_addresses(text: str) -> str:
    """`text`, if it may be a list of brokers. Raises ValueError, without repeating it, where it holds a login: Kafka
    knows none there, and addresses are shown."""
    if "@" in text:
        raise ValueError("a broker is HOST:PORT; a login belongs into `sasl.username` and `sasl.password`")
    return text
