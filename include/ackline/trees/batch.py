"""What the calls of a batch did, and what of it goes to other tasks.

Calls only add columns of edges. The end of a batch makes an event for each root of them, with NumPy (`Batch`), counts
and times (`CallFigures`). `Outbox` gathers rows of tuples and the events of several batches into larger Arrow batches.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, time_ns
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa

from ackline.handler import SOURCE, Durations, StepCounts
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.pipeline.topology import SOURCE_STEP, Stream
from ackline.trees.events import NO_TIMESTAMP, NOT_BEGUN, EventFormat, Events, PackedEvents, note_of
from ackline.trees.rows import FAILED, MANIFEST, Edges, Int64s, Roots, root_ids, rows_of, seed_of
from ackline.trees.tuples import MAX_BYTES, MAX_ROWS
from ackline.worker.outcomes import RowOutcome
from ackline.worker.settings import TaskSettings


class Verdict(NamedTuple):
    """Why a root is not acked: the edges of the tuple, the number of the step, and the outcome."""

    edges: Edges
    step: int
    outcome: RowOutcome


@dataclass(slots=True)
class Batch:
    """The calls of one batch: those of step `step`, and of the steps that run in the same task after it. `part` is the
    number of the task among those of the step, and `number` that of the batch in the task."""

    step: int
    part: int = 0
    number: int = 0
    roots: Roots = field(default_factory=Roots)
    closed: list[Edges] = field(default_factory=list)
    """The edges of tuples that step `step` acked, failed or skipped."""
    opened: list[tuple[Edges, int]] = field(default_factory=list)
    """The edges of tuples for other tasks, and the number of the step that gets them."""
    near: list[tuple[Edges, int]] = field(default_factory=list)
    """The edges of tuples that a step in the same task acked, and its number."""
    not_acked: list[Verdict] = field(default_factory=list)
    """Tuples that were not acked, with the step that got them."""
    problems: list[Verdict] = field(default_factory=list)
    """What keeps a root from being acked although its call acked: an unknown stream, a row that does not fit."""
    dues: list[tuple[int, int]] = field(default_factory=list)
    """The number of each root that is in flight, and its deadline in microseconds since 1970, NEVER without one."""

    def events(self, format_: EventFormat, time: int) -> tuple[Events, Int64s]:
        """Returns one event for each root, and for the number of each root in `roots` that of its event; -1 if it has
        none. `time` is when the calls had returned, in microseconds since 1970. All sums are over the edges of the
        batch, so the order of the calls does not matter."""
        places, distinct = self.roots.distinct()
        tps, offsets, attempts = (column[distinct] for column in self.roots.columns())
        count, steps = len(distinct), format_.steps
        rows = np.zeros(count, format_.dtype)
        rows["offset"], rows["attempt"] = offsets, attempts
        rows["by"], rows["part"], rows["batch"] = self.step, self.part, self.number
        rows["sources"] = int(self.step == SOURCE_STEP)
        rows["time"] = time
        rows["timestamp"], rows["begun"] = NO_TIMESTAMP, NOT_BEGUN
        xors = np.zeros(count, np.uint64)
        opened, acked = np.zeros((count, steps), np.int64), np.zeros((count, steps), np.int64)
        closed = Edges.joined(self.closed)
        for edges in (closed, *(edges for edges, _ in self.opened)):
            np.bitwise_xor.at(xors, places[edges.roots], edges.ids)
        for sums, parts in ((opened, self.opened), (acked, self.near)):
            for edges, step in parts:
                sums[:, step] += np.bincount(places[edges.roots], minlength=count)
        if len(closed.ids):
            done = np.bincount(places[closed.roots], minlength=count)
            opened[:, self.step] -= done
            acked[:, self.step] += done
        for edges, step, outcome in self.not_acked:
            not_acked = (FAILED if outcome.outcome is Outcome.FAILED else 0) - (1 if step == self.step else 0)
            np.add.at(acked[:, step], places[edges.roots], not_acked)
        rows["xor"], rows["open"], rows["acked"] = xors, opened, acked
        notes, dues = self._notes(places), {int(places[root]): due for root, due in self.dues}
        events = Events(tps, rows, notes, dues=dues)
        # Of a root that had no call in this batch there is nothing to send.
        is_called = rows["sources"].astype(np.bool_) | opened.any(axis=1) | acked.any(axis=1)
        is_called[list(notes)] = True  # a join that holds all its tuples closes no edge, and may have emitted a bad row
        if not is_called.all():
            events = events.take(np.flatnonzero(is_called))
        return events, np.where(is_called, np.cumsum(is_called) - 1, -1)[places]

    def _notes(self, places: Int64s) -> dict[int, bytes]:
        """Returns the worst note of each root that has any. Notes sort by rank, so the smallest is the worst."""
        notes: dict[int, bytes] = {}
        for edges, step, outcome in (*self.not_acked, *self.problems):
            for root, edge in zip(places[edges.roots].tolist(), edges.ids.tolist(), strict=True):
                note = note_of(step, edge, outcome)
                notes[root] = min(note, notes.get(root, note))
        return notes


class CallFigures:
    """The figures of one task. `names` are those of the steps, by number; the figures of `source` are at index -1."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [*names, SOURCE]
        self.counts: dict[str, StepCounts] = {}
        self.latency = Durations()
        """From the call of `source` to the end of the tree, of the acked trees that ended in this task."""
        self._epoch = time_ns() - perf_counter_ns()
        """When the clock of `perf_counter_ns` was 0, in nanoseconds since 1970."""
        self.begin()

    def begin(self) -> None:
        """Begins a batch, whose figures are 0."""
        self.emitted = [0] * len(self._names)
        """Emitted tuples, by the number of the step."""
        self.calls = [0] * len(self._names)
        """Tuples that a handler got one by one, by the number of the step."""
        self.spans: list[list[int]] = [[] for _ in self._names]
        """How long each call took in nanoseconds, by the number of the step."""
        self.source_calls: list[SourceCalls] = []

    def of_step(self, number: int) -> StepCounts:
        """Returns the counts of a step."""
        return self.counts.setdefault(self._names[number], StepCounts())

    def end_sources(self, first: int = 0) -> None:
        """Notes that the trees of the source's calls, from the number `first` in `source_calls` on, have ended now: the
        steps that have run since are of this task."""
        for number in range(first, len(self.source_calls)):
            roots, begun, ended = self.source_calls[number]
            self.source_calls[number] = SourceCalls(roots, begun, np.full(len(ended), perf_counter_ns()))

    def add_up(self, events: Events, event_of: Int64s) -> None:
        """Adds the figures of the batch to `counts` and `latency`. `event_of` has the number of each root's event."""
        self._measure_trees(events, event_of)
        for number, (calls, spans) in enumerate(zip(self.calls, self.spans, strict=True)):
            if calls or spans or self.emitted[number]:
                counts = self.of_step(number)
                counts.emitted += self.emitted[number]
                counts.executed += calls
                counts.acked += calls
                if spans:
                    counts.execute.add(Durations(len(spans), sum(spans), max(spans)))

    def _measure_trees(self, events: Events, event_of: Int64s) -> None:
        """Measures the trees that ended in this task. The event of any other tree holds when the tree began, so that
        the acker can measure it, perhaps on another machine."""
        if not self.source_calls:
            return
        roots, begun, end = map(np.concatenate, zip(*self.source_calls, strict=True))
        of_calls = event_of[roots]
        has_note = np.zeros(len(events), np.bool_)
        has_note[[*events.notes, *events.dues]] = True  # a record in flight is not complete in its turn
        ended = events.complete[of_calls]
        events.rows["begun"][of_calls] = np.where(ended, NOT_BEGUN, self._epoch + begun)
        times = (end - begun)[ended & ~has_note[of_calls]]
        if len(times):
            self.latency.add(Durations(len(times), int(times.sum()), int(times.max())))


