"""Calls the handlers of steps, and follows what they emit: within the task as far as it goes, then as rows.

A step without `group_by` runs in the task that made its input, so its tuples never travel, and need no edge of their
own: the call that made them returns after them. A step with `group_by` gets its tuples through an exchange, each at the
end of an edge. One task adds up what it did for a root in one `Event`, however many tuples of the root it handled.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from time import perf_counter_ns, time_ns
from types import GeneratorType
from typing import Any

from ackline.decode import scalar_texts
from ackline.errors import FatalError
from ackline.handler import Handler, Record
from ackline.offsets import TopicPartition
from ackline.outcome import ErrorClass, Outcome
from ackline.outputs import Output
from ackline.scrub import scrub
from ackline.spark.handlers.call import end_forked_copy, forks, refuse_unfinished
from ackline.spark.handlers.outcomes import Clock, InvalidOutcome, RowOutcome, TaskFailure, outcome_of_exception
from ackline.spark.trees.edge_log import EdgeLog
from ackline.spark.trees.edges import edge_id, root_id
from ackline.spark.trees.notes import note_of
from ackline.spark.trees.output_rows import OutputRow, OutputRows
from ackline.spark.trees.payload import key_bytes, pack, unpack
from ackline.spark.trees.rows import FAILED, Edges, Event, Root, TupleRows
from ackline.topology import SOURCE_STEP, Step, Stream, Topology
from ackline.tuples import SOURCE, Durations, Emit, Fail, Hold, InFlight, Origin, StepCounts, Tuple

Seeds = Mapping[tuple[str, int], tuple[int, int]] | None
"""By topic and partition: the index of the topic-partition in the job, and what the ids of its trees start from."""

Texts = Callable[[], Iterator[bytes | str | None]]
"""Yields what an error message must not repeat."""

_Takers = tuple[Stream, tuple[Step, ...], tuple[Output, ...]]
"""The steps and the outputs that take a stream."""
_ANSWERS = (Emit, Fail, Hold, InFlight)
_STREAM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MASKED_REASONS = 20
_MAX_CONSUMERS = 256
"""The most steps that may take one stream. The positions of edges have eight bits for them."""


# The next three are not frozen, because there is one of them for each tuple, and a frozen object takes twice as long to
# make. Nothing changes them.
@dataclass(slots=True, eq=False)
class Input:
    """A tuple with the edges that lead to it from its roots, and the bytes that it came from."""

    tuple: Tuple
    edges: Edges
    payload: bytes


@dataclass(slots=True, eq=False)
class _Emitted:
    """An `Emit` as it was when the handler yielded it: the handler may change the value afterwards."""

    stream: Stream
    consumers: tuple[Step, ...]
    outputs: tuple[Output, ...]
    anchors: tuple[Any, ...]
    key: bytes
    payload: bytes
    problem: str = ""
    """Why no step can get it; empty if one can."""


@dataclass(slots=True, eq=False)
class _NotAcked:
    """What a join said of one of its tuples: that it failed for a reason, or that it is held."""

    tuple_id: int
    reason: str | None
    held: bool


class TreeCalls:
    """The calls of one task: their events by root, and the tuples for other tasks.

    `handlers` are those of the steps, by number. `topic_partitions` are those of the job, which roots are numbered by.
    """

    def __init__(
        self,
        topology: Topology,
        handlers: Sequence[Handler],
        topic_partitions: Sequence[TopicPartition],
        now: Clock,
        outputs: OutputRows | None = None,
        edge_log: EdgeLog | None = None,
    ) -> None:
        self._outputs = outputs
        self._edge_log = edge_log
        self._topology = topology
        self._handlers = handlers
        self._topic_partitions = topic_partitions
        self._now = now
        self._takers: dict[tuple[str, str], _Takers] = {}
        self.events: dict[Root, Event] = {}
        self.rows = TupleRows()
        self.counts: dict[str, StepCounts] = {}
        self.latency = Durations()
        """From the call of `source` to the end of the tree, of the acked trees that ended in this task."""
        self._epoch = time_ns() - perf_counter_ns()
        """When the clock of `perf_counter_ns` was 0, in nanoseconds since 1970."""

    def call_source(self, handler: Handler, record: Record, seeds: Seeds) -> None:
        """Calls the handler of a record, and delivers what it emits. `seeds` is None if trees are not tracked.

        Makes no event for a record that emits nothing, or that is not tracked. Raises what the handler raises.
        """
        before, begun = forks(), perf_counter_ns()
        try:
            emitted = self._emitted(handler(record), (record,), lambda: _texts_of_record(record))
        finally:
            self._counts(SOURCE).execute.measure(perf_counter_ns() - begun)
        if before != forks():  # before a step is called: the copy would call it a second time
            end_forked_copy()
        if not emitted:
            self.latency.measure(perf_counter_ns() - begun)
            return
        try:
            event = self._deliver_from_source(emitted, record, seeds)
        except TaskFailure:
            raise
        except BaseException as error:
            # The handler of the record is not to blame: what it emitted is half delivered. No outcome would be right.
            failure = FatalError(f"what a handler emitted could not be delivered ({type(error).__name__})")
            raise TaskFailure(failure) from None
        if event is not None and not event.complete:
            event.begun = self._epoch + begun  # the acker measures the rest, perhaps on another machine
        elif event is None or event.note is None:
            self.latency.measure(perf_counter_ns() - begun)

    def _deliver_from_source(self, emitted: Sequence[_Emitted], record: Record, seeds: Seeds) -> Event | None:
        """Delivers what the handler of a record has emitted. Returns the record's event; None without tracking."""
        edges: Edges = ()
        event = None
        if seeds is not None:
            tp, seed = seeds[record.topic, record.partition]
            root = Root(tp, record.offset, record.attempt)
            edges = ((root, root_id(seed, record.offset, record.attempt)),)
            event = self._event(root, SOURCE_STEP, edges[0][1])
            event.sources += 1
        self._counts(SOURCE).emitted += len(emitted)
        for position, item in enumerate(emitted):
            self._deliver(SOURCE_STEP, item, edges if item.anchors else (), position)
        return event

    def flush_outputs(self) -> None:
        """Stages or sends what was emitted to outputs. Call it before `events` leave the task: a row that does not fit
        fails its records."""
        for bad in self._outputs.flush() if self._outputs is not None else ():
            outcome = RowOutcome(0, Outcome.FAILED, ErrorClass.BAD_OUTPUT, bad.reason, self._now())
            for root, edge in bad.row.edges:
                self.events[root].add_note(note_of(bad.row.step, edge, outcome))

    def call_step(self, step: Step, given: Input) -> None:
        """Calls the handler of a step with one tuple, and closes the edges that led to it."""
        for root, edge in given.edges:
            event = self._event(root, step.number, edge)
            event.xor ^= edge
            event.open[step.number] -= 1
        self._call(step, given)

    def call_join(self, step: Step, given: Sequence[Input]) -> None:
        """Calls a join with all tuples of a key. Closes the edges of those that it does not hold."""
        counts = self._counts(step.name)
        counts.executed += len(given)
        failure, answers = self._answers(step, tuple(each.tuple for each in given), given)
        said = [answer for answer in answers if isinstance(answer, _NotAcked)]
        held = {answer.tuple_id for answer in said if answer.held}
        failed = {answer.tuple_id: answer.reason for answer in said if not answer.held}
        for each in given:
            outcome, number = failure, id(each.tuple)
            if number in failed:
                outcome = RowOutcome(0, Outcome.FAILED, ErrorClass.FAIL, failed[number], self._now())
            closes = outcome is not None or number not in held
            if self._edge_log is not None:
                self._edge_log.closed(each.tuple, step.name, each.edges, outcome, held=not closes)
            for root, edge in each.edges:
                event = self._event(root, step.number, edge)
                if closes:
                    event.xor ^= edge
                    event.open[step.number] -= 1
                    self._close(event, step, edge, outcome)
            if closes:
                self._count(counts, outcome)
        emitted = [answer for answer in answers if isinstance(answer, _Emitted)]
        counts.emitted += len(emitted)
        edges_of = {id(each.tuple): each.edges for each in given}
        for position, item in enumerate(emitted):
            edges = _merged(edges_of[id(anchor)] for anchor in item.anchors)
            self._deliver(step.number, item, edges, position)

    def _call(self, step: Step, given: Input) -> None:
        counts, edges = self._counts(step.name), given.edges
        counts.executed += 1
        outcome, answers = self._answers(step, given.tuple, (given,))
        if self._edge_log is not None:
            self._edge_log.closed(given.tuple, step.name, edges, outcome)
        for root, edge in edges:
            self._close(self.events[root], step, edge, outcome)
        self._count(counts, outcome)
        counts.emitted += len(answers)
        for position, item in enumerate(answers):
            assert isinstance(item, _Emitted)
            self._deliver(step.number, item, edges if item.anchors else (), position)

    def _answers(
        self, step: Step, argument: object, given: Sequence[Input]
    ) -> tuple[RowOutcome | None, list[_Emitted | _NotAcked]]:
        """Calls the handler. Returns what it yielded, or how it failed: then nothing that it had yielded counts."""
        before, begun = forks(), perf_counter_ns()
        try:
            inputs = tuple([each.tuple for each in given])
            answers = self._emitted(self._handlers[step.number](argument), inputs, lambda: _texts_of(given), step)
            if before != forks():
                end_forked_copy()
            return None, answers
        except TaskFailure:
            raise
        except BaseException as error:  # sys.exit, too, is the outcome of this call alone
            if before != forks():
                end_forked_copy(error)
            return outcome_of_exception(error, 0, None, self._now(), lambda _: _texts_of(given)), []
        finally:
            self._counts(step.name).execute.measure(perf_counter_ns() - begun)

    def _emitted(self, result: Any, inputs: tuple[Any, ...], texts: Texts, step: Step | None = None) -> list[Any]:
        """Returns what a handler answered: None, an `Emit`, or several, which it may yield; a join may answer `Fail`
        and `Hold` too. Runs a generator to its end. Raises InvalidOutcome for anything else."""
        if result is None:
            return []
        if isinstance(result, _ANSWERS):
            result = (result,)
        elif type(result) is not GeneratorType and not isinstance(result, Iterator | list | tuple):
            refuse_unfinished(result)
            raise InvalidOutcome(f"the handler returned {type(result).__name__}; yield Emit(value), or return nothing")
        name, join = (step.name, step.join) if step is not None else (SOURCE, False)
        ids = frozenset(map(id, inputs)) if join else frozenset([id(inputs[0])])
        reasons: dict[str, str | None] = {}
        answers: list[Any] = []
        for answer in result:
            if isinstance(answer, Emit):
                answers.append(self._packed(answer, name, inputs, ids, texts))
            elif join and isinstance(answer, Fail | Hold):
                answers.append(_not_acked(answer, ids, reasons, texts))
            else:
                raise InvalidOutcome(f"the handler yielded {type(answer).__name__}; yield Emit(value)")
        return answers

    def _deliver(self, number: int, item: _Emitted, parents: Edges, position: int) -> None:
        """Hands an emitted tuple to each step that takes its stream."""
        if item.problem:
            outcome = RowOutcome(0, Outcome.FAILED, ErrorClass.UNKNOWN_STREAM, item.problem, self._now())
            for root, edge in parents:
                self.events[root].add_note(note_of(number, edge, outcome))
        for output in item.outputs:
            assert self._outputs is not None
            self._outputs.add(output, OutputRow(number, item.payload, parents))
        for place, step in enumerate(item.consumers):
            edges = tuple([(root, edge_id(parent, position * _MAX_CONSUMERS + place)) for root, parent in parents])
            if self._edge_log is not None:
                self._edge_log.emitted(item.stream, step.name, edges)
            if not step.grouped:
                self._call(step, Input(tuple_of(item.payload, edges, self._topic_partitions), edges, item.payload))
                continue
            for root, edge in edges:
                event = self.events[root]
                event.xor ^= edge
                event.open[step.number] += 1
            self.rows.add(step.number, edges, item.key, item.payload)

    def _packed(self, emit: Emit, step: str, inputs: tuple[Any, ...], ids: frozenset[int], texts: Texts) -> _Emitted:
        """Returns what is emitted, packed. Raises InvalidOutcome for what can't be emitted."""
        anchors = inputs
        if emit.anchors is not None:
            # Copied before it is checked: the handler may change its list afterwards.
            anchors = tuple(emit.anchors) if isinstance(emit.anchors, list | tuple) else (emit.anchors,)
            _check_inputs(anchors, ids)
        takers = self._takers.get((step, emit.stream)) if type(emit.stream) is str else None
        problem = ""
        if takers is None:
            takers = self._find_takers(step, emit.stream)
            if not self._topology.is_taken(takers[0]):  # the tuple would get lost
                problem = scrub(f"emitted to {takers[0]}, which no step and no output takes", texts())
        payload = pack(step, emit.stream, emit.key, emit.value)
        return _Emitted(*takers, anchors, key_bytes(emit.key), payload, problem)

    def _find_takers(self, step: str, name: Any) -> _Takers:
        """Returns a stream with the steps and outputs that take it, and keeps them. Raises InvalidOutcome if no stream
        can have this name."""
        if type(name) is not str or not _STREAM_NAME.fullmatch(name):
            raise InvalidOutcome("the stream of an Emit is no name of a stream")
        stream = Stream(step, name)
        takers = stream, self._topology.consumers.get(stream, ()), self._topology.outputs.get(stream, ())
        if self._topology.is_taken(stream):  # a handler may make up any number of names that nothing takes
            self._takers[step, name] = takers
        return takers

    def _close(self, event: Event, step: Step, edge: int, outcome: RowOutcome | None) -> None:
        if outcome is None:
            event.acked[step.number] += 1
        else:
            event.add_note(note_of(step.number, edge, outcome))
            if outcome.outcome is Outcome.FAILED:
                event.acked[step.number] += FAILED

    def _event(self, root: Root, by: int, edge: int) -> Event:
        event = self.events.get(root)
        if event is None:
            event = self.events[root] = Event(by, edge, len(self._handlers))
        return event

    def _counts(self, name: str) -> StepCounts:
        counts = self.counts.get(name)
        if counts is None:
            counts = self.counts[name] = StepCounts()
        return counts

    def _count(self, counts: StepCounts, outcome: RowOutcome | None) -> None:
        if outcome is None:
            counts.acked += 1
        elif outcome.outcome is Outcome.FAILED:
            counts.failed += 1


