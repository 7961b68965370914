"""Keeps the tables below an audit root quick, and removes torn files from their logs.

`maintain` compacts, vacuums and checkpoints the tables of the ledger and the output tables. Files are rewritten and
removed beside the runs of a lane; appends wait only while a compaction commits, and while the log is checkpointed.

Only Ackline may compact the tables of the ledger: delta-rs lets two compactions replace the same files, and then the
table holds every row twice. Ackline's compactions carry a transaction id of their own, so of two at once one fails. The
log also stops naming files of void turns that do not exist any more.

Users read the output tables, at older versions too, and may compact and clean them with tools that take no lock of
ours. So a compaction of these commits only as the version right after the one that it has read. If another commit comes
first, the compaction fails, and is tried again if its files are still in the newest version.

`repair` removes torn files from the logs of local tables. A power cut can tear the newest log entry, and only before
any process acted on it: every process syncs an entry before it acts on it (`DeltaLog.secure`). Without that entry the
table is as it was before the commit, and the next run makes the commit again. A checkpoint is torn only by damage to
the disk. It is derived from the log, so it may go where the checkpoint before it and the entries since are there.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.ledger.turns import LIVE
from ackline.pipeline.outputs import ROW_COLUMNS, output_folder
from ackline.tables.append import REWRITE
from ackline.tables.compaction import Compactor, File, Layout, Maintained
from ackline.tables.folder import sync_folder
from ackline.tables.layout import LaneFolder, all_lanes, check_layout, folders_in, lanes_of, void_turns
from ackline.tables.log import POINTER, is_whole
from ackline.tables.output_table import OutputTable, obstacle_of
from ackline.tables.reads import is_within
from ackline.tables.schemas import TABLES
from ackline.tables.table import AuditTable

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
OUTPUT_LAYOUT = Layout(64 << 20, 131_072)
_NAMED_FAILURES = 5
_READERS = 1
"""The version of Delta's protocol for readers whose files hold all rows and columns as they are. A later one may have
columns under other names, or rows that a deletion vector hides."""


def maintain(root: str, retention: timedelta = RETENTION) -> list[Maintained]:
    """Compact, vacuum and checkpoint each table below an audit root, the output tables there too.

    A table that can't be read or written, or a pipeline whose folder can't be listed, holds up no other one. Raises
    FatalError for such tables at the end, and TransientError if later tries may succeed for all of them. Raises
    ConfigError for a retention below RETENTION and for tables of the first layout, and has done nothing then.
    """
    if retention < RETENTION:
        raise ConfigError(
            f"a retention of {retention} is too short: it would remove outcomes that no commit names yet or that a run "
            f"still reads; keep files for {RETENTION.days} days at least",
            key="retention",
        )
    check_layout(root)
    done: list[Maintained] = []
    failed: list[AcklineError] = []
    for pipeline in sorted(folders_in(root)):
        try:
            tables = [table for lane in lanes_of(root, pipeline) for table in _tables_of(lane, retention)]
        except AcklineError as error:
            failed.append(error)
            continue
        for maintain_table in tables:
            try:
                if (maintained := maintain_table()) is not None:
                    done.append(maintained)
            except AcklineError as error:
                failed.append(error)
    if failed:
        texts = list(dict.fromkeys(map(str, failed)))  # what stops one table of a lane may stop the others
        named = "; ".join(texts[:_NAMED_FAILURES])
        more = f"; and {len(texts) - _NAMED_FAILURES} more" if len(texts) > _NAMED_FAILURES else ""
        kind = TransientError if all(isinstance(error, TransientError) for error in failed) else FatalError
        raise kind(f"{len(done)} tables were maintained, {len(failed)} were not: {named}{more}")
    return done


def _tables_of(lane: LaneFolder, retention: timedelta) -> Iterator[Callable[[], Maintained | None]]:
    """Yields for each table of a lane the function that maintains it; the function returns None for a table that does
    not exist, or that Ackline does not rewrite."""
    for name in TABLES:
        compactor = LedgerCompactor(AuditTable(lane.folder, name), LAYOUTS[name], retention, lane.folder)
        yield partial(compactor.maintain, lane.pipeline, lane.lane, name)
    for output in output_tables(lane):
        of_output = OutputCompactor(output, OUTPUT_LAYOUT, retention)
        yield partial(of_output.maintain, lane.pipeline, lane.lane, f"outputs/{output.name}")


def output_tables(lane: LaneFolder) -> list[OutputTable]:
    """Returns the output tables below the folder of a live lane; none for another lane, which writes to the same ones.

    A table that the pipeline file names by a URI is not among them: it belongs to the user.
    """
    if lane.lane != LIVE:
        return []
    names = sorted(folders_in(output_folder(lane.folder, "").rstrip("/")))
    return [OutputTable(output_folder(lane.folder, name)) for name in names]


class OpenTurn(NamedTuple):
    """A turn that is planned and not settled."""

    epoch: int
    n: int
    planned_at: datetime


def open_turns(folder: str) -> list[OpenTurn]:
    """Returns the turns of a lane, whose tables are in `folder`, that are planned and not settled.

    The logs alone hold the last turn planned and settled in each epoch, so only the rows of open turns are read.
    """
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


class OutputCompactor(Compactor[OutputTable]):
    """Keeps an output table quick, which is its user's."""

    def may_rewrite(self, version: DeltaTable) -> bool:
        """Returns whether this is an output table whose files Ackline can rewrite. If its user has given it a feature
        that Ackline does not rewrite, its user maintains it."""
        names = {field.name for field in version.schema().fields}
        is_old = version.protocol().min_reader_version <= _READERS
        return is_old and set(ROW_COLUMNS) <= names and obstacle_of(version) is None

    def commit(self, upon: DeltaTable, actions: Sequence[AddAction | RemoveAction]) -> None:
        """Commits as the version after `upon`, because users' tools take no lock."""
        self.table.replace(upon, actions)

    def keep_unused_for(self, version: DeltaTable) -> timedelta:
        """Returns how long unused files stay: a property of the table may ask for longer than the retention."""
        return self.table.file_retention(version, self.retention)


