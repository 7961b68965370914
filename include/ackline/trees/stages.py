"""The Spark tasks of a pipeline with steps: the one that reads records, and that of a step with `group_by`.

`SourceRun` reads records, stores the outcomes of trees that end in its task, and sends on the tuples and events of the
others. `handle_step` calls the handler of a step on the tuples that are addressed to it, and passes all other rows on.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.calling import TaskFailure, close_handlers
from ackline.errors import AcklineError
from ackline.handler import SOURCE, Handler, InFlight, Record, StepCounts, Tier, tier_of
from ackline.ledger.offsets import Bools
from ackline.ledger.order import Order
from ackline.pipeline.topology import SOURCE_STEP, Step, Topology
from ackline.trees.arrow_calls import Seeds
from ackline.trees.batch import Ended, Outbox
from ackline.trees.calls import TreeCalls, rarer_collection
from ackline.trees.events import Events, outcome_of_root, stories_of_acked
from ackline.trees.isolated import IsolatedTreeCalls, tree_calls
from ackline.trees.output_rows import OutputRows
from ackline.trees.parcels import Arrivals, Arrived, Unfit, next_portion
from ackline.trees.rows import seed_of
from ackline.trees.tuples import MAX_ROWS
from ackline.worker.ahead import Job
from ackline.worker.call import call_record_handler
from ackline.worker.isolation.handler_process import IsolatedHandler
from ackline.worker.outcomes import NOT_CALLED, Outcomes, RowOutcome, outcome_clock
from ackline.worker.portions import Choose, WaitingHandlers
from ackline.worker.progress import TaskProgress
from ackline.worker.records import Int64s, Records
from ackline.worker.run import TaskRun, check_start, ignore_ctrl_c, naming_host, part_of_task
from ackline.worker.settings import TaskSettings, manifest
from ackline.worker.streams import CallHandler, load_call, load_waiting, without_tombstones
from ackline.worker.under_way import CallsUnderWay

_FIRST_PORTION = 20
"""Records of the first portion that an isolated handler or an Arrow handler gets."""
_MAX_PORTION, _MAX_ISOLATED, _MAX_BATCH = 2_000, 500, 10_000
"""Records of a batch of calls, at most: for a record handler, for one that is isolated, and for an Arrow handler. A
batch for a record handler ends earlier, with the record whose call fills it."""
_ROUNDS = 16
"""Records of a batch for each call that may be under way: the last ones of a batch leave some of them idle."""


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
        self._most = _MAX_BATCH if settings.tier is Tier.ARROW else _MAX_ISOLATED
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
        if kind is not None:
            self._trees.ahead.stop()
        super().__exit__(kind, error, trace)
        self._trees.ahead.close()
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
            call = load_call(
                settings, self._settings.tier, wrap=self._delivering, is_full=lambda: self._trees.advance()
            )
            self._trees = tree_calls(self._settings, self._clock, self._outputs, SOURCE_STEP)
            if self._takes_batches:
                self._portion = _FIRST_PORTION
            # With an order, a call begins only once it is known how the one before it has ended.
            waiting = load_waiting(settings, self._settings.tier) if settings.order is Order.NONE else None
            return call if waiting is None else self._calling_ahead(waiting)

    def _calling_ahead(self, waiting: WaitingHandlers) -> CallHandler:
        """Returns a function that calls the handler of records, of which several calls are under way. What each emits
        is delivered in the order of records."""
        ahead = self._trees.ahead.of(waiting.handlers, waiting.limit, waiting.threads)
        self._portion = max(self._portion, min(_ROUNDS * waiting.limit, _MAX_BATCH))

        def call(records: Records) -> Outcomes:
            choose, payload_of = waiting.choose(records)
            weight = (records.keys.nbytes + records.values.nbytes) // len(records)
            # If the portion before was full early, the calls for the first of these have begun.
            unbegun = records.slice(min(len(ahead), len(records)), len(records))
            results, times = ahead.over(_job(choose, record) for record in unbegun), list[int]()

            def read(_: Record) -> InFlight | None:
                try:
                    made = next(results)
                except AcklineError as error:
                    raise TaskFailure(error) from None
                times.append(made.time)
                if made.handler is None:
                    return made.answer()  # type: ignore[no-any-return] # which raises
                size = self._trees.source.emitted.size
                try:
                    return self._trees.call_source(made.handler, made.argument, self._seeds, made)
                finally:
                    ahead.weigh(self._trees.source.emitted.size - size + weight)

            outcomes = call_record_handler(
                read, records, self._clock, payload_of, is_full=lambda: self._trees.advance()
            )
            outcomes.handled_at[:] = times
            outcomes.not_acked = [_ended_at(outcome, times[outcome.row]) for outcome in outcomes.not_acked]
            outcomes.calls -= sum(outcome.error_class in NOT_CALLED for outcome in outcomes.not_acked)
            return outcomes

        deliver = self._settings.replay.deliver_tombstones
        return lambda records: without_tombstones(call, records, self._clock, deliver)

    def _delivering(self, handler: Handler) -> Handler:
        """Returns a function that calls the handler, and delivers what it emits before it returns."""
        seeds = self._seeds

        def call(record: Record) -> InFlight | None:
            return self._trees.call_source(handler, record, seeds)

        def call_batch(batch: pa.RecordBatch) -> pa.Table:
            return self._trees.arrow.call_source(handler, batch, seeds)

        if tier_of(handler) is not Tier.ARROW:
            return call
        self._takes_batches = True
        return wraps(handler)(call_batch)

    def handle(self, records: Records) -> None:
        """Calls the handler until its tuples fill a batch, and stores the outcomes of the trees that have ended."""
        assert self._call is not None
        assert not isinstance(self._call, CallsUnderWay)
        if (gate := self.gate(records.tp)) is not None:
            records = self.ordered(records)
        outcomes = self._call(records) if gate is None else self.call_gated(records, gate)
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


def _job(choose: Choose, record: Record) -> Job:
    try:
        return *choose(record), None
    except TaskFailure as failure:
        raise failure.error from None
    except BaseException as error:  # of a filter, or because nothing takes the record
        return None, record, error


def _ended_at(outcome: RowOutcome, time: int) -> RowOutcome:
    due = None if outcome.due is None else outcome.due - outcome.handled_at + time
    return replace(outcome, handled_at=time, due=due)


Batches = Iterator[pa.RecordBatch]


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
        settings.replay.enter()
        self._settings = settings
        self._step = step
        with naming_host():
            tps, targets = settings.topic_partitions, settings.replay.outputs
            self._outputs = None if targets is None else OutputRows(targets, tps)
            clock = outcome_clock(settings.replay.now, settings.replay.not_before)
            self._trees = tree_calls(settings, clock, self._outputs, step.number)
        self._outbox = Outbox()
        self._progress = TaskProgress(settings.progress, step.number, str(part_of_task()))
        self._batches = self._trees.takes_batches(step)
        self._arrivals = Arrivals(step, self._batches)
        self._called = 0
        """The tuples that the handler got since the last batch has ended."""

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
        elif kind is not None:
            self._trees.ahead.stop()
            with suppress(Exception):  # the error that ends the task says more
                close_handlers()
        self._trees.ahead.close()
        if kind is not None and self._outputs is not None:
            self._outputs.discard()

    def handle(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Calls the handler on the tuples of parcels. A join waits for the rest of the last bucket. Yields rows for
        other tasks as soon as they are many: a handler may emit any number."""
        yield from self._call(self._arrivals.add(batch))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Calls a join for the last bucket. Yields the rows that are left, the last of which holds the task's
        manifest."""
        yield from self._call(self._arrivals.take())
        self._outbox.add(self._trees.end())
        yield from self._outbox.take(last=True)
        if isinstance(self._trees, IsolatedTreeCalls):
            self._trees.process.close_handlers()
        else:
            close_handlers()
        self._trees.log_dropped()
        staged = () if self._outputs is None else self._outputs.close()
        yield self._outbox.manifest(manifest((), {}, {}, 0, 0, 0, steps=self._trees.figures.counts, staged=staged))

    def _call(self, calls: Iterator[Arrived | Unfit]) -> Iterator[pa.RecordBatch]:
        for arrived in calls:
            rest: Arrived | Unfit | None = arrived
            while rest is not None:
                done = self._trees.call_arrived(self._step, rest)
                self._called += done
                self._progress.add(done)
                if self._batches:
                    self._arrivals.adapt(done, self._trees.fill)
                if self._batches or self._trees.full or self._called >= MAX_ROWS:
                    yield from self._end()
                rest = rest.slice(done, len(rest)) if isinstance(rest, Arrived) and done < len(rest) else None

    def _end(self) -> Iterator[pa.RecordBatch]:
        """Ends a batch of calls. Yields the rows that fill an Arrow batch."""
        self._called = 0
        self._outbox.add(self._trees.end())
        yield from self._outbox.take()
