"""Reads what each run of the demo did, from the tables of the ledger and, with a client of its own, from the broker."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from ackline.audit.store import LedgerStore
from ackline.errors import FatalError
from ackline.ledger import PartitionState
from ackline.offsets import OffsetRange, TopicPartition, count
from ackline.pipeline import Pipeline
from ackline.turns import LIVE, Settlement, TurnKind


@dataclass(slots=True)
class PartitionView:
    """One partition after a run: what the run read, the outcomes, and the state that it left."""

    state: PartitionState
    committed: int | None
    log_end: int
    read: OffsetRange | None = None
    retries: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def settled(self) -> bool:
        """Whether nothing is pending, and the log end is the floor and is committed."""
        return not self.state.pending and self.state.floor == self.log_end == self.committed


@dataclass(frozen=True, slots=True)
class RunView:
    """All partitions after a run, and the numbers of the turns that the run took."""

    turns: list[int]
    partitions: dict[TopicPartition, PartitionView]

    @property
    def settled(self) -> bool:
        """Whether all partitions are settled."""
        return all(view.settled for view in self.partitions.values())

    @property
    def next_due(self) -> datetime | None:
        """When the next retry is due; None if there is none."""
        return min((due for view in self.partitions.values() if (due := view.state.next_due)), default=None)


class RunReader:
    """Reads the runs of one pipeline, one after the other."""

    def __init__(self, bootstrap: str, audit: str, pipeline: Pipeline) -> None:
        self.bootstrap = bootstrap
        self.audit = audit
        self.pipeline = pipeline
        self._last_turn = 0

    def next_run(self) -> RunView:
        """Returns what the turns since the last call did. Raises FatalError if there is no settlement."""
        store = LedgerStore(self.audit, self.pipeline.name, LIVE)
        newest = store.newest()
        if newest is None:
            raise FatalError("the run stored no settlement")
        turns = range(self._last_turn + 1, newest.turn.n + 1)
        self._last_turn = newest.turn.n
        committed, ends = self._committed_and_log_ends(newest)
        views = {
            tp: PartitionView(settled.state, committed.get(tp), ends[tp])
            for tp, settled in sorted(newest.partitions.items())
        }
        for n in turns:
            _add_turn(views, store, store.settlement(newest.turn._replace(n=n)))
        return RunView(list(turns), views)

    def _committed_and_log_ends(
        self, newest: Settlement
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.pipeline.kafka.group_id})
        try:
            answers = consumer.committed([ClientPartition(*tp) for tp in newest.partitions], timeout=30)
            ends = {tp: consumer.get_watermark_offsets(ClientPartition(*tp), timeout=30)[1] for tp in newest.partitions}
        finally:
            consumer.close()
        committed = {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}
        return {tp: offset for tp, offset in committed.items() if offset >= 0}, ends


def _add_turn(views: dict[TopicPartition, PartitionView], store: LedgerStore, settlement: Settlement) -> None:
    if settlement.kind is not TurnKind.RUN:
        return
    plan = store.plan(settlement.turn)
    for tp, settled in settlement.partitions.items():
        view, planned = views[tp], plan.partitions.get(tp)
        if planned is not None:
            if planned.fresh:
                view.read = OffsetRange(view.read.start if view.read else planned.fresh.start, planned.fresh.end)
            view.retries += count(planned.retries)
        view.outcomes.update({str(outcome): number for outcome, number in settled.counts.items()})
