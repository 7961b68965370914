"""Outputs of a turn: where its tasks stage rows, what an execution has staged, and when the rows are published.

`ackline.audit.publish_outputs` argues the order of the writes. Two rules of it are kept here: the group moves, and the
next number is taken, only after each output table has the turn that is settled.
"""

import os
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from ackline.audit.conditional_put import prove_conditional_put
from ackline.audit.object_store import is_remote
from ackline.audit.output_place import check_place
from ackline.audit.output_table import check_columns
from ackline.audit.publish_outputs import application_of, check_staged_columns, publish, table_of
from ackline.audit.storage import Storage
from ackline.backfill_arguments import id_of
from ackline.errors import ConfigError, FatalError, LedgerError
from ackline.offsets import ValuedRange
from ackline.outputs import Output, OutputsOfTurn, StagedOutputs, StagedTable, canonical_uri, kept_after
from ackline.paths import lane_folder
from ackline.pending import PendingKind, PendingRuns, arrays_of
from ackline.scrub import scrub_address
from ackline.spark.shared_folder import SharedFolder, unusable_folder
from ackline.steps.parts import Parts
from ackline.steps.void import is_at_most_once, void_advice
from ackline.turns import LIVE, Plan, Settlement, TurnId, TurnKind

if TYPE_CHECKING:
    from ackline.spark.job import ReplayJob, ReplayResult
    from ackline.spark.settings import OutputTargets

_STAGING = ".staging"
_MANIFEST = "execution-"


def check_outputs(parts: Parts) -> str:
    """Returns what the outputs of a pipeline are, for `ackline doctor`. Raises what `output_targets` raises."""
    columns = _checked_columns(parts)
    texts = []
    for output in _outputs(parts):
        known = columns.get(output.number)
        text = f"columns {', '.join(known)}" if known else "columns inferred from its rows"
        texts.append(f"topic {output.topic}" if output.table is None else f"table {output.table} ({text})")
    return "; ".join(texts)


def check_outputs_of(parts: Parts, plan: Plan, probe: bool = True) -> None:
    """Checks the outputs before the plan of a run is stored, so that a run that can't write leaves no open turn. Raises
    what `output_targets` raises. Without `probe` it writes nothing to find out whether it may write.

    A plan that reads nothing stages no row, and an idle run must not cost requests to each table. The rows that such a
    turn may publish wait since earlier turns, and settle looks at their tables before it stores the settlement.
    """
    if plan.kind is TurnKind.RUN and not plan.empty:
        _checked_columns(parts, probe)


def output_targets(parts: Parts, plan: Plan) -> "OutputTargets | None":
    """Returns where the tasks of a turn write what goes to outputs; None without outputs.

    Opens each table and topic, so that one that can't be used stops the run before a record is handled: another process
    may have stored the plan long ago. Raises ConfigError if a topic is missing, a table has other columns or two
    outputs are one table, and FatalError or TransientError if one can't be reached.
    """
    from ackline.kafka.certificates import inlined_certificates
    from ackline.spark.settings import OutputTargets

    if not _outputs(parts):
        return None
    columns = _checked_columns(parts)
    has_topics = any(output.topic is not None for output in _outputs(parts))
    return OutputTargets(
        plan.turn,
        _staging_folder(parts, plan.turn),
        {number: known for number, known in columns.items() if known is not None},
        {
            output.number: _initial_columns(parts, output)
            for output in _outputs(parts)
            if columns.get(output.number, {}) is None
        },
        inlined_certificates({name: str(value) for name, value in parts.kafka.items()}) if has_topics else {},
    )


def _checked_columns(parts: Parts, probe: bool = True) -> dict[int, dict[str, str] | None]:
    """Returns the columns of each output table, by the number of the output; None if tasks infer them."""
    outputs = [output for output in _outputs(parts) if output.table is not None]
    _check_topics(parts)
    _check_distinct_tables(parts, outputs)
    columns = {output.number: _columns(parts, output, probe) for output in outputs}
    if outputs:
        _check_kept_columns(parts, {output.table: columns[output.number] for output in outputs if output.table})
    return columns


