"""Outputs of a turn: what an execution has staged, when the rows are published, and when staged files go.

`ackline.tables.publish` argues the order of the writes. Two rules of it are kept here: the group moves, and the
next number is taken, only after each output table has the turn that is settled.
"""

import re
import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote

from ackline.errors import ConfigError, FatalError, LedgerError
from ackline.lane.adapters import Adapters
from ackline.lane.claim import void_advice
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId, TurnKind
from ackline.outputs.checks import (
    check_kept_files,
    check_outputs_of,
    folder_name,
    leaves_in_flight,
    outputs_of,
    staging_folder,
    staging_root,
)
from ackline.pipeline.outputs import OutputsOfTurn, StagedOutputs, StagedTable, kept_after
from ackline.pipeline.pipeline import TurnSettings, is_at_most_once
from ackline.tables.errors import folder_errors
from ackline.tables.folder import Folder
from ackline.tables.publish import application_of, publish

if TYPE_CHECKING:
    from ackline.spark.job import ReplayResult
    from ackline.worker.settings import ReplayJob

_MANIFEST = "execution-"


def store_manifest(adapters: Adapters, plan: Plan, job: "ReplayJob", result: "ReplayResult") -> str:
    """Stores the manifest of what this execution has staged. Returns what outcomes n have to name, encoded; empty if
    there are no rows for tables.

    The manifest is on the disk when this returns, as the staged files are. Only then may outcomes n name it.
    """
    from ackline.worker.trees.output_rows import columns_of_staged

    targets = job.settings.outputs
    if targets is None:
        return ""
    folder = Folder(targets.folder)
    tables = []
    for output in outputs_of(adapters):
        files = [file for file in result.staged if file.output == output.number]
        if output.table is not None and files:
            columns = targets.columns.get(output.number)
            if columns is None:
                initial, paths = targets.inferred.get(output.number, {}), [file.path for file in files]
                with folder_errors(folder.uri):
                    columns = columns_of_staged(folder.uri, output.table, initial, paths)
            tables.append(StagedTable(output.table, columns, output.partition_by, files))
    staged = StagedOutputs(str(uuid.uuid4()), tables)
    with folder_errors(folder.uri):
        folder.write_durably(f"{_MANIFEST}{staged.execution}.json", staged.encode().encode())
    application = application_of(adapters.store.ledger_id(), plan.turn)
    return OutputsOfTurn.of(application, staged).encode() if tables else ""


def find_outputs(adapters: Adapters, plan: Plan) -> str:
    """Returns what outcomes n of a plan name, encoded, if the Delta log has expired their note.

    Raises LedgerError if several executions have staged rows, because nothing tells which of them the outcomes are of,
    and if the manifest is gone or damaged: each execution stores one, also if it has staged nothing.
    """
    if plan.empty or not TurnSettings(plan.settings).has_outputs:
        return ""
    folder = Folder(staging_folder(adapters, plan.turn))
    with folder_errors(folder.uri):
        names = [name for name in folder.names() if name.startswith(_MANIFEST)]
        content = folder.read(names[0]) if len(names) == 1 else None
    if len(names) > 1:
        raise LedgerError(
            f"{plan.turn}: {len(names)} executions have staged rows for outputs, and the log has expired which of them "
            f"the outcomes are of. {void_advice(plan.turn)}"
        )
    try:
        staged = None if content is None else StagedOutputs.decode(content)
    except ValueError:
        staged = None
    if staged is None:
        # At most once, a turn that is recorded as lost has no manifest, and a reported one can't be voided.
        if is_at_most_once(plan) or adapters.store.is_settled(plan.turn):
            return ""
        raise rows_gone(plan.turn, staging_root(adapters), "the manifest of the turn")
    application = application_of(adapters.store.ledger_id(), plan.turn)
    return OutputsOfTurn.of(application, staged).encode() if staged.tables else ""


