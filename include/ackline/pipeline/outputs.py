"""The key `outputs` of a pipeline file: the tables and topics that rows go to which steps emit. Pure."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from ackline.pipeline.field_types import InputStreams, StrictBlock, TopicName
from ackline.pipeline.uris import table_uri

ROW_COLUMNS = ("_topic", "_partition", "_offset", "_attempt", "_lane", "_epoch", "_turn", "_anchors")
"""The columns that each row of an output table has beside the emitted ones: its record, and the turn that acked it."""

PARTITION_TYPES = ("string", "long", "boolean")
"""The types of columns that an output table may be partitioned by."""

_TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}(__[a-z0-9][a-z0-9-]{0,99})?")
"""The part after `__` is that of the table of a shadow."""
_LEDGER_TABLES = ("plans", "outcomes", "settlements")
_COLUMN_TYPE = re.compile(r"string|long|double|boolean|binary|timestamp|decimal\((\d{1,2}), ?(\d{1,2})\)")
_NOT_IN_COLUMN_NAMES = re.compile(r"[ ,;{}()=\x00-\x1f\x7f-\x9f]")
_LONGEST_COLUMN_NAME = 255


def _table(text: str) -> str:
    """Returns the name or the URI of an output table. Raises ValueError if it is neither."""
    if "://" not in text:
        if text in _LEDGER_TABLES or not _TABLE_NAME.fullmatch(text):
            raise ValueError(
                f"{text!r} is no name of an output table; write 1 to 100 of the characters A-Z a-z 0-9 _ -, but not "
                f"{', '.join(_LEDGER_TABLES)}, or a URI such as s3://bucket/folder"
            )
        return text
    return table_uri(text)


def _column_type(text: str) -> str:
    """Returns the type of a column as `type_text` of `output_columns` writes it: types are compared as texts."""
    match = _COLUMN_TYPE.fullmatch(text)
    if match is None or (match[1] and not 1 <= int(match[1]) <= 38) or (match[1] and int(match[2]) > int(match[1])):
        raise ValueError(
            f"{text!r} is no type of a column; write string, long, double, boolean, binary, timestamp or "
            f"decimal(PRECISION, SCALE)"
        )
    return f"decimal({int(match[1])},{int(match[2])})" if match[1] else text


def shadow_table(table: str, backfill_id: str) -> str:
    """Returns the name or URI of the table that takes the place of an output table in a backfill with `--shadow`."""
    return f"{table}{_shadow_suffix(backfill_id)}"


def real_table(shadow: str, backfill_id: str) -> str:
    """Returns the name or URI of the output table that a table of a shadow is beside."""
    return shadow.removesuffix(_shadow_suffix(backfill_id))


def _shadow_suffix(backfill_id: str) -> str:
    return f"__{backfill_id}"


def obstacle_of_column(name: object) -> str | None:
    """Returns why a table can't have a column of this name; None if it can. Delta compares names without case."""
    if not isinstance(name, str) or not name or len(name) > _LONGEST_COLUMN_NAME:
        return f"a column has a name of 1 to {_LONGEST_COLUMN_NAME} characters"
    if name.lower() in ROW_COLUMNS:
        return f"{name.lower()} is a column that Ackline writes itself, and Delta compares names without case"
    if _NOT_IN_COLUMN_NAMES.search(name):
        return "a column of a Delta table has no blank, no control character and none of , ; { } ( ) = in its name"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "a name with half of a surrogate pair can't be encoded as UTF-8"
    if not name.isascii() and any(unicodedata.category(character) == "Cn" for character in name):
        return f"it has a character that Unicode {unicodedata.unidata_version} does not know, so its case is not known"
    return None


def without_case(name: str) -> str:
    """Returns the same text for all names that Delta may take for one column.

    Delta compares names in lower case. The lower case of a sigma depends on what other versions of Unicode say of the
    letters around it, and delta-rs has another version than Python.
    """
    return name.lower().replace("ς", "σ")


class Rows(StrEnum):
    """Which rows of a record an output table holds."""

    NEWEST = "newest"
    """Those of the newest turn that acked the record, or in which its handler skipped it."""
    ALL = "all"
    """Those of each turn that acked it, over lanes and epochs."""


class OutputBlock(StrictBlock):
    """One output: the streams that it takes, and the table or topic that their rows go to."""

    from_: InputStreams = Field(alias="from")
    table: Annotated[str, AfterValidator(_table)] | None = None
    topic: TopicName | None = None
    columns: dict[str, Annotated[str, AfterValidator(_column_type)]] | None = Field(None, min_length=1)
    partition_by: list[str] = Field(default_factory=list)
    rows: Rows | None = Field(None, strict=False)

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: dict[str, str] | None) -> dict[str, str] | None:
        for name in columns or ():
            if (obstacle := obstacle_of_column(name)) is not None:
                raise ValueError(f"{name!r}: {obstacle}; rename it")
        if columns is not None and len(set(map(without_case, columns))) < len(columns):
            raise ValueError("two columns differ only in upper and lower case; rename one of them")
        return columns

    @model_validator(mode="after")
    def _check_target(self) -> "OutputBlock":
        if (self.table is None) == (self.topic is None):
            raise ValueError("an output goes to one table or one topic; write `table: NAME` or `topic: NAME`")
        if self.topic is not None and (self.columns is not None or self.partition_by or self.rows is not None):
            raise ValueError("`columns`, `partition_by` and `rows` are for tables; remove them")
        if self.partition_by and self.columns is None:
            raise ValueError("`partition_by` needs `columns`, which give the types of all columns; add that key")
        for name in self.partition_by:
            if self.columns is not None and self.columns.get(name) not in PARTITION_TYPES:
                raise ValueError(f"partition_by: {name} is not a column of type string, long or boolean; correct it")
        if self.columns is not None and set(self.columns) <= set(self.partition_by):
            raise ValueError("partition_by: a table needs a column beside those that it is partitioned by; remove one")
        return self


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a topology. `number` is its place in the file, from 0. Either `table` or `topic` is set.

    `columns` holds names and types; None if tasks infer them from the rows. `rows` is None where the file is silent:
    then the table says it, if Ackline has created it.
    """

    number: int
    table: str | None
    topic: str | None
    columns: Mapping[str, str] | None
    partition_by: tuple[str, ...] = ()
    rows: Rows | None = None

    @classmethod
    def of(cls, number: int, block: OutputBlock) -> "Output":
        """Returns the output of a block."""
        return cls(number, block.table, block.topic, block.columns, tuple(block.partition_by), block.rows)
