"""Runs trees without Spark: the same calls, and in place of its exchanges lists that are dealt to tasks at random."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from ackline.handler import Handler, Record
from ackline.offsets import TopicPartition
from ackline.spark.handlers.outcomes import RowOutcome
from ackline.spark.trees.calls import Input, TreeCalls, tuple_of
from ackline.spark.trees.notes import outcome_of_root
from ackline.spark.trees.packed_events import Block, EventFormat, PackedEvents, Sums
from ackline.spark.trees.rows import Edges, Event, Root
from ackline.topology import Step, StepBlock, Topology, topology
from ackline.tuples import StepCounts

TP = TopicPartition("orders", 0)
SEEDS = {(TP.topic, TP.partition): (0, 4711)}
NOW = 1_000_000


@dataclass(frozen=True, slots=True)
class SentTuple:
    """A tuple on its way to a step."""

    step: int
    edges: Edges
    key: bytes
    payload: bytes


@dataclass(slots=True)
class Lab:
    """Trees of one partition over several tasks. `lose` and `repeat` choose what the exchanges do to rows."""

    topology: Topology
    source: Handler
    handlers: Sequence[Handler]
    random: Random = field(default_factory=lambda: Random(1))
    tracked: bool = True
    lose: Callable[[SentTuple], bool] = lambda _: False
    events: list[tuple[Root, Event]] = field(default_factory=list)
    counts: dict[str, StepCounts] = field(default_factory=dict)
    decided: dict[int, str] = field(default_factory=dict)

    def run(self, records: Mapping[int, object], attempt: int = 1) -> dict[int, RowOutcome | None]:
        """Returns the outcome of each record that emitted something, by offset; None if it is acked."""
        waiting: list[SentTuple] = []
        for part in self._dealt(sorted(records)):
            calls = self._calls()
            for offset in part:
                record = Record(TP.topic, TP.partition, offset, None, None, records[offset], (), attempt)
                calls.call_source(self.source, record, SEEDS if self.tracked else None)
            waiting += self._collect(calls)
        for step in self.topology.steps:
            if step.grouped:
                mine = [sent for sent in waiting if sent.step == step.number and not self.lose(sent)]
                waiting = [sent for sent in waiting if sent.step != step.number] + self._run_step(step, mine)
        assert not waiting
        return self.outcomes()

    def outcomes(self) -> dict[int, RowOutcome | None]:
        """What the acker makes of the events, which come to it packed, from several tasks."""
        format_ = EventFormat(len(self.topology.steps))
        payloads: dict[Block, list[bytes]] = defaultdict(list)
        for part in self._dealt(self.events):
            packed = PackedEvents(format_)
            for root, event in part:
                packed.add(root, event, NOW)
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
            )
            for row, offset in enumerate(roots.offsets.tolist())
        }

    def _run_step(self, step: Step, tuples: list[SentTuple]) -> list[SentTuple]:
        by_key: dict[bytes, list[SentTuple]] = defaultdict(list)
        for sent in tuples:
            by_key[sent.key].append(sent)
        sent_on: list[SentTuple] = []
        for keys in self._dealt(list(by_key)):
            calls = self._calls()
            for key in keys:
                order = sorted(by_key[key], key=lambda sent: sent.edges) if step.join else by_key[key]
                given = [Input(tuple_of(sent.payload, sent.edges, [TP]), sent.edges, sent.payload) for sent in order]
                if step.join:
                    calls.call_join(step, given)
                else:
                    self.random.shuffle(given)
                    for each in given:
                        calls.call_step(step, each)
            sent_on += self._collect(calls)
        return sent_on

    def _dealt(self, items: Sequence[object]) -> list[list]:  # type: ignore[type-arg]
        """Deals items to three tasks."""
        tasks: list[list[object]] = [[], [], []]
        for item in items:
            self.random.choice(tasks).append(item)
        return tasks

    def _calls(self) -> TreeCalls:
        return TreeCalls(self.topology, self.handlers, [TP], lambda: NOW)

    def _collect(self, calls: TreeCalls) -> list[SentTuple]:
        self.events += calls.events.items()
        for name, counts in calls.counts.items():
            self.counts.setdefault(name, StepCounts()).add(counts)
        rows = calls.rows
        return [SentTuple(*row) for row in zip(rows.steps, rows.edges, rows.keys, rows.payloads, strict=True)]


def steps_of(*blocks: Mapping[str, object]) -> Topology:
    """A topology of steps whose handlers a test gives itself."""
    return topology([StepBlock.model_validate({"handler": "shop:handle", **block}) for block in blocks])