def rows_gone(turn: TurnId, root: str, what: str, advice: str = "") -> LedgerError:
    """Returns the error of an open turn whose staged rows are lost."""
    return LedgerError(
        f"{turn} can't be settled: staged rows below {root} are gone or damaged ({what}). Restore that folder from a "
        f"backup. {void_advice(turn)}{advice}"
    )


def publish_settled(adapters: Adapters, newest: Settlement | None) -> None:
    """Publishes the rows of the newest settled turn, if an output table does not have them yet.

    Then removes what this turn and earlier ones have staged. Any process may do this again: each table takes a turn
    once. Raises LedgerError if staged rows are gone, FatalError or TransientError if a table can't be used; then the
    lane waits.
    """
    if newest is None or not newest.outputs:
        return
    outputs, root = OutputsOfTurn.decode(newest.outputs), Folder(staging_root(adapters))
    if not outputs.tables and not outputs.released:
        return  # nothing to publish, and the same rows wait as before the turn
    with folder_errors(root.uri):
        try:
            if outputs.tables and not is_published(root, newest.turn, outputs):
                staged = read_manifest(adapters, newest.turn, outputs)
                publish(adapters.store, newest.turn, outputs, staged, root.uri, folder_name(newest.turn))
                mark_as_published(root, newest.turn, outputs)  # before the staged rows go
        except (ConfigError, FatalError) as error:
            lane = "" if newest.turn.lane == LIVE else f" --lane {newest.turn.lane}"
            error.add_advice(
                f"If these rows can never be published, give them up with "
                f"`ackline void {newest.turn.pipeline}{lane} --give-up TABLE --reason …`"
            )
            raise
    remove_staged(adapters, newest)


def read_manifest(adapters: Adapters, turn: TurnId, outputs: OutputsOfTurn) -> StagedOutputs | None:
    """Returns what the execution of a turn has staged; None if it has staged nothing, or if its manifest is gone or
    damaged. Raises OSError."""
    content = None
    if outputs.execution:
        content = Folder(staging_folder(adapters, turn)).read(f"{_MANIFEST}{outputs.execution}.json")
    try:
        return None if content is None else StagedOutputs.decode(content)
    except ValueError:
        return None


def is_published(root: Folder, turn: TurnId, outputs: OutputsOfTurn) -> bool:
    """Returns whether the mark of the lane names this turn: then all tables have it. Raises OSError.

    Without the mark, a turn whose table a user has deleted since would look unpublished. It names the ledger and the
    execution too: a ledger that began anew, or came from a backup, takes the same numbers again, for other rows.
    """
    return root.read(_mark(turn)) == _mark_content(turn, outputs)


def mark_as_published(root: Folder, turn: TurnId, outputs: OutputsOfTurn) -> None:
    """Marks the turn as published, unless a later turn of the same ledger and lane is: a process that comes late must
    not make that one look unpublished. Raises OSError."""
    application, _, rest = (root.read(_mark(turn)) or b"").decode().partition("\n")
    number = rest.partition("\n")[0]
    if application != outputs.application or not number.isdecimal() or int(number) <= turn.n:
        root.write_durably(_mark(turn), _mark_content(turn, outputs))


def _mark_content(turn: TurnId, outputs: OutputsOfTurn) -> bytes:
    return f"{outputs.application}\n{turn.n}\n{outputs.execution}".encode()


def store_plan(adapters: Adapters, newest: Settlement, plan: Plan) -> bool:
    """Stores the plan after `newest`. Returns False if its number is taken. Raises what `publish_settled` and
    `check_outputs_of` raise, before anything of the turn is stored.

    The rows of `newest` are published first: a turn whose number is taken has been published everywhere, so no two
    turns of a lane are ever half published.
    """
    publish_settled(adapters, newest)
    if plan.kind is TurnKind.RUN or (plan.kind is TurnKind.SKIP and leaves_in_flight(newest, plan)):
        check_kept_files(adapters, newest)
    check_outputs_of(adapters, plan)
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


def _mark(turn: TurnId) -> str:
    """Returns the name of the file that names the turn of a lane and epoch that was published last."""
    return f"{quote(turn.lane, safe='')}-{turn.epoch}-published"
