"""A column of a table: its type, its comment, and how it is written from a value and read back.

`schemas` declares each column once, and all else follows from that. Values are converted column by column: a settlement
may have a thousand partitions, and one partition a million pending ranges.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.ledger.copies import NO_COPIES, Copies, CopyLog
from ackline.ledger.fold_few import FEW
from ackline.ledger.offsets import NO_RUNS, OffsetRange, OffsetRuns, TopicPartition, ValuedRange
from ackline.ledger.pending import NEVER, NOTHING_PENDING, PendingKind, PendingRuns, PendingState, RetryRuns
from ackline.stored import DamagedError, decode, encode


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a column are stored."""

    to_arrow: Callable[[Sequence[Any], pa.DataType], pa.Array] = pa.array
    from_arrow: Callable[[pa.ChunkedArray], Sequence[Any]] = lambda column: column.to_pylist()


def each(write: Callable[[Any], Any], read: Callable[[Any], Any]) -> Form:
    """Returns the form of a column whose values are converted one by one. `read` gets None for null."""
    return Form(
        lambda values, of_type: pa.array([None if value is None else write(value) for value in values], of_type),
        lambda column: [read(value) for value in column.to_pylist()],
    )


PLAIN = Form()
TEXT = each(lambda text: text or None, lambda text: text or "")
"""Text that is null if it is empty."""
TIMES = each(lambda time: time, lambda time: None if time is None else time.astimezone(UTC))
MAP = each(lambda value: list(value.items()), lambda items: None if items is None else dict(items))
JSON = each(encode, partial(decode, kind=dict[str, Any]))


def enum(kind: type[str]) -> Form:
    """Returns the form of a column of an enum's words."""
    return each(lambda value: value.value, kind)


def lists(names: Sequence[str], make: Callable[..., Any], none: Any = ()) -> Form:
    """Returns the form of a list of ranges. `names` are the attributes of a range, in the order of the columns of the
    list. `make` makes a range of their values. `none` is what null means."""

    def write(ranges: Any, fields: Sequence[str]) -> list[dict[str, Any]]:
        return [{field: getattr(part, name) for field, name in zip(fields, names, strict=True)} for part in ranges]

    def to_arrow(values: Sequence[Any], of_type: pa.DataType) -> pa.Array:
        fields = [field.name for field in of_type.value_type]
        return pa.array([None if ranges is None else write(ranges, fields) for ranges in values], of_type)

    def read(structs: pa.StructArray | None) -> Any:
        if structs is None:
            return none
        return tuple(make(*values) for values in zip(*(part.to_pylist() for part in structs.flatten()), strict=True))

    return Form(to_arrow, lambda column: [read(structs) for structs in _lists(column)])


def _lists(column: pa.ChunkedArray) -> list[pa.StructArray | None]:
    """Returns the list of each row as an Arrow array, so that 100,000 pending ranges do not become a dict each."""
    return [scalar.values if scalar.is_valid else None for chunk in column.chunks for scalar in chunk]


def _runs(
    columns_of: Callable[[Any], dict[str, pa.Array]], make: Callable[[dict[str, pa.Array]], Any], none: Any
) -> Form:
    """Returns the form of runs, which may be millions: none becomes a dict. `none` is what null and an empty list
    mean."""

    def to_arrow(values: Sequence[Any], of_type: pa.DataType) -> pa.ChunkedArray:
        of_struct, chunks = of_type.value_type, list[pa.Array]()
        nothing = pa.array([[]], of_type)
        for value in values:  # a chunk each, because joining the chunks would copy them
            if value is None:  # the row of a claim or a waiver
                chunks.append(pa.nulls(1, of_type))
                continue
            if not len(value):
                chunks.append(nothing)
                continue
            columns = columns_of(value)
            arrays = [columns[field.name].cast(field.type) for field in of_struct]
            structs = pa.StructArray.from_arrays(arrays, fields=list(of_struct))
            chunks.append(pa.ListArray.from_arrays(pa.array([0, len(structs)], pa.int32()), structs, type=of_type))
        return pa.chunked_array(chunks, of_type)

    def read(structs: pa.StructArray | None) -> Any:
        if structs is None or not len(structs):
            return none
        return make({field.name: column for field, column in zip(structs.type, structs.flatten(), strict=True)})

    return Form(to_arrow, lambda column: [read(structs) for structs in _lists(column)])


