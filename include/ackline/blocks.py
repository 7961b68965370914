"""What the blocks of a pipeline file have in common: their base class, and durations as files write them. Pure."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

MAPPING = "[mapping]"
"""pydantic's tag of the mapping, where a key takes either a mapping or a word. No topic can have this name: a refusal
leaves the tag out of the path of a key."""
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_PARTS = re.compile(rf"(?:{_PART.pattern})+")
_LONGEST = 64
"""Characters that a duration may have. Any client may write one into an ack topic, so a longer text is not parsed."""


class StrictBlock(BaseModel):
    """A block of a pipeline file. Unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def stored(cls, settings: Mapping[str, Any]) -> Self:
        """The block in the settings of a stored plan. Ignores unknown keys, because another version may have written
        them."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return cls.model_validate({key: value for key, value in settings.items() if key in known})


def parse_duration(text: object) -> timedelta:
    """A duration such as `90s`, `1h30m`, `250ms` or `0s`. Raises ValueError for anything else, as a bare number."""
    if isinstance(text, timedelta):
        return text
    if isinstance(text, str) and len(text) > _LONGEST:
        raise ValueError(
            f"write a duration with its unit, such as 500ms, 30s, 5m or 1h30m, not a text of {len(text)} characters"
        )
    if not isinstance(text, str) or not _PARTS.fullmatch(text):
        raise ValueError(f"write a duration with its unit, such as 500ms, 30s, 5m or 1h30m, not {text!r}")
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)))
    except OverflowError:
        raise ValueError(f"{text} is too long: a duration has at most 999999999 days") from None


def duration_text(duration: timedelta) -> str:
    """Returns a duration as a file writes it, in whole milliseconds or seconds."""
    milliseconds = duration // timedelta(milliseconds=1)
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(duration_text)]
"""A key of a pipeline file that is a duration."""
