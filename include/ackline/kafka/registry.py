"""Decoders for Avro, JSON Schema and Protobuf, which fetch the schema that a record names from a schema registry.

The cause of a failure decides what happens:
- The record's bytes do not match their schema, or name a schema that the registry does not have: Undecodable.
- The registry is unreachable, times out or is not ready (HTTP 408, 429, 5xx), or an address that a JSON Schema refers
  to is unreachable or has a host that does not resolve: TransientError. Nothing is stored, and the same turn is tried
  again.
- The registry refuses the login: ConfigError. The address is not a schema registry's, or the registry can't give a
  Protobuf schema as a descriptor: FatalError.
"""

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.handler import Record
from ackline.pipeline.streams import Decode, Translation, Undecodable, json_decoder, why_not_json
from ackline.scrub import scrub

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

PREFIX = "schema.registry."
"""The prefix of the schema registry's settings in the extra of a Kafka connection."""

_NEEDED = (
    "attrs", "authlib", "cachetools", "certifi", "fastavro", "google.protobuf", "google.type", "httpx2", "jsonschema",
)  # fmt: skip
_NUMBERS = frozenset({
    "timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity", "cache.latest.ttl.sec",
})  # fmt: skip
# Java's client needs this setting; the Python client finds the login without it.
_JAVA_ONLY = frozenset({"basic.auth.credentials.source"})
_URL_LOGIN = re.compile(r"(?<=://)([^/@\s]*)@")
# A registry answers with one of these codes for a subject, version or schema that it does not have. A wrong path gives
# a plain 404 instead, which must not make records undecodable.
_UNKNOWN_SCHEMA = frozenset({40401, 40402, 40403})
_LARGEST_ID = 2**31 - 1
_TIMEOUT = 10.0
# A schema may be registered a moment after the record that names it, so an unknown one is requested again; but not by
# each of a million records.
_UNKNOWN_SECONDS = 30.0
_UNKNOWN_LIMIT = 10_000


