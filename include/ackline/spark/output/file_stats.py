"""What the Delta log says about a file of outcomes, so that nobody has to open it to count or to pass it by."""

import json
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.spark.records import EPOCH, Int64s


@dataclass(slots=True)
class WrittenFile:
    """A file of outcomes, as an `AddAction` of the Delta log wants it.

    `path` is relative to the table's root, "" where rows were counted and not written; `modification_time` in
    milliseconds; `stats` is Delta's JSON.
    """

    path: str
    size: int
    rows: int
    topic: str
    partition: int
    outcome: Outcome
    stats: str
    modification_time: int


@dataclass(slots=True)
class FileStats:
    """Statistics of a file that is being written."""

    tp: TopicPartition
    outcome: Outcome
    lane: str
    epoch: int
    turn: int
    rows: int = 0
    _bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    _nulls: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        offsets: Int64s,
        attempts: npt.NDArray[np.int32],
        handled_at: Int64s,
        timestamps: Int64s,
        nulls: dict[str, int],
    ) -> None:
        """Count rows that were written; `nulls` for the columns that may have any."""
        self.rows += len(offsets)
        self._widen("offset", offsets)
        self._widen("attempt", attempts)
        self._widen("handled_at", handled_at)
        if len(known := timestamps[timestamps >= 0]):
            self._widen("record_timestamp", known)
        for name, count in nulls.items():
            self._nulls[name] = self._nulls.get(name, 0) + count

    def _widen(self, name: str, values: Int64s | npt.NDArray[np.int32]) -> None:
        low, high = int(values.min()), int(values.max())
        old = self._bounds.get(name, (low, high))
        self._bounds[name] = (min(low, old[0]), max(high, old[1]))

    def written(self, path: str, size: int, modification_time: int) -> WrittenFile:
        """The file as it is now."""
        topic, partition = self.tp
        constant = {
            "lane": self.lane,
            "epoch": self.epoch,
            "turn": self.turn,
            "topic": topic,
            "partition": partition,
            "outcome": self.outcome.value,
        }
        stats = {
            "numRecords": self.rows,
            "minValues": constant | {name: _value(name, low) for name, (low, _) in self._bounds.items()},
            "maxValues": constant | {name: _value(name, high) for name, (_, high) in self._bounds.items()},
            "nullCount": dict.fromkeys([*constant, "run_id", "offset", "attempt", "handled_at"], 0) | self._nulls,
        }
        return WrittenFile(path, size, self.rows, topic, partition, self.outcome, json.dumps(stats), modification_time)


def _value(name: str, value: int) -> int | str:
    if name not in ("handled_at", "record_timestamp"):
        return value
    # Both are whole milliseconds, which is what the Delta protocol keeps of a time.
    time = EPOCH + timedelta(microseconds=value)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
