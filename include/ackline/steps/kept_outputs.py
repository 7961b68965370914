"""What settlement n holds of outputs: what the turn publishes, and which rows wait for records in flight after it.

Rows wait from the turn of their attempt until the turn that acks it, which publishes them, or the one that fails it,
which drops them. What is kept after turn n follows from what was kept before, what the execution of outcomes n has
staged, and the rows of outcomes n and decisions n. All of that is stored and never changes, so each process that
settles the turn finds the same rows; and only the files count that settlement n names.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ackline.audit.attempt_outcomes import AttemptOutcomes
from ackline.audit.kept_rows import KeptRows, keep_rows
from ackline.audit.publish_outputs import application_of, below, check_staged_columns, table_of
from ackline.audit.storage import Storage
from ackline.audit.turn_outcomes import TurnOutcomes
from ackline.errors import LedgerError
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.outcome_rows import OutcomeColumns
from ackline.outputs import OutputsOfTurn, StagedTable, kept_after
from ackline.pending import PendingKind, PendingRuns
from ackline.spark.shared_folder import unusable_folder
from ackline.steps.outputs import folder_name, read_manifest, staging_root
from ackline.steps.parts import Parts
from ackline.steps.void import void_advice
from ackline.turns import Plan, SettledPartition, Settlement, TurnKind

Partitions = Mapping[TopicPartition, SettledPartition]


def settled_outputs(
    parts: Parts, plan: Plan, before: Settlement, settled: Partitions, staged: str, outcomes: TurnOutcomes
) -> str:
    """Returns what settlement n holds of outputs, encoded. `settled` are its partitions, and `staged` is what outcomes
    n name, encoded.

    Call it after decisions n are stored. The files that the result names are on the disk when this returns. Raises
    LedgerError if staged rows are gone, ConfigError if rows that waited do not fit their table any more, FatalError or
    TransientError if the staging folder can't be used.
    """
    waiting = kept_after(before.outputs)
    if not staged and not waiting:
        return ""
    application = application_of(parts.store.ledger_id(), plan.turn)
    outputs = OutputsOfTurn.decode(staged) if staged else OutputsOfTurn(application, "", {})
    ends = bool(waiting) and _any_ended(before.partitions, settled)
    kept = _kept_after_turn(parts, plan, waiting, outputs, outcomes, ends)
    _check_columns(parts, kept)
    tables = {**outputs.tables}
    for table, rows in kept.acked.items():
        tables[table] = tables.get(table, 0) + rows
    return OutputsOfTurn(application, outputs.execution, tables, kept.kept, kept.released).encode()


def _kept_after_turn(
    parts: Parts,
    plan: Plan,
    waiting: Sequence[StagedTable],
    outputs: OutputsOfTurn,
    outcomes: TurnOutcomes,
    ends: bool,
) -> KeptRows:
    if plan.kind is TurnKind.RESET:  # the new epoch hands out what was in flight again, under other attempts
        return KeptRows([], list(waiting))
    begins = bool(outputs.execution) and _any_in_flight(outcomes)
    if not begins and not ends:
        return KeptRows(list(waiting))
    root, folder = staging_root(parts), folder_name(plan.turn)
    try:
        of_turn: list[StagedTable] = []
        if begins:
            manifest = read_manifest(parts, plan.turn, outputs)
            if manifest is None:
                raise FileNotFoundError("the manifest of the turn")
            of_turn = below(folder, manifest.tables)
        return keep_rows(Storage(root), folder, waiting, of_turn, AttemptOutcomes.read(parts.store, plan.turn))
    except (FileNotFoundError, pa.ArrowException) as error:
        # Another process may have settled and published the turn meanwhile. Then it has removed the rows, and the
        # settlement of this process is refused, whatever it holds.
        if parts.store.is_settled(plan.turn):
            return KeptRows(list(waiting))
        raise LedgerError(
            f"{plan.turn} can't be settled: staged rows below {root} are gone or damaged ({error}). Restore that "
            f"folder from a backup. {void_advice(plan.turn)}, and then read the records in flight again with "
            f"`ackline reset {plan.turn.pipeline} --to floor --reason …`"
        ) from error
    except OSError as error:
        raise unusable_folder(root, error) from None


def _any_in_flight(outcomes: TurnOutcomes) -> bool:
    """Returns whether an attempt of the turn was in flight when replay stored its outcome."""
    columns = map(OutcomeColumns.of, outcomes.rows.values())
    return any(len(rows.where(~rows.answered).with_outcome(Outcome.IN_FLIGHT)) for rows in columns)


def _any_ended(before: Partitions, settled: Partitions) -> bool:
    """Returns whether a record that was in flight before the turn is not any more. A turn that
    ends none and hands no record on does not read the files of kept rows."""
    for tp, partition in before.items():
        was = PendingRuns.of(partition.state.pending).of_kind(PendingKind.IN_FLIGHT)
        still = PendingRuns.of(settled[tp].state.pending if tp in settled else ()).of_kind(PendingKind.IN_FLIGHT)
        if len(was.minus((still.starts, still.ends))):
            return True
    return False


def _check_columns(parts: Parts, kept: KeptRows) -> None:
    """Raises ConfigError if rows that the turn publishes do not fit their table any more: before the settlement, while
    the turn can still be voided."""
    for staged in kept.released:
        if staged.table in kept.acked and (existing := table_of(parts.store, staged.table).columns()) is not None:
            check_staged_columns(staged, existing)
