"""How the tables of the ledger are kept quick: which of their files may be merged, and how long unused files stay.

Only Ackline may compact these tables: delta-rs lets two compactions replace the same files, and then the table holds
every row twice. Ackline's compactions carry a transaction id of their own, so of two at once one fails.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from ackline.delta.append import REWRITE
from ackline.delta.compaction import Compactor, File, Layout
from ackline.delta.reads import is_within
from ackline.tables.audit_table import AuditTable
from ackline.tables.layout import void_turns

RETENTION = timedelta(days=7)
"""How long a file stays at least after the newest version stopped naming it, because a reader may use an older version.
A file of outcomes has no commit that names it until its Spark job ends. Delta's own default."""
LAYOUTS = {
    "plans": Layout(4 << 20, 16),
    "outcomes": Layout(64 << 20, 131_072),
    "settlements": Layout(4 << 20, 16),
}
"""Plans and settlements have small row groups: a compacted file holds many, each with up to 100,000 pending ranges, and
a step reads one of them."""


class OpenTurn(NamedTuple):
    """A turn that is planned and not settled."""

    epoch: int
    n: int
    planned_at: datetime


def open_turns(folder: str) -> list[OpenTurn]:
    """Returns the turns of a lane, whose tables are in `folder`, that are planned and not settled. The logs alone hold
    the last turn planned and settled in each epoch, so only the rows of open turns are read."""
    plans, settlements = AuditTable(folder, "plans"), AuditTable(folder, "settlements")
    # Plans are read first: a turn that another process settles between the two reads then counts as settled.
    planned, settled = plans.transactions(), settlements.transactions()
    opened = []
    for application, n in planned.items():
        of, kind = application.rsplit("/", 1)
        if kind == "plan" and n > settled.get(f"{of}/settlement", -1):
            epoch = int(of.rsplit("/", 1)[1])
            rows = plans.read({"epoch": epoch, "turn": n}, ["planned_at"])
            opened.append(OpenTurn(epoch, n, min(rows["planned_at"].to_pylist())))
    return opened


class LedgerCompactor(Compactor[AuditTable]):
    """Keeps a table of the ledger quick."""

    def __init__(self, table: AuditTable, layout: Layout, retention: timedelta, folder: str) -> None:
        super().__init__(table, layout, retention)
        self._folder = folder

    def prepare(self) -> None:
        """Has the log stop naming lost files, on which the compaction would fail. The process that closed a turn as
        void may have died before it did this."""
        if self.table.name == "outcomes":
            self.table.drop_lost_files(void_turns(self._folder))

    def chooser(self) -> Callable[[File], bool]:
        """Returns which files may be merged: settle counts acked records of an open turn by the statistics of files
        that hold nothing else, so these files stay as they are."""
        turns = open_turns(self._folder) if self.table.name == "outcomes" else []

        def may_hold(file: File, turn: OpenTurn) -> bool:
            of_turn = {"epoch": turn.epoch, "turn": turn.n}
            return all(is_within(file.get(f"min.{name}"), n, file.get(f"max.{name}")) for name, n in of_turn.items())

        return lambda file: not any(may_hold(file, turn) for turn in turns)

    def commit(self, upon: DeltaTable, actions: Sequence[AddAction | RemoveAction]) -> None:
        """Commits under the id of compactions: without a lock, it refuses the later of two upon one version."""
        self.table.commit(upon, actions, [Transaction(REWRITE, upon.version() + 1)])

    def keep_unused_for(self, version: DeltaTable) -> timedelta:
        """Returns how long unused files stay. A file of outcomes is younger than the plan of its turn. While a turn is
        open, the time therefore reaches back beyond its plan, so that the files of its tasks stay however long the
        tasks take."""
        now = datetime.now(UTC)
        return max([self.retention, *(now - turn.planned_at + timedelta(days=1) for turn in open_turns(self._folder))])
