"""Client properties for librdkafka and for Java, from a connection and a pipeline file. Loads no client library.

Two clients read the same topics: librdkafka (bounds, commits, exact reads, dead letters) and Java's client (Spark's
source). The user writes one set of librdkafka properties for both, and Ackline sets some itself. A property has a
counterpart in Java, or makes no difference to what is read and how it is secured (`DROPPED`), or is an error. So Spark
never connects in another way than the user wrote. Names of certificate files are replaced by their text, because only
the driver's machine has the files.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ackline.errors import ConfigError
from ackline.pipeline.properties import BROKER, PRODUCER_ONLY, REFUSAL_REASONS, broker_addresses, without_topic_prefix

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
    nulls and, except for the broker's address, the properties that `ackline.pipeline.properties.refused_properties`
    names, without a message. Raises ConfigError if no broker is named, if its address holds a login, or if a value is
    neither text, nor a number, nor a boolean.
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


_SAME = frozenset({
    "bootstrap.servers", "client.id", "client.rack", "client.dns.lookup", "metadata.max.age.ms",
    "reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms",
    "socket.connection.setup.timeout.ms", "fetch.min.bytes", "fetch.max.bytes", "max.partition.fetch.bytes",
    "check.crcs", "enable.metrics.push", "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms",
    "sasl.oauthbearer.sub.claim.name",
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
_TOKENS = "sasl.oauthbearer."
_CLIENT_ID = (f"{_TOKENS}client.id", f"{_TOKENS}client.credentials.client.id")
_CLIENT_SECRET = (f"{_TOKENS}client.secret", f"{_TOKENS}client.credentials.client.secret")
TOKEN_ENDPOINT = f"{_TOKENS}token.endpoint.url"
"""The property with the address that gives the tokens of OAUTHBEARER."""
_OIDC = frozenset({
    *_CLIENT_ID, *_CLIENT_SECRET, TOKEN_ENDPOINT, f"{_TOKENS}method", f"{_TOKENS}grant.type", f"{_TOKENS}scope",
    f"{_TOKENS}extensions", f"{_TOKENS}metadata.authentication.type", "https.ca.location", "https.ca.pem",
})  # fmt: skip
_ONLY_VALUE = {f"{_TOKENS}grant.type": "client_credentials", f"{_TOKENS}metadata.authentication.type": "none"}
_OAUTH_CLASSES = "org.apache.kafka.common.security.oauthbearer"


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
        elif name not in DROPPED | _SSL | _SASL | _OIDC | {"security.protocol", "metadata.broker.list"}:
            of_tokens = name.startswith((_TOKENS, "enable.sasl.oauthbearer.", "oauth_cb"))
            why = _NO_OTHER_OAUTH if of_tokens else "Spark reads with Java's Kafka client, which has no such setting"
            raise _no_counterpart(name, why)
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
    if mechanism == "OAUTHBEARER":
        return _token_login(given)
    if mechanism not in _MECHANISMS:
        known = ", ".join([*_MECHANISMS, "OAUTHBEARER"])
        raise _no_counterpart(name, f"{mechanism} is not translated for Spark's Java client; {known} are")
    for needed in ("sasl.username", "sasl.password"):
        if needed not in given:
            raise ConfigError(f"`{needed}` is missing, and {mechanism} needs it", key=needed)
    options = {part: given[f"sasl.{part}"] for part in ("username", "password")}
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(_MECHANISMS[mechanism], options)}


_NO_OTHER_OAUTH = (
    "of OAUTHBEARER only OpenID Connect with client credentials works in both Kafka clients: set "
    "`sasl.oauthbearer.method` to oidc, and client.id, client.secret and token.endpoint.url"
)


def _token_login(given: Mapping[str, str]) -> dict[str, str]:
    """Returns Java's properties for a login by tokens of OpenID Connect, which its client fetches and renews by itself.

    Raises ConfigError for another method, for what is missing, and for an address that is none of http and https.
    """
    method = given.get(f"{_TOKENS}method", "default").lower()
    if method != "oidc":
        raise _no_counterpart(f"{_TOKENS}method", f"it is {method}, and {_NO_OTHER_OAUTH}")
    for name, value in _ONLY_VALUE.items():
        if given.get(name, value).lower() != value:
            raise _no_counterpart(name, f"it is {given[name]}, and {_NO_OTHER_OAUTH}")
    needed = {"clientId": _CLIENT_ID, "clientSecret": _CLIENT_SECRET, "": (TOKEN_ENDPOINT,)}
    found = {option: next((given[name] for name in names if name in given), "") for option, names in needed.items()}
    for option, names in needed.items():
        if not found[option]:
            raise ConfigError(f"`{names[0]}` is missing, and OAUTHBEARER needs it", key=names[0])
    endpoint = found.pop("")
    if not endpoint_address(given):
        raise ConfigError(
            f"`{TOKEN_ENDPOINT}` is no address of a token endpoint: write https://HOST/PATH, without a login",
            key=TOKEN_ENDPOINT,
        )
    options = found | ({"scope": given[f"{_TOKENS}scope"]} if f"{_TOKENS}scope" in given else {})
    for extension in filter(None, given.get(f"{_TOKENS}extensions", "").split(",")):
        name, _, value = extension.partition("=")
        options[f"extension_{name.strip()}"] = value.strip()
    authority = pem_text(given, "https.ca") if given.get("https.ca.location") != "probe" else None
    if authority is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": _jaas(f"{_OAUTH_CLASSES}.OAuthBearerLoginModule", options),
        "sasl.login.callback.handler.class": f"{_OAUTH_CLASSES}.OAuthBearerLoginCallbackHandler",
        TOKEN_ENDPOINT: endpoint,
        # Java's client would wait for an answer without an end.
        "sasl.login.connect.timeout.ms": "10000",
        "sasl.login.read.timeout.ms": "10000",
    }


def endpoint_address(config: Mapping[str, object]) -> str:
    """Returns scheme, host and port of the token endpoint, for messages: its path and query may hold a secret. Empty if
    there is none, or it is no address of http or https."""
    try:
        url = urlsplit(str(config.get(TOKEN_ENDPOINT, "")))
        port = f":{url.port}" if url.port else ""
    except ValueError:
        return ""
    if url.scheme.lower() not in ("http", "https") or not url.hostname or "@" in url.netloc:
        return ""
    return f"{url.scheme.lower()}://{url.hostname}{port}"


def login_name(config: Mapping[str, object]) -> str:
    """Returns the name by which a connection logs in; empty if it has none, as with a certificate."""
    names = ("sasl.username", *_CLIENT_ID)
    return str(next((config[name] for name in names if config.get(name)), ""))


def login_text(config: Mapping[str, object]) -> str:
    """Returns the words for the login of a connection in messages."""
    name = login_name(config)
    return f"the login {name}" if name else "the login of the connection"


def _jaas(module: str, options: Mapping[str, str]) -> str:
    return " ".join([module, "required", *(f"{name}={_quoted(value)}" for name, value in options.items())]) + ";"


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
    """Returns Java's properties for the client's own certificate and key; none if it has no certificate."""
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


_PEM = ("ssl.ca", "ssl.certificate", "ssl.key")


def inlined_certificates(config: Mapping[str, str]) -> dict[str, str]:
    """Returns librdkafka's properties with the text of certificates and key in place of their files' names.

    The result holds secrets. Leaves a PKCS#12 file (`ssl.keystore.location`) as it is, because librdkafka takes it as
    a file only. Raises ConfigError for a file that can't be read.
    """
    properties = dict(config)
    protocol = config.get("security.protocol", "plaintext").upper().split("_")
    # Kafka's clients open no other file.
    for prefix in (*(_PEM if "SSL" in protocol else ()), *(("https.ca",) if "SASL" in protocol else ())):
        if properties.get(f"{prefix}.location") == "probe":  # librdkafka then looks for the system's authorities
            continue
        text = pem_text(properties, prefix)
        properties.pop(f"{prefix}.location", None)
        if text is not None:
            properties[f"{prefix}.pem"] = text
    return properties
