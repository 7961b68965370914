"""Calls the handlers of steps: those of records one by one, and those of a batch of tuples in a loop.

A loop calls a record handler for one tuple after the other, and only appends what each call emits to lists. A call that
raises is cut back, so nothing of it counts. NumPy makes edges and sums of all calls of the loop at once (`Delivery`).
Steps without `group_by` get their tuples a few hundred at a time, in the order of the steps.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from ackline.calling import ASYNC_CONCURRENCY, ManagedHandler, TaskFailure
from ackline.handler import SOURCE, Handler, InFlight, Origin, Record, Tier, Tuple, new_tuple, tier_of
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.pending import NEVER
from ackline.pipeline.topology import SOURCE_STEP, Step, Topology
from ackline.trees.answers import UNKNOWN, CallReader, Emissions, NotAcked, texts_of, texts_of_record
from ackline.trees.arrow_calls import ArrowCalls, Seeds
from ackline.trees.batch import Ended, SourceCalls
from ackline.trees.delivery import Delivery
from ackline.trees.parcels import Arrived, Unfit, next_portion, numbers_of_keys
from ackline.trees.payload import unpack
from ackline.trees.rows import Edges, Int64s, Lists, changes, root_ids
from ackline.trees.tuples import MAX_BYTES, MAX_ROWS, Content, EmittedRows, Packed, Tuples
from ackline.worker.ahead import CallsAhead, Made, TaskCalls
from ackline.worker.call import end_forked_copy, forks, in_flight_outcome
from ackline.worker.outcomes import RowOutcome, outcome_of_exception
from ackline.worker.progress import note_calls

_FIRST_NEAR, _MOST_NEAR = 8, 512
"""Tuples for steps without `group_by` that wait until these are called: at first, and at most. What they emit is held
in memory until the batch ends."""
_MOST_NEAR_BYTES = 256 << 10
"""Bytes of tuples after which the steps without `group_by` are called, about at most."""
_MOST_AHEAD_BYTES, _ROUNDS = 4 << 20, 16
"""The same bytes if several calls may be under way, and how many tuples then wait for each of them."""
_CALLS_NOTED = 64
"""After so many calls a loop notes its progress."""
_new = tuple.__new__  # a named tuple's own constructor takes three times as long, and there is one for each edge
_FIRST_WEIGHT = 20.0
"""The factor by which a batch is taken to grow before an Arrow step without `group_by` has been called."""


class CalledSource(NamedTuple):
    """A call of the handler of records that has emitted something: the number of the record's topic-partition, -1 if it
    is not tracked, with the seed of its edges, its offset and attempt, when the call began and ended, and how many
    tuples it has emitted. `due` is the deadline of a record in flight, in microseconds since 1970, NEVER without one;
    None if it is not in flight."""

    tp: int
    seed: int
    offset: int
    attempt: int
    begun: int
    ended: int
    emitted: int
    due: int | None


class LoopCalls(NamedTuple):
    """What the calls of a loop did: how many tuples each has emitted, and by the number of the call how it failed, and
    what a join answered beside them."""

    counts: list[int]
    failures: dict[int, RowOutcome]
    others: dict[int, Sequence[NotAcked]]


class TreeCalls(Delivery):
    """The calls of one task, batch by batch: after each batch call `end`, or nothing of it counts. `handlers` are those
    of the steps, by number; none if they run in another process. The rest is for `Delivery`."""

    def __init__(self, topology: Topology, handlers: Sequence[Handler], *more: Any, **named: Any) -> None:
        super().__init__(topology, *more, **named)
        self._handlers = handlers
        self._arrow_steps = frozenset(n for n, handler in enumerate(handlers) if tier_of(handler) is Tier.ARROW)
        self.arrow = ArrowCalls(self, handlers)
        self.source = CallReader(self.readers)
        self._step_readers = {step.number: CallReader(self.readers, step) for step in topology.steps}
        self._near = [step for step in topology.steps if not step.grouped]
        self._near_records = [step for step in self._near if not self.takes_batches(step)]
        self.ahead = TaskCalls(self.now)
        self._ahead: dict[int, CallsAhead] = {}
        """By the number of a step, its calls, if several may be under way at once or if they need an event loop."""
        self._most_near, self._near_rows, self._near_bytes = _FIRST_NEAR, _MOST_NEAR, _MOST_NEAR_BYTES
        self._weight = _FIRST_WEIGHT if len(self._near) > len(self._near_records) else 1.0
        """How many times larger a batch becomes when the Arrow steps at its end are called, as the last one did."""
        self.begin()

    def call_ahead(self) -> None:
        """Lets calls of record steps be under way at once, as the file says."""
        for step in self._steps:
            handler = self._handlers[step.number]
            managed = handler if isinstance(handler, ManagedHandler) else None
            default = ASYNC_CONCURRENCY if managed and managed.is_asynchronous and not step.join else 1
            limit = step.concurrency or default
            if self.takes_batches(step) or (limit == 1 and not (managed and managed.needs_loop)):
                continue
            self._ahead[step.number] = self.ahead.of([handler], limit, limit)
            if limit > 1 and not step.grouped:
                self._most_near = self._near_rows = max(self._near_rows, min(_ROUNDS * limit, MAX_ROWS))
                self._near_bytes = _MOST_AHEAD_BYTES

    def reader(self, step: Step) -> CallReader:
        """Returns what reads the answers of a step, and holds what its calls have emitted."""
        return self._step_readers[step.number]

    def takes_batches(self, step: Step) -> bool:
        """Returns whether a step has an Arrow handler, which takes batches of tuples."""
        return step.number in self._arrow_steps

    def begin(self) -> None:
        """Begins a batch, and forgets the calls since the last `end`."""
        super().begin()
        self.source.take()
        self._called: list[CalledSource] = []

    @property
    def full(self) -> bool:
        """Whether the calls have emitted so much that the batch should end."""
        return self.fill >= 1

    @property
    def fill(self) -> float:
        """How full the batch is by what the calls have emitted: at 1 it should end."""
        return self._fill * self._weight

    @property
    def _fill(self) -> float:
        return max(super().fill, (self.size + self.source.emitted.weight) / MAX_BYTES)

    def advance(self) -> bool:
        """Calls the steps without `group_by` if many tuples wait for them. Returns whether the batch should end. Call
        it after each record."""
        waiting = self.source.emitted
        if self._near_records and (len(waiting.keys) >= self._most_near or waiting.size >= self._near_bytes):
            self._deliver_source()
            return self.full
        return (self.size + waiting.weight) * self._weight >= MAX_BYTES

    def end(self) -> Ended:
        """Delivers what the calls since the last `end` have emitted, and calls the steps without `group_by`. Returns
        what all these calls leave, and begins the next batch."""
        self._deliver_source()
        before = self._fill
        if self._call_near(self._near):
            self.figures.end_sources()
            if before and len(self._near) > len(self._near_records):
                self._weight = max(1.0, self._fill / before)
        return super().end()

    # ---- records ----------------------------------------------------------------------------------------------------

    def call_source(self, handler: Handler, record: Record, seeds: Seeds, made: Made | None = None) -> InFlight | None:
        """Calls the handler of a record, unless the call is `made`. `seeds` is None if trees are not tracked. A record
        that emits nothing, or that is not tracked, has no event. Returns the InFlight of such a record, if its handler
        yielded one. For other records returns None: their event holds the deadline. Raises what the handler raises,
        and InvalidOutcome: nothing of its answers counts then."""
        mark, begun = len(self.source.emitted.keys), perf_counter_ns()
        try:
            others, due = self.read_source(handler, record, made)
        finally:
            begun, ended = (begun, perf_counter_ns()) if made is None else (made.begun, made.ended)
            self.figures.spans[SOURCE_STEP].append(ended - begun)
        return self.called_source(record, seeds, begun, ended, len(self.source.emitted.keys) - mark, others, due)

    def read_source(
        self, handler: Handler, record: Record, made: Made | None = None
    ) -> tuple[Sequence[InFlight], int | None]:
        """Calls the handler of a record, unless the call is `made`. Returns its InFlight and the deadline, in
        microseconds since 1970, NEVER without one; None if it is not in flight. `source` has what it has emitted.
        Raises what `call_source` raises."""
        emitted = self.source.emitted
        mark, size = len(emitted.keys), emitted.size
        try:
            result = handler(record) if made is None else made.answer()
            others = self.source.read(result, (record,), handler, lambda: texts_of_record(record))
            if self.forks != forks():  # before a step is called: the copy would call it a second time
                end_forked_copy()
            if not others:
                return (), None
            due = in_flight_outcome(others[0], 0, self.now() if made is None else made.time).due
            return others, NEVER if due is None else due
        except BaseException:
            emitted.cut(mark, size)
            raise

    def called_source(
        self,
        record: Record,
        seeds: Seeds,
        begun: int,
        ended: int,
        emitted: int,
        others: Sequence[InFlight],
        due: int | None,
    ) -> InFlight | None:
        """Notes a call for a record that has `emitted` so many tuples. Returns what `call_source` does."""
        if emitted and seeds is not None:
            tp, seed = seeds[record.topic, record.partition]
            self._called.append(CalledSource(tp, seed, record.offset, record.attempt, begun, ended, emitted, due))
            return None
        if emitted:
            self._called.append(CalledSource(-1, 0, 0, 0, begun, ended, emitted, None))
        if others:
            return others[0]
        self.figures.latency.measure(ended - begun)
        return None

    def _deliver_source(self) -> None:
        """Delivers what the handler of records has emitted, and calls the record steps without `group_by`."""
        called, self._called = self._called, []
        if not called:
            return
        first = len(self.figures.source_calls)
        *columns, dues = zip(*called, strict=True)
        seeds = np.array(columns.pop(1), np.uint64)
        tps, offsets, attempts, begun, ended, counts = (np.array(column, np.int64) for column in columns)
        edges = Edges.none(len(called))
        if called[0].tp >= 0:
            roots = self.batch.roots.add(tps, offsets, attempts)
            edges = Edges(root_ids(seeds, offsets, attempts), roots, np.ones(len(called), np.int64))
            self.batch.dues += [(root, due) for root, due in zip(roots.tolist(), dues, strict=True) if due is not None]
            self.figures.source_calls.append(SourceCalls(roots, begun, ended))
        emitted, bounds = self.source.take(), np.arange(len(called) + 1)
        self._deliver_calls(SOURCE_STEP, SOURCE, emitted, counts, edges, bounds, join=False)
        if self._drain():
            self.figures.end_sources(first)

    # ---- tuples -----------------------------------------------------------------------------------------------------

    def call_arrived(self, step: Step, arrived: Arrived | Unfit) -> int:
        """Calls the handler of a step with tuples of other tasks, until what it has emitted fills a batch, and closes
        the edges that led to them. Returns how many tuples these were. An Arrow handler gets all of them at once, and
        a join all tuples of a key."""
        if self.takes_batches(step):
            self.arrow.call_arrived(step, arrived)
            return len(arrived) if isinstance(arrived, Arrived) else 0
        assert isinstance(arrived, Arrived)
        most = self._near_rows if self._near_records else MAX_ROWS
        if step.join:
            most = _end_of_key(arrived.content.content, most)
        done = self._call_tuples(step, arrived.slice(0, most).tuples(self.batch.roots))
        self._drain()
        return done

    def _drain(self) -> bool:
        """Calls the record steps without `group_by` on the tuples that wait for them. Returns whether there are any."""
        if not self._near_records:
            return False
        before = self._fill
        waiting = sum(len(part) for step in self._near_records for part in self.waiting.get(step.number, ()))
        called = self._call_near(self._near_records)
        if called:  # what they emit should fill no more than a part of the batch
            self._most_near = next_portion(waiting, 8 * (self._fill - before), self._most_near, self._near_rows)
        return called

    def _call_near(self, steps: Sequence[Step]) -> bool:
        """Calls steps without `group_by`, which are in the order of the topology. Returns whether it has called any."""
        called = False
        for place, step in enumerate(steps):
            size = self.waiting_sizes.pop(step.number, 0)
            for tuples in self.take_waiting(step):
                called = True
                if self.takes_batches(step):
                    self.arrow.call(step, tuples)
                    continue
                self.size -= size
                start, most = 0, self._most_near
                while start < len(tuples):
                    if start:  # what the first ones have emitted goes on before the others emit more
                        self._call_near([later for later in steps[place + 1 :] if later in self._near_records])
                    # Some at a time: a loop that ends early has prepared all of its tuples.
                    done = self._call_tuples(step, tuples.slice(start, start + most))
                    start, most = start + done, min(2 * done, self._near_rows)
        return called

    def _call_tuples(self, step: Step, tuples: Tuples) -> int:
        """Calls the record handler of a step with tuples, until what it has emitted is much, and closes the edges that
        led to them. Returns how many tuples these were. A join gets the tuples of a key at once."""
        bounds = np.arange(len(tuples) + 1)
        if step.join:  # equal keys are neighbours
            bounds = np.append(np.flatnonzero(changes(numbers_of_keys(tuples.content.keys))), len(tuples))
        calls = self.loop(step, tuples, bounds)
        count = len(calls.counts)
        bounds, done = bounds[: count + 1], int(bounds[count])
        handled = tuples if done == len(tuples) else tuples.slice(0, done)
        outcomes, held = self._verdicts(calls, bounds)
        self.close(step, handled, outcomes, held)
        emitted, counts = self.reader(step).take(), np.array(calls.counts, np.int64)
        self._deliver_calls(step.number, step.name, emitted, counts, handled.edges, bounds, step.join)
        return done

    def loop(self, step: Step, tuples: Tuples, bounds: Int64s) -> LoopCalls:
        """Calls the handler of a step for one tuple after the other, or with those of one key after the other.
        `bounds` has the number of the first tuple of each call."""
        handler, reader, before = self._handlers[step.number], self.reader(step), self.forks
        emitted, spans, calls = reader.emitted, self.figures.spans[step.number], LoopCalls([], {}, {})
        keys, counts, content = emitted.keys, calls.counts, tuples.content
        assert isinstance(content, Packed)
        inputs, most, room = self._inputs(tuples), self.most_emitted, self.room
        arguments = (tuple(islice(inputs, size)) for size in np.diff(bounds).tolist()) if step.join else inputs

        def texts() -> Iterator[bytes | str | None]:
            start, end = bounds[len(counts) : len(counts) + 2].tolist()
            return texts_of(content.keys[start:end], content.payloads[start:end])

        ahead, call, weight = self._ahead.get(step.number), handler, tuples.size // max(1, len(tuples))
        if ahead is not None:
            arguments, call = ahead.arguments(handler, arguments), ahead.answer
        for argument in arguments:
            given: Sequence[Any] = argument if step.join else (argument,)  # type: ignore[assignment]
            mark, size, begun = len(keys), emitted.size, perf_counter_ns()
            try:
                others = reader.read(call(argument), given, handler, texts)
                if before != forks():
                    end_forked_copy()
                if others:
                    calls.others[len(counts)] = others
            except TaskFailure as failure:
                raise failure.error from None
            except BaseException as error:  # sys.exit, too, is the outcome of this call alone
                if before != forks():
                    end_forked_copy(error)
                emitted.cut(mark, size)
                calls.failures[len(counts)] = outcome_of_exception(error, 0, None, self.now(), lambda _: texts())
            spans.append(perf_counter_ns() - begun if ahead is None else ahead.lasted)
            counts.append(len(keys) - mark)
            is_full = len(keys) >= most or emitted.size >= room
            if ahead is not None:
                ahead.weigh(emitted.size - size + weight, is_full)
            elif is_full:
                break
            if not len(counts) % _CALLS_NOTED and step.grouped:
                note_calls(_CALLS_NOTED)
        return calls

    @property
    def most_emitted(self) -> int:
        """How many tuples the calls of a loop may emit until it ends."""
        return self._most_near if self._near_records else MAX_ROWS

    @property
    def room(self) -> int:
        """How many bytes the calls of a loop may emit until it ends: until the batch is full, but at least a few."""
        return max(_MOST_NEAR_BYTES, min(self._near_bytes if self._near_records else MAX_BYTES, MAX_BYTES - self.size))

    def _inputs(self, tuples: Tuples) -> Iterator[Tuple]:
        """Yields tuples as handlers get them. Each is unpacked when it is asked for: an unpacked value may take twenty
        times its bytes of memory."""
        content, streams = tuples.content, [(of.stream.name, of.stream.step) for of in self.readers.streams]
        assert isinstance(content, Packed)
        numbers, of_tuples = tuples.streams.tolist(), self.origins(tuples.edges)
        for number, key, value, origins in zip(numbers, content.keys, content.payloads, of_tuples, strict=True):
            name, step = streams[number]
            if type(value) is str:
                yield new_tuple(value, key, name, step, origins)
            else:
                key_of, value_of = unpack(key, value)
                yield new_tuple(value_of, key_of, name, step, origins)

    def origins(self, edges: Edges) -> Sequence[tuple[Origin, ...]]:
        """Returns the records that each tuple comes from, in the order of topic, partition and offset."""
        tps, offsets, _ = (column[edges.roots].tolist() for column in self.batch.roots.columns())
        topics, partitions = zip(*self.topic_partitions, strict=True)
        places = zip(tps, offsets, strict=True)
        each = [_new(Origin, (topics[tp], partitions[tp], offset)) for tp, offset in places]
        if len(each) == len(edges) and edges.counts.all():  # usual
            return list(zip(each, strict=True))
        ends = np.cumsum(edges.counts).tolist()
        return [tuple(each[start:end]) for start, end in pairwise([0, *ends])]

    def _verdicts(self, calls: LoopCalls, bounds: Int64s) -> tuple[dict[int, RowOutcome], set[int]]:
        """Returns the outcomes of tuples that were not acked, by their numbers, and those that a join holds. Each tuple
        has one verdict: how its call failed, or what a join answered about it. A Fail wins over a Hold of the same
        tuple, and the last Fail over those before it."""
        outcomes: dict[int, RowOutcome] = {}
        held: set[int] = set()
        for call, failure in calls.failures.items():
            outcomes |= dict.fromkeys(range(int(bounds[call]), int(bounds[call + 1])), failure)
        for call, others in calls.others.items():
            first = int(bounds[call])
            for answer in others:
                if answer.held:
                    held.add(first + answer.position)
                else:
                    outcome = RowOutcome(0, Outcome.FAILED, ErrorClass.FAIL, answer.reason, self.now())
                    outcomes[first + answer.position] = outcome
        return outcomes, held - outcomes.keys()

    def _deliver_calls(
        self, number: int, name: str, emitted: Emissions, counts: Int64s, given: Edges, bounds: Int64s, join: bool
    ) -> None:
        """Delivers what the calls of a loop have emitted: `counts` tuples each. `given` are the edges of their inputs,
        and `bounds` the number of the first input of each call."""
        if not len(emitted):
            return
        self.figures.emitted[number] += len(emitted)
        calls = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(calls)) - np.repeat(np.cumsum(counts) - counts, counts)
        inputs = Lists.ranges(bounds[calls], np.diff(bounds)[calls]) if join else Lists.one_each(calls)
        if emitted.anchors:
            inputs = _with_anchors(inputs, emitted.anchors, bounds[calls])
        whole = EmittedRows("", inputs, calls, places, Packed(emitted.keys, emitted.payloads), emitted.hidden)
        streams = sorted(set(emitted.streams))
        numbers = np.array(emitted.streams) if len(streams) > 1 else None
        for stream in streams:
            rows = np.arange(len(calls)) if numbers is None else np.flatnonzero(numbers == stream)
            some = whole if numbers is None else whole.take(rows)
            if stream == UNKNOWN:
                self.refuse(number, some, given, bounds, [emitted.problems[row] for row in rows.tolist()])
            else:
                self.deliver(
                    number, name, replace(some, stream=self.readers.streams[stream].stream.name), given, bounds
                )


def _end_of_key(content: Content, least: int) -> int:
    """Returns how many of the first tuples, at least `least`, end with the last tuple of a key. Equal keys are
    neighbours."""
    assert isinstance(content, Packed)
    keys, end = content.keys, min(least, len(content))
    while end < len(keys) and not np.diff(numbers_of_keys(keys[end - 1 : end + 1]))[0]:
        end += 1
    return end


def _with_anchors(inputs: Lists, anchors: Mapping[int, Sequence[int]], firsts: Int64s) -> Lists:
    """Returns the inputs that each tuple is anchored to, given for some tuples the positions of their anchors among the
    inputs of their call, which begin with `firsts`."""
    rows, chosen = np.arange(len(inputs)), np.array([*anchors], np.int64)
    rows[chosen] = len(inputs) + np.arange(len(chosen))
    counts = np.array([len(positions) for positions in anchors.values()], np.int64)
    positions = np.array([position for of_tuple in anchors.values() for position in of_tuple], np.int64)
    numbers = np.repeat(firsts[chosen], counts) + positions
    return Lists(np.append(inputs.numbers, numbers), np.append(inputs.counts, counts)).take(rows)


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