def _check_distinct_tables(parts: Parts, outputs: Iterable[Output]) -> None:
    """Raises ConfigError if two outputs are one table, for example by its name and by its URI. A table takes a turn
    once, so the rows of the second output would be lost."""
    first: dict[str, Output] = {}
    for output in outputs:
        assert output.table is not None
        uri = table_of(parts.store, output.table).uri
        other = first.setdefault(canonical_uri(uri) if is_remote(uri) else os.path.realpath(uri), output)
        if other is not output:
            raise ConfigError(
                f"outputs.{other.number}.table ({other.table}) and outputs.{output.number}.table ({output.table}) are "
                f"one table, at {scrub_address(uri)}; give one of the outputs both streams: `from: [A, B]`",
                key=f"outputs.{output.number}.table",
            )


def _check_topics(parts: Parts) -> None:
    """Raises ConfigError if an output topic does not exist."""
    wanted = sorted({output.topic for output in _outputs(parts) if output.topic is not None})
    existing = parts.cluster.topics(wanted) if wanted else {}
    for topic in wanted:
        if topic not in existing:
            raise ConfigError(
                f"the output topic {topic} of pipeline {parts.pipeline.name} does not exist; create it, or remove the "
                f"output. Nothing was handled",
                key="outputs",
            )


def _outputs(parts: Parts) -> tuple[Output, ...]:
    topology = parts.pipeline.topology
    return topology.all_outputs if topology is not None else ()


def _columns(parts: Parts, output: Output, probe: bool) -> dict[str, str] | None:
    """Returns the columns of an output table: those of the table or of the file; None if tasks infer them."""
    assert output.table is not None
    table = table_of(parts.store, output.table)
    if probe:
        prove_conditional_put(table.uri)
    existing = table.columns()
    if existing is not None:
        check_columns(output.table, existing, output.columns)
        return existing
    if probe:
        check_place(table.uri)
    return dict(output.columns) if output.columns is not None else None


def _check_kept_columns(parts: Parts, columns: Mapping[str, Mapping[str, str] | None]) -> None:
    """Raises ConfigError if rows wait for records in flight that do not fit the columns that their table has now."""
    newest = parts.store.newest()
    for staged in kept_after(newest.outputs if newest is not None else ""):
        known = columns.get(staged.table)
        if known is not None:
            check_staged_columns(staged, known)


def _initial_columns(parts: Parts, output: Output) -> dict[str, str]:
    """Returns the columns that the tasks of a turn begin from when they infer those of a table that does not exist yet:
    the columns of rows that wait for records in flight, because all these rows go to the same table."""
    newest = parts.store.newest()
    staged = [
        table for table in kept_after(newest.outputs if newest is not None else "") if table.table == output.table
    ]
    return {name: kind for table in staged for name, kind in table.columns.items()}


def store_manifest(parts: Parts, plan: Plan, job: "ReplayJob", result: "ReplayResult") -> str:
    """Stores the manifest of what this execution has staged. Returns what outcomes n have to name, encoded; empty if
    there are no rows for tables.

    The manifest is on the disk when this returns, as the staged files are. Only then may outcomes n name it.
    """
    from ackline.spark.trees.inferred_columns import columns_of_staged

    targets = job.settings.outputs
    if targets is None:
        return ""
    folder = SharedFolder(targets.folder)
    tables = []
    for output in _outputs(parts):
        files = [file for file in result.staged if file.output == output.number]
        if output.table is not None and files:
            columns = targets.columns.get(output.number)
            if columns is None:
                initial, paths = targets.inferred.get(output.number, {}), [file.path for file in files]
                try:
                    columns = columns_of_staged(folder.uri, output.table, initial, paths)
                except OSError as error:
                    raise unusable_folder(folder.uri, error) from None
            tables.append(StagedTable(output.table, columns, output.partition_by, files))
    staged = StagedOutputs(str(uuid.uuid4()), tables)
    try:
        folder.write_durably(f"{_MANIFEST}{staged.execution}.json", staged.encode().encode())
    except OSError as error:
        raise unusable_folder(folder.uri, error) from None
    application = application_of(parts.store.ledger_id(), plan.turn)
    return OutputsOfTurn.of(application, staged).encode() if tables else ""


