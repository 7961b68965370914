"""Client properties: those that a connection or a pipeline file sets, and those that Ackline sets itself.

Pure: loads no client library. Two clients read the same topics: librdkafka (bounds, commits, exact reads, dead letters)
and Java's client (Spark's source). Both are configured from one set of librdkafka properties that the user writes.
"""

import re
from collections.abc import Mapping

from ackline.errors import ConfigError
from ackline.kafka.java import java_properties
from ackline.properties import BROKER, PRODUCER_ONLY, REFUSAL_REASONS, broker_addresses, without_topic_prefix

__all__ = ["REQUIRED", "brokers", "client_config", "java_properties", "mask_secrets"]

REQUIRED: Mapping[str, object] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
"""Properties that every consumer of Ackline has. They override those of the connection."""

CONSUMER_ONLY = frozenset({
    "auto.commit.enable", "auto.commit.interval.ms", "auto.offset.reset", "check.crcs",
    "consume.callback.max.messages", "coordinator.query.interval.ms", "enable.auto.commit",
    "enable.auto.offset.store", "enable.partition.eof", "fetch.error.backoff.ms", "fetch.max.bytes",
    "fetch.message.max.bytes", "fetch.min.bytes", "fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.id",
    "group.instance.id", "group.protocol", "group.protocol.type", "group.remote.assignor", "heartbeat.interval.ms",
    "isolation.level", "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records", "offset.store.method",
    "offset.store.path", "offset.store.sync.interval.ms", "partition.assignment.strategy",
    "queued.max.messages.kbytes", "queued.min.messages", "session.timeout.ms", "allow.auto.create.topics",
})  # fmt: skip
"""Properties that only a consumer takes; a producer or an admin client warns about them."""

_CALLBACKS_KEPT = frozenset({"oauth_cb"})  # a login, which MSK and GCP connections need; other callbacks only observe


def client_config(properties: Mapping[str, object]) -> dict[str, object]:
    """Returns librdkafka properties: the user's, without those that break Ackline's rules, overridden by `REQUIRED`.

    `properties` is a connection's extra, or `{"bootstrap.servers": …}`, plus the pipeline file's properties. Drops
    nulls and, except for the broker's address, the properties that `ackline.properties.refused_properties` names,
    without a message. Raises ConfigError if no broker is named, if its address holds a login, or if a value is neither
    text, nor a number, nor a boolean.
    """
    config: dict[str, object] = {}
    for name, value in properties.items():
        plain = without_topic_prefix(name)
        refused = plain in REFUSAL_REASONS and REFUSAL_REASONS[plain] is not BROKER
        if value is None or plain in PRODUCER_ONLY or refused:
            continue
        if callable(value) or name.endswith("_cb"):
            if name in _CALLBACKS_KEPT:
                config[name] = value
        elif isinstance(value, str) and "\0" in value:
            raise ConfigError(f"Kafka property `{name}` has a NUL, where Kafka's client cuts it; remove it", key=name)
        elif isinstance(value, str | int | float):
            config[name] = value
        else:
            raise ConfigError(f"Kafka property `{name}` is a {type(value).__name__}; give text, a number or a boolean",
                              key=name)  # fmt: skip
    brokers = config.pop("metadata.broker.list", "")
    config.setdefault("bootstrap.servers", brokers)
    if not str(config["bootstrap.servers"]).strip():
        raise ConfigError("no broker is named: set `bootstrap.servers` in the connection's extra, or "
                          "`kafka.bootstrap_servers` in the pipeline file", key="bootstrap.servers")  # fmt: skip
    try:
        broker_addresses(str(config["bootstrap.servers"]))
    except ValueError as error:
        raise ConfigError(f"`bootstrap.servers`: {error}", key="bootstrap.servers") from None
    return {**config, **REQUIRED}


def brokers(config: Mapping[str, object]) -> str:
    """Returns the broker addresses of a configuration, for messages."""
    return str(config.get("bootstrap.servers", "no broker"))


_SECRET = re.compile(r"passw|passphrase|secret|token|key|jaas|credential|\.pem$|certificate\.chain|oauthbearer\.config"
                     r"|kinit|assertion", re.IGNORECASE)  # fmt: skip
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")


def mask_secrets(text: str, config: Mapping[str, object]) -> str:
    """Returns `text`, a message of Kafka's client, with `***` for each secret of `config` and each login in a URL.

    The client quotes settings that it can't parse and addresses that it can't reach. It may quote the rest of a value
    only, so each word of a secret's value is masked.
    """
    secrets = {
        word
        for name, value in config.items()
        if _SECRET.search(name) and not name.endswith(".location") and isinstance(value, str)
        for word in (value, *value.split())
        if len(word) > 3
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _USERINFO.sub("***@", text)
