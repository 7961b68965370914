"""Reads what the page shows from the tables alone. It needs no broker and loads no handler. All reads are bounded.

Only the checks of a run find out why a lane stands still, because they query the broker. A run that stops stores a note
of the reason, which is read here. The tables also show reasons that no run has met yet.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache

from ackline.airflow.connections import use_audit_connection
from ackline.audit.history import (
    TurnTotals,
    dead_since,
    delta_versions,
    evidence_of_offset,
    log_starts_at,
    recent_turns,
    step_figures,
)
from ackline.errors import AcklineError, LedgerError
from ackline.lane.ways_out import StandsStill, paused_partitions, unpublished_rows
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.explain import OffsetExplanation, explain_offset
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import PendingKind
from ackline.ledger.published import OutputsOfTurn
from ackline.ledger.states import State, worst_state
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId
from ackline.pipeline.folder import audit_root, load_pipeline, pipelines_folder
from ackline.pipeline.pipeline import TurnSettings
from ackline.pipeline.topology import Topology
from ackline.pipeline.warnings import overdue_at
from ackline.scrub import scrub_address
from ackline.tables.layout import LeaseFile, holder_of, lanes_of, stopped_run
from ackline.tables.lease import Holder, HolderState, StoppedRun
from ackline.tables.store import LedgerStore
from ackline.ui.partition import OPEN_TOO_LONG, PartitionReading

LAST_TURNS = 60
"""How many turns the charts and the table of turns show at most."""
FEW_TURNS = 24
"""How many turns of each pipeline the list of all pipelines reads. The pace of retention is computed over them."""


DEAD_WITHIN = timedelta(days=1)
"""The list of all pipelines counts the records that died within this time."""
PUBLISHING = timedelta(minutes=1)
"""After this time a settled turn whose rows are not in its output tables stands still."""


@dataclass(frozen=True)  # without slots, which a cached property can not have
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
    stopped: StoppedRun | None = None
    """Why the last run has stopped; None if a turn was settled since."""
    unpublished: tuple[str, ...] = ()
    """The output tables that do not have the rows of the newest turn yet."""
    dead: int = 0
    """The records that died within the last day."""

    @property
    def stands_still(self) -> StandsStill | None:
        """Why the lane stands still, by its tables and the note of its last run; None if it does not."""
        if self.stopped is not None:
            return StandsStill(self.stopped.reason, self.stopped.sentence, self.stopped.command)
        if self.newest is None:
            return None
        if self.unpublished and self.now - self.newest.settled_at > PUBLISHING:
            return unpublished_rows(self.newest.turn, self.unpublished)
        return paused_partitions(self.newest.turn) if self.is_paused else None

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused each of its partitions."""
        return bool(self.partitions) and all(part.settled.paused for part in self.partitions)

    @cached_property
    def state(self) -> State:
        """The worst of its partitions, and STUCK if no run moves it: the last one has stopped with an error that comes
        again, rows wait for their output table, or a plan stays open although no process replays it."""
        states = [partition.state for partition in self.partitions]
        settled = self.now - self.newest.settled_at if self.newest is not None else OPEN_TOO_LONG
        if self.stopped is not None and (self.stopped.lasting or settled >= OPEN_TOO_LONG):
            states.append(State.STUCK)
        if self.unpublished and settled > PUBLISHING:
            states.append(State.STUCK)
        # A long Spark job renews its lease to its end, so its turn is not stuck, however long ago it was planned.
        is_replayed = self.holder is not None and self.holder.state is HolderState.ACTIVE
        if self.open_plan is not None and not is_replayed and self.now - self.open_plan.planned_at > OPEN_TOO_LONG:
            states.append(State.STUCK)
        return worst_state(states)

    @property
    def lag(self) -> int | None:
        """The lag of all partitions together, in offsets; None if that of none is known."""
        known = [partition.lag for partition in self.partitions if partition.lag is not None]
        return sum(known) if known else None

    @property
    def pending(self) -> Mapping[PendingKind, int]:
        """The pending offsets of all partitions by kind."""
        total = dict.fromkeys(PendingKind, 0)
        for partition in self.partitions:
            state = partition.settled.state
            for kind, number in state.pending_by_kind().items() if state.pending else ():
                total[kind] += number
        return total

    def met_records_since(self, since: datetime) -> bool:
        """Returns whether one of `turns` that were settled since a time has met a record."""
        return any(any(turn.outcomes.values()) for turn in self.turns if turn.settled_at >= since)

    @property
    def dead_of_epoch(self) -> int:
        """The records that died in the epoch so far."""
        return sum((part.settled.totals or {}).get(Outcome.DEAD.value, 0) for part in self.partitions)

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest record that is not settled, in seconds; None if it is not known."""
        ages = [(partition.settled.metrics or {}).get("lag_seconds") for partition in self.partitions]
        return max((age for age in ages if age is not None), default=None)

    @property
    def reached_by_retention(self) -> tuple[TopicPartition, datetime] | None:
        """The partition whose floor retention reaches first, and when; None if it is not known."""
        reached = [(when, part.tp) for part in self.partitions if (when := part.signals.retention_at) is not None]
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
        """How many offsets of the turn have each outcome."""
        total: Counter[str] = Counter()
        for settled in self.settlement.partitions.values() if self.settlement else ():
            total.update(settled.counts)
        return total


def lanes_with_tables(name: str) -> list[str]:
    """Returns the names of the lanes of a pipeline, the live one first."""
    use_audit_connection()
    return [lane.lane for lane in lanes_of(audit_root(), name)]


@dataclass(frozen=True, slots=True)
class _StoredLane:
    """What the tables of a lane hold. It changes with a commit alone."""

    newest: Settlement
    plan: Plan | None
    turns: Sequence[TurnTotals]
    partitions: Sequence[PartitionReading]
    """As of the time when they were read, by a lane that commits nothing."""
    ledger: str


@lru_cache(maxsize=256)
def _stored_lane(root: str, name: str, lane: str, turns: int, versions: Hashable) -> _StoredLane | None:
    """Returns what the tables of a lane hold at these `versions`; None if the lane has not run.

    Each open page asks for every pipeline four times a minute, and most of them have not changed.
    """
    store = LedgerStore(root, name, lane)
    newest = store.newest()
    if newest is None:
        return None
    totals, plan = recent_turns(store, newest.turn, len(newest.partitions), turns), store.open_plan(newest)
    return _StoredLane(newest, plan, totals, _partitions(store, newest, totals, plan), store.ledger_id())


@lru_cache(maxsize=256)
def _dead_since(root: str, name: str, lane: str, versions: Hashable, since: datetime) -> int:
    return dead_since(LedgerStore(root, name, lane), since)


def read_lane(name: str, lane: str = LIVE, turns: int = LAST_TURNS) -> LaneReading:
    """Returns a lane after its newest turn. Raises FatalError if the tables can't be read."""
    store, now = store_of(name, lane), datetime.now(UTC)
    versions = store.versions()
    stored = _stored_lane(store.root, name, lane, turns, versions)
    if stored is None:
        return LaneReading(name, lane, None, None, (), (), now, stopped=stopped_run(store.folder, None))
    newest, plan = stored.newest, stored.plan
    holder = holder_of(LeaseFile(store.folder), plan.turn, now) if plan is not None else None
    # A run that works on the lane, or has planned a turn since, has passed what the one before has stopped with.
    goes_on = holder is not None and holder.state is HolderState.ACTIVE
    moved_at = newest.settled_at if plan is None else max(newest.settled_at, plan.planned_at)
    stopped = None if goes_on else stopped_run(store.folder, moved_at)
    unpublished: tuple[str, ...] = ()
    if newest.outputs and not store.is_published(newest.turn):
        tables = OutputsOfTurn.decode(newest.outputs).tables
        unpublished = tuple(map(scrub_address, tables)) or ("its output tables",)
    own = None
    if lane == LIVE and not unpublished:
        own = CommitMetadata(stored.ledger, name, newest.turn.epoch, newest.turn.n)
    overdue = _overdue_at(name, lane, newest.settled_at)
    late = overdue is not None and now > overdue
    partitions = [replace(part, now=now, own=own, is_overdue=late) for part in stored.partitions]
    # To five minutes, so that views in a row read it once. It counts too many for a moment, and never too few.
    since = (now - DEAD_WITHIN).replace(minute=now.minute // 5 * 5, second=0, microsecond=0)
    dead = _dead_since(store.root, name, lane, versions, since)
    return LaneReading(name, lane, newest, plan, stored.turns, partitions, now, holder, stopped, unpublished, dead)


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
    store: LedgerStore,
    newest: Settlement,
    turns: Sequence[TurnTotals],
    open_plan: Plan | None,
) -> list[PartitionReading]:
    planned = _any_plan(store, newest.turn)  # None for a turn without one, such as a first genesis
    if planned is not None and not planned.kind.replays:
        planned = None
    measured = [turn for turn in turns if turn.metrics]  # a genesis has none
    earlier = measured[0] if measured else None
    starts = log_starts_at(store, earlier.turn) if earlier and earlier.turn != newest.turn else {}
    elapsed = newest.settled_at - earlier.settled_at if earlier else timedelta()
    found = open_plan.partitions if open_plan is not None else {}
    return [
        PartitionReading(
            tp, settled, planned.partitions[tp].why if planned and tp in planned.partitions else None,
            starts.get(tp), elapsed, max(0, len(measured) - 1), newest.settled_at,
            newest.settled_at, None,
            seen.offset if tp in found and (seen := found[tp].committed) is not None else None,
        )
        for tp, settled in sorted(newest.partitions.items())
    ]  # fmt: skip


