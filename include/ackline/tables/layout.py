"""Where the tables of each pipeline and lane are, and the three tables of one lane.

A lane has three tables of its own: the live lane in ROOT/PIPELINE/{plans,outcomes,settlements}, another lane in
ROOT/PIPELINE/LANE/. So no step opens, lists, reads or locks what belongs to other pipelines and lanes: Delta loads the
metadata of every file when it opens a table, and a lock stops all writers of a table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from ackline.errors import ConfigError, FatalError, LedgerError
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.folder import lane_folder
from ackline.scrub import scrub_address
from ackline.tables.errors import storage_errors, unusable
from ackline.tables.object_store import arrow_filesystem, is_remote, options_of
from ackline.tables.reads import Where
from ackline.tables.schemas import TABLES
from ackline.tables.table import AuditTable


class LaneFolder(NamedTuple):
    """A lane of a pipeline, and the folder or URI of its tables."""

    pipeline: str
    lane: str
    folder: str


def lanes_of(root: str, pipeline: str) -> list[LaneFolder]:
    """Returns the lanes of a pipeline that have tables, the live one first. Raises FatalError if they can't be listed.

    Raises ConfigError if the tables below `root` have the first layout.
    """
    check_layout(root)
    folder = lane_folder(root, pipeline, LIVE)
    names = folders_in(folder)
    lanes = [LaneFolder(pipeline, LIVE, folder)] if names & set(TABLES) else []
    others = (LaneFolder(pipeline, name, lane_folder(root, pipeline, name)) for name in sorted(names - set(TABLES)))
    return lanes + [lane for lane in others if folders_in(lane.folder) & set(TABLES)]


def all_lanes(root: str) -> Iterator[LaneFolder]:
    """Yields the lanes of all pipelines, sorted by pipeline. Raises as `lanes_of` does."""
    for pipeline in sorted(folders_in(root)):
        yield from lanes_of(root, pipeline)


def check_layout(root: str) -> None:
    """Raises ConfigError if `root` holds the tables of the first layout, which all pipelines shared.

    Without this check every pipeline would begin a new ledger beside its old one.
    """
    if not is_remote(root) and Path(root).exists() and not Path(root).is_dir():
        raise FatalError(f"the tables can't be used: {root} is not a folder; set ACKLINE_AUDIT to one")
    for name in TABLES:
        if "_delta_log" in folders_in(f"{root.rstrip('/')}/{name}"):
            raise ConfigError(
                f"{scrub_address(root)} holds tables of Ackline's first layout, which all pipelines shared. This "
                f"version keeps the tables of each pipeline in a folder of its own. Point ACKLINE_AUDIT at an empty "
                f"folder, and take each consumer group over from its committed offsets",
                key="ACKLINE_AUDIT",
            )


def folders_in(folder: str) -> set[str]:
    """Returns the names of the folders in `folder`, without hidden ones; none if it does not exist."""
    what = f"the folder at {scrub_address(folder)}"
    with storage_errors(folder, lambda error: unusable(what, error, folder)):
        if not is_remote(folder):
            path = Path(folder)
            names = {child.name for child in path.iterdir() if child.is_dir()} if path.is_dir() else set()
        else:
            store, base = arrow_filesystem(folder)
            infos = store.get_file_info(pafs.FileSelector(base, allow_not_found=True))
            names = {info.base_name for info in infos if info.type is pafs.FileType.Directory}
    return {name for name in names if not name.startswith(".")}


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

    def last_settled(self, epoch: int) -> int | None:
        """Returns the number of the last settlement of an epoch, a void one too; None if it has none."""
        return self.settlements.version_of(self._application(epoch, "settlement"))

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
