"""Where the tables of each pipeline and lane are, the tables and the lease of one lane, and its effective turns.

A lane has three tables of its own: the live lane in ROOT/PIPELINE/{plans,outcomes,settlements}, another lane in
ROOT/PIPELINE/LANE/. So no step opens, lists, reads or locks what belongs to other pipelines and lanes: Delta loads the
metadata of every file when it opens a table, and a lock stops all writers of a table. The files of the lease, and of
the last run that has stopped, are beside the tables; they are advice, so no write of the ledger depends on them.

A turn is effective, so that its rows count, once a settlement names it, unless that settlement is void. The rule stands
here for all that reads the tables as Arrow, in `views.sql` for SQL, and on purpose once more in `ackline.verify`.
Settlements are stored in the order of their turns. So the effective turns of an epoch are all up to its last
settlement, without the void ones; few turns are void, and statistics rule out the files of all others.
"""

from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from ackline.delta.errors import IgnoredStorageErrors, cause_of, storage_errors, unusable
from ackline.delta.folder import Folder, check_user
from ackline.delta.object_store import arrow_filesystem, is_remote, options_of
from ackline.delta.reads import Where
from ackline.errors import AcklineError, ConfigError, FatalError, LedgerError, TurnVoided
from ackline.ledger.commit_rule import stamp_of
from ackline.ledger.turns import LIVE, TurnId, TurnKind
from ackline.pipeline.folder import lane_folder
from ackline.scrub import scrub_address
from ackline.tables.audit_table import AuditTable
from ackline.tables.lease import Holder, Lease, Position, StoppedRun
from ackline.tables.schemas import TABLES, TIME

T = TypeVar("T")


class LaneFolder(NamedTuple):
    """A lane of a pipeline, and the folder or URI of its tables."""

    pipeline: str
    lane: str
    folder: str


def lanes_of(root: str, pipeline: str) -> list[LaneFolder]:
    """Returns the lanes of a pipeline that have tables, the live one first. Raises FatalError if they can't be listed.
    Raises ConfigError if the tables below `root` have the first layout."""
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
    """Raises ConfigError if `root` holds the tables of the first layout, which all pipelines shared: else every
    pipeline would begin a new ledger beside its old one."""
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
        self.folder, self.live_folder = lane_folder(root, pipeline, lane), lane_folder(root, pipeline, LIVE)
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

    def newest_settled(self) -> tuple[int, int] | None:
        """Returns the newest epoch that has a settlement, and the number of its last one; None if none has."""
        epoch, found = 0, None
        while (last := self.last_settled(epoch)) is not None:
            epoch, found = epoch + 1, (epoch, last)
        return found

    def position(self) -> Position:
        """Returns how far the lane is. It grows with each turn that is planned, and again when the turn is settled, so
        two of them show whether the lane has moved without the clock of a host."""
        epoch, settled = self.newest_settled() or (0, -1)
        planned = self.plans.version_of(self._application(epoch, "plan"))
        return epoch, settled, -1 if planned is None else planned

    def last_settled(self, epoch: int) -> int | None:
        """Returns the number of the last settlement of an epoch, a void one too; None if it has none."""
        return self.settlements.version_of(self._application(epoch, "settlement"))

    def stamps(self, turn: TurnId) -> set[str]:
        """Returns the stamps of settlement n and of plan n, as far as they are stored: what commit metadata of turn n
        may name. Reads two columns, because a settlement may have millions of pending ranges. Turn 0 of a later epoch
        has no rows of its own: the reset that has opened the epoch is what its commits name."""
        if turn.n == 0 and turn.epoch:
            turn = turn._replace(epoch=turn.epoch - 1, n=self.last_settled(turn.epoch - 1) or 0)
        kinds = ((self.settlements, "settlement", "settled_at"), (self.plans, "plan", "planned_at"))
        found = set()
        for table, kind, at in kinds:
            application = self._application(turn.epoch, kind)
            rows = table.read_turn(self._where(turn), application, turn.n, ["topic", "run_id", at])
            # Without the marks on a turn, which are rows of `plans` without a topic.
            found |= {stamp_of(kind, row["run_id"], row[at]) for row in rows.to_pylist() if row["topic"] is not None}
        return found

    def _plan_rows(self, where: Where, turn: TurnId) -> pa.Table:
        # Markers of a turn are stored after its plan.
        return self.plans.read_turn(where, self._application(turn.epoch, "plan"), turn.n)

    def _made_of(self, make: Callable[[pa.Table], T], rows: pa.Table, table: AuditTable, turn: TurnId) -> T:
        """Returns what `make` makes of the rows of a turn. Raises LedgerError if the table has none, and FatalError if
        a text in them is damaged."""
        if not rows.num_rows:
            raise LedgerError(
                f"{turn} is in the log of the table {table.name} at {scrub_address(table.uri)}, but its rows are not "
                f"there. Restore the folder of the table from a backup"
            )
        with table.errors():
            return make(rows)

    def _where(self, turn: TurnId) -> Where:
        return {"epoch": turn.epoch, "turn": turn.n}  # pipeline and lane have tables of their own

    def _is_stored(self, table: AuditTable, turn: TurnId, kind: str) -> bool:
        """Returns whether number n of a kind of commit is taken, or a later one."""
        return (table.version_of(self._application(turn.epoch, kind)) or 0) >= turn.n

    def _application(self, epoch: int, kind: str) -> str:
        return f"ackline/{self.pipeline}/{self.lane}/{epoch}/{kind}"


