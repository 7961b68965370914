"""Streams of a pipeline: which one takes a record, and what its key and value are decoded to before the handler. Pure.

A stream names the topics, the filter, the decoders and the handler of its records. A record goes to the first stream
that covers its topic and whose filter returns True; the pipeline's own handler is the last stream and covers all
topics. In Storm, RecordTranslator and ByTopicRecordTranslator have this role: a function of a record names the stream.

The decoders here need only the bytes. Those of Avro, JSON Schema and Protobuf, which need the schema registry, are in
`ackline.kafka.registry`, and that of a message class of the user's is in `ackline.pipeline.messages`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from ackline.handler import Record
from ackline.pipeline.field_types import MAPPING, WORD, CodePath, RegularExpression, StreamName, StrictBlock, mapping_or
from ackline.pipeline.refusals import KeyPath, error_at

DecoderName = Literal["bytes", "utf8", "json", "avro", "json_schema", "protobuf"]
REGISTRY_DECODERS = frozenset({"avro", "json_schema", "protobuf"})
"""Decoders that need a schema registry."""
MESSAGE_CLASS = "protobuf:"
"""What the decoder of a message class begins with, before the path of the class, `module:Class`."""
ARROW_DECODERS = frozenset({"bytes", "utf8"})
"""Decoders whose result has an Arrow column type, so that an Arrow handler can take it."""
PIPELINE_STREAM = ""
"""The name of the stream that is the pipeline's own handler. No file can give this name to another stream."""

_REGISTRY_ADVICE = (
    "write `schema_registry: {url: URL}`, or `schema_registry: connection` if the extra of the Kafka connection has "
    "`schema.registry.url`"
)
_MESSAGE_CLASS_ADVICE = "messages without one need their class, such as `{protobuf: handlers.orders_pb2:Order}`"


class MessageClassBlock(StrictBlock):
    """The class of Protobuf messages that are written without a schema registry."""

    protobuf: CodePath


DecoderChoice = Annotated[
    Annotated[DecoderName, Tag(WORD)] | Annotated[MessageClassBlock, Tag(MAPPING)],
    Discriminator(lambda value: MAPPING if isinstance(value, dict | MessageClassBlock) else WORD),
]


class DecodeBlock(StrictBlock):
    """The decoders of keys and values. `bytes` leaves them as they are in the log."""

    key: DecoderChoice | None = None
    value: DecoderChoice | None = None

    def decoders(self, defaults: "DecodeBlock | None" = None) -> tuple[str, str]:
        """Returns the decoders of key and value; `defaults` has those that this block does not name."""
        key, value = (defaults.key, defaults.value) if defaults is not None else (None, None)
        return _decoder_of(self.key or key or "bytes"), _decoder_of(self.value or value or "bytes")


def _decoder_of(choice: str | MessageClassBlock) -> str:
    return choice if isinstance(choice, str) else MESSAGE_CLASS + choice.protobuf


def message_class_of(decoder: str) -> str | None:
    """Returns the path, `module:Class`, of the message class that a decoder parses with; None for another decoder."""
    return decoder.removeprefix(MESSAGE_CLASS) if decoder.startswith(MESSAGE_CLASS) else None


class StreamBlock(StrictBlock):
    """A named stream. Without `topics` and `pattern` it covers all topics of the pipeline."""

    name: StreamName
    topics: list[str] | None = Field(None, min_length=1)
    pattern: RegularExpression | None = None
    filter: CodePath | None = None
    handler: CodePath
    decode: DecodeBlock = Field(default_factory=DecodeBlock)

    @model_validator(mode="after")
    def _check_exclusive_keys(self) -> "StreamBlock":
        if self.topics is not None and self.pattern is not None:
            raise ValueError("write either `topics` or `pattern`; a stream with neither covers all topics")
        return self

    def stream(self, defaults: DecodeBlock | None = None) -> "Stream":
        """Returns the stream that this block describes; `defaults` has the decoders that it does not name."""
        topics = None if self.topics is None else tuple(self.topics)
        return Stream(self.name, self.handler, self.filter, topics, self.pattern, *self.decode.decoders(defaults))


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of a pipeline; `PIPELINE_STREAM` is the name of the pipeline's own handler.

    `handler` and `filter` are paths, `module:name`. `key` and `value` are names of decoders, or MESSAGE_CLASS and the
    path of a class. A stream with neither `topics` nor `pattern` covers all topics.
    """

    name: str
    handler: str
    filter: str | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    key: str = "bytes"
    value: str = "bytes"

    def covers_topic(self, topic: str) -> bool:
        """Returns whether the stream may take records of the topic. A pattern must match the whole name."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return self.topics is None or topic in self.topics

    def key_path(self, key: str) -> str:
        """Returns the name of one of the stream's keys in messages, such as `streams.NAME.handler`."""
        return f"streams.{self.name}.{key}" if self.name != PIPELINE_STREAM else key


