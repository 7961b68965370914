"""The `retry:` block of a pipeline file, and durations as files write them."""

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    model_validator,
)

from ackline.backoff import Backoff, RetryPolicy
from ackline.errors import ConfigError

MAPPING = "mapping"  # the tag of a mapping, where a word may stand as well
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(text: object) -> timedelta:
    """`90s`, `1h30m`, `250ms`, `0s` as a timedelta; raises ValueError for anything else, a bare number included."""
    if isinstance(text, timedelta):
        return text
    parts = _PART.findall(text) if isinstance(text, str) else []
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"write a duration with its unit, such as 500ms, 30s, 5m or 1h30m, not {text!r}")
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError:
        raise ValueError(f"{text} is longer than a calendar") from None


def _duration_text(duration: timedelta) -> str:
    milliseconds = duration // timedelta(milliseconds=1)
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(_duration_text)]


class Block(BaseModel):
    """A part of a pipeline file: unknown keys and wrong types are refused."""

    @classmethod
    def stored(cls, settings: Mapping[str, Any]) -> Self:
        """The block of a stored plan, which an older or newer version may have written: keys unknown here are passed
        over."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return cls.model_validate({key: value for key, value in settings.items() if key in known})

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RetryBlock(Block):
    """The backoff, as in `ackline.backoff`."""

    initial_delay: Duration = timedelta(0)
    period: Duration = timedelta(minutes=1)
    multiplier: Annotated[float, Field(ge=1, le=1000)] = 2.0
    max_delay: Duration = timedelta(hours=1)
    max_retries: int = Field(5, ge=0, le=2**31 - 2)
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.0
    by_error: dict[Annotated[str, Field(min_length=1)], "RetryOverride"] = Field(default_factory=dict)
    class_: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")] | None = Field(None, alias="class")

    @model_validator(mode="after")
    def _either_class_or_numbers(self) -> "RetryBlock":
        if self.class_ is not None:
            plain = RetryBlock.model_construct(class_=self.class_)
            others = [name for name in type(self).model_fields if getattr(self, name) != getattr(plain, name)]
            if others:
                raise ValueError(f"`class` decides alone; take out {', '.join(others)}")
        return self

    def policy(self) -> Backoff:
        """The same as a value of the pure core. Raises ConfigError for a class that does not import or fit."""
        if self.class_ is not None:
            return load_backoff(self.class_)
        by_error = {name: None if one == "never" else one.over(self) for name, one in self.by_error.items()}
        return replace(self._plain(), by_error=by_error)

    def _plain(self) -> RetryPolicy:
        return RetryPolicy(
            self.initial_delay, self.period, self.multiplier, self.max_delay, self.max_retries, self.jitter
        )


class RetryNumbers(Block):
    """What one class of errors has otherwise than the rest; what is not named is as for the rest."""

    initial_delay: Duration | None = None
    period: Duration | None = None
    multiplier: Annotated[float, Field(ge=1, le=1000)] | None = None
    max_delay: Duration | None = None
    max_retries: int | None = Field(None, ge=0, le=2**31 - 2)
    jitter: Annotated[float, Field(ge=0, le=1)] | None = None

    def over(self, rest: RetryBlock) -> RetryPolicy:
        """The policy, with `rest` for what is not named."""
        named = {name: getattr(self, name) for name in type(self).model_fields if getattr(self, name) is not None}
        return replace(rest._plain(), **named)


def _override_kind(value: object) -> str | None:
    if value == "never":
        return "never"
    return MAPPING if isinstance(value, (dict, RetryNumbers)) else None


RetryOverride = Annotated[
    Annotated[RetryNumbers, Tag(MAPPING)] | Annotated[Literal["never"], Tag("never")],
    Discriminator(
        _override_kind,
        custom_error_type="retry_override",
        custom_error_message="write what is different, such as {max_retries: 1}, or never",
    ),
]


def load_backoff(path: str) -> Backoff:
    """An instance of the class named by `module:Class`, its answers checked.

    Raises ConfigError where it does not import or fit. What is returned raises ConfigError where the class raises, or
    answers anything but an aware time or None: no due time may be stored by a guess.
    """
    module, _, name = path.partition(":")
    try:
        made: Backoff = getattr(importlib.import_module(module), name)()
        _check_method(made.next_attempt)  # looked at now, so that no turn is left open by it
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"retry class {path} can't be used: {type(error).__name__}: {error}", key="retry.class"
        ) from None
    return _Checked(path, made)


def _check_method(method: object) -> None:
    if not callable(method) or inspect.iscoroutinefunction(method):
        raise TypeError("its next_attempt is asynchronous, or no method")
    try:
        signature = inspect.signature(method)
    except ValueError:
        return  # a builtin without a signature: its first call tells
    signature.bind(1, datetime.now(UTC), None, "")


@dataclass(frozen=True, slots=True)
class _Checked:
    """A class of the user's, believed only where it answers as `Backoff` says."""

    path: str
    made: Backoff

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        try:
            due: object = self.made.next_attempt(attempts, handled_at, error_class, seed)
            if due is None:
                return None
            if isinstance(due, datetime) and due.utcoffset() is not None:
                return due.astimezone(UTC)
            said = f"answered {'a time without a zone' if isinstance(due, datetime) else f'a {type(due).__name__}'}"
        except (Exception, SystemExit) as error:
            said = f"raised {type(error).__name__}: {error}"
        raise ConfigError(
            f"retry class {self.path} {said}, asked about attempt {attempts} that failed with {error_class} ({seed}); "
            f"an aware time or None is wanted. Nothing was settled: mend it, and run again",
            key="retry.class",
        )


RetryBlock.model_rebuild()
