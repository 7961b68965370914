"""What is staged: the files and the manifest of each execution, and the files of rows that wait for records in flight.

Rows are staged below the folder of the pipeline's live tables, those of each turn in a folder of its own. Ackline
removes them once the turn is published, and those of records in flight once a turn has ended these.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from ackline.delta.errors import folder_errors
from ackline.delta.files import row_groups
from ackline.delta.folder import Folder
from ackline.errors import LedgerError
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import kept_rows_advice, void_advice
from ackline.ledger.offsets import OffsetRange, arrays_of
from ackline.ledger.pending import PendingKind
from ackline.ledger.published import StagedFile, StagedTable, kept_after
from ackline.ledger.turns import IDENTITY_BITS, Plan, Settlement, TurnId
from ackline.outputs.output_table import ANCHORS, location_of, place_of, table_of
from ackline.pipeline.output_columns import STAGED_ANCHORS
from ackline.pipeline.outputs import Output, Rows
from ackline.stored import DamagedError, decode_or_none, encode

if TYPE_CHECKING:
    from ackline.spark.job import ReplayResult
    from ackline.worker.settings import ReplayJob


def staging_root(adapters: Adapters) -> str:
    """Returns the folder below which all lanes of the pipeline stage rows: a path or URI."""
    return f"{adapters.store.live_folder}/.staging"


def folder_name(turn: TurnId) -> str:
    """Returns the name of a turn's folder below the staging root."""
    return f"{quote(turn.lane, safe='')}-{turn.epoch}-{turn.n}"


def staging_folder(adapters: Adapters, turn: TurnId) -> str:
    """Returns the folder in which the tasks of a turn stage rows: a path or URI."""
    return f"{staging_root(adapters)}/{folder_name(turn)}"


# ---- what an execution stages -------------------------------------------------------------------------------------


def outputs_of(adapters: Adapters) -> tuple[Output, ...]:
    """Returns the outputs of a pipeline, in the order of its file."""
    topology = adapters.pipeline.topology
    return topology.all_outputs if topology is not None else ()


def rows_kept(adapters: Adapters, place: str) -> Rows:
    """Returns which rows of a record an output table keeps: as the pipeline file says, or else the table."""
    location = location_of(adapters.store, place)
    of_table = (out for out in outputs_of(adapters) if out.table and location_of(adapters.store, out.table) == location)
    declared = next((output.rows for output in of_table), None)
    return declared or table_of(adapters.store, place).kept()


def manifest_name(execution: int) -> str:
    """Returns the name of the manifest of an execution in the staging folder of its turn."""
    return f"execution-{execution:08x}.json"


def store_manifest(adapters: Adapters, plan: Plan, job: "ReplayJob", result: "ReplayResult") -> int | None:
    """Stores the manifest of what this execution has staged. Returns the number of the execution, which outcomes n have
    to name; None if there are no rows for tables. The manifest is on the disk when this returns, as the staged files
    are. Only then may outcomes n name it. Raises FatalError or TransientError if the staging folder can't be used."""
    from ackline.trees.output_rows import columns_of_staged

    targets = job.settings.outputs
    if targets is None or not result.staged:
        return None
    folder, tables = Folder(targets.folder), list[StagedTable]()
    with folder_errors(folder.uri):
        for output in outputs_of(adapters):
            files = [file for file in result.staged if file.output == output.number]
            if output.table is not None and files:
                columns = targets.columns.get(output.number)
                if columns is None:
                    initial, paths = targets.inferred.get(output.number, {}), [file.path for file in files]
                    columns = columns_of_staged(folder.uri, output.table, initial, paths)
                # By its place: what the file calls the table may change while rows wait.
                place = place_of(adapters.store, output.table)
                tables.append(StagedTable(place, columns, output.partition_by, files))
        execution = secrets.randbits(IDENTITY_BITS)
        while folder.read(manifest_name(execution)) is not None:  # of another execution of the turn
            execution = secrets.randbits(IDENTITY_BITS)
        folder.write_durably(manifest_name(execution), encode(tables).encode())
    return execution if tables else None


