"""What the calls of a batch did, and what of it goes to other tasks.

Calls only append to lists. The end of a batch makes the rest of the lists, with NumPy: an event for each root
(`Batch`), counts and times (`CallFigures`), and rows of tuples (`SentTuples`). `Outbox` gathers these rows and the
events of several batches into larger Arrow batches.
"""

import logging
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackline.handler import SOURCE, Durations, StepCounts
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.pipeline.topology import SOURCE_STEP, Stream
from ackline.trees.events import NO_TIMESTAMP, NOT_BEGUN, EventFormat, Events, PackedEvents, note_of
from ackline.trees.rows import (
    FAILED,
    MANIFEST,
    MASK,
    UNTRACKED,
    EdgeColumns,
    EdgeNumbers,
    Edges,
    EdgesOfRows,
    Int64s,
    Resolved,
    root_id,
    rows_of,
    runs_of_size,
    seed_of,
)
from ackline.worker.outcomes import RowOutcome
from ackline.worker.settings import TaskSettings

MAX_ROWS = 10_000
"""Rows of an Arrow batch, at most."""
MAX_BYTES = 16 << 20
"""Bytes of an Arrow batch, about at most: the JVM takes a batch whole."""
ROW_BYTES = 100
"""About how many bytes a tuple takes for each of its roots, at least once, beside its key and payload."""
_LEAST_BYTES = -(-MAX_BYTES // MAX_ROWS)
"""Bytes that a tuple counts for at least, so that a batch of MAX_BYTES has no more than MAX_ROWS rows."""


class OpenedEdges(NamedTuple):
    """Edges that lead to tuples for other tasks, and the number of the step that each of them leads to."""

    edges: Int64s
    steps: Int64s


class SentTuples:
    """Tuples that calls have emitted to steps with `group_by`. `size` is how many bytes they count for together."""

    __slots__ = ("_rows", "size")

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, EdgeNumbers, bytes, bytes, int]] = []
        """Step, stream, edges, key and payload of each, and how many bytes it counts for."""
        self.size = 0

    def add(self, step: int, stream: int, edges: EdgeNumbers, key: bytes, payload: bytes) -> None:
        """Adds a tuple that is addressed to `step`. `stream` is the number of its stream, and `edges` lead to it."""
        size = len(payload) + len(key) + ROW_BYTES * (len(edges) or 1)
        if size < _LEAST_BYTES:
            size = _LEAST_BYTES
        self._rows.append((step, stream, edges, key, payload, size))
        self.size += size

    def __len__(self) -> int:
        return len(self._rows)

    def opened(self) -> "OpenedEdges":
        """Returns the edges that lead to the tuples, each with the number of the step that gets the tuple."""
        edges = EdgesOfRows.of([row[2] for row in self._rows])
        return OpenedEdges(edges.numbers, np.repeat(_array(row[0] for row in self._rows), edges.counts))

    def portions(self) -> Iterator[tuple[Sequence[EdgeNumbers], Sequence[bytes], Sequence[bytes]]]:
        """Yields edges, keys and payloads of at most MAX_ROWS tuples."""
        for start in range(0, len(self), MAX_ROWS):
            _, _, edges, keys, payloads, _ = zip(*self._rows[start : start + MAX_ROWS], strict=True)
            yield edges, keys, payloads

    def rows(self, resolved: Resolved) -> list[pa.RecordBatch]:
        """Returns the tuples as rows, with the ids of their edges."""
        # Arrow's column of payloads holds 2 GiB at most, and the JVM takes a batch whole. Of rows, too, a batch has
        # no more than it may, because each counts for _LEAST_BYTES.
        batches = runs_of_size([row[5] for row in self._rows], MAX_BYTES)
        return [_sent_rows(self._rows[start:end], resolved) for start, end in batches]