def without_registry_settings(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of a connection that are Kafka's own. Kafka's clients refuse those of the registry."""
    return {name: value for name, value in properties.items() if not name.startswith(PREFIX)}


def registry_config(url: str | None, connection: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Returns the configuration of the schema-registry client: the connection's `schema.registry.…`, with the address
    `url` if the pipeline file has one. Holds secrets.

    Raises ConfigError if neither has an address, or if the client's packages are not installed.
    """
    # A dotted name is looked up in its package, which must be there.
    missing = [name for name in _NEEDED if not find_spec(name.partition(".")[0]) or not find_spec(name)]
    if missing:
        raise ConfigError(
            f"avro, json_schema and protobuf need packages that are not installed ({', '.join(missing)}): "
            f"pip install 'ackline[schema-registry]'",
            key="decode",
        )
    config = {name.removeprefix(PREFIX): value for name, value in connection.items() if name.startswith(PREFIX)}
    config = {name: value for name, value in config.items() if name not in _JAVA_ONLY and value is not None}
    if url is None and not config.get("url"):
        raise ConfigError(
            "the Kafka connection's extra has no `schema.registry.url`; set it there, or write "
            "`schema_registry: {url: URL}`",
            key="schema_registry",
        )
    config["url"] = url or config["url"]
    return tuple(sorted((name, _checked_value(name, value)) for name, value in _move_login(config).items()))


def _move_login(config: Mapping[str, Any]) -> dict[str, Any]:
    """Moves a login inside the address to a setting of its own, because the HTTP client logs addresses."""
    address = str(config["url"])
    login = _URL_LOGIN.search(address)
    moved = {**config, "url": _URL_LOGIN.sub("", address)}
    if login:
        moved.setdefault("basic.auth.user.info", unquote(login[1]))
    return moved


def _checked_value(name: str, value: Any) -> Any:
    if name in _NUMBERS and isinstance(value, str):
        try:
            return float(value) if name == "timeout" else int(value)
        except ValueError:
            raise ConfigError(f"`{PREFIX}{name}` is not a number; give one", key=PREFIX + name) from None
    if not isinstance(value, str | int | float):
        raise ConfigError(f"`{PREFIX}{name}` is a {type(value).__name__}; give text or a number", key=PREFIX + name)
    return value


class Registry:
    """One schema registry, and a process's cache of its schemas. The constructor uses no network, and raises
    ConfigError for settings that are invalid."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._address = str(config["url"])
        self._config = {"timeout": _TIMEOUT, **config}
        self._descriptors: SchemaRegistryClient | None = None
        try:
            self._client = _client(self, self._config)
        except (ValueError, TypeError, OSError) as error:
            raise ConfigError(
                f"the schema registry {self._address} can't be used: {scrub(str(error), ())}", key="schema_registry"
            ) from None
        self._unknown_until: dict[Any, float] = {}
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext
        """Returns the context in which each request for a schema runs. An isolated handler's timer stops in it, so that
        no record is blamed for a slow registry."""

    def close(self) -> None:
        """Closes the connections to the registry."""
        self._client.close()
        if self._descriptors is not None:
            self._descriptors.close()

    def check(self) -> str:
        """Requests a schema, which need not exist, and returns the registry's address. Raises the AcklineErrors that a
        decoder raises."""
        with suppress(Undecodable):
            self._client.get_schema(1)
        return self._address

    def decoder(self, word: str, field: str) -> Decode:
        """Returns the decoder for `word` (`avro`, `json_schema` or `protobuf`) and `field` (`key` or `value`).

        The decoder raises Undecodable if the record does not decode, and an AcklineError if the registry fails.
        """
        from confluent_kafka.serialization import MessageField, SerializationContext

        deserialize = self._deserializer(word)
        part = MessageField.KEY if field == "key" else MessageField.VALUE

        def decode(data: bytes, record: Record) -> Any:
            try:
                return deserialize(data, SerializationContext(record.topic, part, list(record.headers) or None))
            except AcklineError:
                raise
            except Undecodable as error:
                raise Undecodable(f"the {field} {error}") from None
            except Exception as error:
                raise self._classify(word, field, data, error) from None

        return decode

    def _deserializer(self, word: str) -> Any:
        # Kafka's usual name of a subject. By default the client requests the name of each subject from the registry.
        settings = {"subject.name.strategy.type": "TOPIC"}
        if word == "avro":
            from confluent_kafka.schema_registry.avro import AvroDeserializer

            return AvroDeserializer(self._client, conf=settings)
        if word == "protobuf":
            from ackline.kafka.protobuf import RegistryMessages

            # A client of its own: Confluent's cache does not part the formats in which a schema was requested.
            self._descriptors = self._descriptors or _client(self, self._config)
            return RegistryMessages(self._client, self._descriptors, self._no_descriptors)
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        return JSONDeserializer(
            None, schema_registry_client=self._client, conf={**settings, "validate": True}, json_decode=json_decoder()
        )

    def _classify(self, word: str, field: str, data: bytes, error: Exception) -> Exception:
        """Returns the error to raise for an error of a deserializer. Its text may quote the record, so none of it is
        repeated."""
        import httpx2  # the HTTP library of Confluent's client
        from jsonschema import ValidationError

        for cause in _with_causes(error):
            # The schema refers to another one by address, and Confluent's client fetches that address itself. It first
            # resolves the host, and a name server that does not answer is no reason to fail a record.
            if isinstance(cause, httpx2.TransportError | socket.gaierror):
                return _unreachable_reference(error, cause)
            if isinstance(cause, ValidationError):
                path = "/".join(str(part) for part in cause.absolute_schema_path)
                return Undecodable(f"the {field} does not meet its schema at {path}")
        if data[:1] not in (b"\0", b"\1"):
            return Undecodable(f"the {field} does not begin with the id of a schema")
        if word == "json_schema" and isinstance(error, ValueError | RecursionError):
            return Undecodable(why_not_json(field, error))
        return Undecodable(f"the {field} is not {word} that matches its schema: {type(error).__name__}")

    @contextmanager
    def schema_request(self, schema: Any) -> Iterator[None]:
        """Wraps a request for `schema`: raises its errors as Ackline's, and raises at once for a schema that was
        unknown within the last 30 s.

        Raises Undecodable, with a text that ends a sentence, TransientError, ConfigError or FatalError.
        """
        import httpx2
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        unknown = Undecodable("names a schema that the registry does not have")
        if self._unknown_until.get(schema, 0.0) > time.monotonic():
            raise unknown
        try:
            with self.waiting():
                yield
        except SchemaRegistryError as error:
            if error.error_code in _UNKNOWN_SCHEMA or self._has_no_guids(error.http_status_code, schema):
                if len(self._unknown_until) >= _UNKNOWN_LIMIT:
                    self._unknown_until.clear()
                self._unknown_until[schema] = time.monotonic() + _UNKNOWN_SECONDS
                raise unknown from None
            raise self._http_error(error.http_status_code) from None
        except (httpx2.TransportError, OAuthTokenError) as error:
            raise TransientError(
                f"the schema registry {self._address} can't be reached ({type(error).__name__}); check that it is up, "
                f"then run this again"
            ) from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise self._not_a_registry(type(error).__name__) from None

    def _has_no_guids(self, status: int, schema: Any) -> bool:
        """Returns whether a registry has refused a GUID because it is too old to look up schemas by GUID. Its answer is
        a plain 404, as from a server that is no registry, so this calls `check`, and raises what `check` raises."""
        return isinstance(schema, str) and status == 404 and bool(self.check())

    def _http_error(self, status: int) -> AcklineError:
        if status in (401, 403, 407):
            return ConfigError(
                f"the schema registry {self._address} refuses the login (HTTP {status}); set "
                f"`{PREFIX}basic.auth.user.info` in the Kafka connection's extra",
                key="schema_registry",
            )
        if status == 501:  # "not implemented": only requests for a descriptor name a format
            return self._no_descriptors()
        if status in (408, 429) or status >= 500:
            return TransientError(f"the schema registry {self._address} is not ready (HTTP {status}); run this again")
        return self._not_a_registry(f"HTTP {status}")

    def _no_descriptors(self) -> FatalError:
        return FatalError(
            f"the schema registry {self._address} does not give Protobuf schemas as descriptors (`format=serialized`), "
            f"which `protobuf` needs; update the registry (Redpanda has them from 25.2 on), or decode in the handler"
        )

    def _not_a_registry(self, answer: str) -> FatalError:
        return FatalError(
            f"{self._address} does not answer like a schema registry ({answer}); check `schema.registry.url` "
            f"in the Kafka connection's extra, or `schema_registry` in the pipeline file"
        )


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the error, its cause, the cause of that, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _unreachable_reference(error: BaseException, cause: BaseException) -> TransientError:
    """Returns the error for a schema that refers to an address without an answer. Names the host of the address only:
    the rest may hold a login."""
    from referencing.exceptions import Unresolvable

    references = (urlsplit(item.ref).hostname for item in _with_causes(error) if isinstance(item, Unresolvable))
    host = next((name for name in references if name), "unknown")
    return TransientError(
        f"a JSON Schema refers to an address that can't be reached (host {host}, {type(cause).__name__}); check that "
        f"the host resolves and answers from here, or register the schema as a reference; then run this again"
    )


def check_registry(translation: Translation | None) -> None:
    """Raises TransientError, ConfigError or FatalError if `translation` needs a registry that gives no valid answer."""
    if translation is not None and translation.needs_registry:
        with closing(Registry(dict(translation.registry))) as registry:
            registry.check()


def _client(registry: Registry, config: Mapping[str, Any]) -> "SchemaRegistryClient":
    """Returns a client that sends each request for a schema through `registry.schema_request`. Schemas in its cache
    need no request."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    class Client(SchemaRegistryClient):
        def get_schema(self, schema_id: int, *more: Any, **named: Any) -> Any:
            if schema_id > _LARGEST_ID:  # the registry would not answer like one
                raise Undecodable("names a schema id that is too large")
            with registry.schema_request(schema_id):
                return super().get_schema(schema_id, *more, **named)

        def get_schema_by_guid(self, guid: str, *more: Any, **named: Any) -> Any:
            with registry.schema_request(str(guid)):
                return super().get_schema_by_guid(guid, *more, **named)

        def get_version(self, subject_name: str, version: Any = "latest", *more: Any, **named: Any) -> Any:
            with registry.schema_request((subject_name, version)):
                return super().get_version(subject_name, version, *more, **named)

    return Client(dict(config))
