"""Translates a connection's librdkafka properties for Java's Kafka client, which Spark's source uses.

A property has a counterpart, or makes no difference to what is read and how it is secured (`DROPPED`), or is an error.
So Spark never connects in another way than the user wrote.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from ackline.errors import ConfigError

_SAME = frozenset({
    "bootstrap.servers", "client.id", "client.rack", "client.dns.lookup", "metadata.max.age.ms",
    "reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms",
    "socket.connection.setup.timeout.ms", "fetch.min.bytes", "fetch.max.bytes", "max.partition.fetch.bytes",
    "check.crcs", "enable.metrics.push", "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms",
})  # fmt: skip

_RENAMED: Mapping[str, str] = {
    "socket.timeout.ms": "request.timeout.ms",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "connections.max.idle.ms": "connections.max.idle.ms",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
}
_ZERO_IS_MINUS_ONE = frozenset({"connections.max.idle.ms", "socket.send.buffer.bytes", "socket.receive.buffer.bytes"})

DROPPED = frozenset({
    # a group's members and its position: neither client joins a group or uses the position
    "group.id", "group.instance.id", "group.protocol", "group.protocol.type", "group.remote.assignor",
    "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "partition.assignment.strategy",
    "coordinator.query.interval.ms", "enable.auto.commit", "auto.commit.enable", "auto.commit.interval.ms",
    "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof", "isolation.level",
    "allow.auto.create.topics",
    # librdkafka's own queues, threads, sockets and logs
    "queued.min.messages", "queued.max.messages.kbytes", "fetch.error.backoff.ms", "fetch.queue.backoff.ms",
    "consume.callback.max.messages", "message.copy.max.bytes", "receive.message.max.bytes", "message.max.bytes",
    "max.in.flight", "max.in.flight.requests.per.connection", "statistics.interval.ms", "log_level", "log.queue",
    "log.thread.name", "log.connection.close", "debug", "enable.random.seed", "internal.termination.signal",
    "socket.keepalive.enable", "socket.nagle.disable", "socket.max.fails", "socket.blocking.max.ms",
    "broker.address.family", "broker.address.ttl", "builtin.features", "enabled_events",
    "topic.metadata.refresh.interval.ms", "topic.metadata.refresh.fast.interval.ms",
    "topic.metadata.refresh.fast.cnt", "topic.metadata.refresh.sparse", "topic.metadata.propagation.max.ms",
    "reconnect.backoff.jitter.ms", "api.version.request", "api.version.request.timeout.ms",
    "api.version.fallback.ms", "broker.version.fallback",
})  # fmt: skip
"""Properties without a counterpart that make no difference to what is read and how it is secured."""

_MECHANISMS: Mapping[str, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

_SSL = frozenset({
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location",
    "ssl.key.pem", "ssl.key.password", "ssl.keystore.location", "ssl.keystore.password",
    "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification",
})  # fmt: skip
_SASL = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})


def java_properties(config: Mapping[str, object]) -> dict[str, str]:
    """Returns `config` (librdkafka's names) for Java's client, without the `kafka.` that Spark puts before each name.

    Holds secrets: certificates and passwords are in it as text. Leaves out the properties in `DROPPED`. Raises
    ConfigError, with the property's name, for any other property without a counterpart and for a file that can't be
    read.
    """
    given = {name: _text(value) for name, value in config.items() if value is not None}
    protocol = given.get("security.protocol", "plaintext").upper()
    java = {"security.protocol": protocol}
    for name, value in given.items():
        if name in _SAME:
            java[name] = value
        elif name in _RENAMED:
            java[_RENAMED[name]] = "-1" if name in _ZERO_IS_MINUS_ONE and value == "0" else value
        elif name not in DROPPED | _SSL | _SASL | {"security.protocol", "metadata.broker.list"}:
            raise _no_counterpart(name, "Spark reads with Java's Kafka client, which has no such setting")
    java.setdefault("bootstrap.servers", given.get("metadata.broker.list", ""))
    if "SSL" in protocol.split("_"):
        java |= _truststore(given) | _keystore(given)
    if protocol.startswith("SASL"):
        java |= _jaas_login(given)
    return java


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _no_counterpart(name: str, why: str) -> ConfigError:
    return ConfigError(f"Kafka property `{name}` can't be used: {why}", key=name)


def _jaas_login(given: Mapping[str, str]) -> dict[str, str]:
    name = "sasl.mechanisms" if "sasl.mechanisms" in given else "sasl.mechanism"
    mechanism = given.get(name, "GSSAPI").upper()
    if mechanism not in _MECHANISMS:
        known = ", ".join(_MECHANISMS)
        raise _no_counterpart(name, f"{mechanism} is not translated for Spark's Java client; {known} are")
    for needed in ("sasl.username", "sasl.password"):
        if needed not in given:
            raise ConfigError(f"`{needed}` is missing, and {mechanism} needs it", key=needed)
    login = " ".join(f"{part}={_quoted(given[f'sasl.{part}'])}" for part in ("username", "password"))
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{_MECHANISMS[mechanism]} required {login};"}


def _quoted(text: str) -> str:
    """Quotes `text` for Java's StreamTokenizer: only a backslash escapes, and a line end would close the quotes."""
    escaped = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}
    return '"' + "".join(escaped.get(letter, letter) for letter in text) + '"'


