"""The table `outcomes` as arrays: the words of an outcome, and the effective rows of each partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ackline.verify.arrays import EMPTY, NEVER, Ints, Mask, to_codes, to_ints
from ackline.verify.evidence import TopicPartition

TERMINAL = ("acked", "skipped", "dropped", "dead", "expired", "compacted", "lost")
OUTCOMES = (*TERMINAL, "failed", "in_flight")
"""An outcome's code is its index here: a code from 0 to below FAILED is a terminal outcome."""
FAILED, DEAD, LOST = OUTCOMES.index("failed"), OUTCOMES.index("dead"), OUTCOMES.index("lost")
ACKED = OUTCOMES.index("acked")
IN_FLIGHT = OUTCOMES.index("in_flight")
OF_ATTEMPTS = [OUTCOMES.index(word) for word in ("acked", "failed", "dropped", "in_flight")]
OF_DECISIONS = [OUTCOMES.index(word) for word in ("dead", "expired", "compacted", "lost")]
OF_RANGES = [OUTCOMES.index(word) for word in ("skipped", "expired", "lost")]
ERROR_CLASSES = ("Dead", "Tombstone", "Undecodable", "Unmatched", "Skip")


@dataclass(frozen=True, slots=True)
class OutcomeRows:
    """Effective rows of one partition in one epoch, sorted by offset, attempt and turn.

    `outcome` is an index in OUTCOMES; −1 is an unknown word. `end` is `offset + 1` for a row of a single record.
    `raised_dead`: the handler raised Dead. `uncalled`: no handler was called, because the record is a tombstone, was
    not decoded, or belongs to no stream. `raised_skip`: the handler or a step raised Skip. `answered`: the row ends or
    renews an attempt in flight, and is no attempt itself.
    """

    turn: Ints
    offset: Ints
    end: Ints
    attempt: Ints
    outcome: Ints
    handled_at: Ints
    raised_dead: Mask
    uncalled: Mask
    raised_skip: Mask
    answered: Mask

    def where(self, chosen: Mask | Ints) -> "OutcomeRows":
        """Return the rows that a mask or an array of indexes chooses."""
        return OutcomeRows(*(getattr(self, name)[chosen] for name in OutcomeRows.__slots__))

    @property
    def terminal(self) -> "OutcomeRows":
        """The rows with a terminal outcome."""
        return self.where((self.outcome >= 0) & (self.outcome < FAILED))

    @property
    def attempts(self) -> "OutcomeRows":
        """The rows of attempts, without the decisions and without what has ended an attempt in flight."""
        return self.where((self.attempt >= 1) & ~self.answered)

    @property
    def failures(self) -> "OutcomeRows":
        """The rows of attempts that failed, by themselves or by an answer from outside."""
        return self.where((self.attempt >= 1) & (self.outcome == FAILED))


NO_ROWS = OutcomeRows(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, *(EMPTY == 0 for _ in range(4)))


def split_outcomes(table: pa.Table, topics: Sequence[str]) -> Mapping[tuple[int, TopicPartition], OutcomeRows]:
    """Return the rows of `outcomes` by epoch and topic-partition. `topics` are all topics of the table."""
    epoch, turn, offset, attempt = (to_ints(table[name]) for name in ("epoch", "turn", "offset", "attempt"))
    topic, partition = to_codes(table["topic"], topics), to_ints(table["partition"])
    end, error = to_ints(table["end_offset"]), to_codes(table["error_class"], ERROR_CLASSES)
    kinds = error == 0, (error >= 1) & (error <= 3), error == 4
    rows = OutcomeRows(turn, offset, np.where(end < 0, offset + 1, end), attempt, to_codes(table["outcome"], OUTCOMES),
                       to_ints(table["handled_at"]), *kinds, _answered(table))  # fmt: skip
    order = np.lexsort((turn, attempt, offset, partition, topic, epoch))
    keys = np.stack([epoch[order], topic[order], partition[order]])
    cuts = np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)) + 1
    parts = [part for part in np.split(order, cuts) if len(part)]
    first = [part[0] for part in parts]
    return {
        (int(epoch[i]), TopicPartition(topics[int(topic[i])], int(partition[i]))): rows.where(part)
        for i, part in zip(first, parts, strict=True)
    }


def _answered(table: pa.Table) -> Mask:
    if "answer" not in table.column_names:  # a table of an earlier version, which knew no records in flight
        return np.zeros(table.num_rows, np.bool_)
    return np.asarray(table["answer"].is_valid().to_numpy(), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class OffsetTurns:
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