_TURNS_AN_EPOCH = 1 << 40


class EffectiveTurns:
    """The effective turns of one lane, looked up once an epoch; with `settled_by`, those that were settled at that time
    or before. Each method raises FatalError if the settlements can't be read."""

    def __init__(self, tables: LaneTables, settled_by: datetime | None = None) -> None:
        self._tables = tables
        self._settled_by = settled_by
        self._epochs: dict[int, tuple[int, Set[int]]] = {}

    def has(self, epoch: int, turn: int) -> bool:
        """Returns whether a turn is effective."""
        if epoch not in self._epochs:
            # The last settlement first: a turn that becomes void between the two reads is above it.
            last = self._tables.last_settled(epoch)
            self._epochs[epoch] = (-1, set()) if last is None else (last, self._left_out(epoch))
        last, left_out = self._epochs[epoch]
        return turn <= last and turn not in left_out

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """Returns for each row of a table whether its turn is effective. The rows have the columns epoch and turn."""
        turns = rows.group_by(["epoch", "turn"]).aggregate([]).to_pylist()
        keys = [row["epoch"] * _TURNS_AN_EPOCH + row["turn"] for row in turns if self.has(row["epoch"], row["turn"])]
        turn_keys = pc.add(pc.multiply(rows["epoch"].cast(pa.int64()), _TURNS_AN_EPOCH), rows["turn"])
        return pc.is_in(turn_keys, pa.array(keys, pa.int64()))

    def _left_out(self, epoch: int) -> Set[int]:
        """Returns the turns of an epoch that are void, or were settled too late."""
        if self._settled_by is None:
            return {turn for _, turn in void_turns(self._tables.folder, epoch)}
        rows = self._tables.settlements.read({"epoch": epoch}, ["turn", "kind", "settled_at"])
        late = pc.greater(rows["settled_at"], pa.scalar(self._settled_by, TIME))
        left_out = rows.filter(pc.or_(pc.equal(rows["kind"], TurnKind.VOID.value), late))
        return set(left_out["turn"].unique().to_pylist())


def void_turns(folder: str, epoch: int | None = None) -> set[tuple[int, int]]:
    """Returns epoch and number of each void turn of a lane, whose tables are in `folder`; those of one epoch if it is
    given. One read, however many turns there are. Raises FatalError if the table can't be read."""
    where: Where = {"kind": TurnKind.VOID.value, **({} if epoch is None else {"epoch": epoch})}
    rows = AuditTable(folder, "settlements").read(where, ["epoch", "turn"])
    return set(zip(rows["epoch"].to_pylist(), rows["turn"].to_pylist(), strict=True))


