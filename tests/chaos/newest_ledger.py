"""What a lane stores, for the machine of tables with `rows: newest`, and how its turns are settled and published there.

Here the package's functions meet ledgers and tables in memory: `in_memory` puts these in their place. What settle and
publish decide about a table is `ackline.outputs.settled`, `.publish`, `.expected` and `.newest_rows`; what they read of
a plan, a settlement and an adapter is stood for by the few fields that they look at.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace as Some
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa

from ackline.ledger.offsets import OffsetRange, Ranges, TopicPartition, arrays_of
from ackline.ledger.outcomes import Outcome
from ackline.ledger.published import (
    FinalFile,
    OutputsOfTurn,
    TableOfTurn,
    application_of,
    expected_with,
    partition_key,
)
from ackline.ledger.turns import IDENTITY_BITS, TurnId, TurnKind, number_of
from ackline.outputs import expected, newest_rows, publish, settled
from ackline.outputs.written import AttemptOutcomes
from ackline.pipeline.outputs import Rows
from tests.chaos.newest_table import SCHEMA, MemoryOlderRows, MemoryTable

TOPIC, PARTITIONS, TABLES = "orders", (0, 1), ("late", "totals")
Record = tuple[int, int]
"""A partition and an offset."""
Line = tuple[Any, ...]
"""A row of the table of outcomes, with the columns OUTCOMES."""
OUTCOMES = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("end_offset", pa.int64()),
     ("attempt", pa.int32()), ("outcome", pa.string()), ("answer", pa.string()), ("error_class", pa.string())]
)  # fmt: skip


class Try(NamedTuple):
    """An attempt at a record. No other attempt, of whatever lane, epoch or ledger, has its number."""

    record: Record
    attempt: int
    number: int


class Row(NamedTuple):
    """An emitted row. No other row has its value."""

    value: int
    table: str
    tries: tuple[Try, ...]


class Waits(NamedTuple):
    """A pending record: RETRY or IN_FLIGHT, how many attempts were made, and the number of the last one."""

    kind: str
    attempts: int
    number: int


RETRY = "retry"


@dataclass
class Result:
    """What outcomes n and decisions n hold. `ended` has the outcome of attempts by their numbers; `pending` what waits
    of a record after the turn, None if it is settled; `handled` the attempts that were acked or skipped by the handler.
    """

    execution: int
    ended: dict[int, Outcome] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    pending: dict[Record, Waits | None] = field(default_factory=dict)
    handled: dict[Record, int] = field(default_factory=dict)

    def ends(self, of: Try, outcome: Outcome, answer: str | None = None, error: str | None = None) -> None:
        """Stores what becomes of an attempt."""
        self.lines.append((TOPIC, *of.record, None, of.attempt, outcome, answer, error))
        self.ended[of.number] = outcome
        kind = {Outcome.FAILED: RETRY, Outcome.IN_FLIGHT: "in_flight"}.get(outcome)
        self.pending[of.record] = Waits(kind, of.attempt, of.number) if kind else None

    def decides(self, record: Record, outcome: Outcome) -> None:
        """Stores what becomes of a record beside its attempts."""
        self.lines.append((TOPIC, *record, None, 0, outcome, None, None))
        self.pending[record] = None


@dataclass
class Open:
    """A plan that is stored; `complete` is how far the lane has read after it."""

    turn: TurnId
    kind: TurnKind
    records: Sequence[Record]
    complete: dict[int, int]
    result: Result | None = None

    def store(self, result: Result) -> Result:
        """Stores outcomes n, unless they are there. Returns what is stored."""
        self.result = self.result or result
        return self.result


@dataclass
class Settled:
    """What settlement n holds: what it publishes, and which rows wait after it."""

    turn: TurnId
    outputs: OutputsOfTurn
    rows: list[Row]
    kept: list[Row]
    handled: Mapping[Record, int]


@dataclass
class Ledger:
    """What is stored of a lane. It is the store that `ackline.outputs` reads, too."""

    id: str
    turn: TurnId
    complete: dict[int, int] = field(default_factory=dict)
    pending: dict[Record, Waits] = field(default_factory=dict)
    whole: bool = False
    """Whether all records are read in one turn."""
    over: bool = False
    outputs: OutputsOfTurn = field(default_factory=lambda: OutputsOfTurn({}))
    kept: Sequence[Row] = ()
    published: bool = True
    given_up: frozenset[str] = frozenset()
    open: Open | None = None
    ended: dict[int, Outcome] = field(default_factory=dict)
    stored: dict[TurnId, tuple[list[Line], list[Row]]] = field(default_factory=dict)
    known: dict[str, set[int]] = field(default_factory=dict)
    """The oracle's: by table, the numbers that the newest copy of it may hold."""

    def copy(self) -> "Ledger":
        opened, known = self.open and replace(self.open), dict(self.known)
        return replace(self, complete=dict(self.complete), pending=dict(self.pending), ended=dict(self.ended),
                       stored=dict(self.stored), open=opened, known=known)  # fmt: skip

    @property
    def application(self) -> str:
        return application_of(self.id, self.turn)

    @property
    def expected(self) -> Mapping[str, Any]:
        """What each table may hold, as `expected_of` returns it of a turn that is published."""
        return self.outputs.expected_after(self.given_up) if self.outputs.tables else self.outputs.expected

    def in_flight(self, pending: Mapping[Record, Waits | None] | None = None) -> list[Try]:
        waiting = self.pending | dict(pending or {})
        return [Try(record, *of[1:]) for record, of in waiting.items() if of is not None and of.kind != RETRY]

    def ledger_id(self) -> str:
        return self.id

    def newest(self) -> Any:
        return Some(turn=self.turn)

    def settlement(self, turn: TurnId) -> Any:
        return Some(turn=turn, partitions={})

    def other_lane(self, lane: str) -> "Ledger":
        return self

    def turns_in_older_topics(self, epoch: int, topic_ids: Mapping[str, str]) -> dict[str, list[int]]:
        return {}

    def outcome_rows_of(self, turn: TurnId) -> Iterator[pa.RecordBatch]:
        lines = self.stored[turn][0]
        columns = zip(*lines, strict=True) if lines else [()] * len(OUTCOMES)
        arrays = [pa.array(column, of.type) for column, of in zip(columns, OUTCOMES, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=OUTCOMES)


# ---- a turn ---------------------------------------------------------------------------------------------------------


def adapters_of(ledger: Ledger, tables: Mapping[str, MemoryTable], names: Iterable[str] = TABLES) -> Any:
    return Some(store=ledger, pipeline=Some(name="shop", shadow=None), tables=tables, names=names)


def settle(ledger: Ledger, opened: Open, result: Result, tables: Mapping[str, MemoryTable], around: Any) -> Settled:
    """Does what `settled_outputs` does: which rows the turn publishes, which tables get an entry, what they may hold.
    `around` calls what looks at one table. Raises as `settled_outputs` does."""
    turn, may_hold, ended = opened.turn, dict(ledger.expected), ledger.ended | result.ended
    rows, kept = list[Row](), list[Row]()
    if opened.kind.opens_epoch:
        adapters = adapters_of(ledger, tables)
        may_hold = {at: settled._held(adapters, at, of, ledger.application) for at, of in may_hold.items()}
    else:
        for row in (*ledger.kept, *result.rows):
            outcomes = {ended[each.number] for each in row.tries} or {Outcome.ACKED}
            rows += [row] * (Outcome.ACKED in outcomes)
            kept += [row] * (Outcome.ACKED not in outcomes and Outcome.IN_FLIGHT in outcomes)
    ledger.stored[turn] = result.lines, rows  # another process that settles the turn stores the same
    entries, lowest, attempts = dict[str, TableOfTurn](), _lowest(ledger, opened), _attempts(ledger, turn)
    for place in TABLES:
        written = dict[str, TableOfTurn]()
        if any(row.table == place for row in rows):
            if error := expected.unexpected(ledger, turn, place, may_hold):  # type: ignore[arg-type]
                raise error
            written[place] = write(tables, place, turn, rows, ended)
        plan, adapters = Some(partitions={}, turn=turn, kind=opened.kind), adapters_of(ledger, tables, [place])
        replacing = around(turn, lowest, place, settled._replacing, adapters, plan, lowest, written, may_hold, attempts)
        entries |= written | replacing
    what = [result.execution if opened.records else None, [row.value for row in ledger.kept if row not in kept],
            sorted((place, of.rows) for place, of in entries.items())]  # fmt: skip
    identity = zlib.crc32(repr(what).encode()) & ((1 << IDENTITY_BITS) - 1)
    number = number_of(turn, identity) if entries else 0
    may_hold |= {place: expected_with(may_hold.get(place, {}), ledger.application, number) for place in entries}
    return Settled(turn, OutputsOfTurn(may_hold, number, None, entries), rows, kept, result.handled)


def _attempts(ledger: Ledger, turn: TurnId) -> Callable[[], AttemptOutcomes]:
    return cache(lambda: AttemptOutcomes.read(ledger, turn))  # type: ignore[arg-type]


def _lowest(ledger: Ledger, opened: Open) -> dict[str, int]:
    flying = [each.record for each in ledger.in_flight()]
    read, waiting = dict[Any, Any](), dict[Any, Any]()
    for p in PARTITIONS:
        retries = [range(o, o + 1) for q, o in opened.records if q == p]
        starts = np.array(sorted(o for q, o in flying if q == p))
        pending = Some(of_kind=lambda _, starts=starts: Some(starts=starts))
        read[TopicPartition(TOPIC, p)] = Some(fresh=(), retries=retries)
        waiting[TopicPartition(TOPIC, p)] = Some(state=Some(pending=pending))
    plan: Any = Some(kind=opened.kind, partitions=read)
    before: Any = Some(partitions=waiting)
    return settled._lowest_settled(plan, before)


def write(
    tables: Mapping[str, MemoryTable], place: str, turn: TurnId, rows: Iterable[Row], ended: Mapping[int, Outcome]
) -> TableOfTurn:
    """Writes those rows of a turn that are for one table, as `write_table` does."""
    lines, ends, several = [], dict[str, int](), False
    for row in (row for row in rows if row.table == place):
        anchors = [{"topic": TOPIC, "partition": of.record[0], "offset": of.record[1], "attempt": of.attempt,
                    "outcome": ended[of.number]} for of in row.tries]  # fmt: skip
        first = next((each for each in anchors if each["outcome"] == Outcome.ACKED), {})
        record = [first.get(name) for name in ("topic", "partition", "offset")]
        lines.append([*record, turn.lane, turn.epoch, anchors, row.value])
        for key, offset in ((partition_key(TOPIC, of.record[0]), of.record[1]) for of in row.tries):
            ends[key] = max(ends.get(key, 0), offset + 1)
        several = several or len(row.tries) > 1
    arrays = [pa.array(column, of.type) for column, of in zip(zip(*lines, strict=True), SCHEMA, strict=True)]
    path = tables[place].write(pa.table(arrays, schema=SCHEMA))
    return TableOfTurn(len(lines), [FinalFile(path, 1, 2**53, {}, "")], {"value": "long"}, ends, several)


def related_to(records: set[Record], ledger: Ledger, tables: Mapping[str, MemoryTable]) -> set[Record]:
    """Returns the other records of rows that name some of the records, as `--with-related` finds them."""
    found = newest_rows.rows_to_replace(adapters_of(ledger, tables), ranges_of(records), {})
    return {(tp.partition, o) for each in found.values() for tp, of in each.related.items() for o in of}


def ranges_of(records: Iterable[Record]) -> dict[TopicPartition, Ranges]:
    by_partition = {p: sorted(o for q, o in records if q == p) for p in PARTITIONS}
    return {
        TopicPartition(TOPIC, p): arrays_of([OffsetRange(o, o + 1) for o in offsets])
        for p, offsets in by_partition.items()
        if offsets
    }


@contextlib.contextmanager
def in_memory(tables: Callable[[], Mapping[str, MemoryTable]]) -> Iterator[None]:
    """Lets `ackline.outputs` look at the tables that `tables` returns. Files of a turn that a vacuum has taken are
    written again, as from staged rows."""

    def write_again(ledger: Ledger, turn: TurnId, sources: Sequence[Any], *_: Any) -> TableOfTurn:
        return write(tables(), sources[0].table, turn, ledger.stored[turn][1], ledger.ended)

    of_all = {
        "table_of": lambda _, place: tables()[place],
        "OlderRows": MemoryOlderRows,
        "outputs_of": lambda adapters: [Some(table=name, rows=Rows.NEWEST) for name in adapters.names],
        "rows_kept": lambda *_: Rows.NEWEST,
        "table_files": lambda version: version.listed,
        "claims": lambda _: False,
        "place_of": lambda _, name, __: name,
        "_sources": lambda *of: [Some(table=of[-1])],
        "Folder": str,
        "staging_root": lambda _: "",
        "write_table": write_again,
    }
    of_module = {expected: ("table_of",), newest_rows: ("table_of", "OlderRows", "outputs_of", "table_files"),
                 settled: ("table_of", "OlderRows", "outputs_of", "rows_kept", "claims", "place_of"),
                 publish: ("table_of", "OlderRows", "rows_kept", "_sources", "Folder", "staging_root", "write_table"),
                 }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for module, names in of_module.items():
            for name in names:
                stack.enter_context(mock.patch.object(module, name, of_all[name]))
        yield
