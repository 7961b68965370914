"""Notes: why a tree is not acked; and the outcome of a root. Notes are bytes, and the smallest one decides.

So Spark's own `min` finds the worst: dead before failed before skipped, then the first step in the order of the file,
then the smallest edge.
"""

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ackline.outcome import MESSAGE_LIMIT, ErrorClass, Outcome
from ackline.pending import NEVER
from ackline.spark.handlers.outcomes import RowOutcome
from ackline.spark.records import Int64s
from ackline.spark.trees.rows import FAILED
from ackline.topology import SOURCE_STEP, Topology
from ackline.tree_story import StepStory, encode

_ORDER = struct.Struct(">BHQ")
_DEAD, _FAILED, _SKIPPED = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Note:
    """Why a call did not ack its tuple. `step` is the number of the step; -1 is the handler of the record."""

    step: int
    outcome: Outcome
    error_class: str | None
    message: str | None

    @property
    def failed(self) -> bool:
        """Whether the attempt failed."""
        return self.outcome is Outcome.FAILED


def note_of(step: int, edge: int, outcome: RowOutcome) -> bytes:
    """Returns the note of a call of `step` that got the tuple at the end of `edge`."""
    rank = _SKIPPED
    if outcome.outcome is Outcome.FAILED:
        rank = _DEAD if outcome.error_class == ErrorClass.DEAD else _FAILED
    content = (outcome.outcome.value, outcome.error_class, outcome.error_message)
    return _ORDER.pack(rank, step + 1, edge) + pickle.dumps(content)


def read_note(note: bytes) -> Note:
    """Returns the note that `note_of` has encoded."""
    _, number, _ = _ORDER.unpack_from(note)
    outcome, error_class, message = pickle.loads(note[_ORDER.size :])
    return Note(number - 1, Outcome(outcome), error_class, message)


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
    """Returns the story of each acked root; null if no step got a tuple of it, and None if that holds for all roots.

    `acked` has a row for each step and a column for each root: how many tuples were acked there. Most roots have one of
    a few patterns of numbers, so a story is encoded once for each pattern, and the column holds the number of its text.
    """
    if not acked.any():
        return None
    order = np.lexsort(acked)
    in_order = acked[:, order]
    begins = np.ones(acked.shape[1], np.bool_)
    begins[1:] = (in_order[:, 1:] != in_order[:, :-1]).any(axis=0)
    codes = np.empty(acked.shape[1], np.int32)
    codes[order] = np.cumsum(begins) - 1
    none = [0] * len(acked)
    texts = [_story(none, pattern, topology) for pattern in in_order[:, begins].T.tolist()]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=~acked.any(axis=0)), pa.array(texts, pa.string()))


def _story(open_tuples: Sequence[int], acked: Sequence[int], topology: Topology) -> str:
    steps = (StepStory(done % FAILED, done // FAILED, abs(left)) for done, left in zip(acked, open_tuples, strict=True))
    return encode(zip(topology.names, steps, strict=True))


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
    if complete or (worst.failed and (comes_first or worst.error_class == ErrorClass.DEAD)):
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
    if note.failed and note.step != SOURCE_STEP and not of_emitted:
        count = acked[note.step] % FAILED
        end = f"; {count} {'sibling' if count == 1 else 'siblings'} acked"
    text = str(note.message or note.error_class)[: MESSAGE_LIMIT - len(start) - len(end)]
    return RowOutcome(0, note.outcome, note.error_class, f"{start}{text}{end}", time)
