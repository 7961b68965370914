"""The key `outputs` of a pipeline file: where rows that steps emit go, and what a turn has written for them. Pure.

A row goes to a Delta table or to a Kafka topic. Rows for a table are staged first, because only those of acked records
are published: `StagedOutputs` names the staged files of one execution of a turn.
"""

import json
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ackline.errors import ConfigError
from ackline.pipeline.field_types import InputStreams, StrictBlock, TopicName
from ackline.pipeline.uris import table_uri

ROW_COLUMNS = ("_topic", "_partition", "_offset", "_attempt", "_lane", "_epoch", "_turn", "_anchors")
"""The columns that each row of an output table has beside the emitted ones: its record, and the turn that acked it."""

PARTITION_TYPES = ("string", "long", "boolean")
"""The types of columns that an output table may be partitioned by."""

_TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_LEDGER_TABLES = ("plans", "outcomes", "settlements")
_COLUMN_TYPE = re.compile(r"string|long|double|boolean|binary|timestamp|decimal\((\d{1,2}), ?(\d{1,2})\)")
_NOT_IN_COLUMN_NAMES = re.compile(r"[ ,;{}()=\x00-\x1f\x7f-\x9f]")
_LONGEST_COLUMN_NAME = 255


def _table(text: object) -> object:
    """Returns the name or the URI of an output table. Raises ValueError if it is neither."""
    if not isinstance(text, str):
        return text
    if "://" not in text:
        if text in _LEDGER_TABLES or not _TABLE_NAME.fullmatch(text):
            raise ValueError(
                f"{text!r} is no name of an output table; write 1 to 100 of the characters A-Z a-z 0-9 _ -, but not "
                f"{', '.join(_LEDGER_TABLES)}, or a URI such as s3://bucket/folder"
            )
        return text
    return table_uri(text)


def _column_type(text: object) -> object:
    """Returns the type of a column as `type_text` of `output_columns` writes it: types are compared as texts."""
    if isinstance(text, str):
        match = _COLUMN_TYPE.fullmatch(text)
        if match is None or (match[1] and not 1 <= int(match[1]) <= 38) or (match[1] and int(match[2]) > int(match[1])):
            raise ValueError(
                f"{text!r} is no type of a column; write string, long, double, boolean, binary, timestamp or "
                f"decimal(PRECISION, SCALE)"
            )
        if match[1]:
            return f"decimal({int(match[1])},{int(match[2])})"
    return text


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


class OutputBlock(StrictBlock):
    """One output: the streams that it takes, and the table or topic that their rows go to."""

    from_: InputStreams = Field(alias="from")
    table: Annotated[str, BeforeValidator(_table)] | None = None
    topic: TopicName | None = None
    columns: dict[str, Annotated[str, BeforeValidator(_column_type)]] | None = Field(None, min_length=1)
    partition_by: list[str] = Field(default_factory=list)

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
        if self.topic is not None and (self.columns is not None or self.partition_by):
            raise ValueError("`columns` and `partition_by` are for tables; remove them")
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

    `columns` holds names and types; None if tasks infer them from the rows.
    """

    number: int
    table: str | None
    topic: str | None
    columns: Mapping[str, str] | None
    partition_by: tuple[str, ...] = ()

    @classmethod
    def of(cls, number: int, block: OutputBlock) -> "Output":
        """Returns the output of a block."""
        return cls(number, block.table, block.topic, block.columns, tuple(block.partition_by))


def output_folder(pipeline_folder: str, table: str) -> str:
    """Returns the folder or URI of an output table, given that of the pipeline's live tables."""
    if table.startswith("file://"):
        return table.removeprefix("file://")
    return table if "://" in table else f"{pipeline_folder.rstrip('/')}/outputs/{table}"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of staged rows. `size` is in bytes.

    `path` is relative to the turn's staging folder in a manifest, and to the staging root in `OutputsOfTurn`.
    """

    output: int
    path: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class StagedTable:
    """The staged rows of one output table."""

    table: str
    columns: Mapping[str, str]
    partition_by: Sequence[str]
    files: Sequence[StagedFile]

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "StagedTable":
        """Returns the table that `dataclasses.asdict` has made JSON. Raises TypeError or KeyError for other JSON."""
        files = [StagedFile(**file) for file in stored["files"]]
        return cls(stored["table"], stored["columns"], stored["partition_by"], files)


@dataclass(frozen=True, slots=True)
class StagedOutputs:
    """What one execution of a turn has staged: its manifest. Only the execution that outcomes n name is published."""

    tables: Sequence[StagedTable]

    def encode(self) -> str:
        """Returns the text of the manifest."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str | bytes) -> "StagedOutputs":
        """Returns the manifest in `text`. Raises ValueError if it holds none."""
        try:
            return cls([StagedTable.of_json(table) for table in json.loads(text)["tables"]])
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a manifest of staged rows: {error}") from None


@dataclass(frozen=True, slots=True)
class FinalFile:
    """A finished data file of an output table, with what the table's log has to say of it.

    `path` is relative to the table, `size` in bytes, `modification_time` in milliseconds since 1970, `partition` the
    values of the partition columns as the log writes them, `stats` Delta's JSON.
    """

    path: str
    size: int
    modification_time: int
    partition: Mapping[str, str | None]
    stats: str


