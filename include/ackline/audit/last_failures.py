"""Why and when given records failed last, for their dead letters. Read from `outcomes`: a settlement keeps no texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from ackline.audit.pruned_read import Where, as_expression
from ackline.audit.table import AuditTable
from ackline.audit.turn_files import TurnFiles
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.turns import TurnId

Attempts = Mapping[TopicPartition, Mapping[int, int]]
"""By partition and offset: the number of the last attempt."""
_COLUMNS = ["topic", "partition", "offset", "attempt", "turn", "error_message", "handled_at"]


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The failure of a record's last attempt. `message` is scrubbed; None if the failure had none."""

    message: str | None
    failed_at: datetime


Failures = dict[tuple[TopicPartition, int], LastFailure]


def read_last_failures(outcomes: AuditTable, files: TurnFiles, turn: TurnId, attempts: Attempts) -> Failures:
    """Returns the failures of the given attempts by partition and offset, without those whose rows are gone.

    Most were made in `turn`, and only its `files` are opened. An attempt of an earlier turn, whose dead letter was not
    acknowledged then, is found by its offset: statistics rule most other files out. Raises FatalError if the table
    can't be read.
    """
    if not attempts:
        return {}
    failed: Where = {"epoch": turn.epoch, "outcome": Outcome.FAILED.value}
    try:
        failures = _failures_in(files.dataset, {**failed, "turn": turn.n}, attempts)
        earlier = {
            tp: {offset: attempt for offset, attempt in by_offset.items() if (tp, offset) not in failures}
            for tp, by_offset in attempts.items()
        }
        if any(earlier.values()) and (table := outcomes.open()) is not None:
            failures |= _failures_in(outcomes.dataset(table, failed), failed, earlier)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise outcomes.error(error) from error
    return failures


def _failures_in(dataset: ds.Dataset, where: Where, attempts: Attempts) -> Failures:
    """Returns the failures among the rows of a dataset that match `where`."""
    offsets = sorted({offset for by_offset in attempts.values() for offset in by_offset})
    topics = sorted({tp.topic for tp, by_offset in attempts.items() if by_offset})
    column = ds.field("offset")
    # Arrow skips files and row groups by the bounds; `isin` alone does not always let it.
    in_bounds = (column >= offsets[0]) & (column <= offsets[-1]) & column.isin(offsets)
    wanted = as_expression(where) & ds.field("topic").isin(topics) & in_bounds
    newest: dict[tuple[TopicPartition, int], int] = {}
    failures: Failures = {}
    for batch in dataset.to_batches(columns=_COLUMNS, filter=wanted):
        for topic, partition, offset, attempt, n, message, handled_at in zip(*batch.to_pydict().values(), strict=True):
            tp = TopicPartition(topic, partition)
            # A void turn may have made the same attempt before. Its rows do not count; those of the later turn do.
            if attempts.get(tp, {}).get(offset) == attempt and n >= newest.get((tp, offset), 0):
                newest[tp, offset] = n
                failures[tp, offset] = LastFailure(message, handled_at.astimezone(UTC))
    return failures
