"""What the demo sees of a pipeline: the ledger's tables, and the broker asked by a client of its own."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as At

from ackline.audit.store import LedgerStore
from ackline.errors import FatalError
from ackline.ledger import PartitionState
from ackline.offsets import OffsetRange, TopicPartition, count
from ackline.pipeline import Pipeline
from ackline.turns import LIVE, SettledPartition, Settlement, TurnKind


@dataclass(slots=True)
class PartitionView:
    """One partition after a run: what the run read and made of it, and where it stands."""

    state: PartitionState
    committed: int | None
    log_end: int
    read: OffsetRange | None = None
    retries: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def settled(self) -> bool:
        """Whether nothing is pending, behind or uncommitted."""
        return not self.state.pending and self.state.floor == self.log_end == self.committed


@dataclass(frozen=True, slots=True)
class RunView:
    """All partitions after a run, and the turns that it took."""

    turns: list[int]
    partitions: dict[TopicPartition, PartitionView]

    @property
    def settled(self) -> bool:
        """Whether all of it is settled."""
        return all(one.settled for one in self.partitions.values())

    @property
    def next_due(self) -> datetime | None:
        """When the next retry is due."""
        return min((due for one in self.partitions.values() if (due := one.state.next_due)), default=None)


class Look:
    """Looks at one pipeline, run after run."""

    def __init__(self, bootstrap: str, audit: str, pipeline: Pipeline) -> None:
        self.bootstrap = bootstrap
        self.audit = audit
        self.pipeline = pipeline
        self._seen = 0

    def after_run(self) -> RunView:
        """What the turns since the last look did. Raises FatalError where there is no ledger."""
        store = LedgerStore(self.audit, self.pipeline.name, LIVE)
        newest = store.newest()
        if newest is None:
            raise FatalError("the run stored no settlement")
        turns = range(self._seen + 1, newest.turn.n + 1)
        self._seen = newest.turn.n
        committed, ends = self._broker(newest)
        views = {
            tp: PartitionView(one.state, committed.get(tp), ends[tp]) for tp, one in sorted(newest.partitions.items())
        }
        for n in turns:
            _add(views, store, store.settlement(newest.turn._replace(n=n)))
        return RunView(list(turns), views)

    def _broker(self, newest: Settlement) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The group's offsets and the logs' ends, from the broker."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.pipeline.kafka.group_id})
        try:
            committed = consumer.committed([At(*tp) for tp in newest.partitions], timeout=30)
            ends = {tp: consumer.get_watermark_offsets(At(*tp), timeout=30)[1] for tp in newest.partitions}
        finally:
            consumer.close()
        return {TopicPartition(one.topic, one.partition): one.offset for one in committed if one.offset >= 0}, ends


def _add(views: dict[TopicPartition, PartitionView], store: LedgerStore, settlement: Settlement) -> None:
    if settlement.kind is not TurnKind.RUN:
        return
    plan = store.plan(settlement.turn)
    for tp, one in settlement.partitions.items():
        planned = plan.partitions.get(tp)
        if planned is not None:
            views[tp].read = _joined(views[tp].read, planned.fresh)
            views[tp].retries += count(planned.retries)
        views[tp].outcomes.update(_outcomes(one))


def _outcomes(one: SettledPartition) -> dict[str, int]:
    return {str(outcome): number for outcome, number in one.counts.items()}


def _joined(before: OffsetRange | None, fresh: OffsetRange) -> OffsetRange | None:
    if not fresh:
        return before
    return fresh if before is None else OffsetRange(before.start, fresh.end)
