"""Avro and JSON Schema: decoders that fetch the schema a record names from a schema registry.

Whose fault it is decides what happens. Bytes that are not what their schema says, or that name a schema which the
registry does not know, are the record's (`Undecodable`). A registry that can't be reached is nobody's: TransientError,
nothing is stored, the same turn is tried again. One that refuses us, or is none, is the configuration's.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ackline.decode import Decode, Undecodable, not_json, strict_json
from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.handler import Record
from ackline.scrub import scrub
from ackline.translation import Translation

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

PREFIX = "schema.registry."
"""What the schema registry's settings begin with in the extra of a Kafka connection."""

_NEEDED = ("attrs", "authlib", "cachetools", "certifi", "fastavro", "jsonschema")
_NUMBERS = frozenset({
    "timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity", "cache.latest.ttl.sec",
})  # fmt: skip
# Said in the extra for Java's sake; the Python client finds the login by itself.
_JAVAS = frozenset({"basic.auth.credentials.source"})
_LOGIN = re.compile(r"(?<=://)([^/@\s]*)@")
# A registry that knows its trade says so of a schema, version or subject that it does not have; a wrong path does not.
_UNKNOWN_SCHEMA = frozenset({40401, 40402, 40403})
_LARGEST_ID = 2**31 - 1
_TIMEOUT = 10.0
# A schema may be registered a moment after the record that names it; a million records must not ask a million times.
_ASKED_AGAIN_AFTER = 30.0
_UNKNOWN_KEPT = 10_000


