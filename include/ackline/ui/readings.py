"""Reads what the page shows from the tables alone. It needs no broker and loads no handler. All reads are bounded.

Only the checks of a run find out why a lane stands still, because they query the broker. A run that stops stores a note
of the reason, which is read here. The tables also show reasons that no run has met yet.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache

from ackline.airflow.connections import use_audit_connection
from ackline.audit.history import (
    TurnTotals,
    delta_versions,
    evidence_of_offset,
    step_figures,
)
from ackline.errors import AcklineError
from ackline.lane.code import DIRTY
from ackline.lane.ways_out import StandsStill, paused_partitions, unpublished_rows
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.explain import OffsetExplanation, explain_offset
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import PendingKind
from ackline.ledger.published import OutputsOfTurn
from ackline.ledger.states import MISSED_SCHEDULES, State, worst_state
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId
from ackline.pipeline.folder import audit_root, load_pipeline, pipelines_folder
from ackline.pipeline.pipeline import TurnSettings
from ackline.pipeline.topology import Topology
from ackline.pipeline.warnings import overdue_at
from ackline.scrub import scrub_address
from ackline.tables.layout import LeaseFile, holder_of, lanes_of, stopped_run
from ackline.tables.lease import Holder, HolderState, StoppedRun
from ackline.tables.store import LedgerStore
from ackline.ui.filters import NO_FILE, ListedFile, listed_file
from ackline.ui.partition import OPEN_TOO_LONG, PartitionReading
from ackline.ui.stored import DEAD_WITHIN, any_plan, stored_lane

LAST_TURNS = 60
"""How many turns the charts and the table of turns show at most."""
FEW_TURNS = 24
"""How many turns of each pipeline the list of all pipelines reads. The pace of retention is computed over them."""
SHORTEST_INTERVAL = timedelta(minutes=1)
"""No cron expression has runs closer together."""
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
    file: ListedFile = NO_FILE
    """What its pipeline file says of it now."""

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
    def open_transaction(self) -> int:
        """How many offsets open transactions hold back in all partitions, beside the lag."""
        return sum(partition.open_transaction for partition in self.partitions)

    @property
    def is_behind(self) -> bool:
        """Whether offsets may wait above a floor."""
        return any(partition.is_behind for partition in self.partitions)

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
    def has_new_code(self) -> bool | None:
        """Whether the lane runs other code now than the newest turn in which a record failed; None if that is not
        known. The newest plan has the code of now: what is deployed, and has planned nothing yet, is not known here."""
        failed = next((turn for turn in reversed(self.turns) if turn.outcomes.get(Outcome.FAILED.value)), None)
        now = self.open_plan.code if self.open_plan is not None else self.newest.code if self.newest is not None else ""
        if failed is None or not failed.code or not now or (failed.code == now and now.endswith(DIRTY)):
            return None
        return failed.code != now

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


def read_lane(name: str, lane: str = LIVE, turns: int = LAST_TURNS) -> LaneReading:
    """Returns a lane after its newest turn. Raises FatalError if the tables can't be read."""
    store, now = store_of(name, lane), datetime.now(UTC)
    stored = stored_lane(store, turns)
    file = listed_file(name)
    if stored is None:
        return LaneReading(name, lane, None, None, (), (), now, stopped=stopped_run(store), file=file)
    newest, plan = stored.newest, stored.plan
    holder = holder_of(LeaseFile(store.folder), plan.turn, now) if plan is not None else None
    # A run that works on the lane, or has planned a turn since, has passed what the one before has stopped with.
    goes_on = holder is not None and holder.state is HolderState.ACTIVE
    stopped = None if goes_on else stopped_run(store)
    unpublished: tuple[str, ...] = ()
    if newest.outputs and not store.is_published(newest.turn):
        tables = OutputsOfTurn.decode(newest.outputs).tables
        unpublished = tuple(map(scrub_address, tables)) or ("its output tables",)
    own = None
    if lane == LIVE and not unpublished:
        own = CommitMetadata(stored.ledger, name, newest.turn.epoch, newest.turn.n)
    late = lane == LIVE and _is_overdue(file.schedule, newest.settled_at, now)
    partitions = [replace(part, now=now, own=own, is_overdue=late) for part in stored.partitions]
    dead = stored.dead_since(now - DEAD_WITHIN)
    return LaneReading(
        name, lane, newest, plan, stored.turns, partitions, now, holder, stopped, unpublished, dead, file
    )


def read_lanes(names: Iterable[str]) -> list[LaneReading | tuple[str, str]]:
    """Returns the live lane of each pipeline, sorted by name; (name, error) for one whose tables can't be read."""
    readings: list[LaneReading | tuple[str, str]] = []
    for name in sorted(names):
        try:
            readings.append(read_lane(name, turns=FEW_TURNS))
        except AcklineError as error:  # one broken pipeline must not hide the others
            readings.append((name, str(error)))
    return readings


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
    plan = any_plan(store_of(reading.name, reading.lane), TurnId(reading.name, reading.lane, last.epoch, last.turn))
    return TurnSettings(plan.settings).dead_letter_topic if plan is not None else None


def read_steps(reading: LaneReading) -> StepFigures | None:
    """Returns what the steps of a lane did in its newest turns; None if it has not run, or has neither steps nor
    outputs."""
    if reading.newest is None:
        return None
    figures = step_figures(store_of(reading.name, reading.lane), reading.newest.turn)
    return figures if figures.steps else None


_overdue_at = lru_cache(maxsize=1024)(overdue_at)  # to read a cron expression costs more than the rest of a lane


def _is_overdue(schedule: str | None, settled_at: datetime, now: datetime) -> bool:
    """Returns whether the schedule has passed over too many runs since the newest turn."""
    if now - settled_at < SHORTEST_INTERVAL * (MISSED_SCHEDULES - 1):
        return False
    overdue = _overdue_at(schedule, settled_at)
    return overdue is not None and now > overdue


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
    plan = any_plan(store, turn) if turn.n <= planned_to else None
    settlement = None
    if store.settlements.version_of(f"ackline/{name}/{lane}/{epoch}/settlement") is not None and store.is_settled(turn):
        settlement = store.settlement(turn)
    if plan is None and settlement is None:
        return None
    return TurnReading(turn, plan, settlement, delta_versions(store, turn), planned_to > n)


def turns_of_run(reading: LaneReading, run_id: str) -> list[TurnTotals]:
    """Returns those of the newest turns that a run has settled."""
    return [turn for turn in reading.turns if turn.run_id == run_id]


def store_of(name: str, lane: str) -> LedgerStore:
    """Returns the ledger of a lane, with the login of Airflow's connection."""
    use_audit_connection()
    return LedgerStore(audit_root(), name, lane)
