"""How records are translated for handlers: what is decoded, and which stream takes a record. Pure.

Storm's RecordTranslator and ByTopicRecordTranslator: there a function of a record says what is emitted to which named
stream; here a stream names the topics, the filter, the decoders and the handler of its records. The pipeline's own
handler is the last stream, of all topics. `Translation` is all that a worker needs to know of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from ackline.errors import ConfigError
from ackline.handler import Handler, Tier, load_handler, tier_of
from ackline.retry import MAPPING, Block

Word = Literal["bytes", "utf8", "json", "avro", "json_schema"]
OF_REGISTRY = frozenset({"avro", "json_schema"})
"""Decoders that ask a schema registry."""
_OF_ARROW = frozenset({"bytes", "utf8"})
OWN = ""
"""The name, which no file can give, of the stream that is the pipeline's own handler."""

FunctionPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]


class DecodeBlock(Block):
    """What keys and values are decoded as; `bytes` leaves them as they are in the log."""

    key: Word | None = None
    value: Word | None = None


class StreamBlock(Block):
    """A named stream: records of these topics that the filter wants go to this handler. Without topics: of all."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]{0,99}$")
    topics: list[str] | None = Field(None, min_length=1)
    pattern: str | None = Field(None, min_length=1)
    filter: FunctionPath | None = None
    handler: FunctionPath
    decode: DecodeBlock = DecodeBlock()

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _not_both(self) -> "StreamBlock":
        if self.topics is not None and self.pattern is not None:
            raise ValueError("name either `topics` or `pattern`; a stream with neither is of all topics")
        return self


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream, `OWN` for the pipeline's own handler. `topics` and `pattern` None: of all topics."""

    name: str
    handler: str
    filter: str | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    key: str = "bytes"
    value: str = "bytes"

    def of(self, topic: str) -> bool:
        """Whether records of a topic may go here; a pattern must match the whole name."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return self.topics is None or topic in self.topics

    def place(self, key: str) -> str:
        """How the pipeline file names a key of this stream."""
        return f"streams.{self.name}.{key}" if self.name else key


def stream_of(
    name: str,
    handler: str,
    wants: str | None,
    decode: DecodeBlock,
    otherwise: DecodeBlock,
    topics: Sequence[str] | None = None,
    pattern: str | None = None,
) -> Stream:
    """A stream as the file describes it; what its `decode` leaves open is as `otherwise` says, or stays bytes."""
    key, value = decode.key or otherwise.key or "bytes", decode.value or otherwise.value or "bytes"
    return Stream(name, handler, wants, None if topics is None else tuple(topics), pattern, key, value)


@dataclass(frozen=True, slots=True)
class Translation:
    """The streams of a pipeline in the order in which they are asked; the first that wants a record takes it.

    `registry` configures the schema-registry client, and may hold a password: it is not shown, and travels only inside
    a task's own function.
    """

    streams: tuple[Stream, ...]
    registry: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @property
    def needs_registry(self) -> bool:
        """Whether anything is decoded with a schema."""
        return any({stream.key, stream.value} & OF_REGISTRY for stream in self.streams)


def refusal(reason: str, place: tuple[str | int, ...]) -> PydanticCustomError:
    """A refusal of another key than the one being checked: `refused_place` finds it."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "place": place})


def refused_place(problem: Mapping[str, Any]) -> tuple[str | int, ...]:
    """The key that one of pydantic's errors is about."""
    place: tuple[str | int, ...] = problem.get("ctx", {}).get("place") or problem["loc"]
    return place


def refuse_without_registry(decode: DecodeBlock, place: tuple[str | int, ...]) -> None:
    """Raise where a decoder needs a schema registry; the pipeline names none."""
    for name, word in (("key", decode.key), ("value", decode.value)):
        if word in OF_REGISTRY:
            raise refusal(
                f"{word} needs a schema registry: write `schema_registry: {{url: URL}}`, or `schema_registry: "
                f"connection` where the Kafka connection's extra has `schema.registry.url`",
                (*place, name),
            )


def check_topics(
    streams: Sequence[StreamBlock], wants_topic: Callable[[str], bool], named: Sequence[str] | None
) -> None:
    """Raise for a name given twice, for topics that the pipeline does not read, and for a stream that gets nothing
    because one before it takes all. `named` are the pipeline's topics, None where a pattern finds them."""
    asked: list[Stream] = []
    for number, block in enumerate(streams):
        if any(block.name == before.name for before in asked):
            raise refusal(f"{block.name} is the name of two streams", ("streams", number, "name"))
        stream = stream_of(
            block.name, block.handler, block.filter, block.decode, DecodeBlock(), block.topics, block.pattern
        )
        place = ("streams", number, "topics" if block.topics else "pattern" if block.pattern else "name")
        for topic in block.topics or ():
            if not wants_topic(topic):
                raise refusal(f"{topic} is not a topic that the pipeline reads", place)
        mine = block.topics or (None if named is None else [topic for topic in named if stream.of(topic)])
        if mine is not None and not mine:
            raise refusal("it matches none of the topics that the pipeline reads", place)
        for before in asked:
            if before.filter is None and _takes_all(before, block, mine):
                raise refusal(f"stream {before.name} comes first and takes all of these topics' records", place)
        asked.append(stream)


