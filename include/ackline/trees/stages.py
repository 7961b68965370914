"""The Spark tasks of a pipeline with steps: the one that reads records, and that of a step with `group_by`.

`SourceRun` reads records, stores the outcomes of trees that end in its task, and sends on the tuples and events of the
others. `handle_step` calls the handler of a step on the tuples that are addressed to it, and passes all other rows on.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import groupby, islice
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.handler import SOURCE, Handler, InFlight, Origin, Record, StepCounts, Tier, tier_of
from ackline.ledger.offsets import Bools
from ackline.pipeline.topology import SOURCE_STEP, Step, Topology
from ackline.trees.answers import Input, input_of
from ackline.trees.arrow_calls import ArrowTreeCalls
from ackline.trees.batch import Ended, Outbox
from ackline.trees.calls import Seeds, TreeCalls, next_portion, rarer_collection
from ackline.trees.events import Events, outcome_of_root, stories_of_acked
from ackline.trees.isolated import CALLS_A_REQUEST, IsolatedTreeCalls, tree_calls
from ackline.trees.output_rows import OutputRows
from ackline.trees.parcels import Arrivals, ArrivedTuples, Unfit
from ackline.trees.rows import UNTRACKED, EdgeNumbers, Edges, seed_of
from ackline.worker.isolation.handler_process import IsolatedHandler
from ackline.worker.outcomes import Outcomes, RowOutcome, outcome_clock
from ackline.worker.progress import TaskProgress, note_calls
from ackline.worker.records import Int64s, Records
from ackline.worker.run import TaskRun, check_start, ignore_ctrl_c, naming_host, part_of_task
from ackline.worker.settings import TaskSettings, manifest
from ackline.worker.streams import CallHandler, load_call

_FIRST_PORTION = 20
"""Records of the first portion that an isolated handler or an Arrow handler gets."""
_MAX_PORTION, _MAX_BATCH = 500, 10_000
"""Records of a batch of calls, at most: for a record handler, and for an Arrow handler. A batch for a record handler
ends earlier, with the record whose call fills it."""


@dataclass(frozen=True, slots=True)
class BegunTrees:
    """The trees that a portion of records has begun. One that is complete has ended in this task; the acker decides any
    other one, which is open. An event has a number, its place in `events`; a record has a row in the portion. A record
    that emitted nothing has a row and no event. `rows` leads from numbers to rows."""

    events: Events
    rows: Int64s
    """By the number of the event, the row of its record."""
    complete: Bools
    """By the number of the event, whether the tree has ended."""
    is_open: Bools
    """By row, whether the record's tree is open."""

    @classmethod
    def of(cls, events: Events, records: Records) -> Self:
        """Returns the trees of `records`, given their events."""
        rows, complete = np.searchsorted(records.offsets, events.rows["offset"]), events.complete
        is_open = np.zeros(len(records), dtype=np.bool_)
        is_open[rows[~complete]] = True
        return cls(events, rows, complete, is_open)

    def outcomes_of_ended(self, topology: Topology, time: int) -> list[RowOutcome]:
        """Returns the outcomes of the ended trees that were not acked, by row. `time` is in microseconds since 1970."""
        events, outcomes = self.events, []
        for number in {*events.notes, *events.dues}:
            if self.complete[number]:
                root = events.rows[number]
                sums = int(root["xor"]), root["open"].tolist(), root["acked"].tolist()
                outcome = outcome_of_root(events.notes.get(number), *sums, topology, time, events.dues.get(number))
                assert outcome is not None
                outcomes.append(outcome.at_row(int(self.rows[number])))
        return outcomes

    def stories(self, not_acked: Sequence[RowOutcome], topology: Topology) -> pa.DictionaryArray | None:
        """Returns the text for `tree` of each row whose record is acked; None for open trees and for the rows of
        `not_acked`, whose outcomes have it."""
        acked = np.zeros((len(topology.steps), len(self.is_open)), dtype=np.int64)
        acked[:, self.rows] = self.events.rows["acked"].T
        acked[:, [outcome.row for outcome in not_acked]] = 0
        acked[:, self.is_open] = 0
        return stories_of_acked(acked, topology)

    def open_events(self, records: Records, hashes_of: Callable[[pa.Array], pa.Array | None]) -> Events:
        """Returns the events of open trees with what the acker stores of their records: timestamps and hashes of keys.
        `hashes_of` returns None if the pipeline stores no hashes."""
        numbers = np.flatnonzero(~self.complete)
        events, rows = self.events.take(numbers), self.rows[numbers]
        events.rows["timestamp"] = records.timestamps[rows]
        hashes = hashes_of(records.keys.take(pa.array(rows)))
        if hashes is None:
            return events
        return replace(
            events, key_hashes={row: hashed for row, hashed in enumerate(hashes.to_pylist()) if hashed is not None}
        )


