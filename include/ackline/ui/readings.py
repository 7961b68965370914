"""Reads what the page shows from the tables alone. It needs no broker and loads no handler. All reads are bounded.

What a lane stands still for, only the checks of a run find out, for they ask the broker. A run that stops leaves a note
of it, which is read here; the state of the tables adds what no run has met yet.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ackline.airflow.connections import use_audit_connection
from ackline.errors import AcklineError, LedgerError
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.explain import OffsetExplanation, explain_offset
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId, TurnKind
from ackline.pipeline.arguments import id_of
from ackline.pipeline.folder import audit_root, load_pipeline, pipelines_folder
from ackline.pipeline.outputs import OutputsOfTurn
from ackline.pipeline.pipeline import TurnSettings
from ackline.pipeline.topology import Topology
from ackline.scrub import scrub_address
from ackline.tables.history import (
    TurnTotals,
    dead_since,
    delta_versions,
    evidence_of_offset,
    log_starts_at,
    recent_turns,
    step_figures,
)
from ackline.tables.layout import LeaseFile, holder_of, lanes_of, stopped_run
from ackline.tables.lease import Holder, HolderState, StoppedRun
from ackline.tables.store import LedgerStore
from ackline.ui.health import OPEN_TOO_LONG, Health, PartitionReading, worst

LAST_TURNS = 60
"""How many turns the charts and the table of turns show at most."""
FEW_TURNS = 24
"""How many turns of each pipeline the list of all pipelines reads. The pace of retention is computed over them."""


DEAD_WITHIN = timedelta(days=1)
"""Of which time the list of all pipelines counts dead records."""
PUBLISHING = timedelta(minutes=1)
"""After this time a settled turn whose rows are not in its output tables stands still."""


@dataclass(frozen=True, slots=True)
class StandsStill:
    """What a lane stands still for: the class of an error or a state, a sentence, and the command that ends it."""

    reason: str
    sentence: str
    command: str
    at: datetime | None = None
    """When a run has stopped with it; None for a state of the tables."""


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
    stopped: StoppedRun | None = None
    """Why the last run has stopped; None if a turn was settled since."""
    unpublished: tuple[str, ...] = ()
    """The output tables that rows of the newest turn are not yet in."""
    dead: int = 0
    """The records that died within the last day."""

    @property
    def stands_still(self) -> StandsStill | None:
        """What the lane stands still for, as far as its tables and its last run tell; None if it goes on."""
        if self.stopped is not None:
            note = self.stopped
            return StandsStill(note.reason, note.sentence, note.command, note.at)
        if self.newest is None:
            return None
        if self.unpublished and self.now - self.newest.settled_at > PUBLISHING:
            sentence = (
                f"Turn {self.newest.turn.n} is settled, and its rows are not yet in {', '.join(self.unpublished)}. The "
                f"group is not committed before."
            )
            again = f"run {self.name}" if self.lane == LIVE else f"backfill {self.name} --id {id_of(self.lane)}"
            return StandsStill("Unpublished", sentence, f"ackline {again}")
        if self.is_paused:
            sentence = "All its partitions are paused, so a run reads nothing."
            return StandsStill("Paused", sentence, f"ackline resume {self.name}")
        return None

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused each of its partitions."""
        return bool(self.partitions) and all(part.settled.paused for part in self.partitions)

    @property
    def health(self) -> Health:
        """The worst of its partitions, and STUCK if no run moves it: the last one has stopped with an error that comes
        again, rows wait for their output table, or a plan stays open although no process replays it."""
        healths = [partition.health for partition in self.partitions]
        settled = self.now - self.newest.settled_at if self.newest is not None else OPEN_TOO_LONG
        if self.stopped is not None and (self.stopped.lasting or settled >= OPEN_TOO_LONG):
            healths.append(Health.STUCK)
        if self.unpublished and settled > PUBLISHING:
            healths.append(Health.STUCK)
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

    def met_records_since(self, since: datetime) -> bool:
        """Returns whether one of `turns` that were settled since a time has met a record."""
        return any(any(turn.outcomes.values()) for turn in self.turns if turn.settled_at >= since)

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
    def knows_retention(self) -> bool:
        """Whether a log start is known at two turns, so that its pace is."""
        return any(part.log_start is not None and part.earlier_log_start is not None for part in self.partitions)

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
        return LaneReading(name, lane, None, None, (), (), now, stopped=stopped_run(store.folder, None))
    totals = recent_turns(store, newest.turn, len(newest.partitions), turns)
    plan = store.open_plan(newest)
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
        own = CommitMetadata(store.ledger_id(), name, newest.turn.epoch, newest.turn.n)
    partitions = _partitions(store, newest, totals, now, plan, own)
    dead = dead_since(store, now - DEAD_WITHIN)
    return LaneReading(name, lane, newest, plan, totals, partitions, now, holder, stopped, unpublished, dead)


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
    now: datetime,
    open_plan: Plan | None,
    own: CommitMetadata | None,
) -> list[PartitionReading]:
    planned = _any_plan(store, newest.turn)  # None for a turn without one, such as a first genesis
    if planned is not None and planned.kind is not TurnKind.RUN:
        planned = None
    measured = [turn for turn in turns if turn.metrics]  # a genesis has none
    earlier = measured[0] if measured else None
    starts = log_starts_at(store, earlier.turn) if earlier and earlier.turn != newest.turn else {}
    elapsed = newest.settled_at - earlier.settled_at if earlier else timedelta()
    found = open_plan.partitions if open_plan is not None else {}
    return [
        PartitionReading(
            tp, settled, planned.partitions[tp].why if planned and tp in planned.partitions else None,
            starts.get(tp), elapsed, max(0, len(measured) - 1), newest.settled_at, now,
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
