"""Calls the handlers of steps, and delivers what they emit: to steps in this task by calls, to others as rows."""

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from time import perf_counter_ns
from typing import Any

import pyarrow as pa

from ackline.errors import FatalError
from ackline.handler import SOURCE, Handler, InFlight, Origin, Record
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.pending import NEVER
from ackline.pipeline.topology import SOURCE_STEP, Step, Stream, Topology
from ackline.trees.answers import Answer, AnswerReader, Emitted, Input, NotAcked, Waiting, input_of, texts_of
from ackline.trees.batch import MAX_BYTES, Batch, CallFigures, EdgeLog, Ended, OpenedEdges, SentTuples
from ackline.trees.events import EventFormat
from ackline.trees.output_rows import OutputRow, OutputRows
from ackline.trees.payload import unpack
from ackline.trees.rows import EdgeNumbers, Resolved, Root, root_id
from ackline.worker.call import end_forked_copy, forks, in_flight_outcome
from ackline.worker.outcomes import Clock, RowOutcome, TaskFailure, outcome_of_exception, present_witness

Seeds = Mapping[tuple[str, int], tuple[int, int]] | None
"""By topic and partition: the index of the topic-partition in the job, and the seed of the ids of its edges."""

_logger = logging.getLogger(__name__)
MAX_CONSUMERS = 256
"""The most steps that may take one stream. The positions of edges have eight bits for them."""


