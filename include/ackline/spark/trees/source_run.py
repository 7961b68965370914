"""A Spark task that reads records of a pipeline with steps: it stores what is decided, and sends on what is not."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ackline.handler import Handler, Record
from ackline.spark.handlers.load import CallHandler, load_call
from ackline.spark.handlers.outcomes import Outcomes, RowOutcome
from ackline.spark.output.manifest import manifest
from ackline.spark.records import Records
from ackline.spark.settings import TaskSettings
from ackline.spark.task_run import TaskRun, naming_host
from ackline.spark.trees.calls import Seeds, TreeCalls
from ackline.spark.trees.edge_log import edge_log_of
from ackline.spark.trees.edges import seed_of
from ackline.spark.trees.notes import outcome_of_root
from ackline.spark.trees.outbox import Outbox
from ackline.spark.trees.output_rows import OutputRows
from ackline.spark.trees.rows import Event, Root
from ackline.stream_functions import load_steps
from ackline.tuples import SOURCE, StepCounts

_PORTION = 500


class SourceRun(TaskRun):
    """A task whose records are roots of trees.

    A record whose tree ends in this task has its outcome at once. The event of any other goes to the acker, and its
    tuples go to the steps.
    """

    def __init__(self, settings: TaskSettings, source: str = "fresh") -> None:
        super().__init__(settings, source)
        assert settings.replay.topology is not None
        self._outbox = Outbox(len(settings.replay.topology.steps))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if kind is not None and self._outputs is not None:
            self._outputs.discard()

    def _load_call(self) -> CallHandler | None:
        settings = self._settings.replay
        assert settings.topology is not None
        with naming_host():
            steps, tps = load_steps(settings.topology), self._settings.topic_partitions
            self._outputs = None if settings.outputs is None else OutputRows(settings.outputs, tps)
            edge_log = edge_log_of(self._settings)
            self._trees = TreeCalls(settings.topology, steps, tps, self._clock, self._outputs, edge_log)
            return load_call(settings, self._settings.tier, wrap=self._delivering)

    def _delivering(self, handler: Handler) -> Handler:
        """Returns the handler; what it emits is delivered before its call returns."""
        turn = self._settings.target.turn
        seeds: Seeds = None
        if self._settings.replay.tracking:
            tps = self._settings.topic_partitions
            seeds = {(tp.topic, tp.partition): (n, seed_of(turn, tp)) for n, tp in enumerate(tps)}

        def call(record: Record) -> None:
            self._trees.call_source(handler, record, seeds)

        return call

    def _handle(self, records: Records) -> None:
        assert self._call is not None
        outcomes = self._call(records)
        self._calls += outcomes.calls
        self._trees.flush_outputs()
        if self._trees.events:
            records, outcomes = self._without_open_trees(records, outcomes)
        self._store_records(records, outcomes)

    def _without_open_trees(self, records: Records, outcomes: Outcomes) -> tuple[Records, Outcomes]:
        """Sends the events of trees that go on in other tasks. Returns the other records, with their outcomes."""
        topology, time = self._settings.replay.topology, self._clock()
        assert topology is not None
        ended: list[RowOutcome] = []
        open_trees: dict[int, tuple[Root, Event]] = {}
        rows = np.searchsorted(records.offsets, [root.offset for root in self._trees.events]).tolist()
        for row, (root, event) in zip(rows, self._trees.events.items(), strict=True):
            if not event.complete:
                open_trees[row] = root, event
                continue
            outcome = outcome_of_root(event.note, event.xor, event.open, event.acked, topology, time)
            if outcome is not None:
                ended.append(outcome.at_row(row))
        self._trees.events = {}
        outcomes.not_acked = sorted([*outcomes.not_acked, *ended], key=lambda outcome: outcome.row)
        if not open_trees:
            return records, outcomes
        is_open = np.zeros(len(records), dtype=np.bool_)
        is_open[list(open_trees)] = True
        hashes = self._hashes(records.keys)
        timestamps = records.timestamps.tolist()
        for row, (root, event) in open_trees.items():
            event.timestamp = timestamps[row]
            event.key_hash = None if hashes is None else hashes[row].as_py()
            self._outbox.add_event(root, event, time)
        number_of = np.cumsum(~is_open) - 1
        kept = [outcome.at_row(int(number_of[outcome.row])) for outcome in outcomes.not_acked]
        return records.filter(~is_open), replace(outcomes, handled_at=outcomes.handled_at[~is_open], not_acked=kept)

    def _manifest(self) -> pa.RecordBatch:
        source = self._trees.counts.setdefault(SOURCE, StepCounts())
        source.executed = self._calls
        return manifest(
            self._files.close(),
            self._files.counts,
            self._waits,
            self._calls,
            self._fetched,
            self._out_of_range,
            self._outbox.trees,
            self._trees.latency,
            self._trees.counts,
            () if self._outputs is None else self._outputs.close(),
        )

    def portions(self, records: Records) -> Iterator[Records]:
        """Yields the records in small portions: each may emit many tuples, which wait here until they are sent."""
        for start in range(0, len(records), _PORTION):
            yield records.slice(start, _PORTION)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yields rows for steps and the acker, as soon as they are many."""
        self._outbox.add_tuples(self._trees)
        yield from self._outbox.take()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Closes the files. Yields the rows that are left, the last of which holds the task's manifest."""
        self._outbox.add_tuples(self._trees)
        yield from self._outbox.take(last=True)
        yield self._outbox.manifest(self._manifest())
