"""What a user writes: a handler, in one of three tiers with the same semantics.

A record handler is a function of one `Record`: returning acks it, raising fails it, raising `Skip` or `Dead` settles it
at once. An Arrow handler answers a whole batch with an outcome a row. A column handler is a Spark column expression and
stays in the JVM. Nothing here knows Spark; `ackline.spark.handlers.call` runs them.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from ackline.errors import ConfigError

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Record:
    """One Kafka record as a handler sees it.

    `key` and `value` are what the pipeline file's `decode` makes of them, bytes by default; None stays None.
    `timestamp` is aware UTC, or None where Kafka has none. `attempt` counts from 1. `headers` keep their order and may
    repeat a name.
    """

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    attempt: int


class Skip(Exception):
    """Raise `Skip(reason)` in a handler: the record needs nothing more, and is `skipped`, not acked."""


class Dead(Exception):
    """Raise `Dead(reason)` in a handler: never try this record again; it goes to the dead-letter topic."""


class Tier(StrEnum):
    """How a handler wants its records."""

    RECORD = "record"
    ARROW = "arrow"
    COLUMN = "column"


_TIER = "__ackline_tier__"


def arrow_handler(function: H) -> H:
    """Declare a handler of `pyarrow.RecordBatch`es.

    It gets the columns topic, partition, offset, timestamp, key, value, headers, attempt, and returns one outcome a
    row: a sequence of "acked", "failed", "skipped" or "dead" (a list, an Arrow array, or a table with the column
    `outcome` and optionally `offset`, `error_class`, `error_message`). An answer of the wrong length, with nulls, other
    words or other offsets is refused whole: every record of the batch failed. So it is when the handler raises.
    """
    setattr(function, _TIER, Tier.ARROW)
    return function


def column_handler(function: H) -> H:
    """Declare a handler that takes the DataFrame of records and returns a string column: the outcome of each row.

    The column is one of "acked", "failed", "skipped" or "dead"; null or another word fails its record.
    """
    setattr(function, _TIER, Tier.COLUMN)
    return function


def tier_of(handler: Handler) -> Tier:
    """The tier that a decorator declared, or `Tier.RECORD`."""
    return Tier(getattr(handler, _TIER, Tier.RECORD))


def load_handler(path: str, key: str = "handler") -> Handler:
    """The function named by `module:function`, a handler or whatever else the pipeline file names at `key`.

    Raises ConfigError where it does not import, is not callable, is a class, takes no single argument, or is
    asynchronous or a generator: calling such a function runs none of its body, and every record would be acked
    unhandled.
    """
    module_name, _, name = path.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a script without a guard exits, with status 0 even
        raise ConfigError(f"{key} {path} does not import: {type(error).__name__}: {error}", key=key) from error
    if not callable(found):
        raise ConfigError(f"{key} {path} is not a function", key=key)
    if inspect.isclass(found):
        raise ConfigError(
            f"{key} {path} is a class: a call would only make an object, and ack its record; name a function", key=key
        )
    if _is_deferred(found) or _is_deferred(getattr(found, "__call__", None)):  # noqa: B004 - the method itself is asked
        raise ConfigError(f"{key} {path} is asynchronous or a generator; write a plain function", key=key)
    try:
        inspect.signature(found).bind(object())
    except TypeError as error:
        raise ConfigError(f"{key} {path} does not take exactly one argument: {error}", key=key) from error
    except ValueError:
        pass  # a builtin without a signature: its first call tells
    return found


def _is_deferred(function: object) -> bool:
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)
