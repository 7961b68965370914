"""Events as bytes, and their sums by root. Events travel packed: a row holds those of a block of offsets.

A row for each event cost half of a turn's time, because each stage between a step and the acker copies all rows that
are not its own. A row of packed events costs a stage next to nothing, however many events it holds.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ackline.spark.trees.rows import Root

BLOCK = 4096
"""Offsets of one block have their events in the same rows, and are decided by the same task of the acker."""
NO_TIMESTAMP = -(1 << 63)
"""The timestamp in an event that is not the first one of its root."""
NOT_BEGUN = -1
"""The time of the first call in an event that is not the first one of its root."""

Int64s = npt.NDArray[np.int64]
Extra = tuple[int, int, bytes | None, str | None, int | None]
"""Offset, attempt, note, key hash and deadline of an event that has one of the last three."""


class Block(NamedTuple):
    """The offsets from `number * BLOCK` on, of the topic-partition with the index `tp`."""

    tp: int
    number: int

    @property
    def key(self) -> bytes:
        """What Spark partitions the rows of the block by."""
        return b"%d:%d" % self


def block_of(root: Root) -> Block:
    """Returns the block of a root's events."""
    return Block(root.tp, root.offset // BLOCK)


@dataclass(slots=True)
class Sums:
    """The sums over the events of each root of a block, in the order of offsets.

    `open_tuples` and `acked` have a row for each step and a column for each root; `acked` counts each failed tuple as
    FAILED acked ones. `begun` is when the first call of a root began, in nanoseconds since 1970. `notes`, `key_hashes`
    and `dues`, the deadlines of records in flight, are None where a root has none. `sources` is how many of the events
    are first ones.
    """

    offsets: Int64s
    attempts: Int64s
    xors: npt.NDArray[np.uint64]
    sources: Int64s
    times: Int64s
    timestamps: Int64s
    begun: Int64s
    open_tuples: Int64s
    acked: Int64s
    notes: list[bytes | None]
    key_hashes: list[str | None]
    dues: list[int | None]


class EventFormat:
    """How the events of a topology with this many steps are packed."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.dtype = np.dtype(
            [("offset", "<i8"), ("edge", "<u8"), ("xor", "<u8"),
             ("time", "<i8"), ("timestamp", "<i8"), ("begun", "<i8"),
             ("attempt", "<i4"), ("by", "<i2"), ("sources", "<i2"),
             ("open", "<i4", (steps,)), ("acked", "<i8", (steps,))]
        )  # fmt: skip
        """What a batch of calls did for one root. `xor` is the XOR of all edges that they created or closed. By the
        number of the step, `open` counts the tuples that they sent there less those that they closed there, and `acked`
        those that they acked, and FAILED times those that failed. `sources` is 1 in the event of the record's own call.
        `by` is the step of the first call, -1 for the source, and `edge` the edge of its tuple: no other event of the
        root has both. `time` is when the calls had returned and `timestamp` the record's, in microseconds since 1970;
        `begun` is when the source was called, in nanoseconds."""

    def sums(self, payloads: Iterable[bytes]) -> Sums:
        """Returns the sums by root, given the rows of one block. Neither order nor repetition of events matters.

        Events of one root with the same edge and step are one: only the first of them counts. So a part of a stage
        that ran twice changes no sum; a bare XOR would cancel it.
        """
        contents: list[tuple[bytes, list[Extra]]] = [pickle.loads(payload) for payload in payloads]
        events = np.frombuffer(b"".join(packed for packed, _ in contents), self.dtype)
        events = events[np.lexsort((events["by"], events["edge"], events["attempt"], events["offset"]))]
        begins_root = _changes(events["offset"]) | _changes(events["attempt"])
        distinct = begins_root | _changes(events["edge"]) | _changes(events["by"])
        events, starts = events[distinct], np.flatnonzero(begins_root[distinct])
        roots = events[starts]
        notes, key_hashes, dues = _by_root(extra for _, extras in contents for extra in extras)
        names = list(zip(roots["offset"].tolist(), roots["attempt"].tolist(), strict=True))
        return Sums(
            roots["offset"].astype(np.int64),
            roots["attempt"].astype(np.int64),
            np.bitwise_xor.reduceat(events["xor"], starts),
            np.add.reduceat(events["sources"].astype(np.int64), starts),
            np.maximum.reduceat(events["time"], starts),
            np.maximum.reduceat(events["timestamp"], starts),
            np.maximum.reduceat(events["begun"], starts),
            np.add.reduceat(events["open"].astype(np.int64), starts, axis=0).T,
            np.add.reduceat(events["acked"].astype(np.int64), starts, axis=0).T,
            [notes.get(name) for name in names],
            [key_hashes.get(name) for name in names],
            [dues.get(name) for name in names],
        )


@dataclass(frozen=True, slots=True)
class Events:
    """Events of different roots, as rows of `EventFormat.dtype`, in the order of topic-partition, offset and attempt.

    `notes`, `key_hashes` and `dues` hold what only some events have, by the number of the row.
    """

    tps: Int64s
    rows: npt.NDArray[Any]
    notes: Mapping[int, bytes] = field(default_factory=dict)
    key_hashes: Mapping[int, str] = field(default_factory=dict)
    dues: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tps)

    def root(self, number: int) -> Root:
        """Returns the root of an event."""
        row = self.rows[number]
        return Root(int(self.tps[number]), int(row["offset"]), int(row["attempt"]))

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """For each root, whether no edge leaves this task: the tree ended here."""
        ended: npt.NDArray[np.bool_] = (self.rows["xor"] == 0) & ~self.rows["open"].any(axis=1)
        return ended

    def take(self, numbers: Int64s) -> "Events":
        """Returns the events with these numbers."""
        return Events(
            self.tps[numbers],
            self.rows[numbers],
            {place: self.notes[number] for place, number in enumerate(numbers.tolist()) if number in self.notes},
            {place: self.key_hashes[old] for place, old in enumerate(numbers.tolist()) if old in self.key_hashes},
            {place: self.dues[number] for place, number in enumerate(numbers.tolist()) if number in self.dues},
        )


@dataclass(slots=True)
class PackedEvents:
    """Events of one task that are not sent yet, by block."""

    size: int = 0
    """Bytes of all events, about."""
    _blocks: dict[tuple[int, int], tuple[bytearray, list[Extra]]] = field(default_factory=dict)

    def add(self, events: Events) -> None:
        """Adds events."""
        numbers = events.rows["offset"] // BLOCK
        begins = _changes(events.tps) | _changes(numbers)
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(events))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            content = self._block((int(events.tps[start]), int(numbers[start])))
            content[0].extend(events.rows[start:end].tobytes())
        self.size += events.rows.nbytes
        for number in sorted({*events.notes, *events.key_hashes, *events.dues}):
            root, note, due = events.root(number), events.notes.get(number), events.dues.get(number)
            extra = root.offset, root.attempt, note, events.key_hashes.get(number), due
            self._block((root.tp, root.offset // BLOCK))[1].append(extra)
            self.size += 300

    def take(self) -> Iterator[tuple[Block, bytes]]:
        """Yields a row for each block, and forgets the events."""
        blocks, self._blocks, self.size = self._blocks, {}, 0
        for block, (packed, extras) in blocks.items():
            yield Block(*block), pickle.dumps((bytes(packed), extras), 5)

    def _block(self, block: tuple[int, int]) -> tuple[bytearray, list[Extra]]:
        content = self._blocks.get(block)
        if content is None:
            content = self._blocks[block] = bytearray(), []
        return content


def _changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns for each value whether it differs from the one before it; the first one does."""
    changed = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def _by_root(
    extras: Iterable[Extra],
) -> tuple[dict[tuple[int, int], bytes], dict[tuple[int, int], str], dict[tuple[int, int], int]]:
    """Returns the worst note, the key hash and the deadline of each root that has one."""
    notes: dict[tuple[int, int], bytes] = {}
    key_hashes: dict[tuple[int, int], str] = {}
    dues: dict[tuple[int, int], int] = {}
    for offset, attempt, note, key_hash, due in extras:
        if note is not None:
            worst = notes.get((offset, attempt))
            notes[offset, attempt] = note if worst is None else min(note, worst)
        if key_hash is not None:
            key_hashes[offset, attempt] = key_hash
        if due is not None:
            dues[offset, attempt] = due
    return notes, key_hashes, dues
