"""Reads the first rows of the audit table in an order, without holding more than these rows.

Files are read in the order of their smallest rows, as the statistics of the Delta log give them. Once as many rows are
found as are wanted, a file whose smallest row comes after all of them ends the scan.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from ackline.audit.pruned_read import Where
from ackline.audit.table import AuditTable
from ackline.offsets import OffsetRange
from ackline.turns import TurnKind

_BATCH_ROWS = 32_768
_FEW_TURNS = 16
"""At most this many turns are looked up one by one, each in the file of its settlement."""
_TURNS_AN_EPOCH = 1 << 40
DECISION = "decision"
"""A column of the scan: whether a row is a decision of settle, which has attempt 0 and comes after the attempts."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What to read of each lane: the columns, the filter, the order, and how many rows at most."""

    columns: Sequence[str]
    wanted: ds.Expression
    order: Sequence[str]
    limit: int
    pruned_by: Where | None = None
    offsets: OffsetRange | None = None
    everything: bool = False
    """Whether rows of turns that are not settled, or void, are read too."""


def first_rows(lanes: Iterable["LaneScanner"], scan: Scan) -> pa.Table | None:
    """Returns the first rows of these lanes, sorted; None if there is none.

    They have the columns of the scan, DECISION and `effective`. Holds twice `scan.limit` rows and a batch at most.
    Raises FatalError if a table can't be read.
    """
    first = _FirstRows(scan)
    for lane in lanes:
        for batch in lane.batches(scan, first):
            first.add(batch)
    return first.sorted()


@dataclass(slots=True)
class _FirstRows:
    """The first rows among those that were read."""

    scan: Scan
    rows: pa.Table | None = None
    """The first rows, and others until the next sort, which keeps `scan.limit` rows."""
    _last: dict[str, Any] | None = None
    """The order of row number `scan.limit`; rows after it are dropped. None as long as fewer rows were read."""

    def add(self, batch: pa.Table) -> None:
        if self._last is not None:
            batch = batch.filter(~comes_after(self._last))
        rows = batch if self.rows is None else pa.concat_tables([self.rows, batch])
        # Sorted only when as many rows again have come, so the cost of sorting is in proportion to the rows.
        self.rows = self._sorted(rows) if rows.num_rows >= 2 * self.scan.limit else rows

    def sorted(self) -> pa.Table | None:
        return None if self.rows is None else self._sorted(self.rows)

    def are_before(self, start: tuple[Any, ...]) -> bool:
        """Returns whether no row from `start` on is wanted any more. `start` holds the first values of an order."""
        if self.rows is not None and self.rows.num_rows >= self.scan.limit:
            self.rows = self._sorted(self.rows)
        return self._last is not None and start > tuple(self._last[name] for name in self.scan.order[: len(start)])

    def _sorted(self, rows: pa.Table) -> pa.Table:
        rows = rows.sort_by([(name, "ascending") for name in self.scan.order]).slice(0, self.scan.limit)
        if rows.num_rows == self.scan.limit:
            self._last = {name: rows[name][-1].as_py() for name in self.scan.order}
        return rows.combine_chunks()  # a slice would keep the rows that were cut off


def comes_after(last: Mapping[str, Any]) -> ds.Expression:
    """Returns the filter of the rows that come after a row whose values in the order of rows are `last`."""
    after, equal = ds.scalar(False), ds.scalar(True)
    for name, value in last.items():
        column = ds.field("attempt") == 0 if name == DECISION else ds.field(name)
        after = after | (equal & (column > value))
        equal = equal & (column == value)
    return after


