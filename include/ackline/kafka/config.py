"""Client properties: what a connection or a pipeline file may say, and what Ackline decides itself.

Pure: no client library is loaded here. Two clients read the same topics, librdkafka (bounds, commits, exact
reads, dead letters) and Java's (Spark's source); both are configured from the one set of librdkafka
properties a user writes.
"""

import re
from collections.abc import Mapping

from ackline.errors import ConfigError
from ackline.kafka.java import java_properties
from ackline.properties import BROKER, PRODUCER_ONLY, REASONS, bare, broker_addresses

__all__ = ["REQUIRED", "brokers", "client_config", "java_properties", "masked", "scrubbed"]

REQUIRED: Mapping[str, object] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
"""What every consumer of ours has, whatever the connection says."""

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
"""Properties that only a consumer takes; a producer or admin client would warn about them."""

_CALLBACKS_KEPT = frozenset({"oauth_cb"})  # a login, not an observer: MSK and GCP connections need it


def client_config(properties: Mapping[str, object]) -> dict[str, object]:
    """librdkafka properties for our clients: the user's, without what breaks the rules, with `REQUIRED` on
    top.

    `properties` is a connection's extra, or `{"bootstrap.servers": …}`, plus the pipeline file's. What
    `refused` names is dropped silently, but for the broker's address; so are nulls. Raises ConfigError where
    no broker is named, its address holds a login, or a value is neither text, number nor boolean.
    """
    config: dict[str, object] = {}
    for name, value in properties.items():
        plain = bare(name)
        if value is None or plain in PRODUCER_ONLY or (plain in REASONS and REASONS[plain] is not BROKER):
            continue
        if callable(value) or name.endswith("_cb"):
            if name in _CALLBACKS_KEPT:
                config[name] = value
        elif isinstance(value, str) and "\0" in value:
            raise ConfigError(f"Kafka property `{name}` has a NUL, where Kafka's client would cut it", key=name)
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
    """The broker addresses of a configuration, for messages."""
    return str(config.get("bootstrap.servers", "no broker"))


_SECRET = re.compile(r"passw|passphrase|secret|token|key|jaas|credential|\.pem$|certificate\.chain|oauthbearer\.config"
                     r"|kinit|assertion", re.IGNORECASE)  # fmt: skip
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")


def scrubbed(config: Mapping[str, object]) -> dict[str, str]:
    """`config` as it may be logged: values of secrets are `***`, and so is a login inside a URL."""
    return {
        name: "***" if _SECRET.search(name) else
        f"<{type(value).__name__}>" if callable(value) else _USERINFO.sub("***@", str(value))
        for name, value in config.items()
    }  # fmt: skip


def masked(text: str, config: Mapping[str, object]) -> str:
    """What Kafka's client says, as it may be told: it quotes settings and addresses that it can do nothing with.

    Each word of a secret's value is looked for, since it may quote the rest of a value only.
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