@dataclass(frozen=True, slots=True)
class TornFile:
    """A file of a table's log that is not whole."""

    pipeline: str
    lane: str
    table: str
    file: str
    what: str
    removable: bool
    """Whether the table is whole without it. If not, only a backup helps."""


def torn_files(root: str) -> list[TornFile]:
    """Returns the torn files below an audit root, and changes nothing. An object store has none.

    Raises FatalError if the root can't be read.
    """
    return [torn for lane in all_lanes(root) for table in _local_tables(lane) for torn in _torn_files(lane, table)]


def repair(root: str) -> list[TornFile]:
    """Removes the torn files below an audit root that may go. Returns all torn files.

    Each table is looked through again under its lock, because a run may have gone on since `torn_files`.
    """
    all_torn = []
    for lane in all_lanes(root):
        for table in _local_tables(lane):
            with table.errors(), table.lock():
                torn = _torn_files(lane, table)
                for file in torn:
                    if file.removable:
                        Path(file.file).unlink()
                        sync_folder(Path(file.file).parent)  # or the torn file is back after the next power cut
            all_torn += torn
    return all_torn


def _local_tables(lane: LaneFolder) -> list[AuditTable]:
    tables = [*(AuditTable(lane.folder, name) for name in TABLES), *output_tables(lane)]
    return [table for table in tables if table.has_lock and table.log.files() != ([], [])]


def _torn_files(lane: LaneFolder, table: AuditTable) -> list[TornFile]:
    log, folder = table.log, table.storage.local
    assert folder is not None

    def torn(path: str, what: str, removable: bool) -> TornFile:
        return TornFile(lane.pipeline, lane.lane, table.name, str(folder / path), what, removable)

    files = log.files()
    broken = [checkpoint for checkpoint in files.checkpoints if not log.is_readable(checkpoint)]
    whole = [checkpoint.version for checkpoint in files.checkpoints if checkpoint not in broken]
    start = max(whole, default=-1)
    later = [entry for entry in files.entries if entry.version > start]
    # Covered by each entry since the newest checkpoint that is whole, or since the table began.
    covered = bool(whole or later) and [entry.version for entry in later] == list(
        range(start + 1, start + 1 + len(later))
    )
    unreadable = [torn(checkpoint.path, "checkpoint", covered) for checkpoint in broken]
    if _is_dangling(folder, whole):
        unreadable.append(torn(POINTER, "pointer to a checkpoint", True))
    cut = [entry for entry in later if not is_whole(folder / entry.path)]
    return unreadable + [torn(entry.path, "log entry", entry is files.entries[-1]) for entry in cut]


def _is_dangling(folder: Path, whole: list[int]) -> bool:
    """Returns whether the pointer, which only other tools write, names a checkpoint that can't be read."""
    try:
        version = json.loads((folder / POINTER).read_bytes())["version"]
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        return False  # delta-rs passes over it
    return version not in whole