def open_run(settings: TaskSettings, source: str = "fresh") -> TaskRun:
    """Returns the run of a task that reads records, which are roots of trees if the pipeline has steps."""
    return TaskRun(settings, source) if settings.replay.topology is None else SourceRun(settings, source)


class SourceRun(TaskRun):
    """A task whose records are roots of trees. A record whose tree ends in this task has its outcome at once. The event
    of any other goes to the acker, and its tuples go to the steps."""

    def __init__(self, settings: TaskSettings, source: str = "fresh") -> None:
        self._portion, self._handled = _MAX_PORTION, 0
        self._most = _MAX_BATCH if settings.tier is Tier.ARROW else _MAX_PORTION
        self._takes_batches = False
        super().__init__(settings, source)
        assert settings.replay.topology is not None
        self._outbox = Outbox()

    def __enter__(self) -> Self:
        self._collection = rarer_collection()
        self._collection.__enter__()
        return super().__enter__()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._collection.__exit__(None, None, None)
        super().__exit__(kind, error, trace)
        if kind is not None and self._outputs is not None:
            self._outputs.discard()

    def _load_call(self) -> CallHandler | None:
        settings = self._settings.replay
        assert settings.topology is not None
        with naming_host():
            tps, turn = self._settings.topic_partitions, self._settings.target.turn
            self._outputs = None if settings.outputs is None else OutputRows(settings.outputs, tps)
            self._seeds: Seeds = None
            if settings.tracking:
                self._seeds = {(tp.topic, tp.partition): (n, seed_of(turn, tp)) for n, tp in enumerate(tps)}
            if settings.isolated:
                self._portion = _FIRST_PORTION
                isolated = IsolatedTreeCalls(self._settings, self._clock, self._outputs, SOURCE_STEP)
                self._trees: TreeCalls = isolated
                return IsolatedHandler(settings, self._settings.tier, self._clock, isolated.process)
            call = load_call(settings, self._settings.tier, wrap=self._delivering, is_full=lambda: self._trees.full)
            self._trees = tree_calls(self._settings, self._clock, self._outputs, SOURCE_STEP, self._takes_batches)
            if self._takes_batches:
                self._portion = _FIRST_PORTION
            return call

    def _delivering(self, handler: Handler) -> Handler:
        """Returns a function that calls the handler, and delivers what it emits before it returns."""
        seeds = self._seeds

        def call(record: Record) -> InFlight | None:
            return self._trees.call_source(handler, record, seeds)

        def call_batch(batch: pa.RecordBatch) -> pa.Table:
            assert isinstance(self._trees, ArrowTreeCalls)
            return self._trees.call_source_batch(handler, batch, seeds)

        if tier_of(handler) is not Tier.ARROW:
            return call
        self._takes_batches = True
        return wraps(handler)(call_batch)

    def handle(self, records: Records) -> None:
        """Calls the handler until its tuples fill a batch, and stores the outcomes of the trees that have ended."""
        assert self._call is not None
        outcomes = self._call(records)
        self._calls += outcomes.calls
        self._handled = len(outcomes.handled_at)
        records = records.slice(0, self._handled)
        if isinstance(self._trees, IsolatedTreeCalls):
            self._trees.deliver_records(records, outcomes, self._seeds)
        if isinstance(self._trees, IsolatedTreeCalls) or self._takes_batches:
            self._portion = next_portion(len(records), self._trees.fill, self._portion, self._most)
        ended = self._trees.end()
        if len(ended.events):
            records, outcomes = self._without_open_trees(records, outcomes, ended)
        else:
            self._outbox.add(ended)
        self._store_records(records, outcomes)

    def _without_open_trees(self, records: Records, outcomes: Outcomes, ended: Ended) -> tuple[Records, Outcomes]:
        """Sends the events of trees that go on in other tasks. Returns the other records, with their outcomes."""
        topology = self._settings.replay.topology
        assert topology is not None
        trees = BegunTrees.of(ended.events, records)
        self._progress.add(int(np.count_nonzero(trees.is_open)))  # the others are counted where they are stored
        outcomes.not_acked += trees.outcomes_of_ended(topology, self._clock())
        outcomes.not_acked.sort(key=lambda outcome: outcome.row)
        outcomes.trees = trees.stories(outcomes.not_acked, topology)
        self._outbox.add(Ended(trees.open_events(records, self._hashes), ended.rows))
        if not trees.is_open.any():
            return records, outcomes
        return records.filter(~trees.is_open), outcomes.filter(~trees.is_open)

    def _manifest(self, **_: Any) -> pa.RecordBatch:
        self._trees.log_dropped()
        figures = self._trees.figures
        figures.counts.setdefault(SOURCE, StepCounts()).executed = self._calls
        staged = () if self._outputs is None else self._outputs.close()
        return super()._manifest(trees=self._outbox.trees, latency=figures.latency, steps=figures.counts, staged=staged)

    def portions(self, records: Records) -> Iterator[Records]:
        """Yields the records in small portions: what they emit is held until it is sent. If a batch was full before the
        end of a portion, the next one begins with the records that are left."""
        for part in super().portions(records):
            start = 0
            while start < len(part):
                yield part.slice(start, self._portion)
                start += self._handled

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yields rows for steps and the acker, once they fill an Arrow batch."""
        yield from self._outbox.take()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Closes the files. Yields the rows that are left, the last of which holds the task's manifest."""
        yield from self._outbox.take(last=True)
        yield self._outbox.manifest(self._manifest())


