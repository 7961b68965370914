"""The outcomes of one turn, as settle needs them: rows of what did not succeed at once, and counts of everything."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ackline.audit.table import AuditTable, Where, as_expression
from ackline.ledger import OutcomeRow
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.turns import TurnId

_COLUMNS = ["topic", "partition", "offset", "end_offset", "attempt", "outcome", "error_class", "handled_at"]


@dataclass(frozen=True, slots=True)
class TurnOutcomes:
    """The outcomes of one turn by topic-partition."""

    rows: Mapping[TopicPartition, Sequence[OutcomeRow]]
    """Every row that did not succeed at its first attempt."""
    counts: Mapping[TopicPartition, Mapping[str, int]]
    """How many offsets have each outcome, those that succeeded too. A row of a range counts as all its offsets."""
    attempted_fresh: Mapping[TopicPartition, int]
    """How many offsets of the fresh range held a record. The other offsets of the range are gaps."""
    complete: bool = True
    """False if the pipeline stores no row of what succeeded and the Delta log has expired the counts."""


def read_turn_outcomes(outcomes: AuditTable, turn: TurnId, where: Where) -> TurnOutcomes:
    """Returns outcomes and decisions of a turn, whose rows are those that match `where`.

    A file in which every record succeeded at its first attempt is counted by its statistics and not opened, so the cost
    is that of what did not succeed. Raises FatalError if the table can't be read.
    """
    table = outcomes.open()
    if table is None:
        return TurnOutcomes({}, {}, {})
    counts: dict[TopicPartition, Counter[str]] = {}
    fresh: Counter[TopicPartition] = Counter()
    rows: dict[TopicPartition, list[OutcomeRow]] = {}
    try:
        counted = _files_counted_by_statistics(pa.table(table.get_add_actions(flatten=True)), turn)
        for file in counted.values():
            tp = TopicPartition(file["min.topic"], file["min.partition"])
            counts.setdefault(tp, Counter())[file["min.outcome"]] += file["num_records"]
            fresh[tp] += file["num_records"]
        # From the version that was counted. In a newer one a compaction may have moved the counted rows into other
        # files, and they would count twice.
        for tp, row in _rows_of_other_files(outcomes, table, where, counted):
            rows.setdefault(tp, []).append(row)
            counts.setdefault(tp, Counter())[row.outcome.value] += row.end - row.offset
            fresh[tp] += row.attempt == 1
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise outcomes.error(error) from error
    return TurnOutcomes(rows, counts, fresh)


def _files_counted_by_statistics(files: pa.Table, turn: TurnId) -> dict[str, dict[str, Any]]:
    """Returns the files of the turn that need not be opened, by name: one outcome of one partition, all succeeded."""
    if not files.num_rows or "min.turn" not in files.column_names:
        return {}
    chosen = pa.scalar(True)
    for name, value in (("epoch", turn.epoch), ("turn", turn.n), ("attempt", 1)):
        for bound in ("min", "max"):
            chosen = pc.and_kleene(chosen, pc.equal(files[f"{bound}.{name}"], value))
    for name in ("topic", "partition", "outcome"):
        chosen = pc.and_kleene(chosen, pc.equal(files[f"min.{name}"], files[f"max.{name}"]))
    succeeded = pa.array([Outcome.ACKED, Outcome.SKIPPED, Outcome.DROPPED])
    chosen = pc.and_kleene(chosen, pc.is_in(files["min.outcome"], succeeded))
    columns = ["path", "num_records", "min.topic", "min.partition", "min.outcome"]
    # A file without statistics compares as null. It is opened.
    counted = files.filter(pc.fill_null(chosen, False)).select(columns).to_pylist()
    return {_file_name(file["path"]): file for file in counted}


def _rows_of_other_files(
    outcomes: AuditTable, table: DeltaTable, where: Where, counted: Mapping[str, Any]
) -> Iterable[tuple[TopicPartition, OutcomeRow]]:
    dataset = outcomes.dataset(table, where)
    fragments = [fragment for fragment in dataset.get_fragments() if _file_name(fragment.path) not in counted]
    others = ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)
    for batch in others.to_batches(columns=_COLUMNS, filter=as_expression(where)):
        columns = (batch.column(name).to_pylist() for name in _COLUMNS)
        for topic, partition, offset, end, attempt, outcome, error_class, handled_at in zip(*columns, strict=True):
            row = OutcomeRow(offset, attempt, Outcome(outcome), handled_at.astimezone(UTC), error_class, end)
            yield TopicPartition(topic, partition), row


def _file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
