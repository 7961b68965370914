"""The tables `settlements` and `plans` as one object a row, by epoch and partition, in the order of turns."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.verify.arrays import EMPTY, Ints, Mask, count_covering, to_codes, to_ints
from ackline.verify.evidence import TopicPartition

EpochPartition = tuple[int, TopicPartition]


@dataclass(frozen=True, slots=True)
class Pending:
    """Pending offsets of one partition, as sorted ranges of equal state.

    `due` is in microseconds since 1970. `retry`: the handler will be called again; otherwise a dead letter is due.
    """

    start: Ints
    end: Ints
    attempts: Ints
    due: Ints
    retry: Mask

    def count_covering(self, offsets: Ints) -> Ints:
        """Return, for each of `offsets`, how many of the pending ranges contain it."""
        return count_covering(offsets, self.start, self.end)

    def where(self, chosen: Mask) -> "Pending":
        """Return the ranges that a mask chooses."""
        return Pending(*(getattr(self, name)[chosen] for name in Pending.__slots__))

    @property
    def size(self) -> int:
        """The number of pending offsets."""
        return int((self.end - self.start).sum())


@dataclass(frozen=True, slots=True)
class Settlement:
    """A row of `settlements`; `counts` is None if the settlement does not have the counts of its turn any more."""

    turn: int
    kind: str
    old_floor: int
    floor: int
    complete_to: int
    pending: Pending
    counts: Mapping[str, int] | None = None
    gaps: int = 0
    ranges: tuple[tuple[int, int], ...] | None = None
    """In the genesis of a backfill lane: the ranges that were chosen."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A row of `plans`: the range `[start, end)` that a turn reads of one partition, and the settings of the plan.

    `first` are the ranges of single offsets that a turn of a backfill lane reads as attempt 1.
    """

    turn: int
    kind: str
    start: int
    end: int
    settings: Mapping[str, Any]
    first: tuple[tuple[int, int], ...] = ()

    @property
    def handed_out(self) -> list[tuple[int, int]]:
        """The ranges of which the turn makes first attempts."""
        return [(self.start, self.end), *self.first]

    @property
    def at_most_once(self) -> bool:
        """Whether the turn was planned under the guarantee `at_most_once`."""
        return self.settings.get("guarantee") == "at_most_once"

    @property
    def hands_out_once(self) -> bool:
        """Whether the turn hands out records of this partition, at most once."""
        return self.kind == "run" and self.at_most_once and any(start < end for start, end in self.handed_out)


@dataclass(frozen=True, slots=True)
class CountedRanges:
    """Ranges that turns read without keeping rows (`record_outcomes: false`); their settlements have counts only."""

    turn: Ints
    start: Ints
    end: Ints

    def count_covering(self, offsets: Ints) -> Ints:
        """Return, for each of `offsets`, how many of the ranges contain it."""
        return count_covering(offsets, self.start, self.end)


NO_RANGES = CountedRanges(EMPTY, EMPTY, EMPTY)


def split_settlements(table: pa.Table) -> dict[EpochPartition, list[Settlement]]:
    """Return the settlements of each epoch and topic-partition, by turn."""
    bounds, pending = _pending_of_all_rows(table["pending"].combine_chunks())
    found: dict[EpochPartition, list[Settlement]] = {}
    for i, row in enumerate(table.drop_columns(["pending"]).to_pylist()):
        begin, end = int(bounds[i]), int(bounds[i + 1])
        order = begin + np.argsort(pending.start[begin:end], kind="stable")
        own = Pending(*(getattr(pending, name)[order] for name in Pending.__slots__))
        # `gaps` is null where the counts of a turn were not known when it was settled.
        counted = row.get("counts") is not None and row.get("gaps") is not None
        settlement = Settlement(
            row["turn"], row["kind"], row["old_floor"], row["new_floor"], row["complete_to"], own,
            dict(row["counts"]) if counted else None, row.get("gaps") or 0, _chosen_ranges(row.get("ranges")),
        )  # fmt: skip
        found.setdefault((row["epoch"], TopicPartition(row["topic"], row["partition"])), []).append(settlement)
    for settlements in found.values():
        settlements.sort(key=lambda settlement: settlement.turn)
    return found


def _chosen_ranges(rows: Iterable[Mapping[str, int]] | None) -> tuple[tuple[int, int], ...] | None:
    return None if rows is None else tuple((row["start_offset"], row["end_offset"]) for row in rows)


def _pending_of_all_rows(column: Any) -> tuple[Ints, Pending]:
    """Return the bounds of each row's list, and the pending ranges of all rows after each other.

    The fields are taken from the flat child arrays: a row of Python objects for each range would cost too much.
    """
    fields = column.values
    names = [fields.type.field(i).name for i in range(fields.type.num_fields)]
    flat = {name: fields.field(i) for i, name in enumerate(names)}
    start, end, attempts, due = (to_ints(flat[name]) for name in ("start_offset", "end_offset", "attempts", "due"))
    return to_ints(column.offsets), Pending(start, end, attempts, due, to_codes(flat["kind"], ["retry"]) == 0)


def split_plans(rows: Iterable[Mapping[str, Any]]) -> dict[EpochPartition, list[PlannedRange]]:
    """Return the plans of each epoch and topic-partition, by turn, open and void ones included."""
    found: dict[EpochPartition, list[PlannedRange]] = {}
    parsed: dict[str, Any] = {}  # all partitions of a plan have the same settings, so each text is parsed once
    for row in rows:
        text = row.get("settings") or "{}"
        if text not in parsed:
            parsed[text] = json.loads(text)
        first = tuple((r["start_offset"], r["end_offset"]) for r in row.get("retries") or () if r["attempt"] == 1)
        plan = PlannedRange(row["turn"], row["kind"], row["start_offset"], row["end_offset"], parsed[text], first)
        found.setdefault((row["epoch"], TopicPartition(row["topic"], row["partition"])), []).append(plan)
    for plans in found.values():
        plans.sort(key=lambda plan: plan.turn)
    return found