def _takes_all(before: Stream, block: StreamBlock, mine: Sequence[str] | None) -> bool:
    if before.topics is None and before.pattern is None:
        return True
    # A topic named in both is a mistake, even beside others; of a pattern, what is left may be what was meant.
    return any(map(before.of, block.topics)) if block.topics else bool(mine) and all(map(before.of, mine or ()))


def _address(url: object) -> object:
    if isinstance(url, str):
        for one in url.split(","):
            if not re.fullmatch(r"\s*https?://[^\s/@?#]+(/[^\s@?#]*)?\s*", one):
                raise ValueError(
                    "not an address such as https://registry:8081; a login belongs into the Kafka connection's "
                    "`schema.registry.basic.auth.user.info`"
                )
    return url


class RegistryBlock(Block):
    """Where the schema registry is. How to log in is said by the Kafka connection, in no file."""

    url: Annotated[str, BeforeValidator(_address)]


def _registry_kind(value: object) -> str | None:
    if value == "connection":
        return "connection"
    return MAPPING if isinstance(value, (dict, RegistryBlock)) else None


RegistryChoice = Annotated[
    Annotated[RegistryBlock, Tag(MAPPING)] | Annotated[Literal["connection"], Tag("connection")],
    Discriminator(
        _registry_kind,
        custom_error_type="schema_registry",
        custom_error_message="write `schema_registry: {url: URL}`, or `schema_registry: connection` where the Kafka "
        "connection's extra has `schema.registry.url`",
    ),
]


@dataclass(frozen=True, slots=True)
class Code:
    """The functions of a stream, imported. `wants` is its filter."""

    handler: Handler
    tier: Tier
    wants: Handler | None


def load_code(stream: Stream) -> Code:
    """Import a stream's handler and filter.

    Raises ConfigError where one does not import or fit (`ackline.handler.load_handler`), or where the handler's tier
    can't be given what the stream decodes.
    """
    handler = load_handler(stream.handler, stream.place("handler"))
    wants = load_handler(stream.filter, stream.place("filter")) if stream.filter is not None else None
    tier = tier_of(handler)
    if tier is Tier.COLUMN:
        raise ConfigError(
            f"{stream.place('handler')}: {stream.handler} is a column handler, which stays in the JVM: it takes whole "
            f"topics as bytes, without `decode`, `filter` and `streams`",
            key=stream.place("handler"),
        )
    for name, word in (("key", stream.key), ("value", stream.value)):
        if tier is Tier.ARROW and word not in _OF_ARROW:
            raise ConfigError(
                f"{stream.place(f'decode.{name}')}: {word} has no column type, so it can't be given to the Arrow "
                f"handler {stream.handler}; take bytes or utf8 and decode there, or write a handler of records",
                key=stream.place(f"decode.{name}"),
            )
    return Code(handler, tier, wants)


def check_code(handler: str | None, translation: Translation | None, isolated: bool = False) -> None:
    """Import all handlers and filters of a pipeline, so that nothing is planned in vain.

    Raises as `load_code` does, and ConfigError where they are to be `isolated` and can't be.
    """
    code: list[Code] = []
    if translation is not None:
        code = [load_code(stream) for stream in translation.streams]
    elif handler is not None:
        code = [code_of(load_handler(handler))]
    why = why_not_isolated(code)
    if isolated and why is not None:
        raise ConfigError(why, key="isolation")


def code_of(handler: Handler) -> Code:
    """A handler that gets all records as they are."""
    return Code(handler, tier_of(handler), None)


def why_not_isolated(code: Sequence[Code]) -> str | None:
    """What keeps these from running in processes of their own, None where nothing does; in the order of streams."""
    filtered = [bool(one.wants) for one in code]
    if any(one.tier is Tier.COLUMN for one in code):
        why = "the handler is a column handler: it runs inside Spark's JVM"
    elif any(one.tier is Tier.ARROW and any(filtered[: place + 1]) for place, one in enumerate(code)):
        # A batch that is made of what filters let through is no call of its own in the log of calls.
        why = "a stream has an Arrow handler behind a filter, so it is called in the midst of others"
    else:
        return None
    return (
        f"{why}, where neither `isolation: process` nor `record_timeout` can help; take them out, or write a handler "
        f"of records"
    )
