"""Runs trees without Spark: the same calls, and in place of its exchanges lists that are dealt to tasks at random."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import chain
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.handler import Emit, Handler, Record, StepCounts, Tier, Tuple, arrow_handler, tier_of
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.published import StagedFile
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.topology import SOURCE_STEP, Step, StepBlock, Topology, topology
from ackline.trees.calls import TreeCalls
from ackline.trees.columns import bytes_of_keys
from ackline.trees.events import Block, EventFormat, Events, PackedEvents, Sums, outcome_of_root
from ackline.trees.output_rows import OutputRows, RowBlock
from ackline.trees.parcels import Arrivals, Arrived
from ackline.trees.payload import pack_row
from ackline.trees.rows import Edges, Root, Roots, rows_of
from ackline.trees.tuples import Packed
from ackline.worker.files import OutcomeTarget
from ackline.worker.outcomes import RowOutcome
from ackline.worker.settings import ReplaySettings, TaskSettings

TP = TopicPartition("orders", 0)
SEEDS = {(TP.topic, TP.partition): (0, 4711)}
NOW = 1_000_000


@dataclass(frozen=True, slots=True)
class SentTuple:
    """One tuple, alone in a parcel of its own; or a whole parcel in a lab that loses none."""

    step: int
    stream: int
    edges: tuple[tuple[Root, int], ...]
    key: bytes
    bucket: int
    payload: bytes


@dataclass(slots=True)
class Lab:
    """Trees of one partition over several tasks. `lose` and `repeat` choose what the exchanges do to rows."""

    topology: Topology
    source: Handler
    handlers: Sequence[Handler]
    random: Random = field(default_factory=lambda: Random(1))
    tracked: bool = True
    lose: Callable[[SentTuple], bool] | None = None
    outputs: Callable[[], OutputRows | None] = lambda: None
    """The rows for outputs of one task."""
    events: list[tuple[Root, Events]] = field(default_factory=list)
    """One event each."""
    counts: dict[str, StepCounts] = field(default_factory=dict)
    staged: list[StagedFile] = field(default_factory=list)

    def run(self, records: Mapping[int, object], attempt: int = 1) -> dict[int, RowOutcome | None]:
        """Returns the outcome of each record that emitted something, by offset; None if it is acked."""
        waiting: list[SentTuple] = []
        for number, part in enumerate(self._dealt(sorted(records))):
            calls = self._calls(SOURCE_STEP, number)
            seeds = SEEDS if self.tracked else None
            if tier_of(self.source) is Tier.ARROW:
                if part:
                    calls.arrow.call_source(self.source, records_batch(part, records, attempt), seeds)
            else:
                for offset in part:
                    record = Record(TP.topic, TP.partition, offset, None, None, records[offset], (), attempt)
                    calls.call_source(self.source, record, seeds)
            waiting += self._collect(calls)
        for step in self.topology.steps:
            if step.grouped:
                mine = [sent for sent in waiting if sent.step == step.number and not (self.lose and self.lose(sent))]
                waiting = [sent for sent in waiting if sent.step != step.number] + self._run_step(step, mine)
        assert not waiting
        return self.outcomes()

    def outcomes(self) -> dict[int, RowOutcome | None]:
        """What the acker makes of the events, which come to it packed, from several tasks."""
        format_ = EventFormat(len(self.topology.steps))
        payloads: dict[Block, list[bytes]] = defaultdict(list)
        for part in self._dealt(self.events):
            packed = PackedEvents()
            for _, event in part:
                packed.add(event)
            for block, payload in packed.take():
                payloads[block].append(payload)
        found: dict[int, RowOutcome | None] = {}
        for of_block in payloads.values():
            found |= self._outcomes(format_.sums(of_block))
        return found

    def _outcomes(self, roots: Sums) -> dict[int, RowOutcome | None]:
        return {
            offset: outcome_of_root(
                roots.notes[row],
                int(roots.xors[row]),
                roots.open_tuples[:, row].tolist(),
                roots.acked[:, row].tolist(),
                self.topology,
                NOW,
                roots.dues[row],
            )
            for row, offset in enumerate(roots.offsets.tolist())
        }

    def _run_step(self, step: Step, tuples: list[SentTuple]) -> list[SentTuple]:
        """Runs the tasks of a step, each on the parcels of some buckets, those of one bucket one after the other."""
        by_bucket: dict[int, list[SentTuple]] = defaultdict(list)
        for sent in tuples:
            by_bucket[sent.bucket].append(sent)
        sent_on: list[SentTuple] = []
        for number, buckets in enumerate(self._dealt(list(by_bucket))):
            calls = self._calls(step.number, number)
            arrivals = Arrivals(step, calls.takes_batches(step))
            for bucket in buckets:
                if not step.join:
                    self.random.shuffle(by_bucket[bucket])
            parcels = [sent for bucket in buckets for sent in by_bucket[bucket]]
            columns = {
                "key": [b"%d" % sent.bucket for sent in parcels], "stream": [sent.stream for sent in parcels],
                "payload": [sent.payload for sent in parcels],
            }  # fmt: skip
            for arrived in chain(arrivals.add(rows_of(columns, len(parcels))), arrivals.take()):
                rest = arrived
                while (done := calls.call_arrived(step, rest)) < len(rest) and isinstance(rest, Arrived):
                    rest = rest.slice(done, len(rest))
                if calls.takes_batches(step):
                    sent_on += self._collect(calls, last=False)
            sent_on += self._collect(calls)
        return sent_on

    def _dealt(self, items: Sequence[object]) -> list[list]:  # type: ignore[type-arg]
        """Deals items to three tasks."""
        tasks: list[list[object]] = [[], [], []]
        for item in items:
            self.random.choice(tasks).append(item)
        return tasks

    def _calls(self, step: int = SOURCE_STEP, part: int = 0) -> TreeCalls:
        given: Any = (self.topology, self.handlers, [TP], lambda: NOW)
        return TreeCalls(*given, outputs=self.outputs(), step=step, part=part, parts=2)

    def _collect(self, calls: TreeCalls, last: bool = True) -> list[SentTuple]:
        ended = calls.end()
        self.events += [(ended.events.root(n), ended.events.take(np.array([n]))) for n in range(len(ended.events))]
        for name, counts in calls.figures.counts.items():
            self.counts.setdefault(name, StepCounts()).add(counts)
        calls.figures.counts.clear()
        if calls.outputs is not None and last:
            self.staged += calls.outputs.close()
        rows = [row for batch in ended.rows for row in batch.to_pylist()]
        if self.lose is None:
            return [SentTuple(row["step"], row["stream"], (), b"", row["tp"], row["payload"]) for row in rows]
        return [sent for row in rows for sent in sent_tuples(row)]


def records_batch(offsets: Sequence[int], values: Mapping[int, Any], attempt: int) -> pa.RecordBatch:
    count = len(offsets)
    return pa.RecordBatch.from_pydict({
        "topic": [TP.topic] * count, "partition": [TP.partition] * count, "offset": offsets, "key": [None] * count,
        "value": [values[offset] for offset in offsets], "headers": [None] * count, "attempt": [attempt] * count,
    })  # fmt: skip


def sent_tuples(row: Mapping[str, Any]) -> Iterator[SentTuple]:
    """The tuples of a parcel, each in a parcel of its own: an exchange may lose or move each one."""
    with pa.ipc.open_stream(row["payload"]) as reader:
        batch = reader.read_next_batch()
    keys = (batch.column(1) if batch.schema.names[1] == "key_bytes" else bytes_of_keys(batch.column(1))).to_pylist()
    for number, key in enumerate(keys):
        one = batch.take(pa.array([number]))
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, one.schema) as stream:
            stream.write_batch(one)
        edges = tuple(
            (Root(each["tp"], each["offset"], each["attempt"]), each["edge"]) for each in one.column(0)[0].as_py()
        )
        yield SentTuple(row["step"], row["stream"], edges, key, row["tp"], content.getvalue().to_pybytes())


def rows_block(roots: Roots, *values: Any, offset: int = 7, step: int = 2) -> RowBlock:
    """Rows for an output that a step has emitted, all of them for one record."""
    count = len(values)
    numbers = roots.add(np.zeros(count, np.int64), np.full(count, offset), np.ones(count, np.int64))
    edges = Edges(np.full(count, 99, np.uint64), numbers, np.ones(count, np.int64))
    keys, payloads = zip(*(pack_row(None, value) for value in values), strict=True)
    return RowBlock(step, Packed([*keys], [*payloads]), {}, edges, edges)


def steps_of(*blocks: Mapping[str, object]) -> Topology:
    """A topology of steps whose handlers a test gives itself."""
    return topology([StepBlock.model_validate({"handler": "shop:handle", **block}) for block in blocks])


def task_of(of: Topology, handler: str = "shop:split", **settings: Any) -> TaskSettings:
    """The settings of a task of a turn over one topic-partition; `settings` are those of a replay."""
    target = OutcomeTarget("/nowhere", TurnId("orders", LIVE, 0, 1), date(2024, 5, 6), "run")
    replay = ReplaySettings(handler, False, Outcome.FAILED, None, topology=of, **settings)
    return TaskSettings(target, replay, Tier.RECORD, TP.topic, topic_partitions=(TP,))


ONE = steps_of({"name": "end", "input": "source", "group_by": "key"})
TWO = steps_of(
    {"name": "first", "input": "source", "group_by": "key"}, {"name": "second", "input": "first", "group_by": "key"}
)
JOIN = steps_of({"name": "join", "input": "source", "group_by": "key", "join": True})
LOCAL = steps_of({"name": "near", "input": "source"}, {"name": "far", "input": "near", "group_by": "key"})


def nothing(_: object) -> None:
    """Acks."""


def each_item(record: Record) -> Iterator[Emit]:
    """Emits each item of the value; the key is the item's first letter."""
    for item in record.value:
        yield Emit(item, key=item[:1])


