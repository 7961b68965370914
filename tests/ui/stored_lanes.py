"""Lanes with a history for the tests of the page, stored as the steps store them, without a broker and Spark."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.fold import PartitionState
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRange
from ackline.ledger.outcomes import Outcome, OutcomeRow
from ackline.ledger.pending import Pending, PendingKind
from ackline.ledger.turns import LIVE, Plan, PlannedPartition, SettledPartition, Settlement, TurnId, TurnKind
from ackline.tables.schemas import OUTCOMES, plan_date
from ackline.tables.store import LedgerStore

Message = Callable[[int], str]

DYING_ATTEMPT = 4
"""The number of the last attempt of a record that dies."""
DEADLINE = timedelta(minutes=45)
"""After its turn, the deadline of a record in flight."""


@dataclass(slots=True)
class StoredPartition:
    """How a partition behaves: records that arrive in each turn, and every so many of them fails, dies or expires."""

    arrive: int = 100
    read: int = 100
    vary: int = 0
    """By how much the number of arriving records varies from turn to turn."""
    fail_every: int = 0
    die_every: int = 0
    retention: int = 0
    """Offsets by which the log start moves in each turn."""
    hold: int | None = None
    """An offset that fails in every turn, so that it holds the floor."""
    in_flight: tuple[int, int] = (0, 0)
    """Offsets, without the end, that the first turn hands on and no answer ends."""
    deadline: datetime | None = None
    """That of the records in flight."""
    foreign: int | None = None
    """What another client has committed since the turn before; None for the commit of this ledger."""
    state: PartitionState = field(default_factory=lambda: PartitionState(0))
    log_start: int = 0
    log_end: int = 0


@dataclass(slots=True)
class StoredLane:
    """Stores turns of a lane, ten minutes apart; the newest one is settled just before `now`."""

    store: LedgerStore
    partitions: Mapping[TopicPartition, StoredPartition]
    turns: int
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    message: Message = lambda offset: f"status 503 from the tax service at order {offset}"
    error_class: str = "requests.HTTPError"
    whole: bool = True
    """Whether each turn is stored whole. Otherwise only the newest is, and of the others the settlements alone."""
    steps: StepFigures | None = None
    """What the steps did in each turn."""
    arrivals: Mapping[int, int] = field(default_factory=dict)
    """How many records arrive in a turn by its number, where it differs."""
    outputs: str = ""
    """What the newest turn has to publish."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that each turn keeps to."""
        return {"dead_letter": {"topic": f"{self.store.pipeline}.dead"}}

    def write(self) -> "StoredLane":
        """Stores the genesis and all turns."""
        genesis = {tp: SettledPartition("id", 0, PartitionState(0)) for tp in self.partitions}
        first = self.now - timedelta(minutes=10 * (self.turns + 1))
        self.store.store_settlement(Settlement(self._turn(0), TurnKind.GENESIS, "", first, genesis, "airflow"))
        for n in range(1, self.turns + 1):
            self._write_turn(n, self.now - timedelta(minutes=10 * (self.turns - n), seconds=20))
        return self

    def _turn(self, n: int) -> TurnId:
        return TurnId(self.store.pipeline, self.store.lane, 0, n)

    def _write_turn(self, n: int, at: datetime) -> None:
        planned, settled, failed = {}, {}, {}
        decided: dict[TopicPartition, list[OutcomeRow]] = {}
        for tp, part in self.partitions.items():
            planned[tp], settled[tp], failed[tp], decided[tp] = self._one(part, n, at)
        run_id = f"scheduled__{at:%Y-%m-%dT%H:%M:%S}+00:00"
        turn = self._turn(n)
        planned_at = at - timedelta(seconds=30)
        plan = Plan(
            turn,
            TurnKind.RUN,
            run_id,
            planned_at,
            planned,
            "read_committed",
            self.settings,
            "airflow",
            code="3f2a-dirty",
        )
        if self.whole or n == self.turns:
            assert self.store.store_plan(plan)
            assert self.store.store_outcomes(turn, [])
            # Attempts are stored with the decisions here: one commit of rows is enough for the page.
            rows = {tp: [*failed[tp], *decided[tp]] for tp in planned if failed[tp] or decided[tp]}
            assert self.store.store_decisions(plan, run_id, rows)
        outputs = self.outputs if n == self.turns else ""
        settlement = Settlement(
            turn, TurnKind.RUN, run_id, at, settled, "airflow", outputs=outputs, steps=self.steps, code=f"code of {n}"
        )
        assert self.store.store_settlement(settlement, plan)

    def _one(
        self, part: StoredPartition, n: int, at: datetime
    ) -> tuple[PlannedPartition, SettledPartition, list[OutcomeRow], list[OutcomeRow]]:
        before = part.state
        part.log_end += self.arrivals.get(n, part.arrive) + n * 53 % (part.vary + 1)
        part.log_start = min(part.log_start + part.retention, part.log_end)
        start, end = before.complete_to, min(part.log_end, before.complete_to + part.read)
        failing = [offset for offset in range(start, end) if part.fail_every and offset % part.fail_every == 7]
        dying = [offset for offset in range(start, end) if part.die_every and offset % part.die_every == 3]
        pending = [run for run in before.pending if run.start == part.hold]  # others have succeeded by now
        pending = [ValuedRange(r.start, r.end, self._pending(r.value.attempts + 1, at)) for r in pending]
        if part.hold is not None and start <= part.hold < end:
            pending.append(ValuedRange(part.hold, part.hold + 1, self._pending(1, at)))
        pending += [ValuedRange(offset, offset + 1, self._pending(1, at)) for offset in failing if offset != part.hold]
        handed_on = range(*part.in_flight)
        if handed_on:
            part.deadline = part.deadline or at + DEADLINE
            pending.append(ValuedRange(*part.in_flight, Pending(PendingKind.IN_FLIGHT, 1, part.deadline, None)))
        part.state = PartitionState(end, tuple(sorted(pending, key=lambda run: run.start)))
        retries = [run for run in pending if run.value.kind is PendingKind.RETRY]
        counts = Counter({"acked": end - start - len(failing) - len(dying), "failed": len(retries), "dead": len(dying)})
        lag = max(0, part.log_end - part.state.floor)
        figures = {"log_start": part.log_start, "log_end": part.log_end, "lag": lag, "lag_seconds": 3.0 * lag,
                   "pending_retry": len(pending), "committed": before.floor}  # fmt: skip
        planned = PlannedPartition(
            "id", OffsetRange(start, end), (), before.floor, before.complete_to,
            LogBounds(part.log_start, part.log_end), committed=self._committed(part, before.floor, n - 1),
        )  # fmt: skip
        settled = SettledPartition(
            "id", before.floor, part.state, {name: n for name, n in counts.items() if n}, 0, None,
            self._committed(part, before.floor, n - 1), metrics={name: float(value) for name, value in figures.items()},
        )  # fmt: skip
        rows = [self._row(run.start, run.value.attempts, at) for run in retries]
        rows += [self._row(offset, DYING_ATTEMPT, at) for offset in dying]
        first = [offset for offset in handed_on if start <= offset < end]
        rows += [OutcomeRow(offset, 1, Outcome.IN_FLIGHT, at, due=part.deadline) for offset in first]
        reason, topic = f"after {DYING_ATTEMPT} attempts", f"{self.store.pipeline}.dead"
        decided = [
            OutcomeRow(o, 0, Outcome.DEAD, at, self.error_class, reason=reason, letter=f"{topic}[0] {o * 2}")
            for o in dying
        ]
        return planned, settled, rows, decided

    def _committed(self, part: StoredPartition, floor: int, n: int) -> Committed:
        """Returns the commit of turn `n`, as this ledger makes it, or that of another client."""
        if part.foreign is not None:
            return Committed(part.foreign, "")
        return Committed(floor, CommitMetadata(self.store.ledger_id(), self.store.pipeline, 0, n).encode())

    def _pending(self, attempts: int, at: datetime) -> Pending:
        return Pending(PendingKind.RETRY, attempts, at + timedelta(minutes=30), self.error_class)

    def _row(self, offset: int, attempt: int, at: datetime) -> OutcomeRow:
        return OutcomeRow(offset, attempt, Outcome.FAILED, at, self.error_class, reason=self.message(offset))


def write_lane(
    root: str, name: str, partitions: Mapping[TopicPartition, StoredPartition], turns: int = 8, **more: Any
) -> StoredLane:
    """Stores the live lane of a pipeline below an audit root, and returns it."""
    return StoredLane(LedgerStore(root, name, LIVE), partitions, turns, **more).write()


def add_attempt(lane: StoredLane, tp: TopicPartition, offset: int, message: str) -> None:
    """Adds an attempt to the newest turn, with an error message of any length, as another writer might store it."""
    turn = lane._turn(lane.turns)
    row = {
        "pipeline": turn.pipeline, "plan_date": plan_date(lane.now), "lane": turn.lane, "epoch": turn.epoch,
        "turn": turn.n, "run_id": "run", "topic": tp.topic, "partition": tp.partition,
        "offset": offset, "attempt": 1, "outcome": "failed",
        "error_class": lane.error_class, "error_message": message, "handled_at": lane.now,
    }  # fmt: skip
    assert lane.store.outcomes.append(pa.Table.from_pylist([row], schema=OUTCOMES), "tests/attempt", 1)