def _sent_rows(sent: Sequence[tuple[int, int, EdgeNumbers, bytes, bytes, int]], resolved: Resolved) -> pa.RecordBatch:
    steps, streams, edges_of, keys, payloads, _ = zip(*sent, strict=True)
    roots = resolved.roots
    tracked = np.fromiter(map(bool, edges_of), np.bool_)
    first = np.array([edges[0] for edges in edges_of if edges], np.int64)
    root_of = resolved.root_of[first]

    def column(values: npt.NDArray[Any], otherwise: int) -> npt.NDArray[Any]:
        of_rows = np.full(len(tracked), otherwise, values.dtype)
        of_rows[tracked] = values
        return of_rows

    columns: dict[str, Any] = {
        "step": np.array(steps, np.int32),
        "stream": np.array(streams, np.int32),
        "tp": column(roots.tps[root_of].astype(np.int32), UNTRACKED),
        "offset": column(roots.offsets[root_of], 0),
        "attempt": column(roots.attempts[root_of].astype(np.int32), 0),
        "edge": column(resolved.ids[first].view(np.int64), 0),  # the same 64 bits in a signed column
        "key": keys,
        "payload": payloads,
    }
    if max(map(len, edges_of)) > 1:
        columns["edges"] = [pickle.dumps(resolved.edges(e)) if len(e) > 1 else None for e in edges_of]
    return rows_of(columns, len(sent))


@dataclass(slots=True)
class Batch:
    """The calls of one batch: those of step `step`, and of the steps that run in the same task after it. `part` is the
    number of the task among those of the step, and `number` that of the batch in the task. A call that acks notes the
    numbers of its edges, and nothing else: most calls do."""

    step: int
    part: int = 0
    number: int = 0
    edges: EdgeColumns = field(default_factory=EdgeColumns)
    closed: list[int] = field(default_factory=list)
    """The edges of tuples that step `step` acked, failed or skipped."""
    near: list[int] = field(default_factory=list)
    near_steps: list[int] = field(default_factory=list)
    """Edges of tuples that a step in the same task acked, and the number of the step."""
    not_acked: list[tuple[EdgeNumbers, int, RowOutcome]] = field(default_factory=list)
    """Calls that did not ack: the edges of their tuples, the number of the step, and the outcome."""
    problems: list[tuple[EdgeNumbers, int, RowOutcome]] = field(default_factory=list)
    """What keeps a root from being acked although its call acked: an unknown stream, a row that does not fit."""

    dues: list[tuple[int, int]] = field(default_factory=list)
    """The edge of each root that is in flight, and its deadline in microseconds since 1970, NEVER without one."""

    def events(self, resolved: Resolved, format_: EventFormat, opened: OpenedEdges, time: int) -> Events:
        """Returns one event for each root, given the edges of tuples that go to other tasks. `time` is when the calls
        had returned, in microseconds since 1970. All sums are over the edges of the batch, so the order of the calls
        does not matter."""
        roots, count, steps = resolved.roots, len(resolved.roots.tps), format_.steps
        rows = np.zeros(count, format_.dtype)
        rows["offset"], rows["attempt"] = roots.offsets, roots.attempts
        rows["by"], rows["part"], rows["batch"] = self.step, self.part, self.number
        rows["sources"] = int(self.step == SOURCE_STEP)
        rows["time"] = time
        rows["timestamp"], rows["begun"] = NO_TIMESTAMP, NOT_BEGUN
        closed = _array(self.closed)
        xors = np.zeros(count, np.uint64)
        for edges in (closed, opened.edges):
            np.bitwise_xor.at(xors, resolved.root_of[edges], resolved.ids[edges])
        rows["xor"] = xors

        def counted(edges: Int64s, of_steps: Int64s) -> Int64s:
            places = resolved.root_of[edges] * steps + of_steps
            return np.bincount(places, minlength=count * steps).reshape(count, steps)

        by = np.full(len(closed), self.step, np.int64)
        rows["open"] = counted(*opened) - counted(closed, by)
        rows["acked"] = counted(closed, by) + counted(_array(self.near), _array(self.near_steps))
        for numbers, step, outcome in self.not_acked:
            done = (FAILED if outcome.outcome is Outcome.FAILED else 0) - (1 if step == self.step else 0)
            for number in numbers:
                rows["acked"][resolved.root_of[number], step] += done
        dues = {int(resolved.root_of[edge]): due for edge, due in self.dues}
        events = Events(roots.tps, rows, notes := self._notes(resolved), dues=dues)
        # Of a root that had no call in this batch there is nothing to send: edges are added for a whole Arrow batch
        # of tuples, and the calls may end earlier.
        is_called = rows["sources"].astype(np.bool_) | rows["open"].any(axis=1) | rows["acked"].any(axis=1)
        is_called[list(notes)] = True  # a join that holds all its tuples closes no edge, and may have emitted a bad row
        return events if is_called.all() else events.take(np.flatnonzero(is_called))

    def _notes(self, resolved: Resolved) -> dict[int, bytes]:
        """Returns the worst note of each root that has any. Notes sort by rank, so the smallest is the worst."""
        notes: dict[int, bytes] = {}
        for numbers, step, outcome in (*self.not_acked, *self.problems):
            for number in numbers:
                root, note = int(resolved.root_of[number]), note_of(step, int(resolved.ids[number]), outcome)
                notes[root] = min(note, notes.get(root, note))
        return notes


