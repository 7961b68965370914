"""Records on their way through a Python worker: columns of one topic-partition, from Spark or from an exact read.

Both sources become the same `Records`, so that fresh records and retries meet the same code. Building a million
`Record`s is most of what Ackline adds to a handler's own time, hence the care here.
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from ackline.handler import Record
from ackline.offsets import TopicPartition

Headers = tuple[tuple[str, bytes | None], ...]
Int64s = npt.NDArray[np.int64]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TIMESTAMP = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# What an Arrow handler gets.
RECORD_COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("attempt", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one topic-partition in the order of their offsets.

    `timestamps` are microseconds since 1970, negative where Kafka has none. `headers` is None where no record has any.
    """

    tp: TopicPartition
    offsets: Int64s
    timestamps: Int64s
    keys: pa.Array
    values: pa.Array
    headers: Sequence[Headers] | None
    attempts: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets)

    def where(self, wanted: npt.NDArray[np.bool_]) -> "Records":
        """The rows that `wanted` marks."""
        mask = pa.array(wanted)
        headers = None if self.headers is None else [h for h, keep in zip(self.headers, wanted, strict=True) if keep]
        return Records(
            self.tp,
            self.offsets[wanted],
            self.timestamps[wanted],
            self.keys.filter(mask),
            self.values.filter(mask),
            headers,
            self.attempts[wanted],
        )

    def slice(self, start: int, count: int) -> "Records":
        """So many rows from `start` on, or what there is of them."""
        if not start and count >= len(self):
            return self
        wanted = np.zeros(len(self), dtype=np.bool_)
        wanted[start : start + count] = True
        return self.where(wanted)

    def take(self, rows: Sequence[int]) -> "Records":
        """These rows, named by their places, in this order."""
        mask = np.zeros(len(self), dtype=np.bool_)
        mask[list(rows)] = True
        return self.where(mask)

    def record(self, row: int) -> Record:
        """One row as the record that a handler gets, made anew."""
        at = slice(row, row + 1)
        headers = None if self.headers is None else self.headers[at]
        one = Records(
            self.tp,
            self.offsets[at],
            self.timestamps[at],
            self.keys[at],
            self.values[at],
            headers,
            self.attempts[at],
        )
        return next(one.records())

    def records(self) -> Iterator[Record]:
        """Each row as the record that a handler gets, made when it is asked for."""
        columns = zip(
            repeat(self.tp.topic),
            repeat(self.tp.partition),
            self.offsets.tolist(),
            _datetimes(self.timestamps),
            self.keys.to_numpy(zero_copy_only=False).tolist(),
            self.values.to_numpy(zero_copy_only=False).tolist(),
            repeat(()) if self.headers is None else self.headers,
            self.attempts.tolist(),
            strict=False,
        )
        for fields in columns:
            record = _Blank(*fields)
            record.__class__ = Record  # type: ignore[assignment]
            yield record  # type: ignore[misc]

    def payload(self, row: int) -> Iterator[bytes | str | None]:
        """What of a row must not show in an error message: key, value and header values."""
        yield self.keys[row].as_py()
        yield self.values[row].as_py()
        if self.headers is not None:
            yield from (value for _, value in self.headers[row])

    def to_arrow(self) -> pa.RecordBatch:
        """The rows as an Arrow handler gets them (RECORD_COLUMNS)."""
        count = len(self)
        headers = pa.nulls(count, HEADERS)
        if self.headers is not None:
            pairs = [[{"key": key, "value": value} for key, value in row] or None for row in self.headers]
            headers = pa.array(pairs, HEADERS)
        columns = [
            pa.array(np.full(count, self.tp.topic, dtype=object), pa.string()),
            pa.array(np.full(count, self.tp.partition, dtype=np.int32)),
            pa.array(self.offsets),
            timestamp_column(self.timestamps),
            self.keys,
            self.values,
            headers,
            pa.array(self.attempts),
        ]
        schema = RECORD_COLUMNS
        for name, column in (("key", self.keys), ("value", self.values)):
            if pa.types.is_string(column.type):  # decoded
                schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Blank:
    """A `Record` being filled. The constructor of a frozen dataclass costs six times this, on every record."""

    __slots__ = Record.__slots__

    def __init__(
        self, topic: Any, partition: Any, offset: Any, timestamp: Any, key: Any, value: Any, headers: Any, attempt: Any
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers
        self.attempt = attempt


def timestamp_column(microseconds: Int64s) -> pa.Array:
    """Times as an Arrow column, null where Kafka has none."""
    none = microseconds < 0
    return pa.array(microseconds, pa.int64(), mask=none if none.any() else None).cast(TIMESTAMP)


def _datetimes(microseconds: Int64s) -> list[datetime | None]:
    # Neighbours often have the same millisecond: a time is made once for each stretch.
    starts = np.flatnonzero(np.diff(microseconds, prepend=-2))
    times = np.empty(len(starts), dtype=object)
    times[:] = list(map(EPOCH.__add__, microseconds[starts].view("timedelta64[us]").tolist()))
    times[microseconds[starts] < 0] = None
    repeated: list[datetime | None] = np.repeat(times, np.diff(starts, append=len(microseconds))).tolist()
    return repeated


def from_spark(batch: pa.RecordBatch, topic: str | None) -> Records:
    """Fresh records as `ackline.spark.read` selects them; all of them first attempts, of one topic-partition.

    `topic` is the only topic of the job, or None where the batch has it as a column. Raises ValueError for a batch of
    more than one topic-partition: a task of Spark's Kafka source reads one.
    """
    partitions = batch.column("partition").to_numpy()
    topics = pa.array([topic]) if topic is not None else batch.column("topic").unique()
    if len(topics) != 1 or (partitions != partitions[0]).any():
        raise ValueError("a task was given records of several topic-partitions")
    headers = batch.column("headers")
    return Records(
        TopicPartition(topics[0].as_py(), int(partitions[0])),
        batch.column("offset").to_numpy(),
        batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False),
        batch.column("key"),
        batch.column("value"),
        None if headers.null_count == len(headers) else [headers_of(text) for text in headers.to_pylist()],
        np.ones(batch.num_rows, dtype=np.int32),
    )


def headers_of(text: str | None) -> Headers:
    """Headers from the JSON that Spark makes of them: it moves a nested column to Python many times slower."""
    if text is None:
        return ()
    pairs = ((pair["key"], pair.get("value")) for pair in json.loads(text))
    return tuple((key, None if value is None else b64decode(value)) for key, value in pairs)


def from_messages(
    tp: TopicPartition, messages: Sequence[Message], headers: Sequence[Headers], attempts: Sequence[int]
) -> Records:
    """Records that an exact read brought, with their headers, each with the number of the attempt to be made."""
    milliseconds = np.array([message.timestamp()[1] for message in messages], dtype=np.int64)
    return Records(
        tp,
        np.array([message.offset() for message in messages], dtype=np.int64),
        milliseconds * 1000,
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        headers if any(headers) else None,
        np.array(attempts, dtype=np.int32),
    )