@dataclass(frozen=True, slots=True)
class Translation:
    """The streams of a pipeline, in the order in which they are offered a record. The first that takes it handles it.

    A stream takes a record if it covers the topic, and if its filter, called with the decoded record, returns True.
    A record that no stream takes is `skipped` as `Unmatched`. A record that a stream cannot decode fails there and is
    not offered to the next one. A null key or value is not decoded.

    `registry` configures the client of the schema registry and may hold a password. It is not part of `repr`, and it
    reaches the workers inside the pickled function of a task only.

    `where` is the expression of a backfill: a record that a stream takes, and for which it is not true, is `skipped` as
    `Unmatched`, too. It is evaluated for the record as that stream decodes it, so no other handler gets the record.
    """

    streams: tuple[Stream, ...]
    registry: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    where: str | None = None

    @property
    def needs_registry(self) -> bool:
        """Whether a stream decodes with a schema, so that the tasks need the schema registry."""
        return any({stream.key, stream.value} & REGISTRY_DECODERS for stream in self.streams)


def refuse_registry_decoders(decode: DecodeBlock, key_path: KeyPath) -> None:
    """Raises if a block names a decoder that needs a schema registry. Call it if the pipeline has none."""
    for name, decoder in (("key", decode.key), ("value", decode.value)):
        if decoder in REGISTRY_DECODERS:
            instead = f"; {_MESSAGE_CLASS_ADVICE}" if decoder == "protobuf" else ""
            raise error_at((*key_path, name), f"{decoder} needs a schema registry; {_REGISTRY_ADVICE}{instead}")


def check_streams(
    blocks: Sequence[StreamBlock], subscribes_to_topic: Callable[[str], bool], named_topics: Sequence[str] | None
) -> None:
    """Raises if two streams have the same name, if a stream names a topic that the pipeline does not read, or if a
    stream can get no record because an earlier one takes all of them.

    `named_topics` are the topics of the pipeline; None if a pattern finds them.
    """
    earlier: list[Stream] = []
    for number, block in enumerate(blocks):
        if any(block.name == stream.name for stream in earlier):
            raise error_at(("streams", number, "name"), f"two streams are named {block.name}; rename one of them")
        stream = block.stream()
        key_path = ("streams", number, "topics" if block.topics else "pattern" if block.pattern else "name")
        for topic in block.topics or ():
            if not subscribes_to_topic(topic):
                advice = "remove it here, or add it to `kafka`"
                raise error_at(key_path, f"{topic} is not a topic that the pipeline reads; {advice}")
        topics = block.topics
        if topics is None and named_topics is not None:
            topics = [topic for topic in named_topics if stream.covers_topic(topic)]
            if not topics:
                raise error_at(key_path, "it matches none of the topics that the pipeline reads; correct it")
        for before in earlier:
            if before.filter is None and _takes_all(before, block, topics):
                reason = f"the stream {before.name} comes first and takes all records of these topics"
                raise error_at(key_path, f"{reason}; move this stream above it, or add a filter to {before.name}")
        earlier.append(stream)


def _takes_all(before: Stream, block: StreamBlock, topics: Sequence[str] | None) -> bool:
    if before.topics is None and before.pattern is None:
        return True
    # Two streams that name the same topic are a mistake, even if one names others as well. A pattern that overlaps
    # may be meant: the stream gets the topics that remain.
    if block.topics:
        return any(map(before.covers_topic, block.topics))
    return bool(topics) and all(map(before.covers_topic, topics or ()))


