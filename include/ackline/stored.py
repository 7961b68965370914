"""The values that Ackline stores as JSON: in the tables, in commit metadata, and in small files.

Another version may have written a text. A reader ignores each field that it does not have, and takes the default of a
field that the text does not have. Any other text is damaged: no JSON, without a field that has no default, or with a
value of another type. There is one error for that, `DamagedError`. A reader of the ledger turns it into an error that
names the table. A reader of advice, or of what any client may have written, passes over it with `decode_or_none`.
"""

from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")


class DamagedError(ValueError):
    """Stored content that Ackline has read is not as its writer wrote it."""


def encode(value: Any) -> str:
    """Returns a value as JSON: a dataclass as an object, an enum as its value, a time in ISO 8601."""
    from msgspec import json  # here, because a process that stores and reads no value needs no msgspec

    return json.encode(value).decode()


def decode(content: str | bytes, kind: type[T]) -> T:
    """Returns the value of this type that `encode` has stored. Raises DamagedError for any other content."""
    from msgspec import MsgspecError, json

    try:
        return json.decode(content, type=kind)
    except (MsgspecError, ValueError, RecursionError) as error:
        raise DamagedError(f"no {kind.__name__} is stored there: {error}") from None


def decode_or_none(content: str | bytes | None, kind: type[T]) -> T | None:
    """Returns the value of this type that `encode` has stored; None without content, and for any other content."""
    try:
        return None if content is None else decode(content, kind)
    except DamagedError:
        return None


class Stored:
    """A dataclass that is stored as JSON by itself. Its `__post_init__` may raise ValueError for a value that it never
    has; content with such a value is damaged."""

    __slots__ = ()

    def encode(self) -> str:
        """Returns this value as JSON."""
        return encode(self)

    @classmethod
    def decode(cls, content: str | bytes) -> Self:
        """Returns the value that `encode` has stored. Raises DamagedError for any other content."""
        return decode(content, cls)

    @classmethod
    def decode_or_none(cls, content: str | bytes | None) -> Self | None:
        """Returns the value that `encode` has stored; None without content, and for any other content."""
        return decode_or_none(content, cls)

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """Returns the value that a file holds; None if it can't be read, or holds none."""
        try:
            return cls.decode_or_none(file.read_bytes())
        except OSError:
            return None
