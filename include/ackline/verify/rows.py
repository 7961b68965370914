"""The three tables as the rules read them: outcomes as arrays by partition, settlements and plans by epoch and
partition, one object a row, in the order of turns.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import pyarrow as pa

from ackline.verify.evidence import EMPTY, NEVER, Ints, Mask, TopicPartition, count_covering, to_codes, to_ints

TERMINAL = ("acked", "skipped", "dropped", "dead", "expired", "compacted", "lost")
OUTCOMES = (*TERMINAL, "failed", "in_flight", "held_back")
"""An outcome's code is its index here: a code from 0 to below FAILED is a terminal outcome."""
FAILED, DEAD, LOST = OUTCOMES.index("failed"), OUTCOMES.index("dead"), OUTCOMES.index("lost")
OF_GONE = [OUTCOMES.index(word) for word in ("expired", "compacted")]
ACKED = OUTCOMES.index("acked")
IN_FLIGHT, HELD_BACK = OUTCOMES.index("in_flight"), OUTCOMES.index("held_back")
OF_ATTEMPTS = [OUTCOMES.index(word) for word in ("acked", "failed", "dropped", "in_flight")]
OF_DECISIONS = [OUTCOMES.index(word) for word in ("dead", "expired", "compacted", "lost", "held_back")]
OF_RANGES = [OUTCOMES.index(word) for word in ("skipped", "expired", "lost")]
ERROR_CLASSES = ("Dead", "Tombstone", "Undecodable", "Unmatched", "WhereError", "Skip")


class Columns:
    """A dataclass of arrays of one length, each a column of the same rows."""

    __slots__ = ()

    def where(self, chosen: Mask | Ints) -> Self:
        """Return the rows that a mask or an array of indexes chooses."""
        return type(self)(*(getattr(self, column.name)[chosen] for column in fields(self)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Ranges(Columns):
    """Half-open ranges of offsets."""

    start: Ints
    end: Ints

    @property
    def size(self) -> int:
        """The number of offsets in all ranges."""
        return int((self.end - self.start).sum())

    def count_covering(self, offsets: Ints) -> Ints:
        """Return, for each of `offsets`, how many of the ranges contain it."""
        return count_covering(offsets, self.start, self.end)


@dataclass(frozen=True, slots=True)
class OutcomeRows(Columns):
    """Effective rows of one partition in one epoch, sorted by offset, attempt and turn.

    `outcome` is an index in OUTCOMES; −1 is an unknown word. `end` is `offset + 1` for a row of a single record.
    `raised_dead`: the handler raised Dead. `uncalled`: no handler was called, because the record is a tombstone, was
    not decoded, or is taken by no stream or no `--where`. `raised_skip`: the handler or a step raised Skip. `answered`:
    the row ends or renews an attempt in flight, and is no attempt itself. `key` is a hash of the record's key where
    `keyed`.
    """

    turn: Ints
    offset: Ints
    end: Ints
    attempt: Ints
    outcome: Ints
    handled_at: Ints
    key: Ints
    raised_dead: Mask
    uncalled: Mask
    raised_skip: Mask
    answered: Mask
    keyed: Mask

    @property
    def terminal(self) -> "OutcomeRows":
        """The rows with a terminal outcome."""
        return self.where((self.outcome >= 0) & (self.outcome < FAILED))

    @property
    def attempts(self) -> "OutcomeRows":
        """The rows of attempts, without decisions and without the rows that end or renew an attempt in flight."""
        return self.where((self.attempt >= 1) & ~self.answered)

    @property
    def held_back(self) -> "OutcomeRows":
        """The rows of records that waited for a lower one of their key. They are no attempts."""
        return self.where(self.outcome == HELD_BACK)

    @property
    def failures(self) -> "OutcomeRows":
        """The rows of attempts that failed, by themselves or by an answer from outside."""
        return self.where((self.attempt >= 1) & (self.outcome == FAILED))


NO_ROWS = OutcomeRows(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, *(EMPTY == 0 for _ in range(5)))


def split_outcomes(table: pa.Table, topics: Sequence[str]) -> Mapping[tuple[int, TopicPartition], OutcomeRows]:
    """Return the rows of `outcomes` by epoch and topic-partition. `topics` are all topics of the table."""
    epoch, turn, offset, attempt = (to_ints(table[name]) for name in ("epoch", "turn", "offset", "attempt"))
    topic, partition = to_codes(table["topic"], topics), to_ints(table["partition"])
    end, error = to_ints(table["end_offset"]), to_codes(table["error_class"], ERROR_CLASSES)
    kinds = error == 0, (error >= 1) & (error <= 4), error == 5
    # A table of an earlier version has neither: it knew no records in flight, or no hashes of keys.
    answered, keyed = (_is_known(table, name) for name in ("answer", "key_hash64"))
    key = to_ints(table["key_hash64"]) if keyed.any() else np.zeros(table.num_rows, np.int64)
    rows = OutcomeRows(turn, offset, np.where(end < 0, offset + 1, end), attempt, to_codes(table["outcome"], OUTCOMES),
                       to_ints(table["handled_at"]), key, *kinds, answered, keyed)  # fmt: skip
    order = np.lexsort((turn, attempt, offset, partition, topic, epoch))
    keys = np.stack([epoch[order], topic[order], partition[order]])
    cuts = np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)) + 1
    parts = [part for part in np.split(order, cuts) if len(part)]
    first = [part[0] for part in parts]
    return {
        (int(epoch[i]), TopicPartition(topics[int(topic[i])], int(partition[i]))): rows.where(part)
        for i, part in zip(first, parts, strict=True)
    }