def read_record(reading: LaneReading, tp: TopicPartition, offset: int) -> OffsetExplanation | None:
    """Returns what became of an offset; None if the lane has not run."""
    if reading.newest is None:
        return None
    store = store_of(reading.name, reading.lane)
    return explain_offset(evidence_of_offset(store, reading.newest, tp, offset), reading.now)


def letter_topic(reading: LaneReading, explained: OffsetExplanation | None) -> str | None:
    """Returns the topic of the dead letters of the turn that has given a record up; None if it is not dead, if its turn
    was planned under `dead_letter: none`, or if that plan is gone."""
    decided = [event for event in explained.events if event.outcome is Outcome.DEAD] if explained is not None else []
    if not decided:
        return None
    last = decided[-1]
    plan = _any_plan(store_of(reading.name, reading.lane), TurnId(reading.name, reading.lane, last.epoch, last.turn))
    return TurnSettings(plan.settings).dead_letter_topic if plan is not None else None


def read_steps(reading: LaneReading) -> StepFigures | None:
    """Returns what the steps of a lane did in its newest turns; None if it has not run, or has neither steps nor
    outputs."""
    if reading.newest is None:
        return None
    figures = step_figures(store_of(reading.name, reading.lane), reading.newest.turn)
    return figures if figures.steps else None


def _overdue_at(name: str, lane: str, settled_at: datetime) -> datetime | None:
    """Returns when the schedule of a live lane has passed over too many runs; None without one, or if the file can't be
    read."""
    try:
        return overdue_at(load_pipeline(pipelines_folder(), name).schedule, settled_at) if lane == LIVE else None
    except AcklineError:
        return None


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
