"""What settlement n holds of outputs: what the turn publishes, and which rows wait for records in flight after it.

Rows wait from the turn of their attempt until the turn that acks it, which publishes them, or the one that fails it,
which drops them. What is kept after turn n follows from what was kept before, what the execution of outcomes n has
staged, and the rows of outcomes n and decisions n. All of that is stored and never changes, so each process that
settles the turn finds the same rows; and only the files count that settlement n names.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ackline.errors import AcklineError, ConfigError, FatalError, LedgerError
from ackline.lane.adapters import Adapters
from ackline.lane.claim import void_advice
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.pending import NOTHING_PENDING, PendingKind, PendingRuns
from ackline.ledger.turns import Plan, SettledPartition, Settlement, TurnKind
from ackline.outputs.checks import folder_name, kept_rows_advice, lost_files, staging_root
from ackline.outputs.turn import read_manifest, rows_gone
from ackline.pipeline.outputs import OutputsOfTurn, StagedTable, kept_after
from ackline.pipeline.pipeline import is_at_most_once
from ackline.tables.errors import folder_errors, storage_errors, unusable_folder
from ackline.tables.folder import Folder
from ackline.tables.kept_rows import KeptRows, keep_rows
from ackline.tables.publish import (
    AttemptOutcomes,
    application_of,
    below,
    check_staged_columns,
    joined_columns,
    table_of,
)
from ackline.tables.turn_outcomes import TurnOutcomes

Partitions = Mapping[TopicPartition, SettledPartition]


def settled_outputs(
    adapters: Adapters, plan: Plan, before: Settlement, settled: Partitions, staged: str, outcomes: TurnOutcomes
) -> str:
    """Returns what settlement n holds of outputs, encoded. `settled` are its partitions, and `staged` is what outcomes
    n name, encoded.

    Call it after decisions n are stored. The files that the result names are on the disk when this returns. Raises
    LedgerError if staged rows are gone, ConfigError if rows do not fit their table any more, FatalError or
    TransientError if the staging folder or a table can't be used.
    """
    waiting = kept_after(before.outputs)
    if not staged and not waiting:
        return ""
    application = application_of(adapters.store.ledger_id(), plan.turn)
    outputs = OutputsOfTurn.decode(staged) if staged else OutputsOfTurn(application, "", {})
    of_turn = _staged_tables(adapters, plan, outputs)
    kept = _kept_after_turn(adapters, plan, before, settled, of_turn, outcomes)
    _check_columns(adapters, plan, of_turn, kept)
    tables = {**outputs.tables}
    for table, rows in kept.acked.items():
        tables[table] = tables.get(table, 0) + rows
    return OutputsOfTurn(application, outputs.execution, tables, kept.kept, kept.released).encode()


def check_staged_rows(adapters: Adapters, plan: Plan, staged: str) -> None:
    """Checks what outcomes n name, encoded, before the first dead letter is sent: an operator may void a turn that is
    refused here, and a letter of a void turn announces a record as dead that the next turn handles again. Raises as
    `settled_outputs` does."""
    if staged:
        of_turn = _staged_tables(adapters, plan, OutputsOfTurn.decode(staged))
        _check_columns(adapters, plan, of_turn, KeptRows())


def _staged_tables(adapters: Adapters, plan: Plan, outputs: OutputsOfTurn) -> list[StagedTable]:
    """Returns what the execution of the turn has staged, with paths below the staging root.

    Raises LedgerError if a staged file is gone or cut short: before the settlement, because an open turn can be voided
    and its offsets planned again, and a settled turn that can't be published stops the lane. Under `at_most_once` a
    reported turn can't be voided, so there this raises nothing for lost files, and after the settlement
    `ackline void --give-up` is the way out.
    """
    if not outputs.execution:
        return []
    root = staging_root(adapters)
    with folder_errors(root):
        manifest = read_manifest(adapters, plan.turn, outputs)
        staged = [] if manifest is None else below(folder_name(plan.turn), manifest.tables)
        lost = ["the manifest of the turn"] if manifest is None else lost_files(root, staged)
    # Another process may have settled and published the turn meanwhile. Then it has removed the rows, and the
    # settlement of this process is refused, whatever it holds.
    if lost and not is_at_most_once(plan) and not adapters.store.is_settled(plan.turn):
        raise rows_gone(plan.turn, root, lost[0])
    return staged


def _kept_after_turn(
    adapters: Adapters,
    plan: Plan,
    before: Settlement,
    settled: Partitions,
    of_turn: Sequence[StagedTable],
    outcomes: TurnOutcomes,
) -> KeptRows:
    waiting = kept_after(before.outputs)
    # The new epoch of a reset hands out what was in flight again, under other attempts. A skip after which nothing is
    # in flight acks nothing. Both drop what waits, so neither reads the files, which may be lost.
    if plan.kind is TurnKind.RESET or (plan.kind is TurnKind.SKIP and not any(map(_in_flight, settled.values()))):
        return KeptRows([], list(waiting))
    begins = bool(of_turn) and _any_in_flight(outcomes)
    if not begins and not (waiting and _any_ended(before.partitions, settled)):
        return KeptRows(list(waiting))
    root, folder = staging_root(adapters), folder_name(plan.turn)

    def error_of(error: BaseException) -> AcklineError:
        if isinstance(error, FileNotFoundError | pa.ArrowException):
            return rows_gone(plan.turn, root, str(error), f", and then {kept_rows_advice(plan.turn)}")
        return unusable_folder(root, error)

    try:
        with storage_errors(root, error_of):
            attempts = AttemptOutcomes.read(adapters.store, plan.turn)
            return keep_rows(Folder(root), folder, waiting, of_turn if begins else (), attempts)
    except LedgerError:
        if adapters.store.is_settled(plan.turn):  # as in _staged_tables
            return KeptRows(list(waiting))
        raise


def _any_in_flight(outcomes: TurnOutcomes) -> bool:
    """Returns whether an attempt of the turn was in flight when replay stored its outcome."""
    columns = map(OutcomeColumns.of, outcomes.rows.values())
    return any(len(rows.where(~rows.answered).with_outcome(Outcome.IN_FLIGHT)) for rows in columns)


def _any_ended(before: Partitions, settled: Partitions) -> bool:
    """Returns whether a record that was in flight before the turn is not any more. A turn that ends none and hands no
    record on does not read the files of kept rows."""
    for tp, partition in before.items():
        still = _in_flight(settled.get(tp))
        if len(_in_flight(partition).minus((still.starts, still.ends))):
            return True
    return False


def _in_flight(partition: SettledPartition | None) -> PendingRuns:
    return partition.state.pending.of_kind(PendingKind.IN_FLIGHT) if partition else NOTHING_PENDING


def _check_columns(adapters: Adapters, plan: Plan, of_turn: Sequence[StagedTable], kept: KeptRows) -> None:
    """Raises ConfigError if rows that the turn publishes do not fit their table any more: before the settlement, while
    the turn can still be voided. Under `at_most_once` a reported turn can't be voided, so there `publish` alone
    checks the columns."""
    if is_at_most_once(plan):
        return
    publishes = {staged.table for staged in of_turn} | kept.acked.keys()
    sources: dict[str, list[StagedTable]] = {}
    for staged in (*of_turn, *kept.released):
        if staged.table in publishes:
            sources.setdefault(staged.table, []).append(staged)
    for table, of_table in sources.items():
        try:
            existing = table_of(adapters.store, table).columns()
            for staged in of_table:
                check_staged_columns(staged, joined_columns(of_table) if existing is None else existing)
        except (ConfigError, FatalError) as error:
            error.add_advice(void_advice(plan.turn))
            raise
