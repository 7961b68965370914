"""The rows that travel from step to step and to the acker. One schema serves all three kinds.

- A tuple has a `step`, the number of the step that it is addressed to. The other rows have none.
- A row of events holds what one task did for roots of one block of offsets (`ackline.spark.trees.packed_events`). An
  event records what the task did for one root, that is for one attempt at a record: `xor` is the XOR of all edges that
  the task closed or created, `open[N]` is how many tuples it sent to step N less those it closed there, and `acked[N]`
  how many succeeded there. A root is complete when the XOR of its events is 0, and each sum of `open[N]` is.
- A manifest is what a task did in all; it has the `tp` MANIFEST.

`route` is what Spark partitions rows by: the key's hash for a tuple, the block of offsets for events.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

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
    ("route", "long", pa.int64()),
    ("step", "int", pa.int32()),
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


class Event:
    """What one task did for one root, which is one attempt at a record.

    `xor` is the XOR of all edges that the task created or closed. By the number of the step, `open` counts the tuples
    that it sent there less those that it closed there, and `acked` those that it acked. `sources` is 1 in the event of
    the record's own call. `by` is the step of the first call, -1 for the source, and `edge` the edge of its tuple.
    """

    __slots__ = ("acked", "begun", "by", "edge", "key_hash", "note", "open", "sources", "timestamp", "xor")

    def __init__(self, by: int, edge: int, steps: int) -> None:
        self.by = by
        self.edge = edge
        self.xor = 0
        self.sources = 0
        self.timestamp: int | None = None
        self.begun: int | None = None
        """When the source was called, in nanoseconds since 1970; None in the event of a step."""
        self.key_hash: str | None = None
        self.note: bytes | None = None
        self.open = [0] * steps
        self.acked = [0] * steps
        """By step: the acked tuples, and FAILED times the failed ones."""

    def add_note(self, note: bytes) -> None:
        """Keeps the worst note: the smallest."""
        if self.note is None or note < self.note:
            self.note = note

    @property
    def complete(self) -> bool:
        """Whether no edge leaves this task: the tree ended here."""
        return not self.xor and not any(self.open)


@dataclass(slots=True)
class TupleRows:
    """Tuples on their way to other tasks, as columns."""

    steps: list[int] = field(default_factory=list)
    routes: list[int] = field(default_factory=list)
    edges: list[Edges] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    size: int = 0
    """About how many bytes they take."""

    def add(self, step: int, edges: Edges, key: bytes, payload: bytes) -> None:
        """Adds a tuple that is addressed to `step`."""
        self.steps.append(step)
        self.routes.append(crc32(key))
        self.edges.append(edges)
        self.keys.append(key)
        self.payloads.append(payload)
        self.size += len(payload) + len(key) + 100 * max(1, len(edges))

    def extend(self, other: "TupleRows") -> None:
        """Adds all tuples of `other`."""
        self.steps += other.steps
        self.routes += other.routes
        self.edges += other.edges
        self.keys += other.keys
        self.payloads += other.payloads
        self.size += other.size

    def slice(self, start: int, end: int) -> "TupleRows":
        """Returns the tuples at the places `[start, end)`. Their `size` is not counted."""
        return TupleRows(
            self.steps[start:end],
            self.routes[start:end],
            self.edges[start:end],
            self.keys[start:end],
            self.payloads[start:end],
        )

    def __len__(self) -> int:
        return len(self.steps)