def _registry_addresses(urls: str) -> str:
    if not all(re.fullmatch(r"\s*https?://[^\s/@?#]+(/[^\s@?#]*)?\s*", url) for url in urls.split(",")):
        raise ValueError(
            "not an address; write one such as https://registry:8081, and put a login into "
            "`schema.registry.basic.auth.user.info` in the extra of the Kafka connection"
        )
    return urls


class RegistryBlock(StrictBlock):
    """The address of the schema registry. The login is in the extra of the Kafka connection, never in a file."""

    url: Annotated[str, AfterValidator(_registry_addresses)]


RegistryChoice = Annotated[
    Annotated[RegistryBlock, Tag(MAPPING)] | Annotated[Literal["connection"], Tag("connection")],
    mapping_or("connection", RegistryBlock, _REGISTRY_ADVICE),
]


Decode = Callable[[bytes, Record], Any]
"""Returns the value that the bytes hold. The record is the one that they belong to, for its topic and headers.

Raises `Undecodable`, and no other error for what is wrong with the bytes.
"""


class Undecodable(Exception):
    """The decoder does not accept the bytes. The record fails with the class `Undecodable`; others are not affected.

    The text quotes nothing of the record.
    """


_LONG = 800
_MANY = 400
"""Opening brackets. Less deep than `json.loads` goes under Python's limit of recursion, so it can't matter that msgspec
goes a few levels deeper."""


def json_decoder() -> Callable[[bytes], Any]:
    """Returns a function of bytes that returns what `json.loads` returns for their UTF-8 text, down to the types, and
    raises what it raises: ValueError (JSONDecodeError, UnicodeDecodeError) or RecursionError.

    msgspec decodes what it accepts. What it rejects, `json.loads` reads again: NaN, half a surrogate pair, 1e999, and
    all that is not JSON. It also reads long text with many brackets, which may be nested deeper than it goes.
    """
    from msgspec.json import Decoder  # here, because a process that only reads a pipeline file decodes nothing

    fast = Decoder().decode

    def decode(data: bytes) -> Any:
        if len(data) >= _LONG and data.count(b"[") + data.count(b"{") >= _MANY:
            return json.loads(data.decode())
        try:
            return fast(data)
        except Exception:
            # json.loads(bytes) would guess at UTF-16 and UTF-32, and would accept one half of a surrogate pair.
            return json.loads(data.decode())

    return decode


def _utf8(field: str) -> Decode:
    def decode(data: bytes, record: Record) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(_why_not_utf8(field, error)) from None

    return decode


def _json(field: str) -> Decode:
    value_of = json_decoder()

    def decode(data: bytes, record: Record) -> Any:
        try:
            return value_of(data)
        except Exception as error:  # the bytes also cause RecursionError and MemoryError
            raise Undecodable(why_not_json(field, error)) from None

    return decode


def _why_not_utf8(field: str, error: UnicodeDecodeError) -> str:
    return f"the {field} is not UTF-8: {error.reason} at byte {error.start}"


def why_not_json(field: str, error: Exception) -> str:
    """Returns the text for an error that a function of `json_decoder` raised. Quotes nothing of the bytes."""
    match error:
        case UnicodeDecodeError():
            return _why_not_utf8(field, error)
        case json.JSONDecodeError():
            return f"the {field} is not JSON: line {error.lineno}, column {error.colno}"
        case RecursionError():
            return f"the {field} is JSON nested too deep"
    return f"the {field} is not readable JSON: {type(error).__name__}"


DECODERS: Mapping[str, Callable[[str], Decode]] = {"utf8": _utf8, "json": _json}
"""Makes a decoder, by the name that a pipeline file gives it. The argument, `key` or `value`, is for error texts."""


def scalar_texts(value: Any) -> Iterator[bytes | str]:
    """Yields each scalar of a decoded value, and each key of its mappings, as text or bytes; not None and booleans.

    An error message must not repeat any of them.
    """
    waiting = [value]  # no recursion: a value may have more levels than the stack
    seen = set[int]()  # a value that a handler has made may contain itself, or one part many times
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list | tuple | set):
            if id(item) in seen:
                continue
            seen.add(id(item))
        if isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set):
            waiting.extend(item)
        elif isinstance(item, bytes | str):
            yield item
        elif item is not None and not isinstance(item, bool):
            try:
                yield str(item)
            except Exception:  # no text for it (an integer of 5,000 digits), so no message can hold it either
                continue