class TreeCalls:
    """The calls of one task, batch by batch: after each batch call `end`, or nothing of it counts. `handlers` are those
    of the steps, by number. `topic_partitions` are those of the job, which roots are numbered by. `step` is the number
    of the step whose tuples the task gets, -1 in a task that reads records, and `part` the number of the task among
    those of its step: the acker identifies a batch by both and by its number in the task."""

    def __init__(
        self,
        topology: Topology,
        handlers: Sequence[Handler],
        topic_partitions: Sequence[TopicPartition],
        now: Clock,
        outputs: OutputRows | None = None,
        edge_log: EdgeLog | None = None,
        step: int = SOURCE_STEP,
        part: int = 0,
    ) -> None:
        self._outputs = outputs
        self._edge_log = edge_log
        self._handlers = handlers
        self._topic_partitions = topic_partitions
        self._now = now
        self._witness = present_witness()
        self._step, self._part = step, part
        self._batches = count()
        self._reader = AnswerReader(topology)
        self._takers = self._reader.takers
        self._format = EventFormat(len(topology.steps))
        self.figures = CallFigures(topology.names)
        self._dropped, self._first_dropped = 0, ""
        self.begin()

    def begin(self) -> None:
        """Begins a batch, and forgets the calls since the last `end`."""
        self.batch = Batch(self._step, self._part, next(self._batches))
        self._tuples = SentTuples()
        self.figures.begin()
        self._logged: list[Callable[[Resolved], None]] = []
        self._forks = forks()

    @property
    def full(self) -> bool:
        """Whether the calls have emitted so much that the batch should end."""
        return self._tuples.size >= MAX_BYTES or (self._outputs is not None and self._outputs.fill >= 1)

    @property
    def fill(self) -> float:
        """How full the batch is by what the calls have emitted: at 1 it should end."""
        of_outputs = 0.0 if self._outputs is None else self._outputs.fill
        return max(self._tuples.size / MAX_BYTES, of_outputs)

    def end(self) -> Ended:
        """Stages or sends what was emitted to outputs, before the events leave the task: a row that does not fit fails
        its records. Returns what the calls since the last `end` leave, and begins the next batch."""
        self._call_waiting()
        resolved = self.batch.edges.resolve()
        for bad in self._outputs.flush(resolved) if self._outputs is not None else ():
            outcome = RowOutcome(0, Outcome.FAILED, ErrorClass.BAD_OUTPUT, bad.reason, self._now())
            self._note_problem(bad.row.blamed, bad.row.step, outcome)
        events = self.batch.events(resolved, self._format, self._opened(), self._now())
        self.figures.add_up(events, resolved)
        for log in self._logged:
            log(resolved)
        ended = Ended(events, self._rows(resolved))
        self.begin()
        return ended

    def _call_waiting(self) -> None:
        """Calls the Arrow steps whose tuples wait for the end of the batch. This class has none."""

    def _opened(self) -> OpenedEdges:
        return self._tuples.opened()

    def _rows(self, resolved: Resolved) -> list[pa.RecordBatch]:
        return self._tuples.rows(resolved)

    def call_source(self, handler: Handler, record: Record, seeds: Seeds) -> InFlight | None:
        """Calls the handler of a record, and delivers what it emits. `seeds` is None if trees are not tracked. A record
        that emits nothing, or that is not tracked, has no event. Returns the InFlight of such a record, if its handler
        yielded one. For other records returns None: their event holds the deadline. Raises what `answers_of_source`
        raises."""
        begun = perf_counter_ns()
        try:
            answers = self.answers_of_source(handler, record)
        finally:
            self.figures.spans[SOURCE_STEP].append(perf_counter_ns() - begun)
        with delivering():
            waiting = self.deliver_source(answers, record, seeds, begun)
        return None if waiting is None else waiting.answer

    def answers_of_source(self, handler: Handler, record: Record) -> list[Answer]:
        """Calls the handler of a record. Returns what it answered; an InFlight as a Waiting with its deadline, which
        comes last. Raises what the handler raises, and InvalidOutcome: nothing of its answers is delivered then."""
        answers = self._reader.read(handler(record), (record,), handler=handler)
        if self._forks != forks():  # before a step is called: the copy would call it a second time
            end_forked_copy()
        if answers and isinstance(in_flight := answers[-1], InFlight):
            due = in_flight_outcome(in_flight, 0, self._now()).due
            answers[-1] = Waiting(in_flight, NEVER if due is None else due)
        return answers

    def deliver_source(self, answers: Sequence[Answer], record: Record, seeds: Seeds, begun: int) -> Waiting | None:
        """Delivers what the handler of a record has answered. `begun` is when the handler was called, a time of
        `perf_counter_ns`. Returns the Waiting among the answers if the record has no event to hold its deadline."""
        waiting = None
        if answers and type(last := answers[-1]) is Waiting:
            waiting, answers = last, answers[:-1]
        edges: EdgeNumbers = ()
        if answers and seeds is not None:
            tp, seed = seeds[record.topic, record.partition]
            id_ = root_id(seed, record.offset, record.attempt)
            edges = (self.batch.edges.add_input_edge(tp, record.offset, record.attempt, id_),)
            if waiting is not None:
                self.batch.dues.append((edges[0], waiting.due))
        self._deliver(SOURCE, SOURCE_STEP, answers, edges)
        if edges:
            self.figures.source_calls.append((edges[0], begun, perf_counter_ns()))
            return None
        if waiting is None:
            self.figures.latency.measure(perf_counter_ns() - begun)
        return waiting

    def call_step(self, step: Step, given: Input) -> None:
        """Calls the handler of a step with one tuple, and closes the edges that led to it."""
        self.batch.closed += given.edges
        self.figures.calls[step.number] += 1
        outcome, answers = self.answers_of_step(step, given.tuple, (given,))
        if outcome is not None or self._edge_log is not None:
            self._note(step, given, outcome)
        if answers:
            self._deliver(step.name, step.number, answers, given.edges)

    def _call_near(self, step: Step, given: Input) -> None:
        """Calls the handler of a step without `group_by`, in this task. So its tuple is never counted as open."""
        self.figures.calls[step.number] += 1
        outcome, answers = self.answers_of_step(step, given.tuple, (given,))
        if outcome is None:
            self.batch.near += given.edges
            self.batch.near_steps += [step.number] * len(given.edges)
        if outcome is not None or self._edge_log is not None:
            self._note(step, given, outcome)
        self._deliver(step.name, step.number, answers, given.edges)

    def call_join(self, step: Step, given: Sequence[Input]) -> None:
        """Calls a join with all tuples of a key. Closes the edges of those that it does not hold."""
        failure, answers = self.answers_of_step(step, tuple([each.tuple for each in given]), given)
        self._close_join(step, given, failure, [answer for answer in answers if isinstance(answer, NotAcked)])
        emitted = [answer for answer in answers if isinstance(answer, Emitted)]
        if emitted:
            self._deliver(step.name, step.number, emitted, self._merged(given), given)

    def _close_join(
        self, step: Step, given: Sequence[Input], failure: RowOutcome | None, not_acked: Sequence[NotAcked]
    ) -> None:
        """Closes the edges of the tuples of a join, but leaves open those that the join holds. Each tuple has one
        verdict: `failure`, which is how the call itself failed, or what the join answered about the tuple, or acked. A
        Fail wins over a Hold of the same tuple, and the last Fail over those before it."""
        reasons = {answer.position: answer.reason for answer in not_acked if not answer.held}
        held = {answer.position for answer in not_acked if answer.held} - reasons.keys()
        for position, each in enumerate(given):
            outcome, is_held = failure, position in held
            if position in reasons:
                outcome = RowOutcome(0, Outcome.FAILED, ErrorClass.FAIL, reasons[position], self._now())
            if not is_held:
                self.batch.closed += each.edges
            if outcome is not None or self._edge_log is not None:
                self._note(step, each, outcome, held=is_held)
        counts = self.figures.of_step(step.number)
        counts.executed += len(given)
        counts.acked += 0 if failure is not None else len(given) - len(reasons) - len(held)

    def answers_of_step(
        self, step: Step, argument: Any, given: Sequence[Input]
    ) -> tuple[RowOutcome | None, list[Answer]]:
        """Calls the handler of a step. Returns what it yielded, or how it failed: then nothing that it had yielded
        counts."""
        begun = perf_counter_ns()
        try:
            called = self._handlers[step.number]
            answers = self._reader.read(called(argument), given, step, called)
            if self._forks != forks():
                end_forked_copy()
            return None, answers
        except TaskFailure:
            raise
        except BaseException as error:  # sys.exit, too, is the outcome of this call alone
            if self._forks != forks():
                end_forked_copy(error)
            return outcome_of_exception(error, 0, None, self._now(), lambda _: texts_of(given)), []
        finally:
            self.figures.spans[step.number].append(perf_counter_ns() - begun)

    def _note(self, step: Step, given: Input, outcome: RowOutcome | None, held: bool = False) -> None:
        """Notes the outcome of a tuple that was not acked, and logs the edges of the tuple."""
        self._note_edges(step, Stream(given.tuple.step, given.tuple.stream), given.edges, outcome, held)

    def _note_edges(
        self, step: Step, stream: Stream, edges: EdgeNumbers, outcome: RowOutcome | None, held: bool = False
    ) -> None:
        if outcome is not None and not held:
            self.batch.not_acked.append((edges, step.number, outcome))
            self.figures.of_step(step.number).failed += outcome.outcome is Outcome.FAILED
            if not step.join:
                self.figures.of_step(step.number).acked -= 1  # `CallFigures.add_up` adds each call as acked
        if self._edge_log is not None:
            log = self._edge_log.closed
            self._logged.append(lambda resolved: log(stream, step.name, resolved.edges(edges), outcome, held))

    def _deliver(
        self, name: str, number: int, emitted: Sequence[Answer], edges: EdgeNumbers, given: Sequence[Input] = ()
    ) -> None:
        """Hands each tuple that a call has emitted to each step and output that takes its stream. `edges` are those
        that led to the call, and `given` are the inputs of a join. A tuple that can't be delivered fails the records of
        its anchors, or if it has none, all records of the call."""
        takers, add_edges, edge_log = self._takers[name], self.batch.edges.add_emitted_edges, self._edge_log
        self.figures.emitted[number] += len(emitted)
        for position, item in enumerate(emitted):
            assert isinstance(item, Emitted)
            stream_name, anchors, key, payload, row, problem = item
            parents = edges
            if anchors is not None and given:
                parents = self._merged([given[place] for place in anchors])
            elif anchors == ():  # any other anchor of a call with one input is that input
                parents = ()
            if problem:
                outcome = RowOutcome(0, Outcome.FAILED, ErrorClass.UNKNOWN_STREAM, problem, self._now())
                self._note_problem(parents or edges, number, outcome)
                continue
            stream_number, stream, steps, outputs = takers[stream_name]
            if self._witness is not None:
                self._witness.emitted(name, stream_name, unpack(key, payload)[1] if row is None else row.value)
            if row is not None:
                assert self._outputs is not None
                for output in outputs:
                    self._outputs.add(output, OutputRow(number, row, parents, parents or edges))
            for place, step in enumerate(steps):
                to_step = add_edges(parents, position * MAX_CONSUMERS + place)
                if edge_log is not None:
                    self._logged.append(partial(log_emitted, edge_log, stream, step, to_step))
                self._hand_over(step, stream_number, stream, to_step, key, payload)

    def _hand_over(
        self, step: Step, number: int, stream: Stream, edges: EdgeNumbers, key: bytes, payload: bytes
    ) -> None:
        """Sends a tuple to the task of a step with `group_by`, or calls the step here. `number` is that of the stream,
        and `edges` lead to the tuple."""
        if step.grouped:
            self._tuples.add(step.number, number, edges, key, payload)
            return
        roots = sorted(map(self.batch.edges.root, edges))
        origins = tuple([Origin(*self._topic_partitions[root.tp], root.offset) for root in roots])
        self._call_near(step, input_of(key, payload, stream, origins, edges))

    def _note_problem(self, blamed: EdgeNumbers, number: int, outcome: RowOutcome) -> None:
        """Notes that a tuple or row of a call can't be delivered, which fails the records of the edges `blamed`."""
        if blamed:
            self.batch.problems.append((blamed, number, outcome))
            return
        self._dropped += 1
        self._first_dropped = self._first_dropped or f"{outcome.error_class}: {outcome.error_message}"

    def log_dropped(self) -> None:
        """Logs a warning with the number of tuples and rows that the task could not deliver, and for which no record
        fails. Call it at the end of the task."""
        if self._dropped:
            text = (
                "dropped %d tuples or rows of calls without a tracked record; no record fails for them. The first: %s"
            )
            _logger.warning(text, self._dropped, self._first_dropped)

    def _merged(self, given: Iterable[Input]) -> EdgeNumbers:
        """Returns the first edge of each root of several tuples, in the order of the roots."""
        merged: dict[Root, int] = {}
        for each in given:
            for edge in each.edges:
                merged.setdefault(self.batch.edges.root(edge), edge)
        return tuple([merged[root] for root in sorted(merged)])