def _truststore(given: Mapping[str, str]) -> dict[str, str]:
    java: dict[str, str] = {}
    if given.get("enable.ssl.certificate.verification", "true").lower() not in ("true", "t", "1"):
        raise _no_counterpart("enable.ssl.certificate.verification", "Java's client always verifies certificates; "
                              "name the authority in `ssl.ca.location`")  # fmt: skip
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "none"):
        raise _no_counterpart("ssl.endpoint.identification.algorithm", f"it is https or none, not {algorithm}")
    java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else "https"
    authority = pem_text(given, "ssl.ca") if given.get("ssl.ca.location") != "probe" else None
    if authority is not None:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    return java


def _keystore(given: Mapping[str, str]) -> dict[str, str]:
    """The client's own certificate; empty if it has none."""
    if "ssl.keystore.location" in given:
        java = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": given["ssl.keystore.location"]}
        if "ssl.keystore.password" in given:
            java["ssl.keystore.password"] = given["ssl.keystore.password"]
        return java
    certificate, key = pem_text(given, "ssl.certificate"), pem_text(given, "ssl.key", _check_key_format)
    if (certificate is None) != (key is None):
        missing = "ssl.key.location" if key is None else "ssl.certificate.location"
        raise ConfigError(f"`{missing}` is missing: a client certificate needs its key, and a key its certificate",
                          key=missing)  # fmt: skip
    if certificate is None or key is None:
        return {}
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}


def _check_key_format(name: str, pem: str) -> None:
    """Raises ConfigError for a key that Java's client can't read. It reads PKCS#8 alone; of encrypted keys it reads
    only kinds that no tool writes any more."""
    if "-----BEGIN PRIVATE KEY-----" not in pem:
        raise _no_counterpart(
            name, "Java's client reads only unencrypted PKCS#8 keys (`openssl pkcs8 -topk8 -nocrypt`); "
            "for an encrypted one use a PKCS#12 file in `ssl.keystore.location`",
        )  # fmt: skip


def pem_text(given: Mapping[str, str], prefix: str, check: Callable[[str, str], None] | None = None) -> str | None:
    """Returns the PEM text in the property `prefix`.pem, or in the file that `prefix`.location names; None if both are
    missing. Raises ConfigError for a file that can't be read, and what `check(name, text)` raises."""
    name = f"{prefix}.pem"
    pem = given.get(name)
    if pem is None:
        name = f"{prefix}.location"
        if name not in given:
            return None
        try:
            pem = Path(given[name]).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not PEM text"
            raise ConfigError(f"`{name}` ({given[name]}) can't be read: {reason}", key=name) from error
    if check is not None:
        check(name, pem)
    return pem
