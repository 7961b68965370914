"""Rows of the table `outcomes` as the ledger needs them: one as a value, and many as columns. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ackline.outcome import Outcome
from ackline.pending import microseconds, time_of
from ackline.range_arrays import Bools, Int64s

_CHUNK = 10_000
_NO_END = -1


class OutcomeRow(NamedTuple):
    """A row of the table `outcomes`, as far as the ledger needs it: an attempt, or a decision of settle."""

    offset: int
    attempt: int
    """The number of the attempt, counted from 1; 0 in a decision."""
    outcome: Outcome
    handled_at: datetime
    error_class: str | None = None
    end_offset: int | None = None
    """The exclusive end, where the row stands for a whole range; None for a row of one offset."""
    reason: str | None = None

    @property
    def end(self) -> int:
        """The exclusive end of the row's offsets."""
        return self.offset + 1 if self.end_offset is None else self.end_offset


class OutcomeColumns(Sequence[OutcomeRow]):
    """Outcome rows of one topic-partition as columns, without their reasons: 32 bytes a row.

    `end_offsets` has -1 for a row of one offset, `handled_at` is in microseconds since 1970. `codes` are indexes of
    `results`.
    """

    __slots__ = ("attempts", "codes", "end_offsets", "handled_at", "offsets", "results")

    def __init__(
        self,
        offsets: Int64s,
        end_offsets: Int64s,
        attempts: npt.NDArray[np.int32],
        handled_at: Int64s,
        codes: npt.NDArray[np.int32],
        results: Sequence[tuple[Outcome, str | None]],
    ) -> None:
        self.offsets, self.end_offsets, self.attempts = offsets, end_offsets, attempts
        self.handled_at, self.codes, self.results = handled_at, codes, tuple(results)

    @classmethod
    def of(cls, rows: Iterable[OutcomeRow]) -> "OutcomeColumns":
        """Returns these rows as columns."""
        if isinstance(rows, OutcomeColumns):
            return rows
        every = list(rows)
        results: dict[tuple[Outcome, str | None], int] = {}
        codes = [results.setdefault((row.outcome, row.error_class), len(results)) for row in every]
        ends = [_NO_END if row.end_offset is None else row.end_offset for row in every]
        return cls(
            np.array([row.offset for row in every], dtype=np.int64),
            np.array(ends, dtype=np.int64),
            np.array([row.attempt for row in every], dtype=np.int32),
            np.array([microseconds(row.handled_at) for row in every], dtype=np.int64),
            np.array(codes, dtype=np.int32),
            list(results),
        )

    @classmethod
    def concat(cls, parts: Iterable[Iterable[OutcomeRow]]) -> "OutcomeColumns":
        """Returns the rows of all parts."""
        columns = [cls.of(part) for part in parts] or [cls.of(())]
        if len(columns) == 1:
            return columns[0]
        results: dict[tuple[Outcome, str | None], int] = {}
        codes = [np.zeros(0, dtype=np.int32)]
        for part in columns:
            recoded = [results.setdefault(result, len(results)) for result in part.results]
            codes.append(np.array(recoded, dtype=np.int32)[part.codes] if len(part) else codes[0])
        names = ("offsets", "end_offsets", "attempts", "handled_at")
        offsets, ends, attempts, times = (np.concatenate([getattr(part, n) for part in columns]) for n in names)
        return cls(offsets, ends, attempts, times, np.concatenate(codes), list(results))

    @property
    def ends(self) -> Int64s:
        """The exclusive end of each row's offsets."""
        ends: Int64s = np.where(self.end_offsets == _NO_END, self.offsets + 1, self.end_offsets)
        return ends

    def with_outcome(self, outcome: Outcome) -> "OutcomeColumns":
        """Returns the rows with this outcome."""
        return self.where(self._has([result is outcome for result, _ in self.results]))

    def of_ranges(self) -> "OutcomeColumns":
        """Returns the rows that stand for a range of offsets."""
        return self.where(self.end_offsets != _NO_END)

    @property
    def terminal(self) -> Bools:
        """Whether each row settles its offsets."""
        return self._has([outcome.terminal for outcome, _ in self.results])

    def _has(self, wanted: Sequence[bool]) -> Bools:
        chosen: Bools = np.array(wanted, dtype=np.bool_)
        return chosen[self.codes] if len(self) else np.zeros(0, dtype=np.bool_)

    def where(self, rows: Bools | Int64s) -> "OutcomeColumns":
        """Returns the rows for which `rows` is true, or those with these indexes."""
        return OutcomeColumns(
            self.offsets[rows],
            self.end_offsets[rows],
            self.attempts[rows],
            self.handled_at[rows],
            self.codes[rows],
            self.results,
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[OutcomeRow]:
        for first in range(0, len(self), _CHUNK):
            part = slice(first, first + _CHUNK)
            names = ("offsets", "end_offsets", "attempts", "handled_at", "codes")
            for offset, end, attempt, time, code in zip(*(getattr(self, n)[part].tolist() for n in names), strict=True):
                outcome, error_class = self.results[code]
                handled_at = time_of(time)
                assert handled_at is not None
                yield OutcomeRow(offset, attempt, outcome, handled_at, error_class, None if end == _NO_END else end)

    @overload
    def __getitem__(self, index: int) -> OutcomeRow: ...
    @overload
    def __getitem__(self, index: slice) -> "OutcomeColumns": ...
    def __getitem__(self, index: int | slice) -> "OutcomeRow | OutcomeColumns":
        rows = self.where(np.arange(len(self))[index if isinstance(index, slice) else slice(index, index + 1 or None)])
        if isinstance(index, slice):
            return rows
        for row in rows:
            return row
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"OutcomeColumns({len(self)} rows)"
