"""A Spark task of a step with `group_by`: it calls the handler on the tuples that are addressed to the step, and passes
all other rows on."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.audit.object_store import use_options
from ackline.spark.handlers.outcomes import outcome_clock
from ackline.spark.output.manifest import manifest
from ackline.spark.settings import TaskSettings
from ackline.spark.task_run import check_start, ignore_ctrl_c, naming_host
from ackline.spark.trees.collection import rarer_collection
from ackline.spark.trees.edge_columns import EdgeNumbers
from ackline.spark.trees.inputs import Input, input_of
from ackline.spark.trees.isolated_calls import CALLS_A_REQUEST, IsolatedTreeCalls, tree_calls
from ackline.spark.trees.outbox import Outbox
from ackline.spark.trees.output_rows import OutputRows
from ackline.spark.trees.rows import UNTRACKED, Edges
from ackline.topology import Step
from ackline.tuples import Origin

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
                passed_on = batch.filter(pc.invert(is_mine))
                if passed_on.num_rows:
                    yield passed_on
                yield from run.handle(batch.filter(is_mine))
            yield from run.finish()

    return task


class StepRun:
    """One task of one step."""

    def __init__(self, settings: TaskSettings, step: Step) -> None:
        topology = settings.replay.topology
        assert topology is not None
        use_options(settings.replay.store_options)
        self._settings = settings
        self._step = step
        self._streams = topology.streams
        with naming_host():
            tps, targets = settings.topic_partitions, settings.replay.outputs
            self._outputs = None if targets is None else OutputRows(targets, tps)
            self._trees = tree_calls(settings, outcome_clock(settings.replay.now), self._outputs, step.number)
        self._outbox = Outbox()
        self._rest: list[pa.RecordBatch] = []
        """The tuples of the last key, of which a join may get more."""

    def __enter__(self) -> Self:
        """Checks, before the first tuple, that this task may start: under at most once no other has handled it."""
        try:
            ignore_ctrl_c()
            if isinstance(self._trees, IsolatedTreeCalls):
                with naming_host():
                    self._trees.process.start()
            # The import comes before the marker, as in `TaskRun`.
            check_start(self._settings, f"step-{self._step.number}")
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if isinstance(self._trees, IsolatedTreeCalls):
            self._trees.process.close()
        if kind is not None and self._outputs is not None:
            self._outputs.discard()

    def handle(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Calls the handler on tuples of the step. A join waits for the rest of the last key. Yields rows for other
        tasks as soon as they are many: a handler may emit any number."""
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
            batch = batch.slice(self._call(batch))
            self._outbox.add(self._trees.end())
            yield from self._outbox.take()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Calls a join for the last key. Yields the rows that are left, the last of which holds the task's manifest."""
        yield from self._handle_rest()
        yield from self._outbox.take(last=True)
        self._trees.log_dropped()
        staged = () if self._outputs is None else self._outputs.close()
        yield self._outbox.manifest(manifest((), {}, {}, 0, 0, 0, steps=self._trees.figures.counts, staged=staged))

    def _handle_rest(self) -> Iterator[pa.RecordBatch]:
        """Calls a join on the tuples of the last key. They may be more than Arrow holds in one batch."""
        rest, self._rest = self._rest, []
        if rest:
            self._trees.call_join(self._step, [given for batch in rest for given in self._inputs(batch)])
            self._outbox.add(self._trees.end())
            yield from self._outbox.take()

    def _call(self, batch: pa.RecordBatch) -> int:
        """Calls the handler on the first tuples of a batch, until what it has emitted should be sent. Returns how many
        these are."""
        inputs = self._inputs(batch)
        if self._step.join:
            return self._call_joins(batch.column("key"), inputs)
        if isinstance(self._trees, IsolatedTreeCalls):
            return self._call_ahead(self._trees, inputs)
        for number, given in enumerate(inputs, 1):
            self._trees.call_step(self._step, given)
            if self._trees.full:
                return number
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
        return done

    def _inputs(self, batch: pa.RecordBatch) -> Iterator[Input]:
        """Yields the tuples of a batch."""
        edges, tps, streams = self._trees.batch.edges, self._settings.topic_partitions, self._streams
        columns = _values(batch)
        of_tps, offsets, attempts, ids, *_ = columns
        if batch.column("edges").null_count == len(batch) and UNTRACKED not in of_tps:  # usual
            first = edges.add_input_edges(of_tps, offsets, attempts, ids)
            for number, (tp, offset, _, _, _, stream, key, payload) in enumerate(zip(*columns, strict=True), first):
                origin = _new(Origin, (*tps[tp], offset))
                yield input_of(key, payload, streams[stream], (origin,), (number,))
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


def _count(batch: pa.RecordBatch, key: pa.Scalar) -> int:
    """Returns how many tuples have the key."""
    return int(pc.sum(pc.equal(batch.column("key"), key)).as_py() or 0)


def _values(batch: pa.RecordBatch) -> list[list[Any]]:
    """Returns the columns of tuples as lists, with the ids of edges as they were before they were signed."""
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
