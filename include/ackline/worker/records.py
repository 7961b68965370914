"""The records of one topic-partition as columns, in a Python worker.

Fresh records come from Spark and retries from an exact read; both become `Records`, so the same code handles them.
Ackline spends most of its own time in a task on building a `Record` for each row, so this file is written for speed.
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from ackline.handler import Record
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import LATEST_MILLISECOND, NO_TIMESTAMP, UNIX_EPOCH, Outcome

Headers = tuple[tuple[str, bytes | None], ...]
Int64s = npt.NDArray[np.int64]

OUT_OF_RANGE = -2
"""In `Records.timestamps`: the record has a timestamp that is no time (`ackline.ledger.outcomes`)."""
_LATEST = LATEST_MILLISECOND * 1000

TIMESTAMP = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
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
"""The columns that an Arrow handler gets."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one topic-partition as columns, in the order of their offsets. Iterate over it for each `Record`.
    `timestamps` are microseconds since 1970: NO_TIMESTAMP where Kafka has none, OUT_OF_RANGE where it is no time.
    `headers` is None if no record has headers."""

    tp: TopicPartition
    offsets: Int64s
    timestamps: Int64s
    keys: pa.Array
    values: pa.Array
    headers: Sequence[Headers] | None
    attempts: npt.NDArray[np.int32]
    order_keys: Int64s | None = None
    """With an `order`: which records must not overtake each other, as `ackline.worker.gate` defines it."""

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Record]:
        """Yields each row as the record that a handler gets. Builds a record when the caller takes it."""
        topic, partition = self.tp.topic, self.tp.partition
        columns = zip(
            self.offsets.tolist(),
            _datetimes(self.timestamps),
            self.keys.to_numpy(zero_copy_only=False).tolist(),
            self.values.to_numpy(zero_copy_only=False).tolist(),
            repeat(()) if self.headers is None else self.headers,
            self.attempts.tolist(),
            strict=False,
        )
        for offset, timestamp, key, value, headers, attempt in columns:
            record: Any = _MutableRecord()  # its attributes are set here, because a call for it takes a third longer
            record.topic = topic
            record.partition = partition
            record.offset = offset
            record.timestamp = timestamp
            record.key = key
            record.value = value
            record.headers = headers
            record.attempt = attempt
            record.__class__ = Record
            yield record

    def filter(self, wanted: npt.NDArray[np.bool_]) -> "Records":
        """Returns the rows for which `wanted` is true."""
        mask = pa.array(wanted)
        headers = None if self.headers is None else [h for h, keep in zip(self.headers, wanted, strict=True) if keep]
        offsets, timestamps, attempts = self.offsets[wanted], self.timestamps[wanted], self.attempts[wanted]
        order_keys = None if self.order_keys is None else self.order_keys[wanted]
        keys, values = self.keys.filter(mask), self.values.filter(mask)
        return Records(self.tp, offsets, timestamps, keys, values, headers, attempts, order_keys)

    def slice(self, start: int, count: int) -> "Records":
        """Returns at most `count` rows, from row `start` on."""
        if not start and count >= len(self):
            return self
        return self.take(np.arange(start, min(start + count, len(self))))

    def take(self, rows: Sequence[int] | Int64s) -> "Records":
        """Returns the rows with these indexes, in the order of their offsets."""
        wanted = np.zeros(len(self), dtype=np.bool_)
        wanted[rows] = True
        return self.filter(wanted)

    def record(self, row: int) -> Record:
        """Builds the record of one row anew: a handler may have changed the values inside the one it was given."""
        time = int(self.timestamps[row])
        return Record(
            self.tp.topic,
            self.tp.partition,
            int(self.offsets[row]),
            None if time < 0 else UNIX_EPOCH + timedelta(microseconds=time),
            self.keys[row].as_py(),
            self.values[row].as_py(),
            () if self.headers is None else self.headers[row],
            int(self.attempts[row]),
        )

    def payload_of(self, row: int) -> Iterator[bytes | str | None]:
        """Yields what an error message must not repeat of a row: its key, its value and the values of its headers."""
        yield self.keys[row].as_py()
        yield self.values[row].as_py()
        if self.headers is not None:
            yield from (value for _, value in self.headers[row])

    def to_arrow(self) -> pa.RecordBatch:
        """Returns the rows as an Arrow handler gets them: RECORD_COLUMNS, with decoded keys and values as text."""
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
            if pa.types.is_string(column.type):  # a stream has decoded the column
                schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class GoneOffsets:
    """Offsets that the log no longer holds: all of them expired, or all compacted."""

    tp: TopicPartition
    offsets: Sequence[int]
    outcome: Outcome


class _MutableRecord:
    """A `Record` before its class is set. The constructor of a frozen dataclass would take six times as long."""

    __slots__ = Record.__slots__


def timestamp_column(microseconds: Int64s) -> pa.Array:
    """Returns times as an Arrow column, with null for NO_TIMESTAMP and OUT_OF_RANGE."""
    none = microseconds < 0
    return pa.array(microseconds, pa.int64(), mask=none if none.any() else None).cast(TIMESTAMP)


def checked_times(microseconds: Int64s) -> Int64s:
    """Returns the timestamps as `Records` has them, given each one as microseconds, whatever the producer has set."""
    if not len(microseconds) or (microseconds.min() >= 0 and microseconds.max() <= _LATEST):
        return microseconds
    is_time = (microseconds >= 0) & (microseconds <= _LATEST)
    return np.where(is_time, microseconds, np.where(microseconds == NO_TIMESTAMP * 1000, NO_TIMESTAMP, OUT_OF_RANGE))


def _datetimes(microseconds: Int64s) -> list[datetime | None]:
    # Consecutive records often share their millisecond, so a datetime is built once for each run of equal times.
    starts = np.flatnonzero(np.diff(microseconds, prepend=OUT_OF_RANGE - 1))  # the first row always starts a run
    times = np.empty(len(starts), dtype=object)
    times[:] = list(map(UNIX_EPOCH.__add__, microseconds[starts].view("timedelta64[us]").tolist()))
    times[microseconds[starts] < 0] = None
    repeated: list[datetime | None] = np.repeat(times, np.diff(starts, append=len(microseconds))).tolist()
    return repeated


def from_spark(tp: TopicPartition, batch: pa.RecordBatch) -> Records:
    """Returns fresh records of one topic-partition, selected by `ackline.spark.lineage.for_python`: first attempts."""
    headers = batch.column("headers")
    return Records(
        tp,
        batch.column("offset").to_numpy(),
        checked_times(batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)),
        batch.column("key"),
        batch.column("value"),
        None if headers.null_count == len(headers) else [headers_from_json(text) for text in headers.to_pylist()],
        np.ones(batch.num_rows, dtype=np.int32),
    )


def headers_from_json(text: str | None) -> Headers:
    """Returns headers from Spark's JSON of them. Spark moves a nested column to Python many times slower."""
    if text is None:
        return ()
    pairs = ((pair["key"], pair.get("value")) for pair in json.loads(text))
    return tuple((key, None if value is None else b64decode(value)) for key, value in pairs)


def from_messages(
    tp: TopicPartition, messages: Sequence[Message], headers: Sequence[Headers], attempts: Sequence[int]
) -> Records:
    """Returns the records of an exact read. `attempts` has the number of each record's present attempt."""
    # Clipped, because a number of more than 292,000 years does not fit 64 bits in microseconds.
    milliseconds = np.clip([message.timestamp()[1] for message in messages], OUT_OF_RANGE, LATEST_MILLISECOND + 1)
    return Records(
        tp,
        np.array([message.offset() for message in messages], dtype=np.int64),
        checked_times(milliseconds.astype(np.int64) * 1000),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        headers if any(headers) else None,
        np.array(attempts, dtype=np.int32),
    )
