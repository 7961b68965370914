"""The `retry:` block of a pipeline file, and the retry classes that a file can name instead (`retry.class`)."""

import importlib
import inspect
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, Tag, model_validator

from ackline.backoff import FOREVER, Backoff, RetryPolicy
from ackline.blocks import MAPPING, Duration, StrictBlock
from ackline.errors import ConfigError


def _number_of_retries(value: object) -> object:
    if value == "forever":
        return FOREVER
    if isinstance(value, str):
        raise ValueError(f"write a whole number, or forever, not {value!r}")
    return value


MaxRetries = Annotated[
    int,
    Field(ge=0, le=FOREVER),
    BeforeValidator(_number_of_retries),
    PlainSerializer(lambda number: "forever" if number == FOREVER else number),
]
"""A key of a pipeline file that is a number of retries, or `forever`. Stored plans hold the same word."""


class RetryBlock(StrictBlock):
    """The keys of `retry:`; their meaning is that of `ackline.backoff.RetryPolicy`."""

    initial_delay: Duration = timedelta(0)
    period: Duration = timedelta(minutes=1)
    multiplier: Annotated[float, Field(ge=1, le=1000)] = 2.0
    max_delay: Duration = timedelta(hours=1)
    max_retries: MaxRetries = 5
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.0
    by_error: dict[Annotated[str, Field(min_length=1)], "RetryOverride"] = Field(default_factory=dict)
    class_: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")] | None = Field(None, alias="class")

    @model_validator(mode="after")
    def _either_class_or_numbers(self) -> "RetryBlock":
        if self.class_ is not None:
            defaults = RetryBlock.model_construct(class_=self.class_)
            others = [name for name in type(self).model_fields if getattr(self, name) != getattr(defaults, name)]
            if others:
                raise ValueError(f"`class` replaces all other keys; remove {', '.join(others)}")
        return self

    def policy(self) -> Backoff:
        """The policy that these keys describe, or the instance of `class`. Raises ConfigError if that can't be used."""
        if self.class_ is not None:
            return load_backoff(self.class_)
        by_error = {
            error_class: None if override == "never" else override.over(self)
            for error_class, override in self.by_error.items()
        }
        return replace(self.policy_of_numbers(), by_error=by_error)

    def policy_of_numbers(self) -> RetryPolicy:
        """The policy without `by_error` and `class`."""
        return RetryPolicy(
            self.initial_delay, self.period, self.multiplier, self.max_delay, self.max_retries, self.jitter
        )


class RetryNumbers(StrictBlock):
    """The keys that an error class has of its own in `retry.by_error`; the others are those of `retry` itself."""

    initial_delay: Duration | None = None
    period: Duration | None = None
    multiplier: Annotated[float, Field(ge=1, le=1000)] | None = None
    max_delay: Duration | None = None
    max_retries: MaxRetries | None = None
    jitter: Annotated[float, Field(ge=0, le=1)] | None = None

    def over(self, retry: RetryBlock) -> RetryPolicy:
        """The policy of the error class: that of `retry`, with the keys of this block replaced."""
        own = {name: getattr(self, name) for name in type(self).model_fields if getattr(self, name) is not None}
        return replace(retry.policy_of_numbers(), **own)


def _override_kind(value: object) -> str | None:
    if value == "never":
        return "never"
    return MAPPING if isinstance(value, (dict, RetryNumbers)) else None


RetryOverride = Annotated[
    Annotated[RetryNumbers, Tag(MAPPING)] | Annotated[Literal["never"], Tag("never")],
    Discriminator(
        _override_kind,
        custom_error_type="retry_override",
        custom_error_message="write the keys that differ, such as {max_retries: 1}, or never",
    ),
]


def load_backoff(path: str) -> Backoff:
    """An instance of the class that `module:Class` names, wrapped so that each of its answers is checked.

    Raises ConfigError if the class can't be imported, made or called. `next_attempt` of the returned object raises
    ConfigError if the class raises, or returns neither an aware time nor None: settle stores no guessed due time.
    """
    module, _, name = path.partition(":")
    try:
        instance: Backoff = getattr(importlib.import_module(module), name)()
        _check_method(instance.next_attempt)  # checked before anything is planned, so that it leaves no open turn
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"retry class {path} can't be used: {type(error).__name__}: {error}", key="retry.class"
        ) from None
    return _CheckedBackoff(path, instance)


def _check_method(method: object) -> None:
    if not callable(method) or inspect.iscoroutinefunction(method):
        raise TypeError("its next_attempt is asynchronous, or not a method")
    try:
        signature = inspect.signature(method)
    except ValueError:
        return  # a builtin has no signature: its first call shows whether it fits
    signature.bind(1, datetime.now(UTC), None, "")


@dataclass(frozen=True, slots=True)
class _CheckedBackoff:
    """A retry class of the user. An invalid answer is a ConfigError, and nothing of the turn is settled."""

    path: str
    instance: Backoff

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        try:
            due: object = self.instance.next_attempt(attempts, handled_at, error_class, seed)
            if due is None:
                return None
            if isinstance(due, datetime) and due.utcoffset() is not None:
                return due.astimezone(UTC)
            kind = "a time without a zone" if isinstance(due, datetime) else f"a {type(due).__name__}"
            problem = f"returned {kind}"
        except (Exception, SystemExit) as error:
            problem = f"raised {type(error).__name__}: {error}"
        raise ConfigError(
            f"retry class {self.path} {problem} for attempt {attempts}, which failed with {error_class} ({seed}); "
            f"next_attempt returns an aware time or None. Nothing was settled: correct the class and run again",
            key="retry.class",
        )


RetryBlock.model_rebuild()