LEASE_NAME, STOPPED_NAME = "lease.json", "stopped.json"
_PROGRESS = ("outcomes", "settlements")
"""The tables of which each turn that is handled and settled makes a new version. A start alone writes into `plans`."""
_MAX_BYTES = 16 * 1024


class LaneFile:
    """One small file beside the tables of a lane. Each method raises OSError, with a text without secrets, if the store
    can't be used."""

    name: str

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def read(self) -> bytes | None:
        """Returns the first 16 KiB of the file; None if it does not exist."""
        with self._errors():
            return Folder(self.folder).read(self.name, _MAX_BYTES)

    def written_at(self) -> datetime | None:
        """Returns when the file was last written, by the clock of the disk or object store; None if it does not
        exist."""
        with self._errors():
            return Folder(self.folder).written_at(self.name)

    def write(self, content: str | bytes) -> None:
        """Replaces the file. A reader finds the old content or the new one, never a part. A local file is not synced:
        after a power cut its process has ended, and a lease that is lost or stale costs at most a minute's wait."""
        with self._errors():
            if not is_remote(self.folder):
                check_user(Path(self.folder))
            Folder(self.folder).replace(self.name, content.encode() if isinstance(content, str) else content)

    def remove(self) -> None:
        """Removes the file; does nothing if it does not exist."""
        with self._errors():
            Folder(self.folder).delete(self.name)

    def _errors(self) -> AbstractContextManager[None]:
        return storage_errors(self.folder, lambda error: OSError(cause_of(error, self.folder)))

    def __str__(self) -> str:
        return str(PurePosixPath(self.folder) / self.name)


class LeaseFile(LaneFile):
    """The lease of the lane's open turn."""

    name = LEASE_NAME


class StoppedFile(LaneFile):
    """The note of the lane's last run that has stopped with an error."""

    name = STOPPED_NAME


@contextmanager
def noted_stop(
    tables: LaneTables, run_id: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Iterator[None]:
    """Notes an error with which the run in the block stops beside the tables of its lane, and raises it again. A
    transient one says so if it comes for the third time without progress. No error of the note itself ends a run. A
    lane without a folder has nothing that the note could be beside. A turn that an operator has closed stops no later
    run, so it is not noted; nor is an option that the command refuses."""
    try:
        yield
    except TurnVoided:
        raise
    except AcklineError as error:
        if isinstance(error, ConfigError) and (error.key or "").startswith(("--", "partitions", "table_gone")):
            raise
        if is_remote(tables.folder) or Path(tables.folder).is_dir():
            with IgnoredStorageErrors(), suppress(AcklineError):
                file, position = StoppedFile(tables.folder), tables.position()
                before = StoppedRun.decode_or_none(file.read())
                file.write(StoppedRun.of(error, tables.pipeline, run_id, clock(), position, before).encode())
        raise


def stopped_run(tables: LaneTables) -> StoppedRun | None:
    """Returns why the last run of a lane has stopped; None if a turn was planned or settled since, or if the note can't
    be read. Raises FatalError if the tables can't be read."""
    note = None
    with IgnoredStorageErrors():
        note = StoppedRun.decode_or_none(StoppedFile(tables.folder).read())
    return note if note is not None and note.position == tables.position() else None


def holder_of(file: LeaseFile, turn: TurnId, now: datetime) -> Holder | None:
    """Returns the process that holds the lease of a turn, for readers to show; None if no process does, or if the lease
    can't be read. `now` is the time of the clock: the lease is renewed by it, whatever `--now` is."""
    lease, renewed_at = None, None
    with IgnoredStorageErrors():
        lease, renewed_at = Lease.decode_or_none(file.read()), file.written_at()
    # A lease of another turn is left over from a process that has died.
    if lease is None or renewed_at is None or lease.turn != str(turn):
        return None
    return Holder.of(lease, renewed_at, now)