def _pending_columns(pending: Any) -> dict[str, pa.Array]:
    runs = pending.joined()
    of_states = {"kind": pa.string(), "attempts": pa.int32(), "error_class": pa.string()}
    states = {name: pa.array([getattr(state, name) for state in runs.states], of) for name, of in of_states.items()}
    return {name: values.take(pa.array(runs.codes)) for name, values in states.items()} | {
        "start_offset": pa.array(runs.starts),
        "end_offset": pa.array(runs.ends),
        "due": pa.array(runs.dues, mask=runs.dues == NEVER),
    }


def _pending_runs(columns: dict[str, pa.Array]) -> PendingRuns:
    starts, ends = (columns[name].to_numpy() for name in ("start_offset", "end_offset"))
    names = ("kind", "attempts", "error_class")
    if len(starts) <= FEW:
        known = dict[tuple[Any, ...], int]()
        values = zip(*(columns[name].to_pylist() for name in names), strict=True)
        codes, distinct = np.array([known.setdefault(each, len(known)) for each in values]), iter(known)
    else:
        parts = [columns[name].dictionary_encode(null_encoding="encode") for name in names]
        codes = np.zeros(len(starts), dtype=np.int64)
        for part in parts:
            codes = codes * len(part.dictionary) + part.indices.to_numpy()
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
        distinct = zip(*(columns[name].take(pa.array(first)).to_pylist() for name in names), strict=True)
    states = [PendingState(PendingKind(kind), *others) for kind, *others in distinct]
    dues = columns["due"].cast(pa.int64()).fill_null(NEVER).to_numpy()
    return PendingRuns(starts, ends, codes.astype(np.int32), dues, states)


_OF_COPY_LOG = ("topic", "topic_id", "partition")


def _copy_columns(copies: Copies) -> dict[str, pa.Array]:
    of_logs = {name: pa.array([getattr(log, name) for log in copies.logs]) for name in _OF_COPY_LOG}
    return {name: values.take(pa.array(copies.codes)) for name, values in of_logs.items()} | {
        "start_offset": pa.array(copies.starts),
        "end_offset": pa.array(copies.ends),
        "offset": pa.array(copies.firsts),
    }


def _copies(columns: dict[str, pa.Array]) -> Copies:
    known = dict[CopyLog, int]()
    logs = zip(*(columns[name].to_pylist() for name in _OF_COPY_LOG), strict=True)
    codes = np.array([known.setdefault(CopyLog(*log), len(known)) for log in logs], dtype=np.int32)
    starts, ends, firsts = (columns[name].to_numpy() for name in ("start_offset", "end_offset", "offset"))
    return Copies(starts, ends, codes, firsts, known)


def _retry_columns(retries: Any) -> dict[str, pa.Array]:
    runs = RetryRuns.of(retries)
    columns = {"start_offset": runs.starts, "end_offset": runs.ends, "attempt": runs.attempts}
    return {name: pa.array(values) for name, values in columns.items()}


def _retry_runs(columns: dict[str, pa.Array]) -> RetryRuns:
    names = ("start_offset", "end_offset", "attempt")
    return RetryRuns(*(columns[name].cast(pa.int64()).to_numpy() for name in names))


