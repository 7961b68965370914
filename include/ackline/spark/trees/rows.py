"""The rows that travel from step to step and to the acker. One schema serves all three kinds.

- A tuple has a `step`, the number of the step that it is addressed to, and the number of the `stream` that it was
  emitted to (its place in `Topology.streams`). The other rows have none.
- A row of events holds what one task did for roots of one block of offsets (`ackline.spark.trees.packed_events`). An
  event records what a batch of the task's calls did for one root, that is for one attempt at a record: `xor` is the
  XOR of all edges that the calls closed or created, `open[N]` is how many tuples they sent to step N less those that
  they closed there, and `acked[N]` how many succeeded there. A root is complete when the XOR of its events is 0, and
  each sum of `open[N]` is.
- A manifest is what a task did in all; it has the `tp` MANIFEST.

Spark partitions rows by `key`: the bytes of a tuple's key, the block of offsets of events, a random id of a manifest.
"""

from typing import Any, NamedTuple

import pyarrow as pa

UNTRACKED = -1
"""The `tp` of a tuple that belongs to no record."""
MANIFEST = -2
"""The `tp` of a manifest."""
FAILED = 1 << 32
"""What a failed tuple adds to the number of acked ones of its step, so that one sum holds both numbers."""


class Root(NamedTuple):
    """An attempt at a record. `tp` is the index of the topic-partition among those of the job, in their order."""

    tp: int
    offset: int
    attempt: int


Edges = tuple[tuple[Root, int], ...]
"""The roots of a tuple, each with the id of the edge that leads to the tuple."""

_COLUMNS = (
    ("step", "int", pa.int32()),
    ("stream", "int", pa.int32()),
    ("tp", "int", pa.int32()),
    ("offset", "long", pa.int64()),
    ("attempt", "int", pa.int32()),
    ("edge", "long", pa.int64()),
    ("edges", "binary", pa.binary()),
    ("key", "binary", pa.binary()),
    ("payload", "binary", pa.binary()),
)
ROWS_DDL = ", ".join(f"`{name}` {kind}" for name, kind, _ in _COLUMNS)
ROWS_SCHEMA = pa.schema([(name, kind) for name, _, kind in _COLUMNS])


def rows_of(columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """Returns rows with these columns; the others are null."""
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in ROWS_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA)
