"""A Spark task that reads records of a pipeline with steps: it stores what is decided, and sends on what is not."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ackline.handler import Handler, Record
from ackline.spark.handlers.load import CallHandler, load_call
from ackline.spark.handlers.outcomes import Outcomes
from ackline.spark.isolation.isolated import IsolatedHandler
from ackline.spark.output.manifest import manifest
from ackline.spark.records import Records
from ackline.spark.settings import TaskSettings
from ackline.spark.task_run import TaskRun, naming_host
from ackline.spark.trees.calls import Ended, Seeds
from ackline.spark.trees.edges import seed_of
from ackline.spark.trees.isolated_calls import IsolatedTreeCalls, tree_calls
from ackline.spark.trees.notes import outcome_of_root, stories_of_acked
from ackline.spark.trees.outbox import Outbox
from ackline.spark.trees.output_rows import OutputRows
from ackline.tuples import SOURCE, InFlight, StepCounts

_PORTION = 500


class SourceRun(TaskRun):
    """A task whose records are roots of trees.

    A record whose tree ends in this task has its outcome at once. The event of any other goes to the acker, and its
    tuples go to the steps.
    """

    def __init__(self, settings: TaskSettings, source: str = "fresh") -> None:
        super().__init__(settings, source)
        assert settings.replay.topology is not None
        self._outbox = Outbox()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if kind is not None and self._outputs is not None:
            self._outputs.discard()

    def _load_call(self) -> CallHandler | None:
        settings = self._settings.replay
        assert settings.topology is not None
        with naming_host():
            tps, turn = self._settings.topic_partitions, self._settings.target.turn
            self._outputs = None if settings.outputs is None else OutputRows(settings.outputs, tps)
            self._trees = tree_calls(self._settings, self._clock, self._outputs)
            self._seeds: Seeds = None
            if settings.tracking:
                self._seeds = {(tp.topic, tp.partition): (n, seed_of(turn, tp)) for n, tp in enumerate(tps)}
            if isinstance(self._trees, IsolatedTreeCalls):
                return IsolatedHandler(settings, self._settings.tier, self._clock, self._trees.process)
            return load_call(settings, self._settings.tier, wrap=self._delivering)

    def _delivering(self, handler: Handler) -> Handler:
        """Returns the handler; what it emits is delivered before its call returns."""
        seeds = self._seeds

        def call(record: Record) -> InFlight | None:
            return self._trees.call_source(handler, record, seeds)

        return call

    def _handle(self, records: Records) -> None:
        assert self._call is not None
        outcomes = self._call(records)
        self._calls += outcomes.calls
        if isinstance(self._trees, IsolatedTreeCalls):
            self._trees.deliver_records(records, outcomes, self._seeds)
        ended = self._trees.end()
        if len(ended.events):
            records, outcomes = self._without_open_trees(records, outcomes, ended)
        else:
            self._outbox.add(ended)
        self._store_records(records, outcomes)

    def _without_open_trees(self, records: Records, outcomes: Outcomes, ended: Ended) -> tuple[Records, Outcomes]:
        """Sends the events of trees that go on in other tasks. Returns the other records, with their outcomes."""
        topology, time, events = self._settings.replay.topology, self._clock(), ended.events
        assert topology is not None
        rows = np.searchsorted(records.offsets, events.rows["offset"])
        complete = events.complete
        for number in {*events.notes, *events.dues}:
            if complete[number]:  # the others are decided by the acker
                of_root = events.rows[number]
                sums = int(of_root["xor"]), of_root["open"].tolist(), of_root["acked"].tolist()
                outcome = outcome_of_root(events.notes.get(number), *sums, topology, time, events.dues.get(number))
                assert outcome is not None
                outcomes.not_acked.append(outcome.at_row(int(rows[number])))
        outcomes.not_acked.sort(key=lambda outcome: outcome.row)
        acked = np.zeros((len(topology.steps), len(records)), dtype=np.int64)
        acked[:, rows] = events.rows["acked"].T
        acked[:, [outcome.row for outcome in outcomes.not_acked]] = 0  # these have a story of their own
        is_open = np.zeros(len(records), dtype=np.bool_)
        is_open[rows[~complete]] = True
        events.rows["timestamp"] = records.timestamps[rows]
        hashes = self._hashes(records.keys)
        if hashes is not None:
            of_rows = hashes.take(pa.array(rows)).to_pylist()
            events = replace(events, key_hashes={n: text for n, text in enumerate(of_rows) if text is not None})
        self._outbox.add(Ended(events.take(np.flatnonzero(~complete)), ended.rows))
        trees = stories_of_acked(acked[:, ~is_open], topology)
        if not is_open.any():
            return records, replace(outcomes, trees=trees)
        number_of = np.cumsum(~is_open) - 1
        kept = [outcome.at_row(int(number_of[outcome.row])) for outcome in outcomes.not_acked]
        times = outcomes.handled_at[~is_open]
        return records.filter(~is_open), replace(outcomes, handled_at=times, not_acked=kept, trees=trees)

    def _manifest(self) -> pa.RecordBatch:
        self._trees.log_dropped()
        source = self._trees.figures.counts.setdefault(SOURCE, StepCounts())
        source.executed = self._calls
        return manifest(
            self._files.close(),
            self._files.counts,
            self._waits,
            self._calls,
            self._fetched,
            self._out_of_range,
            self._outbox.trees,
            self._trees.figures.latency,
            self._trees.figures.counts,
            () if self._outputs is None else self._outputs.close(),
        )

    def portions(self, records: Records) -> Iterator[Records]:
        """Yields the records in small portions: each may emit many tuples, which wait here until they are sent."""
        for start in range(0, len(records), _PORTION):
            yield records.slice(start, _PORTION)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yields rows for steps and the acker, as soon as they are many."""
        yield from self._outbox.take()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Closes the files. Yields the rows that are left, the last of which holds the task's manifest."""
        yield from self._outbox.take(last=True)
        yield self._outbox.manifest(self._manifest())