def pass_on(given: Tuple) -> Emit:
    """Emits what it got."""
    return Emit(given.value, key=given.key)


def fail_on(*values: str, error: Exception | None = None) -> Callable[[Tuple], Emit]:
    """A handler that raises for these values."""

    def handle(given: Tuple) -> Emit:
        if given.value in values:
            raise error or ValueError("broken")
        return pass_on(given)

    return handle


def ran(topology: Topology, *handlers: Any, source: Any = each_item, **records: Sequence[str]) -> dict[int, Any]:
    """Outcome and message by offset; records are named `r0`, `r1`, …"""
    found = Lab(topology, source, handlers).run({int(name[1:]): value for name, value in records.items()})
    return {offset: shown(outcome) for offset, outcome in found.items()}


def shown(outcome: RowOutcome | None) -> tuple[str, str | None, str | None]:
    return ("acked", None, None) if outcome is None else (outcome.outcome, outcome.error_class, outcome.error_message)


ACKED = ("acked", None, None)
NEAR = steps_of({"name": "near", "input": "source"})
Yields = Callable[[pa.RecordBatch], Any]


def emit_all(record: Record) -> Iterator[Emit]:
    """Emits each item of the value: its value and its key."""
    for value, key in record.value:
        yield Emit(value, key=key)


class Seen:
    """An Arrow step that keeps the batches that it gets, and then does what `answer` does."""

    def __init__(self, answer: Yields = lambda _: None) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.answer = answer
        self.handler: Any = arrow_handler(lambda batch: self.call(batch))

    def call(self, batch: pa.RecordBatch) -> Any:
        self.batches.append(batch)
        return self.answer(batch)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return sorted((row for batch in self.batches for row in batch.to_pylist()), key=str)


def seen_of(*pairs: tuple[Any, Any], of: Topology = NEAR) -> Seen:
    """What a step gets of one record that emits these values and keys."""
    seen = Seen()
    assert Lab(of, emit_all, [seen.handler]).run({0: pairs}) == {0: None}
    return seen


def outcome_of(answer: Yields, *items: str, of: Topology = ONE, then: Any = nothing) -> Any:
    """What becomes of a record that emits these items, whose step answers so."""
    handlers = [arrow_handler(answer), then][: len(of.steps)]
    return ran(of, *handlers, r0=items)[0]