def find_outputs(parts: Parts, plan: Plan) -> str:
    """Returns what outcomes n of a plan name, encoded, if the Delta log has expired their note.

    Raises LedgerError if several executions have staged rows, because nothing tells which of them the outcomes are of,
    and if the manifest is gone or damaged: each execution stores one, also if it has staged nothing.
    """
    if not plan.settings.get("outputs") or plan.kind is not TurnKind.RUN or plan.empty:
        return ""
    folder = SharedFolder(_staging_folder(parts, plan.turn))
    try:
        names = [name for name in folder.names() if name.startswith(_MANIFEST)]
        content = folder.read(names[0]) if len(names) == 1 else None
    except OSError as error:
        raise unusable_folder(folder.uri, error) from None
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
        if is_at_most_once(plan) or parts.store.is_settled(plan.turn):
            return ""
        raise rows_gone(plan.turn, staging_root(parts), "the manifest of the turn")
    application = application_of(parts.store.ledger_id(), plan.turn)
    return OutputsOfTurn.of(application, staged).encode() if staged.tables else ""


def rows_gone(turn: TurnId, root: str, what: str, advice: str = "") -> LedgerError:
    """Returns the error of an open turn whose staged rows are lost."""
    return LedgerError(
        f"{turn} can't be settled: staged rows below {root} are gone or damaged ({what}). Restore that folder from a "
        f"backup. {void_advice(turn)}{advice}"
    )


def publish_settled(parts: Parts, newest: Settlement | None) -> None:
    """Publishes the rows of the newest settled turn, if an output table does not have them yet.

    Then removes what this turn and earlier ones have staged. Any process may do this again: each table takes a turn
    once. Raises LedgerError if staged rows are gone, FatalError or TransientError if a table can't be used; then the
    lane waits.
    """
    if newest is None or not newest.outputs:
        return
    outputs, root = OutputsOfTurn.decode(newest.outputs), SharedFolder(staging_root(parts))
    if not outputs.tables and not outputs.released:
        return  # nothing to publish, and the same rows wait as before the turn
    try:
        if outputs.tables and not is_published(root, newest.turn, outputs):
            staged = read_manifest(parts, newest.turn, outputs)
            publish(parts.store, newest.turn, outputs, staged, root.uri, folder_name(newest.turn))
            mark_as_published(root, newest.turn, outputs)  # before the staged rows go
    except OSError as error:
        raise unusable_folder(root.uri, error) from None
    except (ConfigError, FatalError) as error:
        lane = "" if newest.turn.lane == LIVE else f" --lane {newest.turn.lane}"
        error.add_advice(
            f"If these rows can never be published, give them up with "
            f"`ackline void {newest.turn.pipeline}{lane} --give-up TABLE --reason …`"
        )
        raise
    remove_staged(parts, newest)


def read_manifest(parts: Parts, turn: TurnId, outputs: OutputsOfTurn) -> StagedOutputs | None:
    """Returns what the execution of a turn has staged; None if it has staged nothing, or if its manifest is gone or
    damaged. Raises OSError."""
    content = None
    if outputs.execution:
        content = SharedFolder(_staging_folder(parts, turn)).read(f"{_MANIFEST}{outputs.execution}.json")
    try:
        return None if content is None else StagedOutputs.decode(content)
    except ValueError:
        return None


def is_published(root: SharedFolder, turn: TurnId, outputs: OutputsOfTurn) -> bool:
    """Returns whether the mark of the lane names this turn: then all tables have it. Raises OSError.

    Without the mark, a turn whose table a user has deleted since would look unpublished. It names the ledger and the
    execution too: a ledger that began anew, or came from a backup, takes the same numbers again, for other rows.
    """
    return root.read(_mark(turn)) == _mark_content(turn, outputs)


def mark_as_published(root: SharedFolder, turn: TurnId, outputs: OutputsOfTurn) -> None:
    """Marks the turn as published, unless a later turn of the same ledger and lane is: a process that comes late must
    not make that one look unpublished. Raises OSError."""
    application, _, rest = (root.read(_mark(turn)) or b"").decode().partition("\n")
    number = rest.partition("\n")[0]
    if application != outputs.application or not number.isdecimal() or int(number) <= turn.n:
        root.write_durably(_mark(turn), _mark_content(turn, outputs))


def _mark_content(turn: TurnId, outputs: OutputsOfTurn) -> bytes:
    return f"{outputs.application}\n{turn.n}\n{outputs.execution}".encode()


def store_plan(parts: Parts, newest: Settlement, plan: Plan) -> bool:
    """Stores the plan after `newest`. Returns False if its number is taken. Raises what `publish_settled` and
    `check_outputs_of` raise, before anything of the turn is stored.

    The rows of `newest` are published first: a turn whose number is taken has been published everywhere, so no two
    turns of a lane are ever half published.
    """
    publish_settled(parts, newest)
    if plan.kind is TurnKind.RUN or (plan.kind is TurnKind.SKIP and _leaves_in_flight(newest, plan)):
        _check_kept_files(parts, newest)
    check_outputs_of(parts, plan)
    return parts.store.store_plan(plan)


