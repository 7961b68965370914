"""Reads what the page shows from the tables alone. It needs no broker and loads no handler.

All reads are bounded, those of failing records too: groups by error class, and the records of a group.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ackline.airflow.connections import use_audit_connection
from ackline.errors import AcklineError, LedgerError
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.explain import OffsetExplanation, explain_offset
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import TopicPartition, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import Pending, PendingKind
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId, TurnKind
from ackline.pipeline.folder import audit_root, load_pipeline, pipelines_folder
from ackline.pipeline.topology import Topology
from ackline.tables.history import (
    TurnTotals,
    delta_versions,
    evidence_of_offset,
    log_starts_at,
    recent_turns,
    step_figures,
)
from ackline.tables.layout import LeaseFile, holder_of, lanes_of
from ackline.tables.lease import Holder, HolderState
from ackline.tables.queries import AuditFilter, audit_rows
from ackline.tables.store import LedgerStore
from ackline.ui.health import OPEN_TOO_LONG, Health, PartitionReading, worst

LAST_TURNS = 60
"""How many turns the charts and the table of turns show at most."""
FEW_TURNS = 24
"""How many turns of each pipeline the list of all pipelines reads. The pace of retention is computed over them."""


DEAD_WITHIN = timedelta(days=1)
"""Of which time the list of all pipelines counts dead records."""


@dataclass(frozen=True, slots=True)
class LaneReading:
    """A lane of a pipeline after its newest turn. `newest` is None if it has not run."""

    name: str
    lane: str
    newest: Settlement | None
    open_plan: Plan | None
    turns: Sequence[TurnTotals]
    """The newest turns of the newest epoch, oldest first."""
    partitions: Sequence[PartitionReading]
    now: datetime
    holder: Holder | None = None
    """The process that works on the open plan; None if no process holds its lease."""

    @property
    def health(self) -> Health:
        """The worst of its partitions, and STUCK if a plan stays open although no process replays it."""
        healths = [partition.health for partition in self.partitions]
        # A long Spark job renews its lease to its end, so its turn is not stuck, however long ago it was planned.
        is_replayed = self.holder is not None and self.holder.state is HolderState.ACTIVE
        if self.open_plan is not None and not is_replayed and self.now - self.open_plan.planned_at > OPEN_TOO_LONG:
            healths.append(Health.STUCK)
        return worst(healths)

    @property
    def healths(self) -> Mapping[Health, int]:
        """How many partitions have each health."""
        return Counter(partition.health for partition in self.partitions)

    @property
    def lag(self) -> int:
        """The sum over all partitions, in offsets."""
        return sum(partition.lag for partition in self.partitions)

    @property
    def pending(self) -> Mapping[PendingKind, int]:
        """The pending offsets of all partitions by kind."""
        total = dict.fromkeys(PendingKind, 0)
        for partition in self.partitions:
            state = partition.settled.state
            for kind, number in state.pending_by_kind().items() if state.pending else ():
                total[kind] += number
        return total

    @property
    def dead(self) -> int:
        """The records that died in those of `turns` that were settled within the last day."""
        since = self.now - DEAD_WITHIN
        return sum(turn.outcomes.get(Outcome.DEAD.value, 0) for turn in self.turns if turn.settled_at >= since)

    @property
    def dead_within(self) -> timedelta | None:
        """How far back `dead` reaches, where earlier turns of the last day were not read; None if it is the day."""
        if not self.turns or self.turns[0].turn.n == 0:
            return None
        reach = self.now - self.turns[0].settled_at
        return reach if reach < DEAD_WITHIN else None

    @property
    def dead_of_epoch(self) -> int:
        """The records that died in the epoch so far."""
        return sum((part.settled.totals or {}).get(Outcome.DEAD.value, 0) for part in self.partitions)

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest record that is not settled; None if it is not known."""
        ages = [(partition.settled.metrics or {}).get("lag_seconds") for partition in self.partitions]
        return max((age for age in ages if age is not None), default=None)

    @property
    def reached_by_retention(self) -> tuple[TopicPartition, datetime] | None:
        """The partition whose floor retention reaches first, and when."""
        reached = [(when, part.tp) for part in self.partitions if (when := part.reached_by_retention) is not None]
        return (min(reached)[1], min(reached)[0]) if reached else None


@dataclass(frozen=True, slots=True)
class TurnReading:
    """One turn: its plan, its settlement, and the Delta versions that hold them. None where it is not stored."""

    turn: TurnId
    plan: Plan | None
    settlement: Settlement | None
    versions: Mapping[str, int]
    has_next: bool = False
    """Whether a later turn of the epoch is planned or settled."""

    @property
    def outcomes(self) -> Mapping[str, int]:
        """The offsets of the turn by outcome."""
        total: Counter[str] = Counter()
        for settled in self.settlement.partitions.values() if self.settlement else ():
            total.update(settled.counts)
        return total