def _is_known(table: pa.Table, name: str) -> Mask:
    """Return whether each row has a value in a column, which the table may lack."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.bool_)
    return np.asarray(table[name].is_valid().to_numpy(), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class OffsetTurns(Columns):
    """For each offset with a row, the turns that matter to it; NEVER if there is no such turn.

    `first` is the first turn with a row of the offset, `settled` the first turn with a terminal outcome, `tried` the
    last turn with an attempt, 0 if none.
    """

    offset: Ints
    first: Ints
    settled: Ints
    tried: Ints


def find_offset_turns(rows: OutcomeRows) -> OffsetTurns:
    """Return the turns of each offset. Of a range, only its first offset and the offsets with other rows are there."""
    offsets, index = np.unique(rows.offset, return_inverse=True)
    first, settled = np.full(len(offsets), NEVER), np.full(len(offsets), NEVER)
    tried = np.zeros(len(offsets), np.int64)
    terminal = (rows.outcome >= 0) & (rows.outcome < FAILED)
    np.minimum.at(first, index, rows.turn)
    np.minimum.at(settled, index[terminal], rows.turn[terminal])
    attempts = (rows.attempt >= 1) & ~rows.answered
    np.maximum.at(tried, index[attempts], rows.turn[attempts])
    ranges = rows.where(terminal & (rows.end > rows.offset + 1))
    for turn, start, end in zip(ranges.turn, ranges.offset, ranges.end, strict=True):
        inside = slice(*np.searchsorted(offsets, [start, end]))
        first[inside], settled[inside] = np.minimum(first[inside], turn), np.minimum(settled[inside], turn)
    return OffsetTurns(offsets, first, settled, tried)


def count_by_turn(rows: OutcomeRows) -> dict[int, dict[str, int]]:
    """Return how many offsets the rows of each turn have, by outcome word; rows with an unknown word are left out."""
    counts: dict[int, dict[str, int]] = {}
    known = rows.where(rows.outcome >= 0)
    keys, index = np.unique(known.turn * len(OUTCOMES) + known.outcome, return_inverse=True)
    offsets = np.zeros(len(keys), np.int64)
    np.add.at(offsets, index, known.end - known.offset)
    for key, count in zip(keys.tolist(), offsets.tolist(), strict=True):
        turn, code = divmod(key, len(OUTCOMES))
        counts.setdefault(turn, {})[OUTCOMES[code]] = count
    return counts


EpochPartition = tuple[int, TopicPartition]


@dataclass(frozen=True, slots=True)
class Pending(Ranges):
    """Pending offsets of one partition, as sorted ranges of equal state.

    `due` is in microseconds since 1970. `retry`: the handler will be called again; `held`: it will be called once a
    lower record is settled. Otherwise a dead letter or an answer is due.
    """

    attempts: Ints
    due: Ints
    retry: Mask
    held: Mask


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
    topic_id: str | None = None
    """The id of the topic that the lane reads after the turn; None if it is not known."""
    leader_epoch: int | None = None
    """The leader epoch under which the log was read; None if that is not known."""
    rescued: tuple[tuple[int, int], ...] = ()
    """The ranges of records that have a copy in the rescue topic."""
    released: tuple[tuple[int, int], ...] = ()
    """The ranges of pending records that do not hold the floor, because they had copies."""

    def is_released(self, offsets: Ints) -> Mask:
        """Return for each offset whether it is released after the turn."""
        return _are_in(offsets, self.released)

    def is_rescued(self, offsets: Ints) -> Mask:
        """Return for each offset whether it has a copy after the turn."""
        return _are_in(offsets, self.rescued)

    @property
    def lowest_holding(self) -> int:
        """The lowest pending offset that is not released; `complete_to` if there is none."""
        if not self.released:
            return int(min(self.pending.start, default=self.complete_to))
        # What is pending and not released begins where a pending range does, or where a released one ends.
        begins = np.union1d(self.pending.start, np.array([end for _, end in self.released], dtype=np.int64))
        holding = (self.pending.count_covering(begins) > 0) & ~self.is_released(begins)
        return int(min(begins[holding], default=self.complete_to))


def _are_in(offsets: Ints, ranges: tuple[tuple[int, int], ...]) -> Mask:
    starts, ends = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    return np.asarray(count_covering(offsets, starts, ends) > 0)


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
    def order(self) -> str:
        """What may not overtake in the turn; none under a guarantee that leaves nothing pending."""
        ordered = self.kind == "run" and self.settings.get("guarantee") == "at_least_once"
        return str(self.settings.get("order") or "none") if ordered else "none"

    @property
    def hands_out_once(self) -> bool:
        """Whether the turn hands out records of this partition under `at_most_once`."""
        return self.kind == "run" and self.at_most_once and any(start < end for start, end in self.handed_out)


@dataclass(frozen=True, slots=True)
class CountedRanges(Ranges):
    """Ranges that turns read without keeping rows (`record_outcomes: false`); their settlements have counts only."""

    turn: Ints


NO_RANGES = CountedRanges(EMPTY, EMPTY, EMPTY)


def split_settlements(table: pa.Table) -> dict[EpochPartition, list[Settlement]]:
    """Return the settlements of each epoch and topic-partition, by turn."""
    bounds, pending = _pending_of_all_rows(table["pending"].combine_chunks())
    found: dict[EpochPartition, list[Settlement]] = {}
    for i, row in enumerate(table.drop_columns(["pending"]).to_pylist()):
        begin, end = int(bounds[i]), int(bounds[i + 1])
        order = begin + np.argsort(pending.start[begin:end], kind="stable")
        # `gaps` is null where the counts of a turn were not known when it was settled.
        counted = row.get("counts") is not None and row.get("gaps") is not None
        ranges = row.get("ranges")
        if ranges is not None:
            ranges = tuple((chosen["start_offset"], chosen["end_offset"]) for chosen in ranges)
        settlement = Settlement(
            row["turn"], row["kind"], row["old_floor"], row["new_floor"], row["complete_to"], pending.where(order),
            dict(row["counts"]) if counted else None, row.get("gaps") or 0, ranges, _topic_id(row.get("topic_id")),
            row.get("leader_epoch"),
            *(tuple((part["start_offset"], part["end_offset"]) for part in row.get(name) or ())
              for name in ("rescued", "released")),
        )  # fmt: skip
        found.setdefault((row["epoch"], TopicPartition(row["topic"], row["partition"])), []).append(settlement)
    for settlements in found.values():
        settlements.sort(key=lambda settlement: settlement.turn)
    return found


def _topic_id(text: str | None) -> str | None:
    """Return the id of a topic without the prefix `gone/`, which it has if the lane has let its partition go."""
    return text.removeprefix("gone/") if text else None


def _pending_of_all_rows(column: Any) -> tuple[Ints, Pending]:
    """Return the bounds of each row's list, and the pending ranges of all rows after each other.

    The fields are taken from the flat child arrays: a row of Python objects for each range would cost too much.
    """
    fields = column.values
    names = [fields.type.field(i).name for i in range(fields.type.num_fields)]
    flat = {name: fields.field(i) for i, name in enumerate(names)}
    start, end, attempts, due = (to_ints(flat[name]) for name in ("start_offset", "end_offset", "attempts", "due"))
    kinds = to_codes(flat["kind"], ["retry", "held_back"])
    return to_ints(column.offsets), Pending(start, end, attempts, due, kinds == 0, kinds == 1)


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
