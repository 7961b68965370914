"""Events as bytes, and their sums by root. Events travel packed: a row holds those of a block of offsets.

A row for each event cost half of a turn's time, because each stage between a step and the acker copies all rows that
are not its own. A row of packed events costs a stage next to nothing, however many events it holds.
"""

import pickle
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ackline.spark.trees.rows import Event, Root

BLOCK = 4096
"""Offsets of one block have their events in the same rows, and are decided by the same task of the acker."""
NO_TIMESTAMP = -(1 << 63)
"""The timestamp in an event that is not the first one of its root."""
NOT_BEGUN = -1
"""The time of the first call in an event that is not the first one of its root."""
_MASK = (1 << 64) - 1

Int64s = npt.NDArray[np.int64]
Extra = tuple[int, int, bytes | None, str | None]
"""Offset, attempt, note and key hash of an event that has one of the last two."""


class Block(NamedTuple):
    """The offsets from `number * BLOCK` on, of the topic-partition with the index `tp`."""

    tp: int
    number: int

    @property
    def route(self) -> int:
        """What Spark partitions the rows of the block by."""
        return (self.tp << 40 ^ self.number) & (_MASK >> 1)


def block_of(root: Root) -> Block:
    """Returns the block of a root's events."""
    return Block(root.tp, root.offset // BLOCK)


@dataclass(slots=True)
class Sums:
    """The sums over the events of each root of a block, in the order of offsets.

    `open_tuples` and `acked` have a row for each step and a column for each root; `acked` counts each failed tuple as
    FAILED acked ones. `begun` is when the first call of a root began, in nanoseconds since 1970. `notes` and
    `key_hashes` are None where a root has none. `sources` is how many of the events are first ones.
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


class EventFormat:
    """How the events of a topology with this many steps are packed."""

    def __init__(self, steps: int) -> None:
        self._struct = struct.Struct(f"<qQQqqqihh{steps}i{steps}q")
        self._dtype = np.dtype(
            [("offset", "<i8"), ("edge", "<u8"), ("xor", "<u8"),
             ("time", "<i8"), ("timestamp", "<i8"), ("begun", "<i8"),
             ("attempt", "<i4"), ("by", "<i2"), ("sources", "<i2"),
             ("open", "<i4", (steps,)), ("acked", "<i8", (steps,))]
        )  # fmt: skip
        assert self._dtype.itemsize == self._struct.size

    def pack(self, root: Root, event: Event, time: int) -> bytes:
        """Returns an event; `time` is when its calls had returned, in microseconds since 1970."""
        timestamp = NO_TIMESTAMP if event.timestamp is None else event.timestamp
        begun = NOT_BEGUN if event.begun is None else event.begun
        return self._struct.pack(
            root.offset, event.edge, event.xor, time, timestamp, begun, root.attempt, event.by, event.sources,
            *event.open, *event.acked,
        )  # fmt: skip

    def sums(self, payloads: Iterable[bytes]) -> Sums:
        """Returns the sums by root, given the rows of one block. Neither order nor repetition of events matters.

        Events of one root with the same edge and step are one: only the first of them counts. So a part of a stage
        that ran twice changes no sum; a bare XOR would cancel it.
        """
        contents: list[tuple[bytes, list[Extra]]] = [pickle.loads(payload) for payload in payloads]
        events = np.frombuffer(b"".join(packed for packed, _ in contents), self._dtype)
        events = events[np.lexsort((events["by"], events["edge"], events["attempt"], events["offset"]))]
        begins_root = _changes(events["offset"]) | _changes(events["attempt"])
        distinct = begins_root | _changes(events["edge"]) | _changes(events["by"])
        events, starts = events[distinct], np.flatnonzero(begins_root[distinct])
        roots = events[starts]
        notes, key_hashes = _by_root(extra for _, extras in contents for extra in extras)
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
        )


@dataclass(slots=True)
class PackedEvents:
    """Events of one task that are not sent yet, by block."""

    format: EventFormat
    size: int = 0
    """Bytes of all events, about."""
    _blocks: dict[tuple[int, int], tuple[bytearray, list[Extra]]] = field(default_factory=dict)

    def add(self, root: Root, event: Event, time: int) -> None:
        """Adds an event of a root."""
        block = root.tp, root.offset // BLOCK
        content = self._blocks.get(block)
        if content is None:
            content = self._blocks[block] = bytearray(), []
        packed = self.format.pack(root, event, time)
        content[0].extend(packed)
        self.size += len(packed)
        if event.note is not None or event.key_hash is not None:
            content[1].append((root.offset, root.attempt, event.note, event.key_hash))
            self.size += 300

    def take(self) -> Iterator[tuple[Block, bytes]]:
        """Yields a row for each block, and forgets the events."""
        blocks, self._blocks, self.size = self._blocks, {}, 0
        for block, (packed, extras) in blocks.items():
            yield Block(*block), pickle.dumps((bytes(packed), extras), 5)


def _changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns for each value whether it differs from the one before it; the first one does."""
    changed = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def _by_root(extras: Iterable[Extra]) -> tuple[dict[tuple[int, int], bytes], dict[tuple[int, int], str]]:
    """Returns the worst note and the key hash of each root that has one."""
    notes: dict[tuple[int, int], bytes] = {}
    key_hashes: dict[tuple[int, int], str] = {}
    for offset, attempt, note, key_hash in extras:
        if note is not None:
            worst = notes.get((offset, attempt))
            notes[offset, attempt] = note if worst is None else min(note, worst)
        if key_hash is not None:
            key_hashes[offset, attempt] = key_hash
    return notes, key_hashes
