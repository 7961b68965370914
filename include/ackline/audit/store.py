"""The ledger store: what was planned, proved and settled, by turn.

Plan n, outcomes n, decisions n and settlement n of a lane and epoch are one fenced commit each. Every method that
stores returns whether it won the number; who lost goes on with what the winner stored, and reads it here.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from ackline.audit.rows import decision_rows, plan_date, plan_of, plan_rows, settlement_of, settlement_rows
from ackline.audit.table import AuditTable, matching
from ackline.errors import LedgerError
from ackline.ledger import OutcomeRow, PartitionState
from ackline.metrics import Report
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.scrub import scrub_address
from ackline.turns import Plan, Settlement, TurnId, TurnKind

TRIES_COUNTED = 3
"""Starts of a plan that are told apart."""


@dataclass(frozen=True, slots=True)
class TurnOutcomes:
    """The outcomes of one turn: every row that did not succeed at once, and counts of all rows.

    `attempted_fresh` is how many offsets of the fresh range held a record; the rest of the range are gaps. Where it is
    not `complete`, outcomes were not kept as rows, and how many there were is not known any more.
    """

    rows: Mapping[TopicPartition, Sequence[OutcomeRow]]
    counts: Mapping[TopicPartition, Mapping[str, int]]
    attempted_fresh: Mapping[TopicPartition, int]
    complete: bool = True


class LedgerStore:
    """The tables of one pipeline's lane below an audit root."""

    def __init__(self, root: str, pipeline: str, lane: str) -> None:
        self.root = root
        self.pipeline = pipeline
        self.lane = lane
        self.plans = AuditTable(root, "plans")
        self.outcomes = AuditTable(root, "outcomes")
        self.settlements = AuditTable(root, "settlements")

    def ledger_id(self) -> str:
        """The id of the ledger, by which commits of another one are told apart: the settlements table's own; "" where
        there is no ledger yet."""
        table = self.settlements.open()
        return "" if table is None else str(table.metadata().id)

    def newest(self) -> Settlement | None:
        """The settlement with the highest number of the newest epoch, or None where the lane has no ledger yet."""
        epoch, n = -1, None
        while (later := self.settlements.version_of(self._application(epoch + 1, "settlement"))) is not None:
            epoch, n = epoch + 1, later
        if n is None:
            return None
        newest = self.settlement(TurnId(self.pipeline, self.lane, epoch, n))
        return self._begun(newest) if newest.kind is TurnKind.RESET else newest

    def _begun(self, reset: Settlement) -> Settlement:
        """Where the epoch starts that a reset has opened: its turn 0 is that reset, not a row of its own."""
        targets = self.plan(reset.turn).partitions
        partitions = {
            tp: replace(one, old_floor=to, state=PartitionState(to), counts={}, gaps=0, metrics=None, totals=None)
            for tp, one in reset.partitions.items()
            for to in [targets[tp].fresh.start if tp in targets else one.state.floor]
        }
        turn = reset.turn._replace(epoch=reset.turn.epoch + 1, n=0)
        return replace(reset, turn=turn, kind=TurnKind.GENESIS, partitions=partitions)

    def settlement(self, turn: TurnId) -> Settlement:
        """A stored settlement. Raises LedgerError where there is none."""
        rows = self.settlements.read(self._where(turn))
        if not rows.num_rows and turn.n == 0:  # a first run that found no topic: the lane has begun, with no partition
            return Settlement(turn, TurnKind.GENESIS, "", datetime.min.replace(tzinfo=UTC), {})
        return settlement_of(self._some(rows, self.settlements, turn, "settlement"))

    def open_plan(self, newest: Settlement) -> Plan | None:
        """The plan that is stored and not settled; a lane has at most one. None also where `newest` is not the newest.

        Raises LedgerError where a settlement between the two is missing.
        """
        turn = newest.turn
        n = self.plans.version_of(self._application(turn.epoch, "plan"))
        if n is None or n <= turn.n:
            return None
        if n != turn.n + 1:
            now = self.newest()
            if now is not None and (now.turn.epoch, now.turn.n) > (turn.epoch, turn.n):
                return None  # others went on since `newest` was read; its number is taken, so nothing can be stored
            raise LedgerError(
                f"plan {n} is stored, but only turn {turn.n} is settled: a commit of the tables is missing"
            )
        return self.plan(turn._replace(n=n))

    def plan(self, turn: TurnId) -> Plan:
        """A stored plan. Raises LedgerError where there is none."""
        return plan_of(self._some(self.plans.read(self._where(turn)), self.plans, turn, "plan"))

    def store_plan(self, plan: Plan) -> bool:
        """Store a plan; False where its number is taken."""
        return self.plans.append(plan_rows(plan), self._application(plan.turn.epoch, "plan"), plan.turn.n)

    def has_outcomes(self, turn: TurnId) -> bool:
        """Whether outcomes n are stored: the only proof that replay happened."""
        return (self.outcomes.version_of(self._application(turn.epoch, "outcomes")) or 0) >= turn.n

    def store_outcomes(self, turn: TurnId, files: Sequence[AddAction], report: Report | None = None) -> bool:
        """Make files of outcomes visible, all or none, zero of them too; False where the number is taken.

        The tasks' report goes with the same commit, so that it is there for whoever settles, or not at all.
        """
        note = report.encode() if report else None
        return self.outcomes.append(files, self._application(turn.epoch, "outcomes"), turn.n, note)

    def report_of(self, turn: TurnId) -> Report | None:
        """What the tasks of a turn said of it; None where that is not known (any more)."""
        note = self.outcomes.note_of(self._application(turn.epoch, "outcomes"), turn.n)
        return Report.decode(note) if note else None

    def has_decisions(self, turn: TurnId) -> bool:
        """Whether decisions n are stored."""
        return (self.outcomes.version_of(self._application(turn.epoch, "decisions")) or 0) >= turn.n

    def store_decisions(
        self, plan: Plan, run_id: str, decisions: Mapping[TopicPartition, Iterable[OutcomeRow]]
    ) -> bool:
        """Store settle's decisions, zero of them too; False where the number is taken."""
        rows = decision_rows(plan.turn, plan_date(plan.planned_at), run_id, decisions)
        return self.outcomes.append(rows, self._application(plan.turn.epoch, "decisions"), plan.turn.n)

    def has_claim(self, turn: TurnId) -> bool:
        """Whether claim n is stored: at most once, the floor is the end of plan n then."""
        return (self.plans.version_of(self._application(turn.epoch, "claim")) or 0) >= turn.n

    def store_claim(self, plan: Plan) -> bool:
        """Claim a plan; it holds no row, for the plan says all. False where it is claimed already."""
        return self.plans.append([], self._application(plan.turn.epoch, "claim"), plan.turn.n)

    def store_start(self, plan: Plan, at: datetime) -> bool:
        """Mark a claimed plan as started, and when; False where somebody has started it."""
        return self.plans.append([], self._application(plan.turn.epoch, "start"), plan.turn.n, at.isoformat())

    def has_start(self, turn: TurnId) -> bool:
        """Whether somebody has started a claimed plan."""
        return (self.plans.version_of(self._application(turn.epoch, "start")) or 0) >= turn.n

    def started_at(self, turn: TurnId) -> datetime | None:
        """When a claimed plan was started; None where that is not known (any more)."""
        note = self.plans.note_of(self._application(turn.epoch, "start"), turn.n)
        return None if note is None else datetime.fromisoformat(note)

    def store_try(self, plan: Plan) -> int:
        """Count a start of a plan; how many there have been, this one included, TRIES_COUNTED + 1 for any number above.

        Each is a commit without rows of a number of its own, so that starts at the same time are counted apart.
        """
        for number in range(1, TRIES_COUNTED + 1):
            if self.plans.append([], self._application(plan.turn.epoch, f"try-{number}"), plan.turn.n):
                return number
        return TRIES_COUNTED + 1

    def store_lost(self, plan: Plan, run_id: str, rows: Mapping[TopicPartition, Iterable[OutcomeRow]]) -> bool:
        """Store what is lost of a claimed plan as its outcomes; False where outcomes n are stored."""
        table = decision_rows(plan.turn, plan_date(plan.planned_at), run_id, rows)
        note = Report().encode()  # that these rows are all there is to know
        return self.outcomes.append(table, self._application(plan.turn.epoch, "outcomes"), plan.turn.n, note)

    def store_settlement(
        self, settlement: Settlement, plan: Plan | None = None, subscription: Mapping[str, Any] | None = None
    ) -> bool:
        """Store a settlement; False where its number is taken.

        A first genesis has no plan, and maybe no partition and so no row: with it goes the `subscription` (the `kafka`
        of a plan's settings) that it was made for.
        """
        day = plan_date(plan.planned_at if plan else settlement.settled_at)
        application = self._application(settlement.turn.epoch, "settlement")
        note = json.dumps(subscription) if subscription is not None else None
        return self.settlements.append(settlement_rows(settlement, day), application, settlement.turn.n, note)

    def first_subscription(self, genesis: TurnId) -> dict[str, Any] | None:
        """The subscription of the first genesis; None where that is not known (any more)."""
        note = self.settlements.note_of(self._application(genesis.epoch, "settlement"), genesis.n)
        return dict(json.loads(note)) if note else None

    def reset_into(self, epoch: int) -> TurnId:
        """The reset that has opened an epoch: the last turn of the one before."""
        n = self.settlements.version_of(self._application(epoch - 1, "settlement"))
        return TurnId(self.pipeline, self.lane, epoch - 1, n or 0)

    def outcomes_of(self, turn: TurnId) -> TurnOutcomes:
        """Outcomes and decisions of a turn.

        Files in which every record succeeded at its first attempt are counted by their statistics and not opened, so
        the cost is that of what did not succeed.
        """
        table = self.outcomes.open()
        if table is None:
            return TurnOutcomes({}, {}, {})
        counts: dict[TopicPartition, Counter[str]] = {}
        fresh: Counter[TopicPartition] = Counter()
        found: dict[TopicPartition, list[OutcomeRow]] = {}
        try:
            counted = _counted(pa.table(table.get_add_actions(flatten=True)), turn)
            for row in counted.values():
                tp = TopicPartition(row["min.topic"], row["min.partition"])
                counts.setdefault(tp, Counter())[row["min.outcome"]] += row["num_records"]
                fresh[tp] += row["num_records"]
            # From the same version as the counts: a compaction in between would have rows counted twice.
            for tp, one in self._opened(table, turn, counted):
                found.setdefault(tp, []).append(one)
                counts.setdefault(tp, Counter())[one.outcome.value] += 1
                fresh[tp] += one.attempt == 1
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self.outcomes.unreadable(error) from error
        return TurnOutcomes(found, counts, fresh)

    def _opened(
        self, table: DeltaTable, turn: TurnId, counted: Mapping[str, Any]
    ) -> Iterable[tuple[TopicPartition, OutcomeRow]]:
        where = self._where(turn)
        dataset = self.outcomes.dataset(table, where)
        fragments = [f for f in dataset.get_fragments() if f.path.rsplit("/", 1)[-1] not in counted]
        columns = [
            "topic",
            "partition",
            "offset",
            "end_offset",
            "attempt",
            "outcome",
            "error_class",
            "handled_at",
        ]
        rest = ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)
        mine = (ds.field("lane") == turn.lane) & (ds.field("epoch") == turn.epoch) & (ds.field("turn") == turn.n)
        for batch in rest.to_batches(columns=columns, filter=mine & (ds.field("pipeline") == turn.pipeline)):
            for topic, partition, offset, end, attempt, outcome, error_class, handled_at in zip(
                *(batch.column(name).to_pylist() for name in columns), strict=True
            ):
                tp = TopicPartition(topic, partition)
                time = handled_at.astimezone(UTC)
                yield tp, OutcomeRow(offset, attempt, Outcome(outcome), time, error_class, end)

    def _some(self, rows: pa.Table, table: AuditTable, turn: TurnId, what: str) -> pa.Table:
        if not rows.num_rows:
            raise LedgerError(
                f"{what} of {turn} is in the log of the table {scrub_address(table.uri)}, but its rows are not there"
            )
        return rows

    def _where(self, turn: TurnId) -> str:
        return matching(pipeline=turn.pipeline, lane=turn.lane, epoch=turn.epoch, turn=turn.n)

    def _application(self, epoch: int, kind: str) -> str:
        return f"ackline/{self.pipeline}/{self.lane}/{epoch}/{kind}"


def _counted(files: pa.Table, turn: TurnId) -> dict[str, dict[str, Any]]:
    """Statistics of the files of a turn that need not be opened, by file name."""
    if not files.num_rows or "min.turn" not in files.column_names:
        return {}
    same = pc.equal(files["partition.pipeline"], turn.pipeline)
    for name, value in (("lane", turn.lane), ("epoch", turn.epoch), ("turn", turn.n), ("attempt", 1)):
        for bound in ("min", "max"):
            same = pc.and_kleene(same, pc.equal(files[f"{bound}.{name}"], value))
    for name in ("topic", "partition", "outcome"):
        same = pc.and_kleene(same, pc.equal(files[f"min.{name}"], files[f"max.{name}"]))
    same = pc.and_kleene(
        same, pc.is_in(files["min.outcome"], pa.array([Outcome.ACKED, Outcome.SKIPPED, Outcome.DROPPED]))
    )
    wanted = ["path", "num_records", "min.topic", "min.partition", "min.outcome"]
    rows = files.filter(pc.fill_null(same, False)).select(wanted).to_pylist()
    return {row["path"].rsplit("/", 1)[-1]: row for row in rows}