def _leaves_in_flight(newest: Settlement, skip: Plan) -> bool:
    """Returns whether a record is in flight after a skip. If none is, the skip drops all rows that wait."""
    for tp, settled in newest.partitions.items():
        in_flight = PendingRuns.of(settled.state.pending).of_kind(PendingKind.IN_FLIGHT)
        if tp in skip.partitions:
            planned = skip.partitions[tp]
            in_flight = in_flight.minus(arrays_of([ValuedRange(0, planned.fresh.start, None)]))
            in_flight = in_flight.minus(arrays_of(planned.retries))
        if len(in_flight):
            return True
    return False


def _check_kept_files(parts: Parts, newest: Settlement) -> None:
    """Raises LedgerError if files of rows that wait for records in flight are gone or cut short: before a turn that may
    need them is planned, because an operator action that is planned has to be settled. A reset needs none of them, nor
    does a skip after which no record is in flight."""
    waiting, root = kept_after(newest.outputs), staging_root(parts)
    try:
        lost = lost_files(root, waiting)
    except OSError as error:
        raise unusable_folder(root, error) from None
    if lost:
        raise LedgerError(
            f"{newest.turn}: {len(lost)} of {sum(len(table.files) for table in waiting)} files with rows that wait for "
            f"records in flight are gone or cut short below {root} ({lost[0]}). Restore that folder from a backup. "
            f"Without one, {kept_rows_advice(newest.turn)}"
        )


def lost_files(root: str, tables: Iterable[StagedTable]) -> list[str]:
    """Returns which of these files below the staging root are gone or have another size. Raises OSError."""
    files = [file for table in tables for file in table.files]
    found = Storage(root).filesystem.get_file_info([file.path for file in files]) if files else []
    return [file.path for file, info in zip(files, found, strict=True) if info.size != file.size]


def kept_rows_advice(turn: TurnId) -> str:
    """Returns what to do about a lane whose rows of records in flight are lost, as the end of a sentence."""
    if turn.lane == LIVE:
        return f"read the records in flight again with `ackline reset {turn.pipeline} --to floor --reason …`"
    return (
        f"end the backfill with `ackline backfill {turn.pipeline} --cancel {id_of(turn.lane)}`, and choose its offsets "
        f"again in another one"
    )


def remove_staged(parts: Parts, newest: Settlement) -> None:
    """Removes what a published turn and earlier ones of its lane have staged, but for the files of rows that wait for
    records in flight. What can't be removed stays until a later call.

    A later turn keeps files that this turn keeps, or new ones in its own folder, which is not touched here. So a
    process that comes here late, beside later turns, removes nothing that these need.
    """
    turn, root = newest.turn, SharedFolder(staging_root(parts))
    needed = {file.path for table in kept_after(newest.outputs) for file in table.files}
    of_lane = re.compile(rf"{re.escape(quote(turn.lane, safe=''))}-(\d+)-(\d+)")
    for name in root.names():
        match = of_lane.fullmatch(name)
        if match is None or (int(match[1]), int(match[2])) > (turn.epoch, turn.n):
            continue
        folder = SharedFolder(f"{root.uri}/{name}")
        if not any(path.startswith(f"{name}/") for path in needed):
            folder.remove_tree()  # a late task of this turn may still write there, and no turn needs its rows
            continue
        for file in folder.names():
            if f"{name}/{file}" not in needed:
                folder.remove(file)


def _mark(turn: TurnId) -> str:
    """Returns the name of the file that names the turn of a lane and epoch that was published last."""
    return f"{quote(turn.lane, safe='')}-{turn.epoch}-published"


def staging_root(parts: Parts) -> str:
    """Returns the folder below which all lanes of the pipeline stage rows: a path or URI."""
    return f"{lane_folder(parts.store.root, parts.pipeline.name, LIVE)}/{_STAGING}"


def folder_name(turn: TurnId) -> str:
    """Returns the name of a turn's folder below the staging root."""
    return f"{quote(turn.lane, safe='')}-{turn.epoch}-{turn.n}"


def _staging_folder(parts: Parts, turn: TurnId) -> str:
    return f"{staging_root(parts)}/{folder_name(turn)}"
