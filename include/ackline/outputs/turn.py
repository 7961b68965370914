"""Outputs of a turn: what an execution has staged, when the rows are published, and when staged files go.

`ackline.tables.publish` argues the order of the writes. Two rules of it are kept here: the group moves, and the
next number is taken, only after each output table has the turn that is settled.
"""

import logging
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from ackline.errors import ConfigError, FatalError, LedgerError, TransientError
from ackline.lane.adapters import Adapters
from ackline.lane.claim import void_advice
from ackline.ledger.turns import Plan, Settlement, TurnId, TurnKind
from ackline.outputs.checks import (
    check_kept_files,
    check_outputs_of,
    folder_name,
    leaves_in_flight,
    lost_files,
    outputs_of,
    place_of,
    staging_folder,
    staging_root,
)
from ackline.pipeline.outputs import FinalFile, OutputsOfTurn, StagedOutputs, StagedTable, kept_after
from ackline.scrub import scrub_address
from ackline.tables.errors import folder_errors
from ackline.tables.folder import Folder
from ackline.tables.publish import AttemptOutcomes, below, check_staged_columns, entries, table_of, write_table
from ackline.tables.published import give_up_advice, has_turn

if TYPE_CHECKING:
    from ackline.spark.job import ReplayResult
    from ackline.worker.settings import ReplayJob

log = logging.getLogger(__name__)
_DAY_MS = 86_400_000


def manifest_name(execution: int) -> str:
    """Returns the name of the manifest of an execution in the staging folder of its turn."""
    return f"execution-{execution:08x}.json"


def store_manifest(adapters: Adapters, plan: Plan, job: "ReplayJob", result: "ReplayResult") -> int | None:
    """Stores the manifest of what this execution has staged. Returns the number of the execution, which outcomes n have
    to name; None if there are no rows for tables.

    The manifest is on the disk when this returns, as the staged files are. Only then may outcomes n name it. Raises
    FatalError or TransientError if the staging folder can't be used.
    """
    from ackline.worker.trees.output_rows import columns_of_staged

    targets = job.settings.outputs
    if targets is None or not result.staged:
        return None
    folder, tables, execution = Folder(targets.folder), list[StagedTable](), secrets.randbits(32)
    with folder_errors(folder.uri):
        for output in outputs_of(adapters):
            files = [file for file in result.staged if file.output == output.number]
            if output.table is not None and files:
                columns = targets.columns.get(output.number)
                if columns is None:
                    initial, paths = targets.inferred.get(output.number, {}), [file.path for file in files]
                    columns = columns_of_staged(folder.uri, output.table, initial, paths)
                tables.append(StagedTable(output.table, columns, output.partition_by, files))
        folder.write_durably(manifest_name(execution), StagedOutputs(tables).encode().encode())
    return execution if tables else None


def rows_gone(turn: TurnId, root: str, what: str, advice: str = "") -> LedgerError:
    """Returns the error of an open turn whose staged rows are lost."""
    return LedgerError(
        f"{turn} can't be settled: staged rows below {root} are gone or damaged ({what}). Restore that folder from a "
        f"backup. {void_advice(turn)}{advice}"
    )


def staged_tables(adapters: Adapters, turn: TurnId, execution: int | None) -> list[StagedTable] | None:
    """Returns what an execution of a turn has staged, with paths below the staging root: nothing for None. Returns None
    if its manifest is gone or damaged. Raises FatalError or TransientError if the staging folder can't be used."""
    if execution is None:
        return []
    folder = Folder(staging_folder(adapters, turn))
    with folder_errors(folder.uri):
        content = folder.read(manifest_name(execution))
    try:
        return None if content is None else [below(folder_name(turn), t) for t in StagedOutputs.decode(content).tables]
    except ValueError:
        return None


def publish_settled(adapters: Adapters, newest: Settlement | None) -> None:
    """Publishes the rows of the newest settled turn, if an output table does not have them yet.

    Then removes what this turn and earlier ones have staged. Any process may do this again: each table takes a turn
    once. Raises LedgerError if staged rows are gone or a table holds another turn than the ledger, ConfigError,
    FatalError or TransientError if a table can't be used; then the lane waits.
    """
    if newest is None or not newest.outputs:
        return
    outputs = OutputsOfTurn.decode(newest.outputs)
    if outputs.execution is None and not outputs.tables and not outputs.released:
        return  # nothing to publish, and the same rows wait as before the turn
    if _is_unpublished(adapters, newest.turn, outputs):
        for name in sorted(outputs.tables.keys() - adapters.store.given_up(newest.turn)):
            with _advises_give_up(newest.turn, name):
                publish_table(adapters, newest.turn, outputs, name)
        # After all tables, and before the staged rows go. A crash before it costs another look at each table.
        adapters.store.store_published(newest.turn)
    with folder_errors(staging_root(adapters)):
        remove_staged(adapters, newest)


def lacks_rows(adapters: Adapters, newest: Settlement | None) -> bool:
    """Returns whether the newest settled turn has rows for output tables that are not known to be in all of them."""
    if newest is None or not newest.outputs:
        return False
    return _is_unpublished(adapters, newest.turn, OutputsOfTurn.decode(newest.outputs))


def _is_unpublished(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn) -> bool:
    return bool(outputs.tables) and not adapters.store.is_published(turn)