def without_registry(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a connection that are Kafka's own; its clients would refuse the others."""
    return {name: value for name, value in properties.items() if not name.startswith(PREFIX)}


def registry_config(url: str | None, connection: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The configuration of the schema-registry client: the connection's `schema.registry.…`, at `url` where the
    pipeline file names it. Holds secrets.

    Raises ConfigError where no address is known, or the client's packages are not installed.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"avro and json_schema need packages that are not installed ({', '.join(missing)}): "
            f"pip install 'ackline[schema-registry]'",
            key="decode",
        )
    config = {name.removeprefix(PREFIX): value for name, value in connection.items() if name.startswith(PREFIX)}
    config = {name: value for name, value in config.items() if name not in _JAVAS and value is not None}
    if url is None and not config.get("url"):
        raise ConfigError(
            "the Kafka connection's extra has no `schema.registry.url`; set it there, or write "
            "`schema_registry: {url: URL}`",
            key="schema_registry",
        )
    config["url"] = url or config["url"]
    return tuple(sorted((name, _value(name, value)) for name, value in _login_apart(config).items()))


def _login_apart(config: Mapping[str, Any]) -> dict[str, Any]:
    """A login inside the address as a setting of its own: the HTTP client logs addresses."""
    address = str(config["url"])
    login = _LOGIN.search(address)
    apart = {**config, "url": _LOGIN.sub("", address)}
    if login:
        from urllib.parse import unquote

        apart.setdefault("basic.auth.user.info", unquote(login[1]))
    return apart


def _value(name: str, value: Any) -> Any:
    if name in _NUMBERS and isinstance(value, str):
        try:
            return float(value) if name == "timeout" else int(value)
        except ValueError:
            raise ConfigError(f"`{PREFIX}{name}` is no number", key=PREFIX + name) from None
    if not isinstance(value, str | int | float):
        raise ConfigError(f"`{PREFIX}{name}` is a {type(value).__name__}; give text or a number", key=PREFIX + name)
    return value


class Registry:
    """One schema registry, and what a process has learned of it. Raises ConfigError for settings that don't hold."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._address = str(config["url"])
        try:
            self._client = _client(self, {"timeout": _TIMEOUT, **config})
        except (ValueError, TypeError, OSError) as error:
            raise ConfigError(
                f"the schema registry {self._address} can't be used: {scrub(str(error), ())}", key="schema_registry"
            ) from None
        self._unknown: dict[Any, float] = {}
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext
        """What is put around each request for a schema: it is no record's fault how long that takes."""

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def check(self) -> str:
        """Ask it for a schema, known to it or not; its address. Raises as a decoder does."""
        with suppress(Undecodable):
            self._client.get_schema(1)
        return self._address

    def decoder(self, word: str, field: str) -> Decode:
        """A decoder `avro` or `json_schema` of keys or values.

        It raises Undecodable for what is wrong with the record, an AcklineError for what is wrong with the registry.
        """
        from confluent_kafka.serialization import MessageField, SerializationContext

        deserialize = self._deserializer(word)
        part = MessageField.KEY if field == "key" else MessageField.VALUE

        def decode(data: bytes, record: Record) -> Any:
            if data[:1] == b"\0" and int.from_bytes(data[1:5]) > _LARGEST_ID:
                raise Undecodable(f"the {field} names a schema id that can't be")
            try:
                return deserialize(data, SerializationContext(record.topic, part, list(record.headers) or None))
            except AcklineError:
                raise
            except Undecodable as error:
                raise Undecodable(f"the {field} {error}") from None
            except Exception as error:
                raise self._verdict(word, field, data, error) from None

        return decode

    def _deserializer(self, word: str) -> Any:
        # Kafka's usual name of a subject; the default would ask the registry for its own for each of them.
        settings = {"subject.name.strategy.type": "TOPIC"}
        if word == "avro":
            from confluent_kafka.schema_registry.avro import AvroDeserializer

            return AvroDeserializer(self._client, conf=settings)
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        return JSONDeserializer(
            None, schema_registry_client=self._client, conf={**settings, "validate": True}, json_decode=strict_json
        )

    def _verdict(self, word: str, field: str, data: bytes, error: Exception) -> Exception:
        """What an error of a deserializer is. Its text may quote the record, so none of it is repeated."""
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from jsonschema import ValidationError

        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, httpx.TransportError):  # a schema that refers to another one, elsewhere
                return self._away(cause)
            if isinstance(cause, ValidationError):
                where = "/".join(str(part) for part in cause.absolute_schema_path)
                return Undecodable(f"the {field} does not meet its schema at {where}")
            cause = cause.__cause__ or cause.__context__
        if data[:1] not in (b"\0", b"\1"):
            return Undecodable(f"the {field} does not begin with the id of a schema")
        if word == "json_schema" and isinstance(error, ValueError | RecursionError):
            return Undecodable(not_json(field, error))
        return Undecodable(f"the {field} is not {word} as its schema says: {type(error).__name__}")

    def _away(self, error: BaseException) -> TransientError:
        return TransientError(f"the schema registry {self._address} can't be reached ({type(error).__name__})")

    @contextmanager
    def asking(self, what: Any) -> Iterator[None]:
        """Around a request for a schema: its errors as ours, and an unknown one is not asked for again for a while.

        Raises Undecodable, whose text is for the end of a sentence, TransientError, ConfigError or FatalError.
        """
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        unknown = Undecodable("names a schema that the registry does not know")
        if self._unknown.get(what, 0.0) > time.monotonic():
            raise unknown
        try:
            with self.waiting():
                yield
        except SchemaRegistryError as error:
            if error.error_code in _UNKNOWN_SCHEMA:
                if len(self._unknown) >= _UNKNOWN_KEPT:
                    self._unknown.clear()
                self._unknown[what] = time.monotonic() + _ASKED_AGAIN_AFTER
                raise unknown from None
            raise self._refusal(error.http_status_code) from None
        except (httpx.TransportError, OAuthTokenError) as error:
            raise self._away(error) from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise FatalError(
                f"{self._address} does not answer like a schema registry ({type(error).__name__}): is it one?"
            ) from None

    def _refusal(self, status: int) -> AcklineError:
        if status in (401, 403, 407):
            return ConfigError(
                f"the schema registry {self._address} refuses us (HTTP {status}): set `schema.registry.basic.auth."
                f"user.info` in the Kafka connection's extra",
                key="schema_registry",
            )
        if status in (408, 429) or status >= 500:
            return TransientError(f"the schema registry {self._address} is not ready (HTTP {status})")
        return FatalError(f"{self._address} does not answer like a schema registry (HTTP {status}): is it one?")


def check_registry(translation: Translation | None) -> None:
    """Raise TransientError or ConfigError where the registry that a translation needs can't be asked now."""
    if translation is not None and translation.needs_registry:
        with closing(Registry(dict(translation.registry))) as registry:
            registry.check()


def _client(registry: Registry, config: Mapping[str, Any]) -> "SchemaRegistryClient":
    """A client that tells `registry` of each schema it asks for; those in its cache are not asked for."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    class Client(SchemaRegistryClient):
        def get_schema(self, schema_id: int, *more: Any, **named: Any) -> Any:
            with registry.asking(schema_id):
                return super().get_schema(schema_id, *more, **named)

        def get_schema_by_guid(self, guid: str, *more: Any, **named: Any) -> Any:
            with registry.asking(guid):
                return super().get_schema_by_guid(guid, *more, **named)

        def get_version(self, subject_name: str, version: Any = "latest", *more: Any, **named: Any) -> Any:
            with registry.asking((subject_name, version)):
                return super().get_version(subject_name, version, *more, **named)

    return Client(dict(config))