def tuple_of(payload: bytes, edges: Edges, topic_partitions: Sequence[TopicPartition]) -> Tuple:
    """Returns the tuple that was packed into `payload`, anchored to the roots of `edges`."""
    step, stream, key, value = unpack(payload)
    if not edges:
        return Tuple(value, key, stream, step, ())
    if len(edges) == 1:
        tp, offset, _ = edges[0][0]
        topic, partition = topic_partitions[tp]
        return Tuple(value, key, stream, step, (Origin(topic, partition, offset),))
    origins = tuple(Origin(*topic_partitions[root.tp], root.offset) for root, _ in sorted(edges))
    return Tuple(value, key, stream, step, origins)


def _not_acked(answer: Fail | Hold, ids: frozenset[int], reasons: dict[str, str | None], texts: Texts) -> _NotAcked:
    """Returns what a join says of one tuple. Masks each of the first reasons once; drops further ones, because masking
    takes time for each text of each tuple of the call."""
    given = answer.tuple
    _check_inputs((given,), ids)
    if isinstance(answer, Hold):
        return _NotAcked(id(given), None, True)
    reason = str.__str__(str(answer.reason))
    if reason not in reasons and len(reasons) < _MASKED_REASONS:
        reasons[reason] = scrub(reason, texts()) or None
    return _NotAcked(id(given), reasons.get(reason), False)


def _check_inputs(anchors: Iterable[object], ids: frozenset[int]) -> None:
    if any(id(anchor) not in ids for anchor in anchors):
        raise InvalidOutcome("an anchor, a Fail or a Hold names something that the call was not given")


def _merged(edges: Iterable[Edges]) -> Edges:
    """Returns the roots of several tuples, each once, with the id of the first edge that leads to it."""
    merged: dict[Root, int] = {}
    for root, edge in chain.from_iterable(edges):
        merged.setdefault(root, edge)
    return tuple(sorted(merged.items()))


def _texts_of(given: Sequence[Input]) -> Iterator[bytes | str | None]:
    """Yields what an error message must not repeat of tuples: as they came, for a handler may have changed them."""
    for each in given:
        _, _, key, value = unpack(each.payload)
        yield from scalar_texts(value)
        yield from scalar_texts(key)


def _texts_of_record(record: Record) -> Iterator[bytes | str | None]:
    yield from scalar_texts([record.key, record.value, *(value for _, value in record.headers)])
