"""The statistics of an outcomes file for the Delta log. By them settle counts acked records, and a reader skips files,
without opening a file."""

import json
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.record_time import UNIX_EPOCH
from ackline.spark.records import Int64s
from ackline.turns import TurnId


@dataclass(slots=True)
class WrittenFile:
    """A file of outcomes, with what an `AddAction` of the Delta log needs.

    `path` is relative to the table's root, or "" if outcomes were counted and not written. `modification_time` is in
    milliseconds since 1970. `stats` is Delta's JSON.
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
    """The statistics of a file while it is written."""

    tp: TopicPartition
    outcome: Outcome
    turn: TurnId
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
        """Counts rows that were written. `nulls` are the counts of nulls in the nullable columns."""
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

    def written_file(self, path: str, size: int, modification_time: int) -> WrittenFile:
        """Returns the file as it is now, with its statistics."""
        topic, partition = self.tp
        constant = {
            "pipeline": self.turn.pipeline,
            "lane": self.turn.lane,
            "epoch": self.turn.epoch,
            "turn": self.turn.n,
            "topic": topic,
            "partition": partition,
            "outcome": self.outcome.value,
        }
        stats = {
            "numRecords": self.rows,
            "minValues": constant | {name: _json_value(name, low) for name, (low, _) in self._bounds.items()},
            "maxValues": constant | {name: _json_value(name, high) for name, (_, high) in self._bounds.items()},
            "nullCount": dict.fromkeys([*constant, "run_id", "offset", "attempt", "handled_at"], 0) | self._nulls,
        }
        return WrittenFile(path, size, self.rows, topic, partition, self.outcome, json.dumps(stats), modification_time)


def _json_value(name: str, value: int) -> int | str:
    if name not in ("handled_at", "record_timestamp"):
        return value
    # The Delta protocol keeps milliseconds of a time. Both columns hold whole milliseconds, so nothing is cut off.
    time = UNIX_EPOCH + timedelta(microseconds=value)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
