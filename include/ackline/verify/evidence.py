"""The evidence that the checker judges: plain data, as it was read from Kafka, the tables and the journal.

Here are also the arithmetic on arrays of offsets and half-open ranges, and the sentences about what does not hold, in
the form `I4 orders[0] offset 7: …`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

EMPTY: Ints = np.empty(0, np.int64)
NEVER = np.iinfo(np.int64).max
"""A turn number above all others: the turn of an event that has not happened."""


def to_ints(column: Any) -> Ints:
    """Return an Arrow column of integers or times as int64; null becomes −1, a time microseconds since 1970."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz)).view(pa.int64())
    return np.asarray(values.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def to_codes(column: Any, words: Iterable[str]) -> Ints:
    """Return the index in `words` of each value of an Arrow column; −1 for null and for any other value."""
    return to_ints(pc.index_in(column.cast(pa.string()), pa.array(list(words), pa.string())))


def to_ranges(pairs: Iterable[tuple[int, int]]) -> tuple[Ints, Ints]:
    """Return the starts and the ends of `pairs`."""
    start, end = np.array(list(pairs), dtype=np.int64).reshape(-1, 2).T
    return start, end


def count_covering(offsets: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return, for each of `offsets`, how many of the ranges `[start, end)` contain it. The ranges need no order."""
    valid = starts < ends  # a range that ends before it starts would be counted as −1, and hide another one
    begun, ended = (np.searchsorted(np.sort(bounds[valid]), offsets, "right") for bounds in (starts, ends))
    return np.asarray(begun - ended, dtype=np.int64)


def slice_between(offsets: Ints, start: int, end: int) -> Ints:
    """Return the part of sorted `offsets` that lies in `[start, end)`; empty if `end` is below `start`."""
    low, high = np.searchsorted(offsets, [start, end])
    return offsets[low : max(low, high)]


def find_uncovered(start: int, end: int, ranges: Iterable[tuple[int, int]]) -> Ints:
    """Return the first offset of each part of `[start, end)` that no range contains."""
    missing = []
    for low, high in sorted(ranges):
        if start < min(low, end):
            missing.append(start)
        start = max(start, high)
    return np.array(missing + [start] * (start < end), dtype=np.int64)


class Unreadable(Exception):
    """A topic, table or group cannot be read, so the checker has no verdict on the pipeline."""


class TopicPartition(NamedTuple):
    """A partition of a topic; `str` gives `topic[partition]`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one partition as a consumer sees it.

    `offsets` are the offsets in `[start, end)` that a consumer receives, sorted. `end` is the last stable offset under
    `read_committed`. `aborted` are the offsets of records in aborted transactions, which no consumer receives. It is
    None for a topic without compaction: no record vanishes from inside such a log, so an offset that is missing never
    was a record. `digests` maps the offset of each record that has a dead letter to the digest of its key and value.
    """

    start: int
    end: int
    offsets: Ints
    committed: int | None = None
    metadata: str = ""
    aborted: Ints | None = None
    digests: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, by the origin in its headers.

    `digest` is of its key and value; None if a header marks it as sent without the value of its record. `turn` is the
    turn that sent it; None if no header names it.
    """

    lane: str
    epoch: int
    topic: str
    partition: int
    offset: int
    digest: str | None
    turn: int | None = None

    @property
    def tp(self) -> TopicPartition:
        """The topic-partition of the record that is dead."""
        return TopicPartition(self.topic, self.partition)


Turn = tuple[int, int]
"""An epoch and the number of a turn."""
_IDENTITY_BITS, _TURN_BITS = 24, 27
"""The version of a transaction id is the epoch, then the turn in so many bits, then what the turn publishes."""


def turn_of(version: int) -> Turn:
    """Return the epoch and the turn that the version of a transaction id of an output table names."""
    return divmod(version >> _IDENTITY_BITS, 1 << _TURN_BITS)


@dataclass(frozen=True, slots=True)
class OutputTable:
    """An output table by its name or URI in the pipeline file, or in a settlement.

    `rows` are those of the lane, with the columns of `read_tables.SCHEMA`. `published` maps each transaction id that a
    settlement names to the epoch and the newest turn under it in the table's log; (0, 0) for none. `foreign_writer` is
    another pipeline or ledger that has published rows of a lane of the same name; then `rows` may hold its rows, too.
    `transactions` has by transaction id the versions in the entries of the log that are there, ascending. `every` are
    the rows of all lanes, and `entries` the lane, epoch and turn of each entry of the log that is there, oldest first,
    up to the version that has these rows.
    """

    name: str
    rows: pa.Table
    published: Mapping[str, Turn]
    foreign_writer: str | None = None
    transactions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    every: pa.Table | None = None
    entries: Sequence[tuple[str, int, int]] = ()

    def has_turn(self, application: str, turn: Turn, number: int) -> bool:
        """Return whether the log has a turn, which `number` names, or a later one of its epoch.

        Entries that reach back to before the turn prove it. Without these, a later turn of any epoch stands for it.
        """
        versions = self.transactions.get(application, ())
        if not versions or versions[0] > number:
            return self.published.get(application, (0, 0)) >= turn
        return any(turn <= each < (turn[0] + 1, 0) for each in map(turn_of, versions))


def shadow_suffix(lane: str, settlements: pa.Table) -> str | None:
    """Return how the names of the tables of a shadow end, by what its genesis has stored; None for another lane."""
    if "arguments" not in settlements.column_names:  # a table of an earlier version
        return None
    texts = pc.unique(settlements["arguments"]).drop_null().to_pylist()
    is_shadow = any(json.loads(text).get("shadow") for text in texts if text)
    return f"__{lane.removeprefix('backfill-')}" if is_shadow else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the rules read. The tables hold the rows of one pipeline and lane.

    `ledger` is the id of the table `settlements`; None: commits of any ledger of the pipeline are taken as its own.
    `letters` are the dead letters of the pipeline, of all lanes; None if the pipeline writes no dead letters. `calls`
    has the columns topic, partition, offset and attempt, and holds the handler calls of this lane only; None if there
    is no journal. `outputs` are the output tables that any plan or settlement names.
    """

    pipeline: str
    lane: str
    logs: Mapping[TopicPartition, Log]
    plans: pa.Table
    outcomes: pa.Table
    settlements: pa.Table
    ledger: str | None = None
    letters: Sequence[DeadLetter] | None = None
    calls: pa.Table | None = None
    outputs: Sequence[OutputTable] = ()
    beside: Mapping[str, pa.Table] = field(default_factory=dict)
    """The rows of a shadow in the real tables, where it may have none, by the name of the table."""

    @property
    def shadow_suffix(self) -> str | None:
        """How the names of the tables of this lane end; None if the lane is no shadow."""
        return shadow_suffix(self.lane, self.settlements)

    @property
    def planned(self) -> pa.Table:
        """The rows of `plans` that plan a partition. The others are markers."""
        return self.plans.filter(pc.is_valid(self.plans["topic"]))

    def marked(self, kind: str) -> set[tuple[int, int]]:
        """Return epoch and turn of each marker of this kind: a row of `plans` without a topic, such as a waiver."""
        markers = self.plans.filter(pc.and_(pc.is_null(self.plans["topic"]), pc.equal(self.plans["kind"], kind)))
        return {(row["epoch"], row["turn"]) for row in markers.select(["epoch", "turn"]).to_pylist()}

    @property
    def lane_letters(self) -> list[DeadLetter]:
        """The dead letters of this lane; empty if the pipeline writes none."""
        return [letter for letter in self.letters or () if letter.lane == self.lane]


SHOWN = 3
"""How many offsets are named for one violation in one partition; the others are counted."""


class Findings:
    """Collects the violations that the rules find."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def add(self, invariant: str, what: str, tp: TopicPartition | None = None) -> None:
        """Add a violation of a whole partition, or of the lane."""
        self.sentences.append(f"{invariant}{f' {tp}' if tp else ''}: {what}")

    def add_offsets(self, invariant: str, what: str, tp: TopicPartition, offsets: Iterable[int]) -> None:
        """Add a violation of each of `offsets`: a sentence for the lowest ones, and one with the number of the others.

        Nothing is added if there are no offsets, so a rule passes what it has found, however much that is.
        """
        found = np.unique(np.fromiter(offsets, dtype=np.int64))
        for offset in found[:SHOWN]:
            self.sentences.append(f"{invariant} {tp} offset {offset}: {what}")
        if len(found) > SHOWN:
            self.sentences.append(f"{invariant} {tp}: {what}, at {len(found) - SHOWN} more offsets")