RETRY_RUNS = _runs(_retry_columns, _retry_runs, ())
PENDING_RUNS = _runs(_pending_columns, _pending_runs, NOTHING_PENDING)
COPIES = _runs(_copy_columns, _copies, NO_COPIES)
OFFSET_RUNS = _runs(
    lambda runs: {"start_offset": pa.array(runs.starts), "end_offset": pa.array(runs.ends)},
    lambda columns: OffsetRuns((columns["start_offset"].to_numpy(), columns["end_offset"].to_numpy())),
    NO_RUNS,
)
KEYS = Form(
    lambda values, of_type: pa.array([None if keys is None else keys for keys in values], of_type),
    lambda column: [keys.values.to_numpy() if keys.is_valid else None for chunk in column.chunks for keys in chunk],
)
VALUED_RANGES = lists(("start", "end", "value"), ValuedRange)
OFFSET_RANGES = lists(("start", "end"), OffsetRange, none=None)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of one of the three tables. `of` is the path of its value: `whole.` begins a value of the turn, such as
    `whole.turn.n`; `tp.` the topic-partition; `part.` what is stored of the partition. None: no value has it, Spark
    tasks write it."""

    name: str
    type: pa.DataType
    of: str | None
    form: Form = PLAIN
    comment: str = field(kw_only=True)
    derived: bool = False
    """Whether the value follows from others, so that nothing reads it back."""
    once: bool = False
    """Whether only the first row of a turn holds it: a reader adds the values of several turns up without counting one
    of them twice."""
    in_every_file: bool = True
    """Whether each file of outcomes of a Spark task has it. In a file without it, readers take it for null."""

    @property
    def arrow_field(self) -> pa.Field:
        """The column with its comment, as Delta stores it."""
        return pa.field(self.name, self.type, metadata={"comment": self.comment})

    @property
    def of_turn(self) -> bool:
        """Whether all rows of a turn have the same value."""
        return self.of is not None and self.of.split(".")[0] in ("whole", "day")


def rows_of(
    columns: Sequence[Column], whole: Any, day: date, parts: Sequence[tuple[TopicPartition | None, Any]]
) -> pa.Table:
    """Returns a row for each part, with the columns of the table. A column without a value is null, and so is each
    column of a topic-partition that is None."""
    arrays = []
    for column in columns:
        root, *names = (column.of or "").split(".")
        if column.of is None:
            arrays.append(pa.nulls(len(parts), column.type))
        elif column.of_turn:
            value = column.form.to_arrow([_at({"whole": whole, "day": day}[root], names)], column.type)[0]
            same = 1 if column.once and parts else len(parts)
            more = pa.nulls(len(parts) - same, column.type)
            arrays.append(pa.concat_arrays([pa.repeat(value, same), more]))
        else:
            values = [_at(tp if root == "tp" else part, names) for tp, part in parts]
            arrays.append(column.form.to_arrow(values, column.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema([column.arrow_field for column in columns]))


def _at(value: Any, names: Sequence[str]) -> Any:
    """Returns the attribute of an attribute of a value; None if a value on the way is None."""
    for name in names:
        if value is None:
            return None
        value = getattr(value, name)
    return value


Makers = Mapping[str, Callable[..., Any]]
"""How the value at a path is made of the values below it, as keyword arguments."""


def values_of(columns: Iterable[Column], rows: pa.Table, makers: Makers) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Returns the values of the turn that these rows hold, by their names, and what they hold of each topic-partition.
    There is at least one row. A column that the rows do not have is null: an earlier version did not store it. Raises
    DamagedError if a text of a row is damaged."""
    turn: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    for column in columns:
        if column.of is None or column.derived or column.of == "day":
            continue
        found = pa.chunked_array([pa.nulls(len(rows), column.type)])
        if column.name in rows.column_names:
            found = rows[column.name]
        if column.of_turn and found.null_count < len(found):
            found = found.drop_null()
        if column.of_turn:
            found = found.slice(0, 1)
        try:
            values = column.form.from_arrow(found)
        except DamagedError as error:
            raise DamagedError(f"the column {column.name}: {error}; restore its folder from a backup") from None
        _put(turn if column.of_turn else parts, column.of.split("."), values)
    whole = _made(turn, makers, "")[0]["whole"]
    return whole, {row["tp"]: row["part"] for row in _made(parts, makers, "")}


def _put(tree: dict[str, Any], path: Sequence[str], values: Sequence[Any]) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = values


def _made(tree: Any, makers: Makers, path: str) -> Sequence[Any]:
    """Returns the value of each row at a path, made of the columns below it."""
    if not isinstance(tree, dict):
        values: Sequence[Any] = tree
        return values
    below = [_made(values, makers, f"{path}.{name}".lstrip(".")) for name, values in tree.items()]
    make = makers.get(path, dict)
    return [make(**dict(zip(tree, values, strict=True))) for values in zip(*below, strict=True)]