@dataclass(slots=True)
class LaneScanner:
    """Reads the tables of one lane, in `folder`. Looks up once whether a turn is effective."""

    folder: str
    _effective: dict[tuple[int, int], bool] = field(default_factory=dict)

    def batches(self, scan: Scan, first: "_FirstRows") -> Iterator[pa.Table]:
        """Yields rows of the scan in batches, until no further file can hold one of the first rows."""
        outcomes = AuditTable(self.folder, "outcomes")
        version = outcomes.open()
        if version is None:
            return
        try:
            dataset = outcomes.dataset(version, scan.pruned_by)
            smallest = _smallest_rows(pa.table(version.get_add_actions(flatten=True)), scan)
            files = ((smallest[name], f) for f in dataset.get_fragments() if (name := _file_name(f.path)) in smallest)
            projection = {name: ds.field(name) for name in scan.columns} | {DECISION: ds.field("attempt") == 0}
            for start, file in sorted(files, key=lambda item: item[0]):
                if first.are_before(start):
                    return
                scanner = file.scanner(
                    schema=dataset.schema, columns=projection, filter=scan.wanted, batch_size=_BATCH_ROWS,
                    batch_readahead=0, use_threads=False,
                )  # fmt: skip
                for batch in scanner.to_batches():
                    if batch.num_rows:
                        yield self._marked(pa.table(batch), scan.everything)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise outcomes.error(error) from error

    def _marked(self, rows: pa.Table, everything: bool) -> pa.Table:
        """Returns the rows with the column `effective`; without `everything`, only the effective ones."""
        turns = rows.group_by(["epoch", "turn"]).aggregate([]).to_pylist()
        self._look_up({(turn["epoch"], turn["turn"]) for turn in turns} - self._effective.keys())
        keys = [_turn_key(epoch, turn) for (epoch, turn), effective in self._effective.items() if effective]
        turn_keys = pc.add(pc.multiply(rows["epoch"].cast(pa.int64()), _TURNS_AN_EPOCH), rows["turn"])
        effective = pc.is_in(turn_keys, pa.array(keys, pa.int64()))
        marked = rows.append_column("effective", effective)
        return marked if everything else marked.filter(effective)

    def _look_up(self, turns: set[tuple[int, int]]) -> None:
        """Records for each turn whether it is effective: settled, and not void."""
        if not turns:
            return
        settlements = AuditTable(self.folder, "settlements")
        columns = ["epoch", "turn", "kind"]
        if len(turns) <= _FEW_TURNS:
            tables: Iterable[Any] = (
                settlements.read({"epoch": epoch, "turn": turn}, columns) for epoch, turn in sorted(turns)
            )
        else:
            version = settlements.open()
            tables = () if version is None else settlements.dataset(version, None).to_batches(columns=columns)
        self._effective.update(dict.fromkeys(turns, False))
        for table in tables:
            settled = table.filter(pc.not_equal(table["kind"], TurnKind.VOID.value))
            pairs = pa.table(settled).group_by(["epoch", "turn"]).aggregate([]).to_pylist()
            self._effective.update({(row["epoch"], row["turn"]): True for row in pairs})


def _smallest_rows(files: pa.Table, scan: Scan) -> dict[str, tuple[Any, ...]]:
    """Returns the files that may hold a wanted offset, by name, each with the start of its smallest row's order.

    A file without statistics may hold any row. Its order is empty, so that it is read first.
    """
    if not files.num_rows:
        return {}
    known = {"path", *(f"{b}.{n}" for b in ("min", "max") for n in (*scan.order, "end_offset")), "num_records",
             "null_count.end_offset"}  # fmt: skip
    rows = files.select([name for name in files.column_names if name in known]).to_pylist()
    return {_file_name(file["path"]): _start(file, scan.order) for file in rows if _may_hold(file, scan.offsets)}


def _start(file: dict[str, Any], order: Sequence[str]) -> tuple[Any, ...]:
    start = []
    for name in order[:3]:  # topic, partition, offset: the rest of an order compares rows of the same record
        value = file.get(f"min.{name}")
        if value is None:
            break
        start.append(value)
    return tuple(start)


def _may_hold(file: dict[str, Any], offsets: OffsetRange | None) -> bool:
    """Returns whether a file may hold a row for one of these offsets: of a record, or of a range that contains it."""
    low, high = file.get("min.offset"), file.get("max.offset")
    if offsets is None or low is None or high is None:
        return True
    ranges = file.get("null_count.end_offset") != file["num_records"]
    end = file.get("max.end_offset")
    return low < offsets.end and (high >= offsets.start or (ranges and (end is None or end > offsets.start)))


def _turn_key(epoch: int, turn: int) -> int:
    return epoch * _TURNS_AN_EPOCH + turn


def _file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
