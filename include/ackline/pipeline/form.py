"""Forms: the fields of an action or a backfill, from which the command makes its options and a DAG its params. Pure.

A field is declared once. So the two can't differ in a name, a bound or an explanation, and both pass what a user has
entered on as `Entered`, which the same functions read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from ackline.errors import ConfigError

T = TypeVar("T")


class FieldType(Enum):
    """What a value of a field is, with what a refusal tells the user to write."""

    TEXT = "write a text"
    FLAG = "write true or false"
    NUMBER = "write a whole number"
    TEXTS = "write a list of texts"
    NUMBERS = "write a list of whole numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form."""

    name: str
    """The name of the DAG's param, and the key of the value."""
    option: str
    """How the command line has it; without dashes it is an argument."""
    type: FieldType = FieldType.TEXT
    title: str
    help: str
    pattern: str | None = None
    """What a text has to match. Only the DAG checks it; the functions that read the value name what is wrong."""
    format: str | None = None
    choices: tuple[str, ...] = ()
    """The texts that the DAG offers; empty: any."""
    minimum: int = 0
    maximum: int = 2**31 - 1
    default: str | None = None
    in_command: bool = True
    in_dag: bool = True

    @property
    def empty(self) -> Any:
        """The value of a field that was not filled in."""
        return {FieldType.FLAG: False, FieldType.TEXTS: [], FieldType.NUMBERS: []}.get(self.type, self.default)


@dataclass(frozen=True, slots=True)
class Entered:
    """The values of a form by the names of its fields, as a user has entered them."""

    values: Mapping[str, Any]
    by_option: bool
    """Whether they come from the command line, whose errors name options, and not from the form of a DAG."""

    def label(self, field: Field) -> str:
        """Returns the name of a field as the user has seen it."""
        return field.option if self.by_option else field.name

    def wrong(self, field: Field, problem: str, value: str | None = None) -> ConfigError:
        """Returns the error that names a field, its value on a command line, and what is wrong with it."""
        shown = f" {value}" if value is not None and self.by_option else ""
        return ConfigError(f"{self.label(field)}{shown}: {problem}", key=self.label(field))

    def value(self, field: Field) -> Any:
        """Returns the value of a field. Raises ConfigError for one of another type, which came past the DAG's form."""
        value = self.values.get(field.name, field.empty)
        if value is None:
            return field.empty
        if not _is_of(field, value):
            bounds = f" from {field.minimum} to {field.maximum}" if field.type is FieldType.NUMBER else ""
            raise self.wrong(field, f"not valid; {field.type.value}{bounds}")
        return value

    def text(self, field: Field) -> str | None:
        """Returns a text; None if it was not entered. A form sends an empty text for a field that is left empty."""
        value: str | None = self.value(field)
        return value if value or self.by_option else None

    def parsed(self, field: Field, parse: Callable[[str], T]) -> T | None:
        """Returns what `parse` makes of a text; None if it was not entered. Raises ConfigError for its ValueError."""
        value = self.text(field)
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise self.wrong(field, str(error), value or "") from None


def _is_of(field: Field, value: object) -> bool:
    match field.type:
        case FieldType.TEXT:
            return isinstance(value, str)
        case FieldType.FLAG:
            return type(value) is bool
        case FieldType.NUMBER:
            return type(value) is int and field.minimum <= value <= field.maximum
        case FieldType.TEXTS:
            return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
        case FieldType.NUMBERS:
            return isinstance(value, list | tuple) and all(type(each) is int for each in value)
