"""Events of trees as bytes: their sums by root, why a root is not acked, and the outcome that follows.

A note says why a call did not ack its tuple. Notes are bytes whose order is that of their rank, so the smallest note of
a root decides: dead before failed before skipped, then the first step in the order of the file, then the smallest edge.

Events travel packed: a row holds those of a block of offsets. A row for each event cost half of a turn's time, because
each stage between a step and the acker copies all rows that are not its own. A row of packed events costs a stage next
to nothing, however many events it holds.
"""

import pickle
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackline.ledger.explain import StepStory, encode_story
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.pending import NEVER
from ackline.pipeline.topology import SOURCE_STEP, Topology
from ackline.scrub import MESSAGE_LIMIT
from ackline.trees.rows import FAILED, Root, changes
from ackline.worker.outcomes import RowOutcome
from ackline.worker.records import Int64s

_ORDER = struct.Struct(">BHQ")
_DEAD, _FAILED, _SKIPPED = 0, 1, 3


class Note(NamedTuple):
    """Why a call did not ack its tuple. `step` is the number of the step; -1 is the handler of the record."""

    step: int
    outcome: Outcome
    error_class: str | None
    message: str | None
    place: str | None = None


def note_of(step: int, edge: int, outcome: RowOutcome) -> bytes:
    """Returns why a call of `step` did not ack the tuple to which `edge` leads, as a note."""
    rank = _SKIPPED
    if outcome.outcome is Outcome.FAILED:
        rank = _DEAD if outcome.error_class == ErrorClass.DEAD else _FAILED
    content = (outcome.outcome.value, outcome.error_class, outcome.error_message, outcome.error_place)
    return _ORDER.pack(rank, step + 1, edge) + pickle.dumps(content)


def read_note(note: bytes) -> Note:
    """Returns the note that `note_of` has encoded."""
    _, number, _ = _ORDER.unpack_from(note)
    outcome, error_class, message, place = pickle.loads(note[_ORDER.size :])
    return Note(number - 1, Outcome(outcome), error_class, message, place)


def outcome_of_root(
    note: bytes | None,
    xor: int,
    open_tuples: Sequence[int],
    acked: Sequence[int],
    topology: Topology,
    time: int,
    due: int | None = None,
) -> RowOutcome | None:
    """Returns the outcome of a root from the sums of its events; None if it is acked.

    `xor` is the XOR of all its edges. By the number of the step, `open_tuples` holds how many tuples were sent to the
    step and not closed there, and `acked` how many were acked there, plus FAILED for each that failed. `time` is in
    microseconds since 1970, and so is `due`, the deadline of a record in flight: NEVER if the record has no deadline,
    None if it is not in flight.
    """
    outcome = _outcome(note, xor, open_tuples, acked, topology, time)
    # The worst wins. A failure needs no answer from outside. A skip waits for it, because an answer may still fail the
    # record; the row keeps its class, so that an ack then makes the record `skipped`.
    if due is not None and (outcome is None or outcome.outcome is Outcome.SKIPPED):
        reasons = (None, None) if outcome is None else (outcome.error_class, outcome.error_message)
        outcome = RowOutcome(0, Outcome.IN_FLIGHT, *reasons, time, None if due == NEVER else due)
    return None if outcome is None else replace(outcome, tree=_story(open_tuples, acked, topology))


def stories_of_acked(acked: Int64s, topology: Topology) -> pa.DictionaryArray | None:
    """Returns the text for `tree` of each acked root; null if no step got a tuple of it. None if all are null. `acked`
    has a row for each step and a column for each root: how many tuples were acked there. Most roots have one of a few
    patterns of numbers, so a text is encoded once for each pattern, and the column holds the number of its text."""
    if not acked.any():
        return None
    order = np.lexsort(acked)
    in_order = acked[:, order]
    begins = np.logical_or.reduce([changes(row) for row in in_order])
    codes = np.empty(acked.shape[1], np.int32)
    codes[order] = np.cumsum(begins) - 1
    none = [0] * len(acked)
    texts = [_story(none, pattern, topology) for pattern in in_order[:, begins].T.tolist()]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=~acked.any(axis=0)), pa.array(texts, pa.string()))


