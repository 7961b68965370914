"""The lab of the steps in memory: a lane of a pipeline on a `World`, whose steps the tests run, strike and judge."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Self

import pytest

from ackline.actions import actions
from ackline.errors import AcklineError
from ackline.lane.commit import CommitResult
from ackline.ledger.commit_rule import Committed
from ackline.ledger.fold import OutcomeRow, PartitionState
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Plan, SettledPartition, Settlement, TurnKind
from ackline.pipeline.pipeline import Pipeline
from ackline.steps import plan, replay, run, settle
from tests.support.memory import ArrivedLetter, HandlerCall, Hook, MemoryLog, World
from tests.support.memory_adapters import MemoryAdapters, memory_adapters, no_session

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TP, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
PAYMENTS = TopicPartition("payments", 0)
GROUP = "g"

OK, FAILS_ONCE, FAILS, DEAD = b"{}", b'{"fail": 1}', b'{"fail": -1}', b'{"dead": true}'
"""Records: the handler does what the value orders."""

AT_LEAST_ONCE, AT_MOST_ONCE, NO_GUARANTEE = "at_least_once", "at_most_once", "no_guarantee"


class MemoryLane:
    """The live lane of a pipeline on the topic `orders`, with `values` as its first records.

    `settings` go into the pipeline file as they are, and `topics` are those that the file names. A test may change both
    between two runs.
    """

    def __init__(
        self, *values: bytes | None, partitions: int = 1, topics: tuple[str, ...] = ("orders",), **settings: Any
    ) -> None:
        self.world = World(NOON)
        self.topics = list(topics)
        self.settings = settings
        self._strikes: list[tuple[str, str | None, Callable[[], object]]] = []
        self.operations: list[str] = []
        """Everything that the lane's processes have read or written, in order."""
        self.create("orders", partitions)
        self.create("dead")
        self.produce(*values)

    # ---- the world ------------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1, records: int = 0) -> None:
        """Create a topic, in place of one of the same name; each partition begins with so many records."""
        for log in self.world.create_topic(topic, partitions).logs.values():
            for _ in range(records):
                log.append(OK, NOON)

    def log(self, tp: TopicPartition = TP) -> MemoryLog:
        found = self.world.log(tp)
        assert found is not None
        return found

    def produce(self, *values: bytes | None, tp: TopicPartition = TP, time: datetime | None = None) -> None:
        for value in values:
            self.log(tp).append(value, time or self.world.now)

    def truncate(self, end: int, *values: bytes) -> None:
        """Elect a replica whose log ends at `end`; `values` are produced after that."""
        self.log().elect(end)
        self.produce(*values)

    def move_group(self, tp: TopicPartition, offset: int, metadata: str = "") -> Committed:
        """Commit from outside."""
        self.world.committed[GROUP, tp] = committed = Committed(offset, metadata)
        return committed

    def strike(self, operation: str, action: Callable[[], object], when: str | None = None) -> None:
        """Do `action` once, when a process comes to the operation; `when` is READ, BEFORE, AFTER or None for any."""
        self._strikes.append((operation, when, action))

    def _hook(self, operation: str, when: str) -> None:
        self.operations.append(operation)
        for strike in list(self._strikes):
            if strike[0] == operation and strike[1] in (None, when):
                self._strikes.remove(strike)
                strike[2]()

    # ---- processes ------------------------------------------------------------------------------------------------

    def adapters(self, run_id: str = "run", hook: Hook | None = None, **changes: Any) -> MemoryAdapters:
        """The adapters of a process, by the pipeline file as it is now; `changes` replace some of them."""
        # The keys of tokens are in the extra of a connection, so an ack topic needs one.
        broker = {"connection": "memory"} if self.settings.get("ack_topic") else {"bootstrap_servers": "memory:1"}
        kafka = {**broker, "group_id": GROUP, "topics": self.topics}
        file = {"name": "lane", "handler": "a:b", "dead_letter": {"topic": "dead"}, **self.settings}
        pipeline = Pipeline.model_validate({**file, "kafka": {**kafka, **self.settings.get("kafka", {})}})
        return replace(memory_adapters(self.world, pipeline, run_id, hook or self._hook), **changes)

    def run(self, adapters: MemoryAdapters | None = None) -> run.RunResult:
        return run.run(adapters or self.adapters(), no_session)

    def after_run(self) -> Self:
        """The lane, after a run."""
        self.run()
        return self

    def run_fails(
        self, error: type[AcklineError] | tuple[type[AcklineError], ...], match: str | None = None
    ) -> AcklineError:
        """The error with which a run must stop; `match` is a pattern for its message."""
        with pytest.raises(error, match=match) as caught:
            self.run()
        return caught.value

    def after_plan(self) -> Self:
        """The lane, with a turn that is planned and not replayed."""
        self.plan()
        return self

    def after_replay(self) -> Self:
        """The lane, with a turn that is replayed and not settled."""
        self.plan_and_replay()
        return self

    def plan_and_replay(self) -> None:
        self.plan()
        self.replay()

    def plan(self) -> Plan:
        planned = plan.plan(self.adapters()).plan
        assert planned is not None
        return planned

    def replay(self, adapters: MemoryAdapters | None = None) -> replay.Replayed:
        return replay.replay(adapters or self.adapters(), no_session)

    def settle(self, adapters: MemoryAdapters | None = None, **options: Any) -> CommitResult:
        return settle.settle(adapters or self.adapters(), **options)

    def perform(
        self, kind: TurnKind, targets: Mapping[TopicPartition, int] | None = None, *, whole: bool = False
    ) -> actions.PerformedAction:
        """An operator action; without `targets`, or beside them where `whole`, on every partition at its floor."""

        def choose(newest: Settlement) -> dict[TopicPartition, int]:
            floors = {tp: settled.state.floor for tp, settled in newest.partitions.items()}
            return {**(floors if whole or targets is None else {}), **(targets or {})}

        return actions.perform_action(self.adapters(), kind, choose, "a test's reason")

    # ---- what came of it ------------------------------------------------------------------------------------------

    def newest(self) -> Settlement:
        newest = self.adapters().store.newest()
        assert newest is not None
        return newest

    def settled(self, tp: TopicPartition = TP) -> SettledPartition:
        return self.newest().partitions[tp]

    def state(self, tp: TopicPartition = TP) -> PartitionState:
        return self.settled(tp).state

    def floor(self, tp: TopicPartition = TP) -> int:
        return self.state(tp).floor

    def pending(self, tp: TopicPartition = TP) -> list[tuple[int, int]]:
        """(start, end) of the runs that are pending."""
        return [(pending.start, pending.end) for pending in self.state(tp).pending]

    def metrics(self) -> Mapping[str, float]:
        metrics = self.settled().metrics
        assert metrics is not None
        return metrics

    def kinds(self) -> list[TurnKind]:
        """Kinds of all settlements, in order."""
        return [settlement.kind for settlement in self.world.tables.settlements.values()]

    def committed(self, tp: TopicPartition = TP) -> int | None:
        """The group's offset."""
        committed = self.world.committed.get((GROUP, tp))
        return committed.offset if committed else None

    def calls(self, tp: TopicPartition = TP) -> list[tuple[int, int]]:
        """(offset, attempt) of all handler calls on a partition, in order."""
        calls = [event for event in self.world.history if isinstance(event, HandlerCall)]
        return [(call.offset, call.attempt) for call in calls if call.tp == tp]

    def offsets(self, tp: TopicPartition = TP) -> list[int]:
        """Offsets of all handler calls on a partition, in order."""
        return [offset for offset, _ in self.calls(tp)]

    def letters(self) -> list[ArrivedLetter]:
        """All dead letters that have arrived."""
        return [event for event in self.world.history if isinstance(event, ArrivedLetter)]

    def effective_rows(self, tp: TopicPartition = TP) -> list[OutcomeRow]:
        """The rows that count and are not acked, by offset."""
        settlements = self.world.tables.settlements.values()
        turns = [settlement.turn for settlement in settlements if settlement.kind is not TurnKind.VOID]
        rows = [row for turn in turns for row in self.adapters().store.outcomes_of(turn).rows.get(tp, ())]
        not_acked = (row for row in rows if row.outcome is not Outcome.ACKED)
        return sorted(not_acked, key=lambda row: (row.offset, row.attempt))

    def ranges(self, outcome: Outcome, tp: TopicPartition = TP) -> list[tuple[int, int]]:
        """(offset, end offset) of the effective rows with this outcome, decisions on ranges and on single offsets."""
        return [(row.offset, row.end) for row in self.effective_rows(tp) if row.outcome is outcome]
