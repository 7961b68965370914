"""What the calls of a batch did, noted in lists and summed up for each root at the end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from ackline.outcome import Outcome
from ackline.spark.handlers.outcomes import RowOutcome
from ackline.spark.trees.edge_columns import EdgeColumns, EdgeNumbers, Int64s, Resolved
from ackline.spark.trees.notes import note_of
from ackline.spark.trees.packed_events import NO_TIMESTAMP, NOT_BEGUN, EventFormat, Events
from ackline.spark.trees.rows import FAILED
from ackline.spark.trees.sent_tuples import SentTuples
from ackline.topology import SOURCE_STEP


@dataclass(slots=True)
class Batch:
    """The calls of one batch: those of step `step`, and of the steps that run in the same task after it.

    A call that acks notes the numbers of its edges, and nothing else: most calls do.
    """

    step: int
    edges: EdgeColumns = field(default_factory=EdgeColumns)
    closed: list[int] = field(default_factory=list)
    """The edges of tuples that step `step` acked, failed or skipped."""
    near: list[int] = field(default_factory=list)
    near_steps: list[int] = field(default_factory=list)
    """Edges of tuples that a step in the same task acked, and the number of the step."""
    not_acked: list[tuple[EdgeNumbers, int, RowOutcome]] = field(default_factory=list)
    """Calls that did not ack: the edges of their tuples, the number of the step, and the outcome."""
    problems: list[tuple[EdgeNumbers, int, RowOutcome]] = field(default_factory=list)
    """What keeps a root from being acked although its call acked: an unknown stream, a row that does not fit."""

    dues: list[tuple[int, int]] = field(default_factory=list)
    """The edge of each root that is in flight, and its deadline in microseconds since 1970, NEVER without one."""

    def events(self, resolved: Resolved, format_: EventFormat, sent: SentTuples, time: int) -> Events:
        """Returns one event for each root, given the tuples that go to other tasks. `time` is when the calls had
        returned, in microseconds since 1970.

        All sums are over the edges of the batch, so the order of the calls does not matter.
        """
        roots, count, steps = resolved.roots, len(resolved.roots.tps), format_.steps
        rows = np.zeros(count, format_.dtype)
        rows["offset"], rows["attempt"] = roots.offsets, roots.attempts
        rows["edge"] = resolved.ids[resolved.firsts]
        rows["by"], rows["sources"] = self.step, int(self.step == SOURCE_STEP)
        rows["time"] = time
        rows["timestamp"], rows["begun"] = NO_TIMESTAMP, NOT_BEGUN
        closed, opened = _array(self.closed), _array(chain.from_iterable(sent.edges))
        to = np.repeat(_array(sent.steps), _array(map(len, sent.edges)))
        xors = np.zeros(count, np.uint64)
        for edges in (closed, opened):
            np.bitwise_xor.at(xors, resolved.root_of[edges], resolved.ids[edges])
        rows["xor"] = xors

        def counted(edges: Int64s, of_steps: Int64s) -> Int64s:
            places = resolved.root_of[edges] * steps + of_steps
            return np.bincount(places, minlength=count * steps).reshape(count, steps)

        by = np.full(len(closed), self.step, np.int64)
        rows["open"] = counted(opened, to) - counted(closed, by)
        rows["acked"] = counted(closed, by) + counted(_array(self.near), _array(self.near_steps))
        for numbers, step, outcome in self.not_acked:
            done = (FAILED if outcome.outcome is Outcome.FAILED else 0) - (1 if step == self.step else 0)
            for number in numbers:
                rows["acked"][resolved.root_of[number], step] += done
        dues = {int(resolved.root_of[edge]): due for edge, due in self.dues}
        events = Events(roots.tps, rows, notes := self._notes(resolved), dues=dues)
        # A root without a call in this batch gets no event. The acker keeps one event for each root, edge and step, so
        # such an event would hide the event of the later call.
        is_called = rows["sources"].astype(np.bool_) | rows["open"].any(axis=1) | rows["acked"].any(axis=1)
        is_called[list(notes)] = True  # a join that holds all its tuples closes no edge, and may have emitted a bad row
        return events if is_called.all() else events.take(np.flatnonzero(is_called))

    def _notes(self, resolved: Resolved) -> dict[int, bytes]:
        """Returns the worst note of each root that has one: the smallest."""
        notes: dict[int, bytes] = {}
        for numbers, step, outcome in (*self.not_acked, *self.problems):
            for number in numbers:
                root, note = int(resolved.root_of[number]), note_of(step, int(resolved.ids[number]), outcome)
                notes[root] = min(note, notes.get(root, note))
        return notes


def _array(numbers: Iterable[int]) -> Int64s:
    return np.fromiter(numbers, np.int64)