@contextmanager
def _advises_give_up(turn: TurnId, table: str) -> Iterator[None]:
    """Adds the way out of a settled turn that can't be published in a table to an error."""
    try:
        yield
    except (ConfigError, FatalError, TransientError) as error:
        advice = give_up_advice(turn, table)
        if advice not in str(error):  # of a table that is an older copy: that error says more
            error.add_advice(f"If these rows can never be published, {advice}")
        raise


def check_publishable(adapters: Adapters, newest: Settlement) -> list[str]:
    """Returns the output tables that lack the rows of the newest settled turn, and would get them from the next run.

    Writes nothing. Raises what `publish_settled` would raise, as far as reading shows it, and LedgerError if rows that
    wait for records in flight are gone.
    """
    if not newest.outputs:
        return []
    outputs, lacking = OutputsOfTurn.decode(newest.outputs), list[str]()
    if _is_unpublished(adapters, newest.turn, outputs):
        for name in sorted(outputs.tables.keys() - adapters.store.given_up(newest.turn)):
            with _advises_give_up(newest.turn, name):
                if not has_turn(adapters.store, newest.turn, outputs, name):
                    _check_table_publishable(adapters, newest.turn, outputs, name)
                    lacking.append(name)
    check_kept_files(adapters, newest)
    return lacking


def _check_table_publishable(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn, name: str) -> None:
    table, of_turn = table_of(adapters.store, name), outputs.tables[name]
    existing = table.columns()
    if existing is not None:
        check_staged_columns(name, of_turn.columns, existing)
        if of_turn.files is not None and table.has_files(of_turn.files):
            return
    if _sources(adapters, turn, outputs, name) is None and (existing is not None or of_turn.files is None):
        raise _rows_lost(adapters, turn, name)


def _sources(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn, name: str) -> list[StagedTable] | None:
    """Returns the staged rows of a settled turn for one table; None if they are gone, or there are none."""
    staged, place = staged_tables(adapters, turn, outputs.execution), place_of(adapters.store, name)
    sources = [each for each in (*(staged or ()), *outputs.released) if place_of(adapters.store, each.table) == place]
    return sources if staged is not None and sources and not lost_files(staging_root(adapters), sources) else None


def _rows_lost(adapters: Adapters, turn: TurnId, name: str) -> LedgerError:
    return LedgerError(
        f"{turn} is settled, and its rows are not in {scrub_address(name)}; the files with these rows, and its "
        f"staged rows in {staging_root(adapters)}/{folder_name(turn)}, are gone. Restore the folder of one of the two "
        f"from a backup; no other turn is planned until then"
    )


def publish_table(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn, name: str) -> None:
    """Publishes the rows of a settled turn in one table, unless the table has them. Raises as `publish_settled`."""
    store, of_turn = adapters.store, outputs.tables[name]
    if has_turn(store, turn, outputs, name):
        return
    table, files = table_of(store, name), of_turn.files
    existing = table.columns()
    if existing is not None:
        check_staged_columns(name, of_turn.columns, existing)
    usable = existing is not None and files is not None and table.has_files(files)
    if files is None or not usable or _may_be_vacuumed(files):
        # Of a turn at most once whose rows settle could not write, or a tool has vacuumed the table meanwhile, or may
        # do so right now. What the turn publishes follows from what is stored, so the same rows are written again.
        sources = _sources(adapters, turn, outputs, name)
        if sources is not None:
            root = Folder(staging_root(adapters))
            files = write_table(store, turn, sources, root, AttemptOutcomes.read(store, turn)).files
        elif not usable:
            if existing is None and files is not None:
                log.warning("%s: the output table %s was removed after settle had filled it", turn, scrub_address(name))
                return  # its user has removed the table, with its rows
            raise _rows_lost(adapters, turn, name)
    # The fence: of two processes that publish the turn, one commits. A refused commit removes no file, because the log
    # may name these files: if the answer to the write of an entry is lost, delta-rs repeats the write, which fails
    # because the entry exists. Files that no version names stay until the table is vacuumed.
    with table.errors():
        stored = table.append(entries(files or ()), outputs.application, outputs.number)
    if not stored and not has_turn(store, turn, outputs, name):
        raise FatalError(f"{turn}: {scrub_address(name)} was changed while its rows were published; run this again")


def _may_be_vacuumed(files: Sequence[FinalFile]) -> bool:
    """Returns whether files that no version names are so old that a vacuum may be about to remove them: it first lists
    what is older than some days, and then removes it, although a commit may name it by then."""
    return any(time.time() * 1000 - file.modification_time > _DAY_MS for file in files)


def store_plan(adapters: Adapters, newest: Settlement, plan: Plan) -> bool:
    """Stores the plan after `newest`. Returns False if its number is taken. Raises what `publish_settled` and
    `check_outputs_of` raise, before anything of the turn is stored.

    The rows of `newest` are published first: a turn whose number is taken has been published everywhere, so no two
    turns of a lane are ever half published.
    """
    publish_settled(adapters, newest)
    try:
        if plan.kind is TurnKind.RUN or (plan.kind is TurnKind.SKIP and leaves_in_flight(newest, plan)):
            check_kept_files(adapters, newest)
        check_outputs_of(adapters, plan)
    except LedgerError:
        now = adapters.store.newest()
        if now is not None and (now.turn.epoch, now.turn.n) > (newest.turn.epoch, newest.turn.n):
            return False  # another process has settled a later turn, and removed what this one has looked for
        raise
    return adapters.store.store_plan(plan)


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
