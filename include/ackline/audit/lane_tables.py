"""The three tables of one lane, and how their commits and rows name a turn."""

import pyarrow as pa

from ackline.audit.object_store import options_of
from ackline.audit.pruned_read import Where
from ackline.audit.table import AuditTable
from ackline.errors import LedgerError
from ackline.paths import lane_folder
from ackline.scrub import scrub_address
from ackline.turns import TurnId


class LaneTables:
    """The tables of one lane of a pipeline, below an audit root."""

    def __init__(self, root: str, pipeline: str, lane: str) -> None:
        self.root = root
        self.pipeline = pipeline
        self.lane = lane
        self.folder = lane_folder(root, pipeline, lane)
        self.plans = AuditTable(self.folder, "plans")
        self.outcomes = AuditTable(self.folder, "outcomes")
        self.settlements = AuditTable(self.folder, "settlements")

    def ledger_id(self) -> str:
        """Returns the id of the ledger, by which commit metadata names it; "" as long as there is no ledger."""
        return self.settlements.ledger_id()

    def replace_ledger_id(self, old: str, new: str) -> None:
        """Gives the ledger the id `new` if its id is `old`; does nothing otherwise."""
        self.settlements.replace_ledger_id(old, new)

    def storage_options(self) -> dict[str, str]:
        """Returns the options by which a Spark task reaches the tables in an object store, the login among them; none
        on a file system."""
        return options_of(self.root)

    def _plan_rows(self, where: Where, turn: TurnId) -> pa.Table:
        # Markers of a turn are stored after its plan.
        return self.plans.read_turn(where, self._application(turn.epoch, "plan"), turn.n)

    def _check_has_rows(self, rows: pa.Table, table: AuditTable, turn: TurnId, what: str) -> pa.Table:
        if not rows.num_rows:
            raise LedgerError(
                f"{what} of {turn} is in the log of the table {scrub_address(table.uri)}, but its rows are not there. "
                f"Restore the folder of the table from a backup"
            )
        return rows

    def _where(self, turn: TurnId) -> Where:
        return {"epoch": turn.epoch, "turn": turn.n}  # pipeline and lane have tables of their own

    def _application(self, epoch: int, kind: str) -> str:
        return f"ackline/{self.pipeline}/{self.lane}/{epoch}/{kind}"
