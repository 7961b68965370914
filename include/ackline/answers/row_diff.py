"""What two lanes have made of the same records, as rows of an output table: which differ, and in which columns.

Compared are the records that both lanes have settled, as `ackline diff` compares their outcomes. The rows of a record
are those that the table of the lane holds for it: of a shadow the table beside the real one. They are compared as
multisets, whatever their order. `ackline.outputs.lane_rows` reads them by blocks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from ackline.actions.objects import JsonObject, PartitionObject
from ackline.answers.dead import begun_lane, topic_ids_of
from ackline.lane.adapters import Adapters
from ackline.ledger.offsets import Ranges, TopicPartition, index_of_range, intersect
from ackline.outputs.lane_rows import blocks, named_table, open_rows
from ackline.pipeline.outputs import ROW_COLUMNS

MOST_EXAMPLES = 10
_Rows = Counter[tuple[Any, ...]]
"""How many rows of a record have which values, in the order of the columns."""
Row = Mapping[str, Any]


class _Word:
    """A value that equals itself alone, and is shown as a word."""

    def __init__(self, word: str) -> None:
        self._word = word

    def __repr__(self) -> str:
        return self._word


MISSING = _Word("no such column")
_NAN = _Word("nan")
"""Stands for each NaN, so that one equals another."""


@dataclass(frozen=True, slots=True)
class ChangedRecord:
    """A record whose rows differ. `before` and `after` are the rows that only one lane has; they hold the payload."""

    tp: TopicPartition
    offset: int
    columns: tuple[str, ...]
    before: Sequence[Row] = field(repr=False)
    after: Sequence[Row] = field(repr=False)


@dataclass(slots=True)
class RowDiff:
    """How the rows of two lanes compare, in records: those without rows in both lanes are not counted.

    `columns` counts the changed records by the columns whose values differ.
    """

    same: int = 0
    changed: int = 0
    only: list[int] = field(default_factory=lambda: [0, 0])
    columns: Counter[str] = field(default_factory=Counter)
    examples: list[ChangedRecord] = field(default_factory=list)


class ExampleObject(PartitionObject):
    """A record whose rows differ, and in which columns."""

    offset: int
    columns: tuple[str, ...]


class RowDiffObject(JsonObject):
    """The rows of two lanes compared, in records. The most frequent column comes first."""

    same: int
    changed: int
    only: dict[str, int]
    columns: dict[str, int]
    examples: tuple[ExampleObject, ...]


def row_diff_object(found: RowDiff, before: str, after: str) -> RowDiffObject:
    """Returns the comparison as an object, which holds no value."""
    examples = [ExampleObject(**each.tp._asdict(), offset=each.offset, columns=each.columns) for each in found.examples]
    only, columns = dict(zip((before, after), found.only, strict=True)), dict(found.columns.most_common())
    return RowDiffObject(same=found.same, changed=found.changed, only=only, columns=columns, examples=tuple(examples))


def diff_rows(adapters: Adapters, table: str, before: str, after: str) -> RowDiff:
    """Returns how the rows of two lanes in an output table compare.

    Raises ConfigError for a table that is none of the pipeline, does not exist or needs a newer reader, and for a lane
    that has not begun; FatalError while a table lacks rows of a settled turn.
    """
    name = named_table(adapters, table)
    stores = [adapters.store.other_lane(lane) for lane in (before, after)]
    topic_ids = topic_ids_of([begun_lane(store) for store in stores])
    lanes = [open_rows(adapters, store, name, topic_ids) for store in stores]
    found = RowDiff()
    for tp in sorted({*lanes[0].settled} & {*lanes[1].settled}):
        compared = intersect(*(lane.settled[tp].ranges for lane in lanes))[:2]
        if len(compared[0]):
            for block in blocks(lanes, tp, int(compared[0][0]), int(compared[1][-1])):
                _compare(found, tp, compared, block)
    return found


def _compare(found: RowDiff, tp: TopicPartition, compared: Ranges, rows: Sequence[pa.Table]) -> None:
    """Adds the records of a block."""
    rows = [each.filter(pa.array(index_of_range(each["_offset"].to_numpy(), compared) >= 0)) for each in rows]
    emitted = [[name for name in each.column_names if name not in ROW_COLUMNS] for each in rows]
    columns = list(dict.fromkeys(chain(*emitted)))
    alone = [name for name in columns if not all(name in names for names in emitted)]
    before, after = (_by_offset(each, columns) for each in rows)
    for offset in sorted({*before, *after}):
        old, new = before.get(offset), after.get(offset)
        if old is None or new is None:
            found.only[old is None] += 1
            continue
        left, right = old - new, new - old
        if not left and not right and not alone:
            found.same += 1
            continue
        differing = _differing(left, right, columns, alone)
        found.changed += 1
        found.columns.update(differing)
        if len(found.examples) < MOST_EXAMPLES:
            shown = ([dict(zip(columns, row, strict=True)) for row in side.elements()] for side in (left, right))
            found.examples.append(ChangedRecord(tp, offset, differing, *shown))


def _differing(left: _Rows, right: _Rows, columns: Sequence[str], alone: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns whose values differ among the rows that only one lane has."""
    found = [name for at, name in enumerate(columns) if name in alone or _values(left, at) != _values(right, at)]
    if not found:  # the same values, in other rows
        pairs = zip(*(sorted(rows.elements(), key=repr) for rows in (left, right)), strict=True)
        at_of = {at for old, new in pairs for at in range(len(columns)) if old[at] != new[at]}
        found = [columns[at] for at in sorted(at_of)]
    return tuple(found)


def _values(rows: _Rows, at: int) -> Counter[Any]:
    values = Counter[Any]()
    for row, number in rows.items():
        values[row[at]] += number
    return values


def _by_offset(rows: pa.Table, columns: Sequence[str]) -> dict[int, _Rows]:
    """Returns the rows of each offset, as values that can be compared."""
    by_offset: dict[int, _Rows] = {}
    names = set(rows.column_names)
    values = [
        map(comparable, rows[name].to_pylist()) if name in names else [MISSING] * rows.num_rows for name in columns
    ]
    for offset, *row in zip(rows["_offset"].to_pylist(), *values, strict=True):
        by_offset.setdefault(offset, Counter())[tuple(row)] += 1
    return by_offset


def comparable(value: Any) -> Any:
    """Returns a value that equals that of another row if the two mean the same: NaN equals NaN, numbers and decimals
    compare by value and times by instant, and the fields of a struct by name."""
    if isinstance(value, float):
        return _NAN if value != value else value
    if isinstance(value, dict):
        return tuple((name, comparable(each)) for name, each in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return value