class SourceCalls(NamedTuple):
    """Calls that made trees: the number of each root, when its call began, and when the tree had ended in this task."""

    roots: Int64s
    begun: Int64s
    ended: Int64s


_WORDS = {Outcome.FAILED: "failed", Outcome.SKIPPED: "skipped"}
log = logging.getLogger(__name__)


class EdgeLog:
    """Logs the edges of the attempts that `debug: {sample: …}` samples in one task, without keys and values. The id of
    its root, which is the same in each task, decides whether all edges of an attempt are logged or none."""

    def __init__(self, sample: float, settings: TaskSettings) -> None:
        self._limit = sample * (1 << 64)
        self._tps: Sequence[TopicPartition] = settings.topic_partitions
        self._seeds = np.array([seed_of(settings.target.turn, tp) for tp in self._tps], np.uint64)
        log.setLevel(logging.INFO)
        if not log.hasHandlers():  # in a Python worker of Spark nothing has set up logging
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            log.addHandler(handler)

    def emitted(self, stream: Stream, to: str, edges: Edges, roots: Roots) -> None:
        """Logs that tuples of `stream` go to the step `to`."""
        self._log(str(stream), to, edges, roots, "emitted")

    def closed(
        self, stream: Stream, step: str, edges: Edges, roots: Roots, outcome: RowOutcome | None, held: bool = False
    ) -> None:
        """Logs what a step made of a tuple of `stream`; `outcome` is None if it acked or held the tuple."""
        word = "held" if held else "acked"
        if outcome is not None:
            word = f"{_WORDS.get(outcome.outcome, outcome.outcome.value)} ({outcome.error_class})"
        self._log(str(stream), step, edges, roots, word)

    def _log(self, stream: str, to: str, edges: Edges, roots: Roots, word: str) -> None:
        for number, edge in zip(edges.roots.tolist(), edges.ids.tolist(), strict=True):
            tp, offset, attempt = roots.root(number)
            (of_root,) = root_ids(self._seeds[tp : tp + 1], np.array([offset]), np.array([attempt]))
            if int(of_root) < self._limit:
                log.info(
                    "%s offset %d attempt %d: %s -> %s %s, edge %016x",
                    self._tps[tp], offset, attempt, stream, to, word, edge,
                )  # fmt: skip