def staged_tables(adapters: Adapters, turn: TurnId, execution: int | None) -> list[StagedTable] | None:
    """Returns what an execution of a turn has staged, with paths below the staging root: nothing for None. Returns None
    if its manifest is gone or damaged. Raises FatalError or TransientError if the staging folder can't be used."""
    if execution is None:
        return []
    folder, name = Folder(staging_folder(adapters, turn)), folder_name(turn)
    with folder_errors(folder.uri):
        content = folder.read(manifest_name(execution))
    tables = decode_or_none(content, list[StagedTable])
    if tables is None:
        return None
    return [replace(t, files=[replace(file, path=f"{name}/{file.path}") for file in t.files]) for t in tables]


def staged_groups(
    root: Folder, staged: StagedTable, file: StagedFile, columns: list[str] | None = None
) -> Iterator[pa.Table]:
    """Yields the row groups of a file of staged or kept rows. Raises as `row_groups`, and DamagedError for other rows
    than were staged: the footer, which names the columns, has no checksum."""
    known, rows = {"_anchors", *staged.columns}, 0
    for group in row_groups(root, file.path, columns):
        is_ours = known.issuperset(group.column_names) and group.schema.types[:1] in ([STAGED_ANCHORS.type], [ANCHORS])
        if not is_ours:
            raise DamagedError(f"{file.path} has other columns than its table")
        rows += group.num_rows
        yield group
    if rows != file.rows:
        raise DamagedError(f"{file.path} holds {rows} rows, and {file.rows} were staged")


def lost_files(root: str, tables: Iterable[StagedTable]) -> list[str]:
    """Returns which of these files below the staging root are gone or have another size. Raises OSError."""
    sizes = {file.path: file.size for table in tables for file in table.files}
    return Folder(root).without_size(sizes) if sizes else []


def rows_gone(turn: TurnId, root: str, what: str, advice: str = "") -> LedgerError:
    """Returns the error of an open turn whose staged rows are lost."""
    return LedgerError(
        f"{turn} can't be settled: staged rows below {root} are gone or damaged ({what}). Restore that folder from a "
        f"backup. {void_advice(turn)}{advice}"
    )


# ---- what waits for records in flight -----------------------------------------------------------------------------


def leaves_in_flight(newest: Settlement, skip: Plan) -> bool:
    """Returns whether a record is in flight after a skip. If none is, the skip drops all rows that wait."""
    for tp, settled in newest.partitions.items():
        in_flight = settled.state.pending.of_kind(PendingKind.IN_FLIGHT)
        if tp in skip.partitions:
            planned = skip.partitions[tp]
            in_flight = in_flight.minus(arrays_of([OffsetRange(0, planned.fresh.start)]))
            in_flight = in_flight.minus(arrays_of(planned.retries))
        if len(in_flight):
            return True
    return False


def check_kept_files(adapters: Adapters, newest: Settlement) -> None:
    """Raises LedgerError if files of rows that wait for records in flight are gone or cut short: before a turn that may
    need them is planned, because an operator action that is planned has to be settled. A reset needs none of them, nor
    does a skip after which no record is in flight."""
    waiting, root = kept_after(newest.outputs), staging_root(adapters)
    with folder_errors(root):
        lost = lost_files(root, waiting)
    if lost:
        raise LedgerError(
            f"{newest.turn}: {len(lost)} of {sum(len(table.files) for table in waiting)} files with rows that wait for "
            f"records in flight are gone or cut short below {root} ({lost[0]}). Restore that folder from a backup. "
            f"Without one, {kept_rows_advice(newest.turn)}"
        )


# ---- what goes ----------------------------------------------------------------------------------------------------


def remove_staged(adapters: Adapters, newest: Settlement) -> None:
    """Removes what a published turn and earlier ones of its lane have staged, but for the files of rows that wait for
    records in flight. What can't be removed stays until a later call.

    A later turn keeps files that this turn keeps, or new ones in its own folder, which is not touched here. So a
    process that comes here late, beside later turns, removes nothing that these need.
    """
    turn, root = newest.turn, Folder(staging_root(adapters))
    needed = {file.path for table in kept_after(newest.outputs) for file in table.files}
    of_lane = re.compile(rf"{re.escape(quote(turn.lane, safe=''))}-(\d+)-(\d+)")
    for name in root.names():
        match = of_lane.fullmatch(name)
        if match is None or (int(match[1]), int(match[2])) > (turn.epoch, turn.n):
            continue
        folder = Folder(f"{root.uri}/{name}")
        if not any(path.startswith(f"{name}/") for path in needed):
            folder.remove_tree()  # a late task of this turn may still write there, and no turn needs its rows
            continue
        for file in folder.names():
            if f"{name}/{file}" not in needed:
                folder.remove(file)