def lanes_with_tables(name: str) -> list[str]:
    """Returns the names of the lanes of a pipeline, the live one first."""
    use_audit_connection()
    return [lane.lane for lane in lanes_of(audit_root(), name)]


def read_lane(name: str, lane: str = LIVE, turns: int = LAST_TURNS) -> LaneReading:
    """Returns a lane after its newest turn. Raises FatalError if the tables can't be read."""
    store, now = store_of(name, lane), datetime.now(UTC)
    newest = store.newest()
    if newest is None:
        return LaneReading(name, lane, None, None, (), (), now)
    totals = recent_turns(store, newest.turn, len(newest.partitions), turns)
    plan = store.open_plan(newest)
    holder = holder_of(LeaseFile(store.folder), plan.turn, now) if plan is not None else None
    return LaneReading(name, lane, newest, plan, totals, _partitions(store, newest, totals, now, plan), now, holder)


def read_lanes(names: Iterable[str]) -> list[LaneReading | tuple[str, str]]:
    """Returns the live lane of each pipeline, sorted by name; (name, error) for one whose tables can't be read."""
    readings: list[LaneReading | tuple[str, str]] = []
    for name in sorted(names):
        try:
            readings.append(read_lane(name, turns=FEW_TURNS))
        except AcklineError as error:  # one broken pipeline must not hide the others
            readings.append((name, str(error)))
    return readings


def _partitions(
    store: LedgerStore, newest: Settlement, turns: Sequence[TurnTotals], now: datetime, open_plan: Plan | None
) -> list[PartitionReading]:
    planned = _any_plan(store, newest.turn)  # None for a turn without one, such as a first genesis
    if planned is not None and planned.kind is not TurnKind.RUN:
        planned = None
    earlier = turns[0] if turns else None
    starts = log_starts_at(store, earlier.turn) if earlier and earlier.turn != newest.turn else {}
    elapsed = newest.settled_at - earlier.settled_at if earlier else timedelta()
    own = None
    if store.lane == LIVE and (not newest.outputs or store.is_published(newest.turn)):
        own = CommitMetadata(store.ledger_id(), store.pipeline, newest.turn.epoch, newest.turn.n)
    found = open_plan.partitions if open_plan is not None else {}
    return [
        PartitionReading(
            tp, settled, planned.partitions[tp].why if planned and tp in planned.partitions else None,
            starts.get(tp), elapsed, len(turns) - 1, newest.settled_at, now,
            own, seen.offset if tp in found and (seen := found[tp].committed) is not None else None,
        )
        for tp, settled in sorted(newest.partitions.items())
    ]  # fmt: skip


def read_record(reading: LaneReading, tp: TopicPartition, offset: int) -> OffsetExplanation | None:
    """Returns what became of an offset; None if the lane has not run."""
    if reading.newest is None:
        return None
    store = store_of(reading.name, reading.lane)
    return explain_offset(evidence_of_offset(store, reading.newest, tp, offset), reading.now)


def read_steps(reading: LaneReading) -> StepFigures | None:
    """Returns what the steps of a lane did in its newest turns; None if it has not run, or has neither steps nor
    outputs."""
    if reading.newest is None:
        return None
    figures = step_figures(store_of(reading.name, reading.lane), reading.newest.turn)
    return figures if figures.steps else None


def read_topology(name: str) -> Topology | None:
    """Returns the steps and outputs of a pipeline as its file has them now; None if it has none, or can't be read."""
    try:
        return load_pipeline(pipelines_folder(), name).topology
    except AcklineError:
        return None


def read_turn(name: str, lane: str, epoch: int, n: int) -> TurnReading | None:
    """Returns a turn; None if it is neither planned nor settled."""
    store, turn = store_of(name, lane), TurnId(name, lane, epoch, n)
    planned_to = store.plans.version_of(f"ackline/{name}/{lane}/{epoch}/plan") or 0
    plan = _any_plan(store, turn) if turn.n <= planned_to else None
    settlement = None
    if store.settlements.version_of(f"ackline/{name}/{lane}/{epoch}/settlement") is not None and store.is_settled(turn):
        settlement = store.settlement(turn)
    if plan is None and settlement is None:
        return None
    return TurnReading(turn, plan, settlement, delta_versions(store, turn), planned_to > n)


def _any_plan(store: LedgerStore, turn: TurnId) -> Plan | None:
    try:
        return store.plan(turn)
    except LedgerError:
        return None


def turns_of_run(reading: LaneReading, run_id: str) -> list[TurnTotals]:
    """Returns those of the newest turns that a run has settled."""
    return [turn for turn in reading.turns if turn.run_id == run_id]


def store_of(name: str, lane: str) -> LedgerStore:
    """Returns the ledger of a lane, with the login of Airflow's connection."""
    use_audit_connection()
    return LedgerStore(audit_root(), name, lane)


