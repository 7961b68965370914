"""Where the copies of pending records are that were rescued from retention: runs of offsets, as columns. Pure.

Settle copies a pending record that retention is about to take to the rescue topic, and stores with the settlement where
the copy is. From then on each reader of the record reads the copy if the original is gone, so such a record is never
`expired` and never `compacted`. A turn may rescue millions of records, so runs are columns, 28 bytes each: neighbouring
records have neighbouring copies.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ackline.ledger.offsets import (
    Int64s,
    Ranges,
    Runs,
    TopicPartition,
    index_of_range,
    intersect,
    subtract,
    union,
)


class CopyLog(NamedTuple):
    """A partition of a rescue topic. Offsets of another topic of the same name mean nothing."""

    topic: str
    topic_id: str
    partition: int

    @property
    def tp(self) -> TopicPartition:
        """The topic-partition."""
        return TopicPartition(self.topic, self.partition)


class CopyRun(NamedTuple):
    """The copies of the records at the offsets `[start, end)`, at neighbouring offsets from `first` on."""

    start: int
    end: int
    log: CopyLog
    first: int


class CopyPlace(NamedTuple):
    """Where the copy of one record is."""

    log: CopyLog
    offset: int

    def __str__(self) -> str:
        return f"{self.log.tp}@{self.offset}"


class Copies(Runs):
    """Sorted, disjoint runs of offsets of one topic-partition, with the places of the copies of their records.

    `firsts` has the offset of the copy at the start of each run, `codes` are indexes of `logs`.
    """

    __slots__ = ("codes", "firsts", "logs")

    def __init__(
        self, starts: Int64s, ends: Int64s, codes: npt.NDArray[np.int32], firsts: Int64s, logs: Iterable[CopyLog]
    ) -> None:
        self.starts, self.ends, self.codes, self.firsts = starts, ends, codes, firsts
        self.logs = tuple(logs)

    @classmethod
    def of(cls, runs: Iterable[CopyRun]) -> "Copies":
        """Returns these runs, which may come in any order. Raises ValueError if an offset is in two of them."""
        every, logs = sorted(runs), dict[CopyLog, int]()
        codes = np.array([logs.setdefault(run.log, len(logs)) for run in every], dtype=np.int32)
        starts, ends, firsts = (np.array([run[index] for run in every], dtype=np.int64) for index in (0, 1, 3))
        return cls(starts, ends, codes, firsts, logs)._joined()

    def within(self, ranges: Ranges) -> "Copies":
        """Returns the copies of the records in `ranges`."""
        return self._pieces(*intersect(self.ranges, ranges)) if len(self) else self

    def minus(self, holes: Ranges) -> "Copies":
        """Returns the copies of the records outside of `holes`."""
        return self._pieces(*subtract(self.ranges, holes)) if len(self) else self

    def plus(self, others: "Copies") -> "Copies":
        """Returns the copies of both. Raises ValueError if an offset is in both."""
        if not len(others) or not len(self):
            return self if len(self) else others
        return Copies.of([*self, *others])

    def place_of(self, offset: int) -> CopyPlace | None:
        """Returns where the copy of the record at `offset` is; None if it has none."""
        index = int(index_of_range(np.array([offset]), self.ranges)[0])
        if index < 0:
            return None
        run = self.logs[int(self.codes[index])]
        return CopyPlace(run, int(self.firsts[index]) + offset - int(self.starts[index]))

    def by_log(self) -> "dict[CopyLog, Copies]":
        """Returns the runs of each partition of a rescue topic."""
        of_logs = {log: self.codes == code for code, log in enumerate(self.logs)}
        return {
            log: Copies(self.starts[rows], self.ends[rows], self.codes[rows], self.firsts[rows], self.logs)
            for log, rows in of_logs.items()
            if rows.any()
        }

    def outside(self, start: int, end: int) -> Ranges:
        """Returns the offsets of the records whose copies are outside of the offsets `[start, end)`."""
        lengths = self.ends - self.starts
        below, above = np.clip(start - self.firsts, 0, lengths), np.clip(end - self.firsts, 0, lengths)
        return union((self.starts, self.starts + below), (self.starts + np.maximum(below, above), self.ends))

    @property
    def offsets(self) -> int:
        """How many records have a copy."""
        return int((self.ends - self.starts).sum())

    def _pieces(self, starts: Int64s, ends: Int64s, index: Int64s) -> "Copies":
        return Copies(starts, ends, self.codes[index], self.firsts[index] + starts - self.starts[index], self.logs)

    def _joined(self) -> "Copies":
        """Returns the same copies in as few runs as possible. Raises ValueError if an offset is in two runs."""
        overlap = self.starts[1:] < self.ends[:-1]
        if overlap.any():
            raise ValueError(f"two copies of offset {self.starts[1:][overlap][0]}")
        begins = np.ones(len(self), dtype=np.bool_)
        goes_on = (self.starts[1:] == self.ends[:-1]) & (self.codes[1:] == self.codes[:-1])
        begins[1:] = ~(goes_on & (self.firsts[1:] == (self.firsts + self.ends - self.starts)[:-1]))
        lasts = np.append(begins[1:], True) if len(self) else begins
        return Copies(self.starts[begins], self.ends[lasts], self.codes[begins], self.firsts[begins], self.logs)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[CopyRun]:
        columns = (column.tolist() for column in (self.starts, self.ends, self.codes, self.firsts))
        for start, end, code, first in zip(*columns, strict=True):
            yield CopyRun(start, end, self.logs[code], first)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Copies) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Copies{tuple(self)}" if len(self) <= 5 else f"Copies({len(self)} runs from {self.starts[0]})"


NO_COPIES = Copies.of(())
"""No copies, for the many partitions in which none was rescued."""


class Rescued(NamedTuple):
    """The copies of records of one topic-partition, and the id of the topic that these records were in."""

    topic_id: str
    copies: Copies
