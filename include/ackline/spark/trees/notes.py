"""Notes: why a tree is not acked. Notes are bytes, and the smallest one decides.

So Spark's own `min` finds the worst: dead before failed before skipped, then the first step in the order of the file,
then the smallest edge.
"""

import pickle
import struct
from dataclasses import dataclass

from ackline.outcome import ErrorClass, Outcome
from ackline.spark.handlers.outcomes import RowOutcome

_ORDER = struct.Struct(">BhQ")
_DEAD, _FAILED, _SKIPPED = 0, 1, 3
SOURCE_STEP = -1
"""The number of the step `source`, which comes before all others."""


@dataclass(frozen=True, slots=True)
class Note:
    """What one call made of its tuple, if not an ack."""

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
    return _ORDER.pack(rank, step, edge) + pickle.dumps(content)


def read_note(note: bytes) -> Note:
    """Returns what `note_of` has packed."""
    _, step, _ = _ORDER.unpack_from(note)
    outcome, error_class, message = pickle.loads(note[_ORDER.size :])
    return Note(step, Outcome(outcome), error_class, message)


def message_of_step(step: str, message: str | None) -> str:
    """Returns the message of a failure as the audit table holds it: it names the step."""
    return f"step {step}: {message}" if message else f"step {step}"
