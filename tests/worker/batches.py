"""Batches of records for the tests of handlers, and what became of each record."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.ledger.offsets import TopicPartition
from ackline.worker.outcomes import Outcomes
from ackline.worker.records import Records

NOW = 1_700_000_000_000_000
"""Microseconds since 1970, as a clock of outcomes returns them."""
RowResult = tuple[str, str | None]
"""An outcome and its error class."""
ACKED: RowResult = ("acked", None)


def records_of(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, headers: Any = None,
    topic: str = "orders",
) -> Records:  # fmt: skip
    """Records of partition 3 at the offsets 100, 102, 104, …; each is a second attempt."""
    count = len(values)
    return Records(
        TopicPartition(topic, 3),
        np.arange(100, 100 + 2 * count, 2, dtype=np.int64),
        np.full(count, 1_600_000_000_123_000, dtype=np.int64),
        pa.array(keys or [None] * count, pa.binary()),
        pa.array(values, pa.binary()),
        headers,
        np.full(count, 2, dtype=np.int32),
    )


def results(outcomes: Outcomes, count: int) -> list[RowResult]:
    """The outcome of each of `count` rows, and its error class. Fails unless each row has exactly one."""
    rows = [outcome.row for outcome in outcomes.not_acked]
    assert (rows, len(outcomes.handled_at)) == (sorted(set(rows)), count)
    not_acked = {outcome.row: (outcome.outcome.value, outcome.error_class) for outcome in outcomes.not_acked}
    return [not_acked.get(row, ACKED) for row in range(count)]