def _story(open_tuples: Sequence[int], acked: Sequence[int], topology: Topology) -> str:
    steps = (StepStory(done % FAILED, done // FAILED, abs(left)) for done, left in zip(acked, open_tuples, strict=True))
    return encode_story(zip(topology.names, steps, strict=True))


def _outcome(
    note: bytes | None, xor: int, open_tuples: Sequence[int], acked: Sequence[int], topology: Topology, time: int
) -> RowOutcome | None:
    worst = None if note is None else read_note(note)
    holder = next((number for number, count in enumerate(open_tuples) if count), None)
    complete = not xor and holder is None
    if worst is None:
        return None if complete else _unacked(holder, open_tuples, topology, time)
    # A tuple without an ack is a failure of the step that holds it. Of two failures the one of the first step counts.
    # Dead outranks every failure, and every failure outranks a skip.
    comes_first = holder is None or worst.step <= holder
    failed = worst.outcome is Outcome.FAILED
    if complete or (failed and (comes_first or worst.error_class == ErrorClass.DEAD)):
        return _outcome_of_note(worst, acked, topology, time)
    return _unacked(holder, open_tuples, topology, time)


def _unacked(holder: int | None, open_tuples: Sequence[int], topology: Topology, time: int) -> RowOutcome:
    if holder is None:  # the counts agree and the ids do not
        message = "the ids of the edges do not cancel each other"
    else:
        count = abs(open_tuples[holder])
        message = f"step {topology.name_of(holder)}: did not ack {count} {'tuple' if count == 1 else 'tuples'}"
    return RowOutcome(0, Outcome.FAILED, ErrorClass.UNACKED, message, time)


def _outcome_of_note(note: Note, acked: Sequence[int], topology: Topology, time: int) -> RowOutcome:
    start, end = f"step {topology.name_of(note.step)}: ", ""
    # The call whose tuple went to an unknown stream, or does not fit an output, acked its own: it would count itself.
    of_emitted = note.error_class in (ErrorClass.UNKNOWN_STREAM, ErrorClass.BAD_OUTPUT)
    if note.outcome is Outcome.FAILED and note.step != SOURCE_STEP and not of_emitted:
        count = acked[note.step] % FAILED
        end = f"; {count} {'sibling' if count == 1 else 'siblings'} acked"
    text = str(note.message or note.error_class)[: MESSAGE_LIMIT - len(start) - len(end)]
    return RowOutcome(0, note.outcome, note.error_class, f"{start}{text}{end}", time, error_place=note.place)


BLOCK = 4096
"""Offsets of one block have their events in the same rows, and are decided by the same task of the acker."""
NO_TIMESTAMP = -(1 << 63)
"""The timestamp in an event that is not the first one of its root."""
NOT_BEGUN = -1
"""The time of the first call in an event that is not the first one of its root."""

Extra = tuple[int, int, bytes | None, int | None, int | None]
"""Offset, attempt, note, key hash and deadline of an event that has one of the last three."""


class Block(NamedTuple):
    """The offsets from `number * BLOCK` on, of the topic-partition with the index `tp`."""

    tp: int
    number: int

    @property
    def key(self) -> bytes:
        """The key by which Spark partitions the rows of the block."""
        return b"%d:%d" % self


@dataclass(slots=True)
class Sums:
    """The sums over the events of each root of a block, in the order of offsets. `open_tuples` and `acked` have a row
    for each step and a column for each root; `acked` counts each failed tuple as FAILED acked ones. `begun` is when the
    first call of a root began, in nanoseconds since 1970. `notes`, `key_hashes` and `dues`, the deadlines of records in
    flight, are None where a root has none. `sources` is how many of the events are first ones."""

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
    key_hashes: list[int | None]
    dues: list[int | None]


_IDENTITY = ("offset", "attempt", "by", "part", "batch")


class EventFormat:
    """How the events of a topology with this many steps are packed."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.dtype = np.dtype(
            [("offset", "<i8"), ("xor", "<u8"),
             ("time", "<i8"), ("timestamp", "<i8"), ("begun", "<i8"),
             ("part", "<i4"), ("batch", "<i4"), ("attempt", "<i4"), ("by", "<i2"), ("sources", "<i2"),
             ("open", "<i4", (steps,)), ("acked", "<i8", (steps,))]
        )  # fmt: skip
        """What a batch of calls did for one root. `xor` is the XOR of all edges that they created or closed. By the
        number of the step, `open` counts the tuples that they sent there less those that they closed there, and `acked`
        those that they acked, and FAILED times those that failed. `sources` is 1 in the event of the record's own call.
        `by` is the step of the task, -1 for the source, `part` the number of the task among those of that step, and
        `batch` that of the batch in the task: no other event of the root has all three. `time` is when the calls had
        returned and `timestamp` the record's, in microseconds since 1970; `begun` is when the source was called, in
        nanoseconds."""

    def sums(self, payloads: Iterable[bytes]) -> Sums:
        """Returns the sums by root, given the rows of one block. Neither order nor repetition of events matters. Events
        of one root that the same batch of the same task has made are one: only the first of them counts. So rows that
        come twice change no sum; a bare XOR would cancel them."""
        contents: list[tuple[bytes, list[Extra]]] = [pickle.loads(payload) for payload in payloads]
        events = np.frombuffer(b"".join(packed for packed, _ in contents), self.dtype)
        events = events[np.lexsort([events[name] for name in _IDENTITY[::-1]])]
        begins_root = changes(events["offset"]) | changes(events["attempt"])
        distinct = np.logical_or.reduce([changes(events[name]) for name in _IDENTITY])
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
    `notes`, `key_hashes` and `dues` hold what only some events have, by the number of the row."""

    tps: Int64s
    rows: npt.NDArray[Any]
    notes: Mapping[int, bytes] = field(default_factory=dict)
    key_hashes: Mapping[int, int] = field(default_factory=dict)
    dues: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tps)

    def root(self, number: int) -> Root:
        """Returns the attempt at a record that an event is about."""
        row = self.rows[number]
        return Root(int(self.tps[number]), int(row["offset"]), int(row["attempt"]))

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """For each root, whether no edge leaves this task: the tree ended here."""
        ended: npt.NDArray[np.bool_] = (self.rows["xor"] == 0) & ~self.rows["open"].any(axis=1)
        return ended

    def take(self, numbers: Int64s) -> "Events":
        """Returns the events with these numbers."""
        some: Any = self.notes, self.key_hashes, self.dues
        return Events(
            self.tps[numbers],
            self.rows[numbers],
            *({place: of[old] for place, old in enumerate(numbers.tolist()) if old in of} for of in some),
        )


@dataclass(slots=True)
class PackedEvents:
    """Events of one task that are not sent yet, by block."""

    size: int = 0
    _blocks: dict[tuple[int, int], tuple[bytearray, list[Extra]]] = field(default_factory=dict)

    def add(self, events: Events) -> None:
        """Adds events to the rows of their blocks."""
        numbers = events.rows["offset"] // BLOCK
        begins = changes(events.tps) | changes(numbers)
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


def _by_root(
    extras: Iterable[Extra],
) -> tuple[dict[tuple[int, int], bytes], dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Returns the worst note, the key hash and the deadline of each root that has one."""
    notes: dict[tuple[int, int], bytes] = {}
    key_hashes: dict[tuple[int, int], int] = {}
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
