"""A table of a `World`: it has the rules of the real table, and holds values in memory."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa
from deltalake import DeltaTable

from ackline.delta.handle import LogState
from ackline.errors import FatalError
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Marker, Plan, Settlement, TurnId
from ackline.tables.audit_table import LEDGER_ID, AuditTable
from tests.support.memory import AFTER, BEFORE, READ, Hook, TableCommit, World, next_fault

if TYPE_CHECKING:
    from deltalake.transaction import AddAction


class OutcomesFile(NamedTuple):
    """A file of `outcomes`: rows of one turn, by topic-partition."""

    turn: TurnId
    rows: Mapping[TopicPartition, Sequence[OutcomeRow]]

    @property
    def counted(self) -> bool:
        """Whether the real store counts its rows without reading them: all are first attempts of one topic-partition
        with one outcome that needs no retry."""
        if any(row.answer for rows in self.rows.values() for row in rows):
            return False
        kinds = {(tp, row.outcome, row.attempt) for tp, rows in self.rows.items() for row in rows}
        without_retry = (Outcome.ACKED, Outcome.SKIPPED, Outcome.DROPPED)
        return len(kinds) == 1 and all(outcome in without_retry and attempt == 1 for _, outcome, attempt in kinds)


class ReplacingFiles(list[OutcomesFile]):
    """Files that take the place of all other files of their turns."""

    @property
    def turns(self) -> set[TurnId]:
        return {file.turn for file in self}


class _State:
    """A table at one version, with what the store reads of LogState."""

    def __init__(self, world: World, table: "MemoryTable") -> None:
        self.configuration = {LEDGER_ID: world.tables.ids[table.name]}
        self._numbers = dict(world.tables.numbers[table.name])
        self._table = table

    @property
    def transactions(self) -> dict[str, int]:
        return self._numbers

    def version_of(self, application: str) -> int | None:
        number = self._numbers.get(application)
        if number is not None:
            self._table.note_settlement(application, number)
        return number


class MemoryTable(AuditTable):
    """A table of a world. It appends values, each under a transaction id and a number that is given once."""

    def __init__(self, world: World, name: str, run_id: str, hook: Hook) -> None:
        super().__init__("memory://", name)
        self.world, self.run_id, self.hook = world, run_id, hook

    def state(self) -> LogState | None:
        self.hook(self.name, READ)
        return None if self.name not in self.world.tables.ids else cast(LogState, _State(self.world, self))

    def open(self) -> DeltaTable | None:
        """Returns None: a table of a world has no files."""
        return None

    def create(self) -> None:
        if self.name not in self.world.tables.ids:
            self.world.tables.ids[self.name] = self.world.new_id("table")
            self.world.tables.numbers[self.name] = {}

    def replace_ledger_id(self, old: str, new: str) -> None:
        self.hook("ledger", BEFORE)
        if self.world.tables.ids[self.name] == old:
            self.world.tables.ids[self.name] = new
            self.world.tables.replaced_ids.append((len(self.world.history), old))
        self.hook("ledger", AFTER)

    def append(
        self,
        rows: "pa.Table | Sequence[AddAction]",
        application: str,
        number: int,
        note: str | None = None,
        more: Mapping[str, int] | None = None,
        remove: object = None,
    ) -> bool:
        """Appends rows of `outcomes`, or files that tasks have written; returns False if the number is taken."""
        if isinstance(rows, pa.Table):
            return self.put(_files(rows.to_pylist()), application, number, note, more)
        return self.put([self.world.tables.files[file.path] for file in rows], application, number, note, more)

    def note_of(self, application: str, number: int) -> str | None:
        self.hook("note", READ)
        return self.world.tables.notes.get((application, number))

    def put(
        self, value: Any, application: str, number: int, note: str | None = None, more: Mapping[str, int] | None = None
    ) -> bool:
        """Appends a value as `number` of `application` and sets the numbers `more`; returns False if it is taken.

        Raises FatalError for the fault "refused", which stores nothing, and for "unanswered", which stores the value.
        """
        kind = application.rsplit("/", 1)[-1]
        self.hook(kind, BEFORE)
        self.create()
        fault = next_fault(self.world.faults.tables)
        if fault == "refused":
            raise FatalError(f"the table {self.name} at {self.uri} can't be used: no space left on device")
        won = self.is_free(application, number)
        self.note_settlement(application, number)
        if won:
            numbers = self.world.tables.numbers[self.name]
            numbers.update({application: number} | dict(more or {}))
            self._keep(value, application, number)
            if note is not None:
                self.world.tables.notes[application, number] = note
            self.world.history.append(TableCommit(self.name, application, number, value, self.run_id))
        self.hook(kind, AFTER)
        if fault == "unanswered":
            raise FatalError(f"the table {self.name} at {self.uri} can't be used: connection reset by peer")
        return won

    def note_settlement(self, application: str, number: int) -> None:
        """Records that this process has seen a settlement: it has read it, stored it, or found its number taken."""
        *_, epoch, kind = application.split("/")
        if kind == "settlement":
            newest = self.world.newest_settlements.get(self.run_id, (-1, -1))
            self.world.newest_settlements[self.run_id] = max(newest, (int(epoch), number))

    def is_free(self, application: str, number: int) -> bool:
        """Returns whether the number is above the last one of the application, so that it can still be taken."""
        last = self.world.tables.numbers[self.name].get(application)
        return last is None or last < number

    def _keep(self, value: Any, application: str, number: int) -> None:
        tables = self.world.tables
        if isinstance(value, Plan):
            tables.plans[value.turn] = value
        elif isinstance(value, Settlement):
            tables.settlements[value.turn] = value
        elif isinstance(value, Marker):
            tables.markers[application, number] = value
        else:
            for turn in value.turns if isinstance(value, ReplacingFiles) else ():
                tables.outcomes[turn] = []
                tables.lost_files.discard(turn)
            for file in value:
                tables.outcomes.setdefault(file.turn, []).append(file)


def _files(rows: Iterable[Mapping[str, Any]]) -> list[OutcomesFile]:
    """Returns rows of `outcomes` as one file for each turn."""
    by_turn: dict[TurnId, dict[TopicPartition, list[OutcomeRow]]] = {}
    for row in rows:
        turn = TurnId(row["pipeline"], row["lane"], row["epoch"], row["turn"])
        tp = TopicPartition(row["topic"], row["partition"])
        names = ("handled_at", "error_class", "end_offset", "error_message", "due", "answer")
        values: list[Any] = [row.get(name) for name in names]
        value = OutcomeRow(row["offset"], row["attempt"], Outcome(row["outcome"]), *values)
        by_turn.setdefault(turn, {}).setdefault(tp, []).append(value)
    return [OutcomesFile(turn, by_tp) for turn, by_tp in by_turn.items()]