def edge_log_of(settings: TaskSettings) -> EdgeLog | None:
    """Returns what logs a task's edges; None if the pipeline file has no `debug: {sample: …}`."""
    return None if settings.replay.debug_sample is None else EdgeLog(settings.replay.debug_sample, settings)


_MAX_EVENTS = 8 << 20
"""Bytes of events that an Outbox holds, at most. The more it holds, the more of them share a row."""


_LARGE = 1 << 20
"""Bytes from which on a batch of rows is sent as it is, and not joined with others."""


class Ended(NamedTuple):
    """What the calls of a batch leave: their events by root, and the rows of tuples for other tasks."""

    events: Events
    rows: list[pa.RecordBatch]


class Outbox:
    """Rows of one task that are not sent yet. `trees` counts the trees whose first event the task has added."""

    def __init__(self) -> None:
        self._events = PackedEvents()
        self._ready: list[pa.RecordBatch] = []
        self._small: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.trees = 0

    def add(self, ended: Ended) -> None:
        """Adds the events and the rows of tuples that the calls of a batch leave."""
        if len(ended.events):
            self._events.add(ended.events)
            self.trees += int(ended.events.rows["sources"].sum())
        for rows in ended.rows:
            if rows.nbytes >= _LARGE:  # to join it with others would copy it
                self._join_small()
                self._ready.append(rows)
                continue
            if self._rows + rows.num_rows > MAX_ROWS or self._bytes + rows.nbytes > MAX_BYTES:
                self._join_small()
            self._small.append(rows)
            self._rows += rows.num_rows
            self._bytes += rows.nbytes

    def take(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Yields the rows that fill an Arrow batch, or all rows the `last` time, and forgets them."""
        if last or self._rows >= MAX_ROWS or self._bytes >= MAX_BYTES:
            self._join_small()
        ready, self._ready = self._ready, []
        yield from ready
        if self._events.size and (last or self._events.size >= _MAX_EVENTS):
            yield self._event_batch()

    def manifest(self, manifest: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a task's manifest as a row. Its key is random, so the acker gets it among the rows of any block."""
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, manifest.schema) as stream:
            stream.write_batch(manifest)
        columns = {"key": [uuid4().bytes], "tp": [MANIFEST], "payload": [content.getvalue().to_pybytes()]}
        return rows_of(columns, 1)

    def _join_small(self) -> None:
        small, self._small, self._rows, self._bytes = self._small, [], 0, 0
        if small:
            self._ready += pa.Table.from_batches(small).combine_chunks().to_batches()

    def _event_batch(self) -> pa.RecordBatch:
        blocks, payloads = zip(*self._events.take(), strict=True)
        columns = {
            "key": [block.key for block in blocks],
            "tp": [block.tp for block in blocks],
            "offset": [block.number for block in blocks],
            "payload": payloads,
        }
        return rows_of(columns, len(blocks))


def read_manifest(content: bytes) -> Iterator[pa.RecordBatch]:
    """Yields the manifest that `Outbox.manifest` has encoded."""
    with pa.ipc.open_stream(content) as stream:
        yield from stream