MOST_RECORDS = 50
"""How many failing records a list shows at most."""
MOST_DEAD = 5_000
"""How many of the newest dead records are grouped by error class."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failing records of one error class: pending ones, or dead ones of the newest turns."""

    error_class: str
    kind: str
    """A kind of pending, or `dead`."""
    records: int
    partitions: int
    first: datetime | None
    """Of dead records when the first one was settled; of pending ones the earliest due time."""
    last: datetime | None


@dataclass(frozen=True, slots=True)
class FailingRecord:
    """One failing record of a list."""

    tp: TopicPartition
    offset: int
    attempts: int
    at: datetime | None
    """When its last attempt failed, or it was declared dead."""
    due: datetime | None
    message: str | None
    turn: TurnId | None = None


def failures(reading: LaneReading) -> list[Failure]:
    """Returns the failing records of a lane by error class, most records first: pending ones, then dead ones."""
    groups = _pending_failures(reading) + _dead_failures(reading)
    return sorted(groups, key=lambda group: (-group.records, group.kind, group.error_class))


def _pending_failures(reading: LaneReading) -> list[Failure]:
    records: Counter[tuple[str, str]] = Counter()
    partitions: Counter[tuple[str, str]] = Counter()
    dues: dict[tuple[str, str], datetime] = {}
    for partition in reading.partitions:
        runs = partition.settled.state.pending
        for state in {(state.kind, state.error_class) for state in runs.states}:
            chosen = runs.where(lambda other, state=state: (other.kind, other.error_class) == state)  # type: ignore[misc]
            if not len(chosen):
                continue
            key = (state[0].value, state[1] or "")
            records[key] += chosen.offsets
            partitions[key] += 1
            due = chosen[:1][0].value.due
            if due is not None:
                dues[key] = min(due, dues.get(key, due))
    return [
        Failure(error_class, kind, count, partitions[kind, error_class], dues.get((kind, error_class)), None)
        for (kind, error_class), count in records.items()
    ]


def _dead_failures(reading: LaneReading) -> list[Failure]:
    if not any(turn.outcomes.get(Outcome.DEAD.value) for turn in reading.turns):
        return []  # the settlements count dead records, so nothing is read where there are none
    groups: dict[str, list[tuple[TopicPartition, datetime]]] = {}
    for row in _dead_rows(reading, None, MOST_DEAD):
        tp = TopicPartition(row["topic"], row["partition"])
        groups.setdefault(row["error_class"] or "", []).append((tp, row["handled_at"]))
    return [
        Failure(
            error_class, "dead", len(rows), len({tp for tp, _ in rows}), min(at for _, at in rows),
            max(at for _, at in rows),
        )
        for error_class, rows in groups.items()
    ]  # fmt: skip


def _dead_rows(reading: LaneReading, error_class: str | None, limit: int) -> Iterable[dict[str, Any]]:
    """Returns decisions, newest first. They have attempt 0, by which statistics rule out the files of attempts."""
    return audit_rows(
        audit_root(),
        reading.name,
        AuditFilter(
            outcome=Outcome.DEAD.value, error_class=error_class, attempt=0, lane=reading.lane, limit=limit,
            newest_first=True,
        ),
    )  # fmt: skip


def failing_records(reading: LaneReading, kind: str, error_class: str) -> list[FailingRecord]:
    """Returns MOST_RECORDS failing records of a group at most: the lowest offsets, or the newest dead ones."""
    if kind == Outcome.DEAD.value:
        store = store_of(reading.name, reading.lane)
        return [
            FailingRecord(
                TopicPartition(row["topic"], row["partition"]), row["offset"], 0, row["handled_at"], None,
                row["error_message"], TurnId(store.pipeline, reading.lane, row["epoch"], row["turn"]),
            )
            for row in _dead_rows(reading, error_class, MOST_RECORDS)
        ]  # fmt: skip
    pending = _pending_records(reading, kind, error_class)
    attempts: dict[TopicPartition, dict[int, int]] = {}
    for tp, offset, state in pending:
        attempts.setdefault(tp, {})[offset] = state.attempts
    store, newest = store_of(reading.name, reading.lane), reading.newest
    messages = store.last_failures(newest.turn, attempts) if newest is not None else {}
    records = []
    for tp, offset, state in pending:
        last = messages.get((tp, offset))
        records.append(
            FailingRecord(tp, offset, state.attempts, last.failed_at if last else None, state.due,
                          last.message if last else None)
        )  # fmt: skip
    return records


def _pending_records(reading: LaneReading, kind: str, error_class: str) -> list[tuple[TopicPartition, int, Pending]]:
    records: list[tuple[TopicPartition, int, Pending]] = []
    for partition in reading.partitions:
        runs: Iterable[ValuedRange[Pending]] = partition.settled.state.pending.where(
            lambda state: state.kind.value == kind and (state.error_class or "") == error_class
        )
        for run in runs:
            left = MOST_RECORDS - len(records)
            records += [
                (partition.tp, offset, run.value) for offset in range(run.start, min(run.end, run.start + left))
            ]
            if len(records) >= MOST_RECORDS:
                return records
    return records
