"""The ledger store in memory: the real store's rules on tables that are values of a `World`."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from ackline.audit.rows import plan_date
from ackline.audit.store import LedgerStore, TurnOutcomes
from ackline.audit.table import AuditTable
from ackline.errors import FatalError, LedgerError
from ackline.ledger import OutcomeRow
from ackline.offsets import TopicPartition, join
from ackline.outcome import Outcome
from ackline.testing.memory import AFTER, BEFORE, READ, Hook, TableCommit, World, no_hook, take
from ackline.turns import Plan, Settlement, TurnId, TurnKind

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction


class OutcomesFile(NamedTuple):
    """A file of `outcomes`: rows of one turn, by topic-partition."""

    turn: TurnId
    rows: Mapping[TopicPartition, Sequence[OutcomeRow]]

    @property
    def counted(self) -> bool:
        """Whether the real store counts it by its statistics alone: one place, one outcome, all well at once."""
        found = {(tp, row.outcome, row.attempt) for tp, rows in self.rows.items() for row in rows}
        well = (Outcome.ACKED, Outcome.SKIPPED, Outcome.DROPPED)
        return len(found) == 1 and all(outcome in well and attempt == 1 for _, outcome, attempt in found)


class _Metadata(NamedTuple):
    id: str


class _Version:
    """What the store asks of an open Delta table."""

    def __init__(self, world: World, table: "MemoryTable") -> None:
        self._id = world.tables.ids[table.name]
        self._numbers = dict(world.tables.numbers[table.name])
        self._table = table

    def metadata(self) -> _Metadata:
        return _Metadata(self._id)

    def transaction_version(self, application: str) -> int | None:
        found = self._numbers.get(application)
        if found is not None:
            self._table.learned(application, found)
        return found


class MemoryTable(AuditTable):
    """A table of a world: fenced appends of values."""

    def __init__(self, world: World, name: str, by: str, hook: Hook) -> None:
        super().__init__("memory://", name)
        self.world, self.by, self.hook = world, by, hook

    def open(self) -> "DeltaTable | None":
        """The newest version, or None where the table is not there yet."""
        self.hook(self.name, READ)
        return None if self.name not in self.world.tables.ids else cast("DeltaTable", _Version(self.world, self))

    def create(self) -> "DeltaTable":
        """The table, made where it is missing."""
        if self.name not in self.world.tables.ids:
            self.world.tables.ids[self.name] = self.world.new_id("table")
            self.world.tables.numbers[self.name] = {}
        return cast("DeltaTable", _Version(self.world, self))

    def append(
        self, rows: "pa.Table | Sequence[AddAction]", application: str, number: int, note: str | None = None
    ) -> bool:
        """Append rows of `outcomes`, or files that tasks have written; False where the number is taken."""
        if isinstance(rows, pa.Table):
            return self.put(_files(rows.to_pylist()), application, number, note)
        return self.put([self.world.tables.files[file.path] for file in rows], application, number, note)

    def note_of(self, application: str, number: int) -> str | None:
        """The note that a number was committed with."""
        self.hook("note", READ)
        return self.world.tables.notes.get((application, number))

    def put(self, value: Any, application: str, number: int, note: str | None = None) -> bool:
        """Append a value as `number` of `application`; False where the number is taken. Raises FatalError where the
        world's tables refuse, or don't say that they have stored it."""
        kind = application.rsplit("/", 1)[-1]
        self.hook(kind, BEFORE)
        self.create()
        fault = take(self.world.faults.tables)
        if fault == "refused":
            raise FatalError(f"the table {self.name} at {self.uri} can't be used: no space left on device")
        won = self.fenced(application, number)
        self.learned(application, number)
        if won:
            numbers = self.world.tables.numbers[self.name]
            numbers[application] = max(number, numbers.get(application, number))
            self._keep(value)
            if note is not None:
                self.world.tables.notes[application, number] = note
            self.world.history.append(TableCommit(self.name, application, number, value, self.by))
        self.hook(kind, AFTER)
        if fault == "unanswered":
            raise FatalError(f"the table {self.name} at {self.uri} can't be used: connection reset by peer")
        return won

    def learned(self, application: str, number: int) -> None:
        """Note which settlement this process has seen, stored or been refused."""
        *_, epoch, kind = application.split("/")
        if kind == "settlement":
            known = self.world.known.get(self.by, (-1, -1))
            self.world.known[self.by] = max(known, (int(epoch), number))

    def fenced(self, application: str, number: int) -> bool:
        """Whether the number is free."""
        last = self.world.tables.numbers[self.name].get(application)
        return last is None or last < number

    def _keep(self, value: Any) -> None:
        tables = self.world.tables
        if isinstance(value, Plan):
            tables.plans[value.turn] = value
        elif isinstance(value, Settlement):
            tables.settlements[value.turn] = value
        else:
            for file in value:
                tables.outcomes.setdefault(file.turn, []).append(file)


def _files(rows: Iterable[Mapping[str, Any]]) -> list[OutcomesFile]:
    """Rows of `outcomes` as one file a turn."""
    found: dict[TurnId, dict[TopicPartition, list[OutcomeRow]]] = {}
    for row in rows:
        turn = TurnId(row["pipeline"], row["lane"], row["epoch"], row["turn"])
        names = ("handled_at", "error_class", "end_offset")
        one = OutcomeRow(row["offset"], row["attempt"], Outcome(row["outcome"]), *(row[name] for name in names))
        found.setdefault(turn, {}).setdefault(TopicPartition(row["topic"], row["partition"]), []).append(one)
    return [OutcomesFile(turn, places) for turn, places in found.items()]


class MemoryStore(LedgerStore):
    """The ledger store of one pipeline's lane in a world, as one process (`by`) sees it."""

    def __init__(self, world: World, pipeline: str, lane: str, by: str = "", hook: Hook = no_hook) -> None:
        super().__init__("memory://", pipeline, lane)
        self.world, self._hook = world, hook
        self.tables = {name: MemoryTable(world, name, by, hook) for name in ("plans", "outcomes", "settlements")}
        self.plans, self.outcomes, self.settlements = self.tables.values()

    def settlement(self, turn: TurnId) -> Settlement:
        """A stored settlement. Raises LedgerError where there is none; a genesis without rows has no partition."""
        found = self.world.tables.settlements.get(turn)
        if turn.n == 0 and not (found and found.partitions):
            self._hook("settlement", READ)
            return Settlement(turn, TurnKind.GENESIS, "", datetime.min.replace(tzinfo=UTC), {})
        return cast(Settlement, self._stored(self.world.tables.settlements, turn, "settlement"))

    def plan(self, turn: TurnId) -> Plan:
        """A stored plan. Raises LedgerError where there is none."""
        return cast(Plan, self._stored(self.world.tables.plans, turn, "plan"))

    def _stored(self, values: Mapping[TurnId, Any], turn: TurnId, what: str) -> Any:
        self._hook(what, READ)
        if turn not in values or not values[turn].partitions:
            raise LedgerError(f"{what} of {turn} is in the log of the table, but its rows are not there")
        return values[turn]

    def store_plan(self, plan: Plan) -> bool:
        """Store a plan; False where its number is taken."""
        rows = {tp: replace(one, retries=join(one.retries)) for tp, one in sorted(plan.partitions.items())}
        return self._put("plans", plan.turn, "plan", replace(plan, partitions=rows))

    def store_decisions(
        self, plan: Plan, run_id: str, decisions: Mapping[TopicPartition, Iterable[OutcomeRow]]
    ) -> bool:
        """Store settle's decisions, zero of them too; False where the number is taken."""
        rows = {tp: tuple(found) for tp, found in sorted(decisions.items())}
        return self._put("outcomes", plan.turn, "decisions", [OutcomesFile(plan.turn, rows)] if rows else [])

    def store_settlement(
        self, settlement: Settlement, plan: Plan | None = None, subscription: Mapping[str, Any] | None = None
    ) -> bool:
        """Store a settlement; False where its number is taken."""
        plan_date(plan.planned_at if plan else settlement.settled_at)
        one = replace(settlement, partitions=dict(sorted(settlement.partitions.items())))
        note = json.dumps(subscription) if subscription is not None else None
        return self._put("settlements", settlement.turn, "settlement", one, note)

    def _put(self, table: str, turn: TurnId, kind: str, value: Any, note: str | None = None) -> bool:
        return self.tables[table].put(value, self._application(turn.epoch, kind), turn.n, note)

    def outcomes_of(self, turn: TurnId) -> TurnOutcomes:
        """Outcomes and decisions of a turn."""
        self._hook("rows", READ)
        rows: dict[TopicPartition, list[OutcomeRow]] = {}
        counts: dict[TopicPartition, Counter[str]] = {}
        fresh: Counter[TopicPartition] = Counter()
        for file in self.world.tables.outcomes.get(turn, ()):
            for tp, found in file.rows.items():
                counts.setdefault(tp, Counter()).update(row.outcome.value for row in found)
                fresh[tp] += sum(row.attempt == 1 for row in found)
                if not file.counted:
                    rows.setdefault(tp, []).extend(found)
        return TurnOutcomes(rows, counts, fresh)
