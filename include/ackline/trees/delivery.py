"""Delivers what calls have emitted, to steps and outputs, and closes the edges that led to the calls.

Record handlers and Arrow handlers share it, so there is one accounting of edges. An event has the same sums whichever
kind a step is of, and in whichever order the calls were made.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.pipeline.topology import SOURCE_STEP, Step, Topology
from ackline.trees.answers import Readers
from ackline.trees.batch import Batch, CallFigures, EdgeLog, Ended, Verdict
from ackline.trees.events import EventFormat
from ackline.trees.output_rows import OutputRows, RowBlock
from ackline.trees.parcels import parcel_rows
from ackline.trees.rows import Edges, Int64s, Lists, Roots, merged
from ackline.trees.tuples import MAX_BYTES, EmittedRows, Refused, Tuples, as_columns, packed, values_in
from ackline.worker.call import forks
from ackline.worker.outcomes import Clock, RowOutcome, present_witness

_logger = logging.getLogger(__name__)
MAX_CONSUMERS = 256
"""The most steps that may take one stream. The positions of edges have eight bits for them."""


class Delivery:
    """What the calls of one task emit, batch by batch: after each batch call `end`, or nothing of it counts.
    `topic_partitions` are those of the job, which roots are numbered by. `step` is the number of the step whose tuples
    the task gets, -1 in a task that reads records, and `part` the number of the task among those of its step: the acker
    identifies a batch by both and by its number in the task. `parts` tasks share the tuples of each step."""

    def __init__(
        self,
        topology: Topology,
        topic_partitions: Sequence[TopicPartition],
        now: Clock,
        outputs: OutputRows | None = None,
        edge_log: EdgeLog | None = None,
        step: int = SOURCE_STEP,
        part: int = 0,
        parts: int = 1,
    ) -> None:
        self.outputs = outputs
        self.topic_partitions = topic_partitions
        self.now = now
        self.readers = Readers(topology)
        self.figures = CallFigures(topology.names)
        self._edge_log = edge_log
        self._witness = present_witness()
        self._step, self._part, self._parts = step, part, parts
        self._batches = count()
        self._steps = topology.steps
        self._format = EventFormat(len(topology.steps))
        self._arrow_steps: frozenset[int] = frozenset()
        self._dropped, self._first_dropped = 0, ""

    def begin(self) -> None:
        """Begins a batch, and forgets the calls since the last `end`."""
        self.batch = Batch(self._step, self._part, next(self._batches))
        self.waiting: dict[int, list[Tuples]] = {}
        """The tuples for each step that are not sent, and that no call has taken."""
        self.waiting_sizes = Counter[int]()
        """About how many bytes these count for, by step."""
        self.size = 0
        """About how many bytes the emitted tuples count for."""
        self.figures.begin()
        self._logged: list[Callable[[Roots], None]] = []
        self.forks = forks()

    @property
    def fill(self) -> float:
        """How full the batch is by what the calls have emitted: at 1 it should end."""
        of_outputs = 0.0 if self.outputs is None else self.outputs.fill
        return max(self.size / MAX_BYTES, of_outputs)

    # ---- the end of a batch -----------------------------------------------------------------------------------------

    def end(self) -> Ended:
        """Stages or sends what was emitted to outputs, before the events leave the task: a row that does not fit fails
        its records. Returns what the calls since the last `end` leave, and begins the next batch."""
        parcels = [(step, tuples) for step in self._steps if step.grouped for tuples in self.take_waiting(step)]
        self.batch.opened += [(tuples.edges, step.number) for step, tuples in parcels]
        for bad in self.outputs.flush(self.batch.roots) if self.outputs is not None else ():
            self._note_problem(bad.edges, bad.step, ErrorClass.BAD_OUTPUT, bad.reason)
        events, event_of = self.batch.events(self._format, self.now())
        self.figures.add_up(events, event_of)
        roots = self.batch.roots
        for log in self._logged:
            log(roots)
        rows = [row for step, tuples in parcels for row in parcel_rows(step, tuples, roots, self._parts)]
        self.begin()
        return Ended(events, rows)

    def take_waiting(self, step: Step) -> Sequence[Tuples]:
        """Returns the tuples that wait for a step, and forgets them: packed, or for an Arrow step as columns, which are
        several where they do not fit together. A tuple that no column can hold fails its records."""
        parts = self.waiting.pop(step.number, [])
        if step.number not in self._arrow_steps:
            return [packed(parts)] if parts else ()
        found = []
        for tuples in as_columns(parts):
            if isinstance(tuples, Refused):  # no other task waits for it
                self._note_problem(tuples.edges, step.number, ErrorClass.UNDECODABLE, tuples.reason)
            else:
                found.append(tuples)
        return found

    # ---- the tuples that a call got ---------------------------------------------------------------------------------

    def close(self, step: Step, tuples: Tuples, outcomes: Mapping[int, RowOutcome], held: Collection[int] = ()) -> None:
        """Closes the edges of tuples, but for those that a join holds. `outcomes` are those of tuples that were not
        acked, by their numbers."""
        edges, not_acked = tuples.edges, {*outcomes, *held}
        left_open = held if step.grouped else not_acked
        closed = edges
        if left_open:
            is_closed = np.ones(len(edges), np.bool_)
            is_closed[list(left_open)] = False
            closed = edges.take(np.flatnonzero(is_closed))
        if step.grouped:
            self.batch.closed.append(closed)
        else:
            self.batch.near.append((closed, step.number))
        self.figures.calls[step.number] += len(edges)
        if held:
            self.figures.of_step(step.number).acked -= len(held)  # `CallFigures.add_up` adds each tuple as acked
        for row in range(len(edges)) if self._edge_log is not None else sorted(not_acked):
            self._note(step, tuples, row, outcomes.get(row), row in held)

    def _note(self, step: Step, tuples: Tuples, row: int, outcome: RowOutcome | None, held: bool) -> None:
        """Notes the outcome of a tuple that was not acked, and logs the edges of the tuple."""
        edges = tuples.edges.slice(row, row + 1)
        if outcome is not None and not held:
            self.batch.not_acked.append(Verdict(edges, step.number, outcome))
            counts = self.figures.of_step(step.number)
            counts.failed += outcome.outcome is Outcome.FAILED
            counts.acked -= 1
        if (log := self._edge_log) is not None:
            stream = self.readers.streams[int(tuples.streams[row])].stream
            self._logged.append(lambda roots: log.closed(stream, step.name, edges, roots, outcome, held))

    # ---- what a call has emitted ------------------------------------------------------------------------------------

    def deliver(self, step: int, name: str, emitted: EmittedRows, given: Edges, bounds: Int64s) -> None:
        """Hands tuples of one stream to each step and output that takes it. `given` are the edges of the inputs of the
        calls, and `bounds` the number of the first input of each call, and the end of the last one."""
        taken = self.readers.takers[name][emitted.stream]
        parents = merged(emitted.inputs, given, self.batch.roots)
        if self._witness is not None:
            for _, value in values_in(emitted.content):
                self._witness.emitted(name, emitted.stream, value)
        if taken.outputs:
            assert self.outputs is not None
            blamed = self._blamed(emitted, parents, given, bounds)
            for output in taken.outputs:
                self.outputs.add(output, RowBlock(step, emitted.content, emitted.hidden, parents, blamed))
        for place, consumer in enumerate(taken.steps):
            edges = parents.behind(emitted.places * MAX_CONSUMERS + place)
            if (log := self._edge_log) is not None:
                self._logged.append(partial(log.emitted, taken.stream, consumer.name, edges))
            tuples = Tuples(np.full(len(edges), taken.number), edges, emitted.content)
            self.size += tuples.size
            self.waiting_sizes[consumer.number] += tuples.size
            self.waiting.setdefault(consumer.number, []).append(tuples)

    def refuse(self, step: int, emitted: EmittedRows, given: Edges, bounds: Int64s, problems: Sequence[str]) -> None:
        """Notes for each of the tuples why it can't be delivered, which fails the records of its anchors, or if it has
        none, all records of its call."""
        blamed = self._blamed(emitted, merged(emitted.inputs, given, self.batch.roots), given, bounds)
        for row, problem in enumerate(problems):
            self._note_problem(blamed.slice(row, row + 1), step, ErrorClass.UNKNOWN_STREAM, problem)

    def _blamed(self, emitted: EmittedRows, parents: Edges, given: Edges, bounds: Int64s) -> Edges:
        """Returns for each tuple the edges whose records fail if it can't be delivered: those of its anchors. A tuple
        without anchors has all edges that led to its call, or if the call is not known, to all of the calls."""
        if parents.counts.all():
            return parents
        starts, ends = np.append(bounds[:-1], 0), np.append(bounds[1:], bounds[-1])  # the last ones are of call -1
        lacking, rows, inputs = np.flatnonzero(parents.counts == 0), np.arange(len(emitted)), emitted.inputs
        calls = emitted.calls[lacking]
        of_calls = Lists.ranges(starts[calls], (ends - starts)[calls])
        rows[lacking] = len(emitted) + np.arange(len(lacking))
        numbers = np.concatenate([inputs.numbers, of_calls.numbers])
        counts = np.concatenate([inputs.counts, of_calls.counts])
        return merged(Lists(numbers, counts).take(rows), given, self.batch.roots)

    def _note_problem(self, blamed: Edges, step: int, error_class: ErrorClass, reason: str) -> None:
        """Notes that a tuple or row of a call can't be delivered, which fails the records of the edges `blamed`."""
        if len(blamed.ids):
            outcome = RowOutcome(0, Outcome.FAILED, error_class, reason, self.now())
            self.batch.problems.append(Verdict(blamed, step, outcome))
            return
        self._dropped += 1
        self._first_dropped = self._first_dropped or f"{error_class}: {reason}"

    def log_dropped(self) -> None:
        """Logs a warning with the number of tuples and rows that the task could not deliver, and for which no record
        fails. Call it at the end of the task."""
        if self._dropped:
            text = (
                "dropped %d tuples or rows of calls without a tracked record; no record fails for them. The first: %s"
            )
            _logger.warning(text, self._dropped, self._first_dropped)
