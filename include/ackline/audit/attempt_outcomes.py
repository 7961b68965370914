"""The outcome of each attempt that a turn has made or ended, looked up by the anchors of output rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ackline.audit.store import LedgerStore
from ackline.outcome import Outcome
from ackline.range_arrays import Int64s, Ranges, index_of_range, union
from ackline.turns import TurnId

NO_OUTCOME = -1
WORDS: Sequence[str] = tuple(outcome.value for outcome in Outcome)
ACKED, IN_FLIGHT, SKIPPED = (
    WORDS.index(outcome.value) for outcome in (Outcome.ACKED, Outcome.IN_FLIGHT, Outcome.SKIPPED)
)
Integers = npt.NDArray[np.integer[Any]]
"""Attempts and codes in the small types of the rows: 11 bytes less for each attempt than with Int64s."""
_NO_OFFSETS: Int64s = np.empty(0, np.int64)


class Attempts(NamedTuple):
    """The attempts of a turn at the records of a topic-partition, by rising offset, and the ranges that an operator has
    skipped."""

    offsets: Int64s = _NO_OFFSETS
    attempts: Integers = _NO_OFFSETS
    codes: Integers = _NO_OFFSETS
    skipped: Ranges = (_NO_OFFSETS, _NO_OFFSETS)


@dataclass(frozen=True, slots=True)
class AttemptOutcomes:
    """The outcome of each attempt that a turn has made or ended, by topic and partition. Codes are indexes of WORDS."""

    by_partition: dict[tuple[str, int], Attempts]

    @classmethod
    def read(cls, store: LedgerStore, turn: TurnId) -> "AttemptOutcomes":
        """Reads what is stored of a turn. Raises FatalError if the table can't be read."""
        return cls.of(store.outcome_rows_of(turn))

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> "AttemptOutcomes":
        """Returns the outcomes in rows as `LedgerStore.outcome_rows_of` yields them."""
        found: dict[tuple[str, int], list[pa.Table]] = {}
        for batch in batches:
            rows = pa.table(batch)
            # Without the texts, which are in each row: a turn may have millions of rows.
            narrow = pa.table(
                {
                    "offset": rows["offset"],
                    "end_offset": rows["end_offset"],
                    "attempt": rows["attempt"],
                    "code": pc.index_in(rows["outcome"], pa.array(WORDS)).cast(pa.int8()),
                    "answered": rows["answer"].is_valid(),
                }
            )
            pairs = rows.group_by(["topic", "partition"]).aggregate([]).to_pylist()
            for pair in pairs:
                chosen = pc.and_(pc.equal(rows["topic"], pair["topic"]), pc.equal(rows["partition"], pair["partition"]))
                of_pair = narrow if len(pairs) == 1 else narrow.filter(chosen)
                found.setdefault((pair["topic"], pair["partition"]), []).append(of_pair)
        return cls({tp: _attempts(pa.concat_tables(parts)) for tp, parts in found.items()})

    def codes_after(self, anchors: pa.StructArray) -> Int64s:
        """Returns the code of the outcome of each anchor after the turn; NO_OUTCOME for one of which nothing is known.

        An anchor of an earlier turn has its outcome so far in the field `outcome`. Only one that was in flight can have
        another one now.
        """
        before = np.full(len(anchors), NO_OUTCOME)
        if anchors.type.get_field_index("outcome") >= 0:
            found = pc.index_in(anchors.field("outcome"), pa.array(WORDS))
            before = found.fill_null(NO_OUTCOME).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = before.copy()
        topics = anchors.field("topic").dictionary_encode()
        partitions, offsets = anchors.field("partition").to_numpy(), anchors.field("offset").to_numpy()
        attempts = anchors.field("attempt").to_numpy()
        unsettled = (before == NO_OUTCOME) | (before == IN_FLIGHT)
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            of_topic = unsettled & (topics.indices.to_numpy() == number)
            for partition in np.unique(partitions[of_topic]).tolist():
                rows = np.flatnonzero(of_topic & (partitions == partition))
                known = self.by_partition.get((topic, partition), Attempts())
                codes[rows] = _codes_of(known, offsets[rows], attempts[rows], before[rows])
        return codes


def _codes_of(known: Attempts, offsets: Int64s, attempts: Int64s, before: Int64s) -> Int64s:
    codes = before.copy()
    # Only what was in flight before the turn: a decision on an attempt of the turn itself is not its outcome.
    codes[(before == IN_FLIGHT) & (index_of_range(offsets, known.skipped) >= 0)] = SKIPPED
    places = np.searchsorted(known.offsets, offsets)
    there = places < len(known.offsets)
    there[there] = (known.offsets[places[there]] == offsets[there]) & (known.attempts[places[there]] == attempts[there])
    codes[there] = known.codes[places[there]]
    return codes


def _attempts(rows: pa.Table) -> Attempts:
    """Returns the attempts in rows of one topic-partition. An answer from outside comes after the attempt that it ends;
    a renewal ends nothing."""
    codes, answered = rows["code"].to_numpy(), rows["answered"].to_numpy()
    offsets, attempts = rows["offset"].to_numpy(), rows["attempt"].to_numpy()
    made = (attempts > 0) & ~(answered & (codes == IN_FLIGHT))
    # A turn has rows of one attempt at each offset only: it does not retry a record that was in flight before it.
    chosen = np.flatnonzero(made)
    if (np.diff(offsets[chosen]) <= 0).any():  # each outcome has its own file, or an answer is there
        chosen = chosen[np.lexsort((answered[chosen], offsets[chosen]))]
        last = np.ones(len(chosen), dtype=np.bool_)
        last[:-1] = offsets[chosen[1:]] != offsets[chosen[:-1]]
        chosen = chosen[last]
    skips = rows.filter(pa.array((attempts == 0) & (codes == SKIPPED)))
    ends: Any = pc.coalesce(skips["end_offset"], pc.add(skips["offset"], 1))
    skipped = union(skips["offset"].to_numpy(), ends.to_numpy())
    return Attempts(offsets[chosen], attempts[chosen], codes[chosen], skipped)


def any_of_row(anchors: pa.ListArray, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Returns for each row whether one of its anchors is chosen. `chosen` has a value for each anchor."""
    before = np.concatenate([[0], np.cumsum(chosen)])
    offsets = anchors.offsets.to_numpy()
    of_row: npt.NDArray[np.bool_] = before[offsets[1:]] > before[offsets[:-1]]
    return of_row


def with_outcomes(anchors: pa.ListArray, codes: Int64s) -> pa.ListArray:
    """Returns the anchors of rows with the field `outcome`. `codes` has an index of WORDS, or NO_OUTCOME for null, for
    each anchor."""
    texts = pa.array(WORDS).take(pa.array(codes, mask=codes == NO_OUTCOME))
    names = ("topic", "partition", "offset", "attempt")
    flat = anchors.values
    structs = pa.StructArray.from_arrays([*(flat.field(name) for name in names), texts], [*names, "outcome"])
    return pa.ListArray.from_arrays(anchors.offsets, structs)
