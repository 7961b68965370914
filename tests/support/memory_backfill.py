"""A backfill lane in the lab of the steps in memory: what the command does, without options and printing."""

from dataclasses import replace
from typing import Any

from ackline.backfill import run as backfill
from ackline.backfill.choose import Choice, choose_offsets
from ackline.backfill.run import backfill_pipeline
from ackline.ledger.account import Account
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import Settlement, TurnKind
from ackline.pipeline.arguments import BackfillArguments, check_same, id_of, lane_of
from tests.support.memory import Hook, TableCommit
from tests.support.memory_adapters import MemoryAdapters, memory_adapters, no_session
from tests.support.memory_lane import TP, MemoryLane

MINUTE = {"initial_delay": "1m", "max_retries": 3}
"""A retry policy under which the first retry is due after a minute."""


class MemoryBackfill:
    """A backfill of a memory lane, by its id and arguments. Each call is a process of its own."""

    def __init__(self, live: MemoryLane, backfill_id: str = "b", *ranges: str, **filters: Any) -> None:
        self.live, self.lane = live, lane_of(backfill_id)
        self.arguments = BackfillArguments(ranges, **filters)

    def adapters(self, run_id: str = "backfill", hook: Hook | None = None, **changes: Any) -> MemoryAdapters:
        pipeline = backfill_pipeline(self.live.adapters().pipeline, self.arguments)
        found = memory_adapters(self.live.world, pipeline, run_id, hook or self.live._hook, lane=self.lane)
        return replace(found, **changes)

    def choose(self) -> Choice:
        return choose_offsets(self.adapters(), self.arguments)

    def begin(self, adapters: MemoryAdapters | None = None) -> Settlement:
        """Begins the lane, or finds it begun; the arguments must be those of the lane."""
        adapters = adapters or self.adapters()
        newest = adapters.store.newest()
        if newest is None:
            genesis = backfill.begin(adapters, self.arguments, choose_offsets(adapters, self.arguments))
        else:
            genesis = backfill.genesis_of(adapters.store, newest.turn.epoch)
        check_same(id_of(self.lane), BackfillArguments.decode(genesis.arguments), self.arguments)
        return genesis

    def begin_epoch(self, epoch: int, adapters: MemoryAdapters | None = None) -> Settlement:
        """Begins a new epoch of the lane, which must be settled, with what its arguments choose now."""
        adapters = adapters or self.adapters()
        return backfill.begin(adapters, self.arguments, choose_offsets(adapters, self.arguments), epoch=epoch)

    def run(self, adapters: MemoryAdapters | None = None, **options: Any) -> Account:
        """Begins or resumes the lane, runs what is due, and returns the account, which must balance."""
        adapters = adapters or self.adapters()
        self.begin(adapters)
        backfill.run_backfill(adapters, no_session, **options)
        return self.account()

    def cancel(self, reason: str = "") -> Account:
        backfill.cancel(self.adapters(), reason)
        return self.account()

    def account(self) -> Account:
        found = backfill.find_backfill(self.adapters().store)
        assert found is not None
        return found.account

    def newest(self) -> Settlement:
        newest = self.adapters().store.newest()
        assert newest is not None
        return newest

    def rows(self, tp: TopicPartition = TP, epoch: int | None = None) -> list[tuple[int, int, int, str]]:
        """(offset, end, attempt, outcome) of all effective rows of the lane, or of one epoch, sorted."""
        tables = self.live.world.tables
        rows: list[OutcomeRow] = []
        for turn, settlement in tables.settlements.items():
            if epoch not in (None, turn.epoch):
                continue
            if turn.lane == self.lane and settlement.kind is not TurnKind.VOID:
                rows += [row for file in tables.outcomes.get(turn, ()) for row in file.rows.get(tp, ())]
        return sorted((row.offset, row.end, row.attempt, row.outcome.value) for row in rows)

    def ended(self, tp: TopicPartition = TP, epoch: int | None = None) -> dict[int, str]:
        """The terminal outcome of each offset, in one epoch if there are several; fails if an offset has two."""
        ended: dict[int, str] = {}
        for start, end, _, outcome in self.rows(tp, epoch):
            for offset in range(start, end) if outcome not in ("failed", "in_flight") else ():
                assert offset not in ended, f"{tp} {offset} is {ended[offset]} and {outcome}"
                ended[offset] = outcome
        return ended


def writes_of(live: MemoryLane, lane: str) -> list[TableCommit]:
    """All commits of a lane to its tables, in order."""
    history = (event for event in live.world.history if isinstance(event, TableCommit))
    return [event for event in history if f"/{lane}/" in event.application]


def settled_lane(*values: bytes | None, **settings: Any) -> MemoryLane:
    """A live lane that has handled its records; those that fail are dead."""
    return MemoryLane(*values, **{"retry": {"max_retries": 0}, **settings}).after_run()
