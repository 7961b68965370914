"""Forms: the fields of a run, an action or a backfill, of which the command makes options and a DAG params. Pure.

A field is declared once. So the two can't differ in a name, a bound or an explanation, and both pass what a user has
entered on as `Entered`, which the same functions read.

Here is also the form of a run: fewer records than the file allows, only retries, only some partitions, and which output
tables are gone. The plan stores this request with its settings: every process that works on the turn, and the next
turns of the same run, read it there, and the tables show it. A plan that is open already keeps its own request.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from ackline.errors import ConfigError
from ackline.ledger.offsets import TopicPartition
from ackline.scrub import scrub_address

T = TypeVar("T")
NUMBER = "^[0-9]{1,10}$"
"""The pattern of a number in a list: Airflow's form sends it as text."""


class FieldType(Enum):
    """The type of a field's value. An error message has this text to say what to write."""

    TEXT = "write a text"
    FLAG = "write true or false"
    NUMBER = "write a whole number"
    TEXTS = "write a list of texts"
    NUMBERS = "write a list of whole numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form: an option of the command, a param of a DAG, or both."""

    name: str
    """The name of the DAG's param, and the key of the value."""
    option: str
    """Its name on the command line; without dashes it is an argument."""
    also: str | None = None
    """Another name on the command line: that of the same choice in other commands."""
    type: FieldType = FieldType.TEXT
    title: str
    help: str
    pattern: str | None = None
    """A regular expression for a text. Only the DAG checks it; a function that reads the value raises its own error."""
    format: str | None = None
    choices: tuple[str, ...] = ()
    """The texts that the DAG offers; empty: any."""
    shown: tuple[tuple[str | None, str], ...] = ()
    """Each choice with its text in the DAG's form; None stands for no choice."""
    minimum: int = 0
    maximum: int | None = 2**31 - 1
    default: str | None = None
    in_command: bool = True
    in_dag: bool = True

    @property
    def empty(self) -> Any:
        """The value of a field that was not filled in."""
        return False if self.type is FieldType.FLAG else self.default

    def allows(self, value: object) -> bool:
        """Returns whether a value is of the type of the field, and within its bounds. An empty list is not: it would
        choose nothing, and a program that has computed it does not mean everything."""
        match self.type:
            case FieldType.TEXT:
                return isinstance(value, str)
            case FieldType.FLAG:
                return type(value) is bool
            case FieldType.NUMBER:
                return type(value) is int and value >= self.minimum and (self.maximum is None or value <= self.maximum)
            case FieldType.TEXTS | FieldType.NUMBERS:
                each = str if self.type is FieldType.TEXTS else int
                return isinstance(value, list | tuple) and len(value) > 0 and all(type(one) is each for one in value)


@dataclass(frozen=True, slots=True)
class Entered:
    """The values of a form by the names of its fields, as a user has entered them."""

    values: Mapping[str, Any]
    by_option: bool
    """Whether they come from the command line, whose errors name options, and not from the form of a DAG."""

    def label(self, field: Field) -> str:
        """Returns the name by which the user gave a field: its option on a command line, else the param of the DAG."""
        return field.option if self.by_option else field.name

    def wrong(self, field: Field, problem: str, value: str | None = None) -> ConfigError:
        """Returns the error that names a field, its value on a command line, and what is wrong with it."""
        shown = f" {value}" if value is not None and self.by_option else ""
        return ConfigError(f"{self.label(field)}{shown}: {problem}", key=self.label(field))

    def value(self, field: Field) -> Any:
        """Returns the value of a field. Raises ConfigError for a value of another type, or out of its bounds."""
        value = self.values.get(field.name)
        if value is None or (self.by_option and value == []):  # typer has an empty list for an option not given
            return field.empty
        if field.type is FieldType.NUMBERS and isinstance(value, list | tuple):
            # Airflow's form has a line of text for each number.
            value = [int(one) if isinstance(one, str) and re.fullmatch(NUMBER, one) else one for one in value]
        if not field.allows(value):
            bounds = f" from {field.minimum}" if field.type is FieldType.NUMBER else ""
            bounds += f" to {field.maximum:,}" if bounds and field.maximum is not None else ""
            raise self.wrong(field, f"not valid; {field.type.value}{bounds}")
        return value

    def text(self, field: Field) -> str | None:
        """Returns a text; None if it was not entered. Raises ConfigError for an empty text of a DAG run, because its
        form has null for a field that is left empty."""
        value: str | None = self.value(field)
        if value == "" and not self.by_option:
            raise self.wrong(field, "an empty text chooses nothing; leave it out, or write null")
        return value

    def parsed(self, field: Field, parse: Callable[[str], T]) -> T | None:
        """Returns what `parse` makes of a text; None if none was entered. Raises ConfigError for its ValueError."""
        value = self.text(field)
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise self.wrong(field, str(error), value or "") from None


TOPICS = Field(
    name="topics", option="--topic", type=FieldType.TEXTS, title="Topics", help="Only this topic",
    pattern="^[a-zA-Z0-9._-]{1,249}$",
)  # fmt: skip
PARTITIONS = Field(
    name="partitions", option="--partition", type=FieldType.NUMBERS, title="Partitions",
    help="Only partitions with this number",
)  # fmt: skip
ERROR_CLASS = Field(
    name="error_class", option="--error-class", title="Error class",
    help="Only records whose last attempt failed with it; empty: without one.",
)  # fmt: skip

