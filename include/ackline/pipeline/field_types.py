"""The types of single values in a pipeline file, such as names, patterns, times and paths of functions. Pure.

`StrictBlock` is the base class of the blocks of a file.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
)

from ackline.ledger.backoff import duration_text, parse_duration

_PIPELINE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$"
_STREAM_NAME = r"^[A-Za-z0-9][\w.-]{0,99}$"
_STEP_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
_STREAM_OF_STEP = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}(\.[A-Za-z0-9][A-Za-z0-9_-]{0,99})?$"
_CODE_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
_TAG = r"^[a-z0-9_-]{1,100}$"
_OWNER = r"^[A-Za-z0-9][A-Za-z0-9_.@ -]{0,99}$"
_MEMORY = r"^[1-9][0-9]{0,8}[kmgt]$"

ADVICE_BY_PATTERN = {
    _PIPELINE_NAME: "write 1 to 200 of the characters A-Z a-z 0-9 _ . -, a letter or digit first",
    _STREAM_NAME: "write 1 to 100 letters, digits or characters of _ . -, a letter or digit first",
    _STEP_NAME: "write 1 to 100 letters, digits or characters of _ -, a letter or digit first",
    _STREAM_OF_STEP: "write STEP or STEP.STREAM, such as source.items",
    _CODE_PATH: "write module:name, such as handlers.orders:handle",
    _TAG: "write 1 to 100 of the characters a-z 0-9 _ -",
    _OWNER: "write 1 to 100 of the characters A-Z a-z 0-9 _ . @ - and space, a letter or digit first",
    _MEMORY: "write an amount of memory with its unit, such as 512m or 4g",
}
"""What to write instead of a text that does not match, as pydantic's own message only quotes the pattern."""

PipelineName = Annotated[str, Field(pattern=_PIPELINE_NAME)]
StreamName = Annotated[str, Field(pattern=_STREAM_NAME)]
StepName = Annotated[str, Field(pattern=_STEP_NAME)]
StreamOfStep = Annotated[str, Field(pattern=_STREAM_OF_STEP)]
"""A stream of a step as a file names it: STEP.STREAM, or STEP for its stream `default`."""
InputStreams = Annotated[
    list[StreamOfStep], Field(min_length=1), BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
"""One stream, or a list of streams."""
PipelineTag = Annotated[str, Field(pattern=_TAG)]
"""A word by which commands choose several pipelines. Airflow takes 100 characters."""
PipelineOwner = Annotated[str, Field(pattern=_OWNER)]
"""A team or a person. Airflow joins the owners of a DAG by commas, so none is in it."""
CodePath = Annotated[str, Field(pattern=_CODE_PATH)]
"""The path of a function or class, `module:name`. Reading the file does not import it."""


def is_pipeline_name(text: str) -> bool:
    """Returns whether a pipeline may have this name."""
    return re.fullmatch(_PIPELINE_NAME, text) is not None


def is_code_path(text: str) -> bool:
    """Returns whether a text is the path of a function or class, `module:name`."""
    return re.fullmatch(_CODE_PATH, text) is not None


Memory = Annotated[str, Field(pattern=_MEMORY)]
"""An amount of memory as Spark writes it."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def topic_name(name: str) -> str:
    """Returns `name` if Kafka accepts it as the name of a topic. Raises ValueError if not."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r} is not a topic name; write 1 to 249 of the characters a-z A-Z 0-9 . _ -")
    return name


TopicName = Annotated[str, AfterValidator(topic_name)]


def _group_id(group_id: str) -> str:
    # Kafka's client cuts the name at a NUL, and so commits the offsets of another group; a blank name crashes it.
    if group_id != group_id.strip() or not group_id.isprintable():
        raise ValueError("not a group name: it has control characters, or a blank at its start or end; remove them")
    return group_id


GroupId = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_group_id)]

PartitionNumbers = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}; correct it") from None
    return pattern


RegularExpression = Annotated[str, Field(min_length=1), AfterValidator(_regular_expression)]


def _property_value(value: object) -> object:
    if not isinstance(value, (str, int, float)):
        raise ValueError("not valid: write text, a number or a boolean")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("not valid: it has a NUL character, where Kafka's client cuts the value; remove it")
    return value


PropertyValue = Annotated[str | int | float | bool, PlainValidator(_property_value)]


TIME_FORMS = "a time with its zone, such as 2026-01-31T12:00:00Z or 2026-01-31T13:00:00+01:00"
"""The forms of a time, for messages."""


def parse_time(text: str) -> datetime:
    """Returns an ISO 8601 time as a datetime in UTC. Raises ValueError if it is not a time or has no time zone."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        # The one for a text of another form quotes a function of Python, and no part of the time.
        reason = "" if "isoformat" in str(error) else f" ({error})"
        raise ValueError(f"{text!r} is not a time{reason}; write {TIME_FORMS}") from None
    raise ValueError(f"{text} has no time zone; write {TIME_FORMS}")


def _time(value: object) -> object:
    if isinstance(value, str):
        return parse_time(value)
    if isinstance(value, datetime):  # YAML makes a datetime of a time without quotes
        return parse_time(value.isoformat())
    return value


Time = Annotated[datetime, BeforeValidator(_time)]


MAPPING = "[mapping]"
"""pydantic's tag of the mapping, where a key takes either a mapping or a word. No topic can have this name: a refusal
leaves the tag out of the path of a key."""


WORD = "[word]"
"""pydantic's tag of the word, where a key takes one of several words or a mapping. Left out of paths as MAPPING is."""


MAPPING_OR_WORD = "mapping_or_word"
"""The name of pydantic's error for a value of such a key that is neither."""


def mapping_or(word: str, block: type[BaseModel], advice: str) -> Discriminator:
    """Returns pydantic's discriminator of a key that takes either this word or a mapping, which is a `block`."""
    return Discriminator(
        lambda value: word if value == word else MAPPING if isinstance(value, (dict, block)) else None,
        custom_error_type=MAPPING_OR_WORD,
        custom_error_message=advice,
    )


class StrictBlock(BaseModel):
    """A block of a pipeline file. Unknown keys and values of another type are refused."""

    # Built at first use: the tasks of Spark load these classes, and read no file.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    @classmethod
    def stored(cls, settings: Mapping[str, Any]) -> Self:
        """The block in the settings of a stored plan. Ignores unknown keys, because another version may have written
        them."""
        return cls.model_validate(settings, extra="ignore")


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(duration_text)]
"""A key of a pipeline file that is a duration."""