def _array(numbers: Iterable[int]) -> Int64s:
    return np.fromiter(numbers, np.int64)


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
        self.source_calls: list[tuple[int, int, int]] = []
        """Of each call that made a tree: the number of its edge, when it began, and when its tuples were delivered."""

    def of_step(self, number: int) -> StepCounts:
        """Returns the counts of a step."""
        return self.counts.setdefault(self._names[number], StepCounts())

    def add_up(self, events: Events, resolved: Resolved) -> None:
        """Adds the figures of the batch to `counts` and `latency`."""
        self._measure_trees(events, resolved)
        for number, (calls, spans) in enumerate(zip(self.calls, self.spans, strict=True)):
            if calls or spans or self.emitted[number]:
                counts = self.of_step(number)
                counts.emitted += self.emitted[number]
                counts.executed += calls
                counts.acked += calls
                if spans:
                    counts.execute.add(Durations(len(spans), sum(spans), max(spans)))

    def _measure_trees(self, events: Events, resolved: Resolved) -> None:
        """Measures the trees that ended in this task. The event of any other tree holds when the tree began, so that
        the acker can measure it, perhaps on another machine."""
        if not self.source_calls:
            return
        calls = np.array(self.source_calls, np.int64)
        roots = resolved.root_of[calls[:, 0]]
        has_note = np.zeros(len(events), np.bool_)
        has_note[[*events.notes, *events.dues]] = True  # a record in flight is not complete in its turn
        ended = events.complete[roots]
        events.rows["begun"][roots] = np.where(ended, NOT_BEGUN, self._epoch + calls[:, 1])
        times = (calls[:, 2] - calls[:, 1])[ended & ~has_note[roots]]
        if len(times):
            self.latency.add(Durations(len(times), int(times.sum()), int(times.max())))


_WORDS = {Outcome.FAILED: "failed", Outcome.SKIPPED: "skipped"}
log = logging.getLogger(__name__)


class EdgeLog:
    """Logs the edges of the attempts that `debug: {sample: …}` samples in one task, without keys and values. The id of
    its root, which is the same in each task, decides whether all edges of an attempt are logged or none."""

    def __init__(self, sample: float, settings: TaskSettings) -> None:
        self._limit = sample * (MASK + 1)
        self._tps: Sequence[TopicPartition] = settings.topic_partitions
        self._seeds = [seed_of(settings.target.turn, tp) for tp in self._tps]
        log.setLevel(logging.INFO)
        if not log.hasHandlers():  # in a Python worker of Spark nothing has set up logging
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            log.addHandler(handler)

    def emitted(self, stream: Stream, to: str, edges: Edges) -> None:
        """Logs that a tuple of `stream` goes to the step `to`."""
        self._log(str(stream), to, edges, "emitted")

    def closed(self, stream: Stream, step: str, edges: Edges, outcome: RowOutcome | None, held: bool = False) -> None:
        """Logs what a step made of a tuple of `stream`; `outcome` is None if it acked or held the tuple."""
        word = "held" if held else "acked"
        if outcome is not None:
            word = f"{_WORDS.get(outcome.outcome, outcome.outcome.value)} ({outcome.error_class})"
        self._log(str(stream), step, edges, word)

    def _log(self, stream: str, to: str, edges: Edges, word: str) -> None:
        for root, edge in edges:
            if root_id(self._seeds[root.tp], root.offset, root.attempt) < self._limit:
                tp, offset, attempt = self._tps[root.tp], root.offset, root.attempt
                log.info(
                    "%s offset %d attempt %d: %s -> %s %s, edge %016x", tp, offset, attempt, stream, to, word, edge
                )


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