MAX_RECORDS = Field(
    name="max_records", option="--max-records", type=FieldType.NUMBER, title="At most so many records", minimum=1,
    maximum=None, help="Read at most so many offsets in a turn, fresh ones and retries.",
)  # fmt: skip
ONLY_RETRIES = Field(
    name="only_retries", option="--only-retries", type=FieldType.FLAG, title="Only retries",
    help="Read the retries that are due, and no new record.",
)  # fmt: skip
ONLY_PARTITIONS = Field(
    name="partitions", option="", type=FieldType.TEXTS, title="Only these partitions", in_command=False,
    help="Partitions such as orders[0] (empty: all; the others are not read)",
    pattern=r"^[a-zA-Z0-9._-]{1,249}\[(0|[1-9][0-9]{0,9})\]$",
)  # fmt: skip
TABLE_GONE = Field(
    name="table_gone", option="--table-gone", type=FieldType.TEXTS, title="Tables that are gone",
    help="Make this output table anew, although the ledger has published rows there and it does not exist any more",
)  # fmt: skip
INTERVAL_OFFSETS = Field(
    name="confirm_offsets", option="", type=FieldType.NUMBER, title="Offsets of an interval", minimum=1, maximum=10**12,
    in_command=False, help="Only for Airflow's own backfill. An interval of more offsets than this is refused.",
)  # fmt: skip
RUN_FIELDS = (
    replace(TOPICS, in_dag=False), replace(PARTITIONS, in_dag=False), MAX_RECORDS, ONLY_RETRIES, ONLY_PARTITIONS,
    TABLE_GONE, INTERVAL_OFFSETS,
)  # fmt: skip
"""The fields of a run. The command chooses partitions by topic and number, a DAG run by their names."""
SETTING = "run"
"""The key of the request in the settings of a stored plan."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What one run reads at most. Without values it reads what the pipeline file allows."""

    max_records: int | None = None
    """How many offsets a turn of the run reads at most, fresh ones and retries; None for the limit of the file."""
    only_retries: bool = False
    """Whether the run reads due retries alone, and no fresh offset."""
    partitions: frozenset[TopicPartition] | None = None
    """The partitions that the run reads; None for all. The others are committed again, and not read."""
    table_gone: tuple[str, ...] = ()
    """The output tables that may be made anew although the ledger has published there."""

    def includes(self, tp: TopicPartition) -> bool:
        """Returns whether the run may read a partition."""
        return self.partitions is None or tp in self.partitions

    def settings(self) -> dict[str, Any]:
        """Returns the request as a plan stores it; empty without values."""
        given: dict[str, Any] = {}
        if self.max_records is not None:
            given["max_records"] = self.max_records
        if self.only_retries:
            given["only_retries"] = True
        if self.partitions is not None:
            given["partitions"] = [str(tp) for tp in sorted(self.partitions)]
        if self.table_gone:
            given["table_gone"] = list(self.table_gone)
        return {SETTING: given} if given else {}

    def shown(self) -> str:
        """Returns the request as on a command line, for a person; empty without values."""
        topics = sorted({tp.topic for tp in self.partitions or ()})
        numbers = sorted({tp.partition for tp in self.partitions or ()})
        words = [f"{MAX_RECORDS.option} {self.max_records}"] if self.max_records is not None else []
        words += [ONLY_RETRIES.option] if self.only_retries else []
        words += [f"{TOPICS.option} {topic}" for topic in topics]
        words += [f"{PARTITIONS.option} {number}" for number in numbers]
        return " ".join([*words, *(f"{TABLE_GONE.option} {scrub_address(table)}" for table in self.table_gone)])

    @classmethod
    def of_plan(cls, settings: Mapping[str, Any]) -> "RunRequest":
        """Returns the request that is stored with a plan."""
        return run_request(Entered(settings.get(SETTING) or {}, by_option=False))


EVERYTHING = RunRequest()
"""The request of a run for which the pipeline file alone decides."""


def run_request(entered: Entered, limit: int | None = None) -> RunRequest:
    """Returns what was entered for a run; other fields are ignored. A command adds its topics and partitions to it.

    Raises ConfigError for a value of another type, for more records than `limit`, and for what is no partition.
    """
    number = entered.value(MAX_RECORDS)
    if number is not None and limit is not None and number > limit:
        problem = f"not valid; write a whole number from 1 to {limit:,}, the `max_records_per_run` of the file"
        raise entered.wrong(MAX_RECORDS, problem, str(number))
    names = entered.value(ONLY_PARTITIONS)
    for name in names or ():
        if not re.fullmatch(str(ONLY_PARTITIONS.pattern), name):
            raise entered.wrong(ONLY_PARTITIONS, "one is not a partition; write it as orders[0]")
    parts = [name.removesuffix("]").rpartition("[") for name in names or ()]
    chosen = frozenset(TopicPartition(topic, int(partition)) for topic, _, partition in parts)
    gone = tuple(entered.value(TABLE_GONE) or ())
    return RunRequest(number, entered.value(ONLY_RETRIES), None if names is None else chosen, gone)