@dataclass(frozen=True, slots=True)
class TableOfTurn:
    """What a turn publishes in one output table."""

    after: int | None
    """The number under which the lane and epoch had published there last; None if it had not."""
    rows: int
    files: Sequence[FinalFile] | None
    """The files with the rows. None if settle could not write them, of a turn that can't be voided any more: publishing
    writes them then, and `rows` is how many rows it has at most."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The emitted columns of the table when the files were written."""


@dataclass(frozen=True, slots=True)
class OutputsOfTurn:
    """What a turn has to publish, as settlement n holds it.

    Each table takes the turn once, as version `number` of the transaction id `application`.
    """

    application: str
    number: int = 0
    """Names the turn and what exactly it publishes (`ledger.turns.number_of`)."""
    execution: int | None = None
    """The execution that outcomes n name; None if the turn has staged no rows itself."""
    tables: Mapping[str, TableOfTurn] = field(default_factory=dict)
    kept: Sequence[StagedTable] = ()
    """Files of rows that wait after the turn: none of their records is acked, and one is in flight."""
    released: Sequence[StagedTable] = ()
    """Files of rows that waited before the turn and are not in `kept`. The turn publishes the rows whose records it has
    acked; then Ackline removes these files."""
    published: Mapping[str, int] = field(default_factory=dict)
    """By table, the number under which the lane and epoch had published there last, before the turn."""
    given_up: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By table, the numbers of later turns that an operator has given up for it, before the turn. Each may be there all
    the same: another process may have published it while it was given up."""
    earlier: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """By table, the transaction id and the number under which the lane had published there last before `application`:
    in an earlier epoch, or under an earlier id of the ledger. Of a reset: what the table held then."""

    def encode(self) -> str:
        """Returns the text that settlement n holds; empty if there is nothing to hold."""
        content = (self.tables, self.kept, self.released, self.published, self.given_up, self.earlier)
        if self.execution is None and not any(content):
            return ""
        stored = {name: value for name, value in asdict(self).items() if value or value == 0 or name == "tables"}
        return json.dumps(stored, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "OutputsOfTurn":
        """Returns what is in `text`, which `encode` has made. Raises ConfigError for that of an earlier version."""
        content = json.loads(text)
        if not all(isinstance(table, dict) for table in content.get("tables", {}).values()):
            raise ConfigError(
                "the settlements below ACKLINE_AUDIT hold outputs as an earlier version of Ackline has stored them, "
                "and this version does not publish them. Point ACKLINE_AUDIT at an empty folder, and take the group "
                "over with `ackline adopt-ledger`",
                key="ACKLINE_AUDIT",
            )
        content["earlier"] = {name: (of, number) for name, (of, number) in content.get("earlier", {}).items()}
        for name in ("kept", "released"):
            content[name] = tuple(StagedTable.of_json(table) for table in content.get(name, ()))
        tables = {}
        for name, table in content.get("tables", {}).items():
            files = None if table["files"] is None else tuple(FinalFile(**file) for file in table["files"])
            tables[name] = TableOfTurn(**{**table, "files": files})
        return cls(**{**content, "tables": tables})


def kept_after(text: str) -> tuple[StagedTable, ...]:
    """Returns the files of rows that wait for records in flight, given the `outputs` of a settlement."""
    return tuple(OutputsOfTurn.decode(text).kept) if text else ()


def without_effect(text: str, given_up: Collection[str] = ()) -> str:
    """Returns the `outputs` of the settlement of a void turn, given those of the settlement before it: it publishes
    nothing, and the same rows wait. The tables `given_up` did not get the turn before it."""
    if not text:
        return ""
    before = OutputsOfTurn.decode(text)
    return OutputsOfTurn(
        before.application,
        kept=before.kept,
        published=published_after(before, given_up),
        given_up=given_up_after(before, given_up),
        earlier=before.earlier,
    ).encode()


def published_after(outputs: OutputsOfTurn, given_up: Collection[str] = ()) -> dict[str, int]:
    """Returns by table the number under which the lane and epoch have published there last, once the turn is published.
    The tables `given_up` did not get the turn."""
    published = {**outputs.published}
    for name in outputs.tables.keys() - set(given_up):
        published[name] = outputs.number
    return published


def given_up_after(outputs: OutputsOfTurn, given_up: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Returns by table the numbers of the turns that were given up for it since the lane and epoch have published there
    last, once the turn is published. The tables `given_up` did not get the turn."""
    tables = outputs.given_up.keys() - (outputs.tables.keys() - set(given_up))
    after = {name: tuple(outputs.given_up[name]) for name in sorted(tables)}
    for name in sorted(outputs.tables.keys() & set(given_up)):
        after[name] = (*after.get(name, ()), outputs.number)
    return after


def earlier_after(
    outputs: OutputsOfTurn, application: str, given_up: Collection[str] = ()
) -> dict[str, tuple[str, int]]:
    """Returns by table the transaction id and the number under which the lane has published there last before
    `application`, once the turn is published. The tables `given_up` did not get the turn."""
    earlier = dict(outputs.earlier)
    if outputs.application != application:
        earlier |= {name: (outputs.application, of) for name, of in published_after(outputs, given_up).items()}
    return earlier