class delivering:  # noqa: N801 - a context, and no generator, which each record would have to make
    """Ends the task if a delivery raises. The handler of the record is not to blame: what it emitted is half delivered,
    and no outcome would be right."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, TaskFailure):
            failure = FatalError(f"what a handler emitted could not be delivered ({type(error).__name__})")
            raise TaskFailure(failure) from None


def log_emitted(log: EdgeLog, stream: Stream, step: Step, edges: EdgeNumbers, resolved: Resolved) -> None:
    """Logs that a tuple of `stream` goes to a step."""
    log.emitted(stream, step.name, resolved.edges(edges))


def next_portion(handled: int, fill: float, before: int, most: int) -> int:
    """Returns how many records or tuples the next call gets: as many as fill a batch, if they emit what the last ones
    did. The last call got `handled`, which filled a batch to `fill` (1 is full), and could have got `before`. The
    number is at most `most`, and at most twice `before`: a few that emit little do not make the next call large."""
    return max(1, min(int(handled / max(fill, 1e-9)), 2 * before, most))


_ALLOCATIONS = 50_000
"""Objects that are made, less those that are freed, between two runs of the collector. Python's default is 700."""


@contextmanager
def rarer_collection() -> Iterator[None]:
    """Makes the garbage collector run less often within the block. A task keeps thousands of tuples until they make a
    batch. They have no cycles, so they are freed without the collector; but each of its runs looks at all of them
    again, which took a third of a task's time. It still runs, for the sake of handlers that make cycles."""
    before = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
