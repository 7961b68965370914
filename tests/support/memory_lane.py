"""The lab of the steps in memory: a lane of a pipeline on a `World`, whose steps the tests run, strike and judge."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pytest

from ackline import InFlight, Record
from ackline.actions import actions
from ackline.actions import void as operator_void
from ackline.actions.void import ClosedTurn
from ackline.backfill import run as backfill
from ackline.backfill.choose import Choice, choose_offsets
from ackline.backfill.perform import backfill_pipeline
from ackline.errors import AcklineError
from ackline.forms.arguments import BackfillArguments, check_same, id_of, lane_of
from ackline.lane.commit import CommitResult
from ackline.ledger.account import Account
from ackline.ledger.commit_rule import Committed
from ackline.ledger.fold import OutcomeRow, PartitionState, PendingKind
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, Plan, SettledPartition, Settlement, TurnKind
from ackline.pipeline.pipeline import Pipeline
from ackline.steps import plan, replay, run, settle
from tests.support.actor import Actor, Killed
from tests.support.memory import ArrivedLetter, HandlerCall, Hook, MemoryLog, TableCommit, World, handle_by_orders
from tests.support.memory_adapters import MemoryAdapters, memory_adapters, no_session

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TP, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
PAYMENTS = TopicPartition("payments", 0)
GROUP = "g"

OK, FAILS_ONCE, FAILS, DEAD = b"{}", b'{"fail": 1}', b'{"fail": -1}', b'{"dead": true}'
"""Records: the handler does what the value orders."""

AT_LEAST_ONCE, AT_MOST_ONCE, NO_GUARANTEE = "at_least_once", "at_most_once", "no_guarantee"


def effective_rows(world: World, lane: str, tp: TopicPartition, epoch: int | None = None) -> list[OutcomeRow]:
    """The rows of a partition that count, in a lane or in one epoch of it, in the order of their turns."""
    tables = world.tables
    turns = [turn for turn, settlement in tables.settlements.items() if settlement.kind is not TurnKind.VOID]
    chosen = [turn for turn in turns if turn.lane == lane and epoch in (None, turn.epoch)]
    return [row for turn in chosen for file in tables.outcomes.get(turn, ()) for row in file.rows.get(tp, ())]


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

    def produce(
        self, *values: bytes | None, tp: TopicPartition = TP, time: datetime | None = None, key: bytes | None = None
    ) -> None:
        for value in values:
            self.log(tp).append(value, time or self.world.now, key=key)

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

    def die(self, operation: str, when: str | None = None) -> None:
        def kill() -> None:
            raise Killed

        self.strike(operation, kill, when)

    def _hook(self, operation: str, when: str) -> None:
        self.operations.append(operation)
        for strike in list(self._strikes):
            if strike[0] == operation and strike[1] in (None, when):
                self._strikes.remove(strike)
                strike[2]()

    # ---- processes ------------------------------------------------------------------------------------------------

    def adapters(self, run_id: str = "run", hook: Hook | None = None, **changes: Any) -> MemoryAdapters:
        """The adapters of a process, by the pipeline file as it is now; `changes` replace some of them."""
        # The keys of tokens, and the secret of the hashes of keys, are in the extra of a connection.
        secret = self.settings.get("ack_topic") or self.settings.get("audit")
        broker = {"connection": "memory"} if secret else {"bootstrap_servers": "memory:1"}
        kafka = {**broker, "group_id": GROUP, "topics": self.topics}
        file = {"name": "lane", "handler": "a:b", "dead_letter": {"topic": "dead"}, **self.settings}
        pipeline = Pipeline.model_validate({**file, "kafka": {**kafka, **self.settings.get("kafka", {})}})
        return replace(memory_adapters(self.world, pipeline, run_id, hook or self._hook), **changes)

    def adapters_of(self, pipeline: Pipeline, lane: str) -> MemoryAdapters:
        return memory_adapters(self.world, pipeline, "command", self._hook, lane=lane)

    def run(self, adapters: MemoryAdapters | None = None) -> run.RunResult:
        return run.run(adapters or self.adapters(), no_session)

    def after_run(self) -> Self:
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
        self.plan()
        return self

    def after_replay(self) -> Self:
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
    ) -> actions.PreparedAction:
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
        return [settlement.kind for settlement in self.world.tables.settlements.values()]

    def committed(self, tp: TopicPartition = TP) -> int | None:
        committed = self.world.committed.get((GROUP, tp))
        return committed.offset if committed else None

    def calls(self, tp: TopicPartition = TP) -> list[tuple[int, int]]:
        """(offset, attempt) of all handler calls on a partition, in order."""
        calls = [event for event in self.world.history if isinstance(event, HandlerCall)]
        return [(call.offset, call.attempt) for call in calls if call.tp == tp]

    def offsets(self, tp: TopicPartition = TP) -> list[int]:
        return [offset for offset, _ in self.calls(tp)]

    def letters(self) -> list[ArrivedLetter]:
        return [event for event in self.world.history if isinstance(event, ArrivedLetter)]

    def effective_rows(self, tp: TopicPartition = TP) -> list[OutcomeRow]:
        """The rows that count and are not acked, by offset."""
        not_acked = (row for row in effective_rows(self.world, LIVE, tp) if row.outcome is not Outcome.ACKED)
        return sorted(not_acked, key=lambda row: (row.offset, row.attempt))

    def ranges(self, outcome: Outcome, tp: TopicPartition = TP) -> list[tuple[int, int]]:
        """(offset, end offset) of the effective rows with this outcome, decisions on ranges and on single offsets."""
        return [(row.offset, row.end) for row in self.effective_rows(tp) if row.outcome is outcome]


# ---- an operator's void ---------------------------------------------------------------------------------------------


GUARANTEES = (AT_LEAST_ONCE, AT_MOST_ONCE)
REASON = "the batch is broken"


def void(lane: MemoryLane, pause: bool = False) -> ClosedTurn:
    """Closes the open turn of the lane, as `ackline void` does."""
    return void_by(lane.adapters("operator"), pause)


def void_by(adapters: Any, pause: bool = False) -> ClosedTurn:
    """Closes the open turn of the lane by the adapters of a process, which a test may stop."""
    return operator_void.void_open_turn(adapters, operator_void.open_turn(adapters).plan.turn, REASON, pause)


def stopped(lane: MemoryLane, work: Callable[[Any], object], operation: str, when: str) -> Actor:
    """Returns a process that was stopped at an operation."""
    actor = Actor("slow", lambda hook: work(lane.adapters("slow", hook)))
    actor.advance(lambda at, at_when: (at, at_when) == (operation, when))
    assert not actor.over
    return actor


def lose_a_file(lane: MemoryLane) -> None:
    """Plans and replays a turn, and loses a file of its outcomes."""
    lane.plan_and_replay()
    lane.world.tables.lost_files.add(next(iter(lane.world.tables.outcomes)))


# ---- records in flight ----------------------------------------------------------------------------------------------


ACKS = TopicPartition("acks", 0)
WAITS = b'{"wait": true}'
"""A record for which the handler returns InFlight."""


class AnsweredLane(MemoryLane):
    """A lane with the ack topic `acks`. `tokens` has the token of each attempt that is in flight or was."""

    def __init__(self, *values: bytes | None, timeout: str = "10s", partitions: int = 1, **settings: Any) -> None:
        retry = {"initial_delay": "0s", "period": "0s", "max_retries": 1}
        block = {"timeout": timeout} | settings.pop("in_flight", {})
        super().__init__(
            *values, partitions=partitions, **{"ack_topic": "acks", "in_flight": block, "retry": retry, **settings}
        )
        self.create("acks")
        self.tokens: dict[tuple[int, int], str] = {}
        self.world.handle = self.hand_on
        self.early: Callable[[Record], None] = lambda record: None
        """Called by the handler before it returns InFlight."""

    def hand_on(self, record: Record) -> InFlight | None:
        if record.value != WAITS:
            handle_by_orders(record)
            return None
        self.tokens[record.offset, record.attempt] = record.token
        self.early(record)
        return InFlight()

    def answer(self, offset: int, value: str = "ack", attempt: int = 1, times: int = 1) -> None:
        """Writes an answer for an attempt to the ack topic."""
        for _ in range(times):
            self.answer_with(self.tokens[offset, attempt], value)

    def answer_with(self, token: str | bytes | None, value: str | bytes | None) -> None:
        """Writes a record to the ack topic: the token is its key."""
        key, content = (text.encode() if isinstance(text, str) else text for text in (token, value))
        self.log(ACKS).append(content, self.world.now, key=key)

    def spare(self) -> None:
        self._strikes.clear()

    def at(self, seconds: float) -> "AnsweredLane":
        """Sets the clock to so many seconds after noon, and returns the lane."""
        self.world.now = NOON + timedelta(seconds=seconds)
        return self

    def outcomes(self, tp: TopicPartition = TP) -> list[tuple[int, int, str]]:
        """(offset, attempt, outcome) of each effective row, in order."""
        rows = [(row.offset, row.attempt, row.outcome.value) for row in effective_rows(self.world, LIVE, tp)]
        return sorted(rows, key=lambda row: row[:2])

    def answered(self) -> Counter[str]:
        """Returns how many answers of the lane were counted as what."""
        counts: Counter[str] = Counter()
        for settlement in self.world.tables.settlements.values():
            counts.update(settlement.answers.counts if settlement.answers else {})
        return counts

    def next_answer(self) -> int:
        """Returns the offset of the ack topic up to which the lane has read."""
        answers = self.newest().answers
        assert answers is not None
        return answers.position.next[0]


def in_flight(lane: AnsweredLane) -> int:
    return lane.state().pending_by_kind()[PendingKind.IN_FLIGHT]


# ---- backfills ------------------------------------------------------------------------------------------------------


MINUTE = {"initial_delay": "1m", "max_retries": 3}
"""A retry policy under which the first retry is due after a minute."""


class MemoryBackfill:
    """A backfill of a memory lane, by its id and arguments. Each call is a process of its own."""

    def __init__(self, live: MemoryLane, backfill_id: str = "b", *ranges: str, **filters: Any) -> None:
        self.live, self.lane = live, lane_of(backfill_id)
        self.arguments = BackfillArguments(ranges, **filters)

    def adapters(self, run_id: str = "backfill", hook: Hook | None = None, **changes: Any) -> MemoryAdapters:
        pipeline = backfill_pipeline(self.live.adapters().pipeline, self.lane, self.arguments)
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
        rows = effective_rows(self.live.world, self.lane, tp, epoch)
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
    history = (event for event in live.world.history if isinstance(event, TableCommit))
    return [event for event in history if f"/{lane}/" in event.application]


def settled_lane(*values: bytes | None, **settings: Any) -> MemoryLane:
    """A live lane that has handled its records; those that fail are dead."""
    return MemoryLane(*values, **{"retry": {"max_retries": 0}, **settings}).after_run()
