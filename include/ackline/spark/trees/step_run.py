"""A Spark task of a step with `group_by`: it calls the handler on the tuples that are addressed to the step, and passes
all other rows on."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.audit.object_store import use_options
from ackline.spark.handlers.outcomes import outcome_clock
from ackline.spark.output.manifest import manifest
from ackline.spark.settings import TaskSettings
from ackline.spark.task_run import check_start, ignore_ctrl_c, naming_host
from ackline.spark.trees.calls import Input, TreeCalls, tuple_of
from ackline.spark.trees.collection import rarer_collection
from ackline.spark.trees.edge_log import edge_log_of
from ackline.spark.trees.outbox import Outbox, make_a_batch
from ackline.spark.trees.output_rows import OutputRows
from ackline.spark.trees.rows import UNTRACKED, Edges, Root
from ackline.stream_functions import load_steps
from ackline.topology import Step

_COLUMNS = ("tp", "offset", "attempt", "edge", "edges", "key", "payload")

Batches = Iterator[pa.RecordBatch]


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
        self._clock = outcome_clock(settings.replay.now)
        with naming_host():
            tps, targets = settings.topic_partitions, settings.replay.outputs
            self._outputs = None if targets is None else OutputRows(targets, tps)
            steps, edge_log = load_steps(topology), edge_log_of(settings)
            self._trees = TreeCalls(topology, steps, tps, self._clock, self._outputs, edge_log)
        self._outbox = Outbox(len(topology.steps))
        self._group: list[Input] = []
        self._key: bytes | None = None

    def __enter__(self) -> Self:
        """Checks, before the first tuple, that this task may start: under at most once no other has handled it."""
        ignore_ctrl_c()
        check_start(self._settings, f"step-{self._step.number}")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._outputs is not None:
            self._outputs.discard()

    def handle(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Calls the handler on tuples of the step. A join waits for the rest of the last key. Yields rows for other
        tasks as soon as they are many: a handler may emit any number."""
        for tp, offset, attempt, edge, edges, key, payload in zip(*_values(batch), strict=True):
            of_tuple: Edges = ()
            if edges is not None:
                of_tuple = pickle.loads(edges)
            elif tp != UNTRACKED:
                of_tuple = ((Root(tp, offset, attempt), edge),)
            given = Input(tuple_of(payload, of_tuple, self._settings.topic_partitions), of_tuple, payload)
            if make_a_batch(self._trees.rows) or (self._outputs is not None and self._outputs.full):
                self._send()
                yield from self._outbox.take()
            if not self._step.join:
                self._trees.call_step(self._step, given)
                continue
            if key != self._key:
                self._call_join()
                self._key = key
            self._group.append(given)
        self._send()
        yield from self._outbox.take()

    def _call_join(self) -> None:
        if self._group:
            group, self._group = self._group, []
            self._trees.call_join(self._step, group)

    def _send(self) -> None:
        self._trees.flush_outputs()
        time = self._clock()
        for root, event in self._trees.events.items():
            self._outbox.add_event(root, event, time)
        self._trees.events = {}
        self._outbox.add_tuples(self._trees)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Calls a join for the last key. Yields the rows that are left, the last of which holds the task's manifest."""
        self._call_join()
        self._send()
        yield from self._outbox.take(last=True)
        staged = () if self._outputs is None else self._outputs.close()
        yield self._outbox.manifest(manifest((), {}, {}, 0, 0, 0, steps=self._trees.counts, staged=staged))


def _values(batch: pa.RecordBatch) -> list[list[Any]]:
    """Returns the columns of tuples as lists, with the ids of edges as they were before they were signed."""
    values = []
    for name in _COLUMNS:
        column = batch.column(name)
        if name == "edge":
            values.append(column.to_numpy().view(np.uint64).tolist())
        elif pa.types.is_integer(column.type):
            values.append(column.to_numpy().tolist())  # several times faster than `to_pylist`
        elif column.null_count == len(column):
            values.append([None] * len(column))
        else:
            values.append(column.to_pylist())
    return values