_MOST_AHEAD, _MOST_BYTES_AHEAD = 64, 256 << 10
"""Tuples, and bytes of their payloads, that are unpacked before the handler is called for the first of them. To unpack
each one right before its call takes 8 % more time for the call, as measured; an unpacked value may take twenty times
its bytes of memory."""
_COLUMNS = ("tp", "offset", "attempt", "edge", "edges", "stream", "key", "payload")

Batches = Iterator[pa.RecordBatch]

_new = tuple.__new__


def handle_step(settings: TaskSettings, step: Step) -> Callable[[Batches], Batches]:
    """Returns the task of a step. The tuples of one key come to one task; those of a join come one key after the other,
    in the order of their origins."""

    def task(batches: Batches) -> Batches:
        with rarer_collection(), StepRun(settings, step) as run:
            for batch in batches:
                is_mine = pc.fill_null(pc.equal(batch.column("step"), step.number), False)
                mine = batch if pc.all(is_mine).as_py() else batch.filter(is_mine)
                if mine.num_rows < batch.num_rows:
                    yield batch.filter(pc.invert(is_mine)) if mine.num_rows else batch
                yield from run.handle(mine)
            yield from run.finish()

    return task


class StepRun:
    """One Spark task of one step: calls its handler on tuples."""

    def __init__(self, settings: TaskSettings, step: Step) -> None:
        topology = settings.replay.topology
        assert topology is not None
        settings.replay.enter()
        self._settings = settings
        self._step = step
        self._streams = topology.streams
        with naming_host():
            tps, targets = settings.topic_partitions, settings.replay.outputs
            self._outputs = None if targets is None else OutputRows(targets, tps)
            clock = outcome_clock(settings.replay.now, settings.replay.not_before)
            self._trees = tree_calls(settings, clock, self._outputs, step.number)
        self._outbox = Outbox()
        self._progress = TaskProgress(settings.progress, step.number, str(part_of_task()))
        self._rest: list[pa.RecordBatch] = []
        """The tuples of the last key, of which a join may get more."""
        takes_batches = isinstance(self._trees, ArrowTreeCalls) and self._trees.takes_batches(step)
        self._arrivals = Arrivals(step.join) if takes_batches else None

    def __enter__(self) -> Self:
        """Checks before the first tuple that this task may start: under `at_most_once` no other has begun its part."""
        try:
            ignore_ctrl_c()
            if isinstance(self._trees, IsolatedTreeCalls):
                with naming_host():
                    self._trees.process.start()
            # The import comes before the marker, as in `TaskRun`.
            check_start(self._settings, f"step-{self._step.number}")
            self._progress.start()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._progress.end()
        if isinstance(self._trees, IsolatedTreeCalls):
            self._trees.process.close()
        if kind is not None and self._outputs is not None:
            self._outputs.discard()

    def handle(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Calls the handler on tuples of the step. A join waits for the rest of the last key. Yields rows for other
        tasks as soon as they are many: a handler may emit any number."""
        if self._arrivals is not None:
            yield from self._call_batches(self._arrivals.add(batch))
            return
        if not self._step.join:
            yield from self._handle_whole(batch)
            return
        if self._rest:
            of_key = _count(batch, self._rest[0].column("key")[0])
            self._rest.append(batch.slice(0, of_key))
            batch = batch.slice(of_key)
        if batch.num_rows:
            yield from self._handle_rest()
            start = batch.num_rows - _count(batch, batch.column("key")[-1])
            yield from self._handle_whole(batch.slice(0, start))
            self._rest = [batch.slice(start)]

    def _handle_whole(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Calls the handler on tuples of the step; no further batch has tuples of their keys."""
        while batch.num_rows:
            done = self._call(batch)
            self._progress.add(done)
            batch = batch.slice(done)
            yield from self._end()

    def _end(self) -> Iterator[pa.RecordBatch]:
        """Ends a batch of calls. Yields the rows that fill an Arrow batch."""
        self._outbox.add(self._trees.end())
        yield from self._outbox.take()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Calls a join for the last key. Yields the rows that are left, the last of which holds the task's manifest."""
        if self._arrivals is not None:
            yield from self._call_batches(self._arrivals.take())
        yield from self._handle_rest()
        yield from self._outbox.take(last=True)
        self._trees.log_dropped()
        staged = () if self._outputs is None else self._outputs.close()
        yield self._outbox.manifest(manifest((), {}, {}, 0, 0, 0, steps=self._trees.figures.counts, staged=staged))

    def _call_batches(self, calls: Iterator[ArrivedTuples | Unfit]) -> Iterator[pa.RecordBatch]:
        assert isinstance(self._trees, ArrowTreeCalls)
        assert self._arrivals is not None
        for arrived in calls:
            self._trees.call_batch(self._step, arrived)
            if isinstance(arrived, ArrivedTuples):
                self._progress.add(len(arrived))
                self._arrivals.adapt(len(arrived), self._trees.fill)
            yield from self._end()

    def _handle_rest(self) -> Iterator[pa.RecordBatch]:
        """Calls a join on the tuples of the last key. They may be more than Arrow holds in one batch."""
        rest, self._rest = self._rest, []
        if rest:
            self._trees.call_join(self._step, [given for batch in rest for given in self._inputs(batch)])
            self._progress.add(sum(batch.num_rows for batch in rest))
            yield from self._end()

    def _call(self, batch: pa.RecordBatch) -> int:
        """Calls the handler on the first tuples of a batch, until what it has emitted fills a batch. Returns how many
        tuples these were."""
        inputs = self._inputs(batch)
        if self._step.join:
            return self._call_joins(batch.column("key"), inputs)
        if isinstance(self._trees, IsolatedTreeCalls):
            return self._call_ahead(self._trees, inputs)
        done = 0
        for unpacked in _ahead(inputs):
            for given in unpacked:
                self._trees.call_step(self._step, given)
                done += 1
                if self._trees.full:
                    return done
            note_calls(len(unpacked))
        return int(batch.num_rows)

    def _call_joins(self, keys: pa.Array, inputs: Iterator[Input]) -> int:
        done = 0
        for _, of_key in groupby(keys.to_numpy(zero_copy_only=False).tolist()):
            group = list(islice(inputs, len(list(of_key))))
            self._trees.call_join(self._step, group)
            done += len(group)
            if self._trees.full:
                break
        return done

    def _call_ahead(self, trees: IsolatedTreeCalls, inputs: Iterator[Input]) -> int:
        done = 0
        while not trees.full and (chunk := list(islice(inputs, CALLS_A_REQUEST))):
            trees.call_ahead(self._step, chunk)
            for given in chunk:
                trees.call_step(self._step, given)
            done += len(chunk)
            note_calls(len(chunk))
        return done

    def _inputs(self, batch: pa.RecordBatch) -> Iterator[Input]:
        """Yields the tuples of a batch as inputs of calls, and adds their edges."""
        edges, tps, streams = self._trees.batch.edges, self._settings.topic_partitions, self._streams
        columns = _values(batch)
        of_tps, offsets, attempts, ids, *_ = columns
        if batch.column("edges").null_count == len(batch) and UNTRACKED not in of_tps:  # usual
            first = edges.add_input_edges(of_tps, offsets, attempts, ids)
            given = zip(of_tps, offsets, *columns[-3:], strict=True)
            for number, (tp, offset, stream, key, payload) in enumerate(given, first):
                yield input_of(key, payload, streams[stream], (_new(Origin, (*tps[tp], offset)),), (number,))
            return
        yield from self._inputs_of_several(columns)

    def _inputs_of_several(self, columns: Sequence[list[Any]]) -> Iterator[Input]:
        """Yields tuples of which some are anchored to several records, or to none."""
        edges, topic_partitions = self._trees.batch.edges, self._settings.topic_partitions
        for tp, offset, attempt, edge, several, stream, key, payload in zip(*columns, strict=True):
            origins: tuple[Origin, ...] = ()
            numbers: EdgeNumbers = ()
            if several is not None:
                of_tuple: Edges = pickle.loads(several)
                numbers = tuple([edges.add_input_edge(*root, id_) for root, id_ in of_tuple])
                roots = sorted(root for root, _ in of_tuple)
                origins = tuple([Origin(*topic_partitions[root.tp], root.offset) for root in roots])
            elif tp != UNTRACKED:
                numbers = (edges.add_input_edge(tp, offset, attempt, edge),)
                topic, partition = topic_partitions[tp]
                origins = (Origin(topic, partition, offset),)
            yield input_of(key, payload, self._streams[stream], origins, numbers)


def _ahead(inputs: Iterator[Input]) -> Iterator[list[Input]]:
    """Yields lists of tuples: each list is unpacked before a call gets its first tuple."""
    unpacked, size = list[Input](), 0
    for given in inputs:
        unpacked.append(given)
        size += len(given.payload)
        if len(unpacked) == _MOST_AHEAD or size >= _MOST_BYTES_AHEAD:
            yield unpacked
            unpacked, size = [], 0
    yield unpacked


def _count(batch: pa.RecordBatch, key: pa.Scalar) -> int:
    return int(pc.sum(pc.equal(batch.column("key"), key)).as_py() or 0)


def _values(batch: pa.RecordBatch) -> list[list[Any]]:
    """Returns the columns of tuples as lists, with the ids of edges as unsigned numbers."""
    values = []
    for name in _COLUMNS:
        column = batch.column(name)
        if name == "edge":
            values.append(column.to_numpy().view(np.uint64).tolist())
        elif column.null_count == len(column):
            values.append([None] * len(column))
        else:
            # Several times faster than `to_pylist`.
            values.append(column.to_numpy(zero_copy_only=False).tolist())
    return values
