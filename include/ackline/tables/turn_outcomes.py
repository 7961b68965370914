"""The outcomes of one turn as settle needs them: rows of what did not succeed at once, and counts of everything.

It also reads why and when given records failed last, for their dead letters: a settlement keeps no texts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ackline.delta.files import UNBUFFERED
from ackline.delta.reads import TurnFile, TurnFiles, Where, as_expression, file_name, pruned_dataset
from ackline.ledger.offsets import Bools, Int64s, TopicPartition
from ackline.ledger.order import storable
from ackline.ledger.outcomes import ErrorClass, Outcome, OutcomeColumns, OutcomeRow, answer_codes
from ackline.ledger.pending import NEVER
from ackline.ledger.turns import TurnId
from ackline.tables.layout import LaneTables

_COLUMNS = ["topic", "partition", "offset", "end_offset", "attempt", "outcome", "error_class", "handled_at", "due",
            "answer"]  # fmt: skip
_GROUP = ["topic", "partition", "outcome"]
_SUCCEEDED = [Outcome.ACKED.value, Outcome.SKIPPED.value, Outcome.DROPPED.value]


@dataclass(frozen=True, slots=True)
class TurnOutcomes:
    """The outcomes of one turn by topic-partition."""

    rows: Mapping[TopicPartition, Sequence[OutcomeRow]]
    """Every row that did not succeed at its first attempt, and every row with an answer from outside; also those below
    the fresh range of a partition of which the turn reads single offsets first."""
    counts: Mapping[TopicPartition, Mapping[str, int]]
    """How many offsets have each outcome, those that succeeded too. A row of a range counts as all its offsets."""
    attempted: Mapping[TopicPartition, int]
    """How many first attempts the turn has made."""
    complete: bool = True
    """False if the pipeline stores no row of what succeeded and the Delta log has expired the counts."""


Singles = Mapping[TopicPartition, int]
"""By partition: the end of the offsets that a turn reads one by one, of which some get their first attempt. What has no
row in a range is acked or a gap; of these each needs its row."""

Attempts = Mapping[TopicPartition, Mapping[int, int]]
"""By partition and offset: the number of the last attempt."""
_FAILURE_COLUMNS = ["topic", "partition", "offset", "attempt", "turn", "error_message", "handled_at"]


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The failure of a record's last attempt. `message` is scrubbed; None if the failure had none."""

    message: str | None
    failed_at: datetime


class FailedClass(NamedTuple):
    """How many attempts of a turn failed with one class of errors at one place of the handler's code, and a message of
    one of them, which is scrubbed."""

    error_class: str | None
    place: str | None
    number: int
    message: str | None


def commonest_failures(found: Iterable[FailedClass], most: int) -> list[FailedClass]:
    """Returns the `most` commonest classes and places, with the numbers of each added up."""
    numbers = Counter[tuple[str | None, str | None]]()
    messages = dict[tuple[str | None, str | None], str | None]()
    for error_class, place, number, message in found:
        numbers[error_class, place] += number
        messages[error_class, place] = messages.get((error_class, place)) or message
    ordered = sorted(numbers.items(), key=lambda item: (-item[1], *(text or "" for text in item[0])))
    return [FailedClass(*kind, number, messages[kind]) for kind, number in ordered[:most]]


Failures = dict[tuple[TopicPartition, int], LastFailure]


class OutcomesOfTurn(LaneTables):
    """What the outcomes table holds of one turn. Each method raises FatalError if the table can't be read."""

    def outcomes_of(self, turn: TurnId, singles: Singles = MappingProxyType({}), keys: bool = False) -> TurnOutcomes:
        """Returns outcomes and decisions of a turn, at the cost of those that did not succeed at once, and of all rows
        below `singles`; with `keys`, what the rows hold of the keys of records.

        A file in which every record succeeded at its first attempt is counted by its statistics and not opened; if
        several topic-partitions share it, only their names are read. Raises FatalError also if a file that is counted
        does not exist or is cut short.
        """
        files, where, reading = self._outcome_files(turn), self._where(turn), _Reading(singles)
        columns = [*_COLUMNS, "key_hash64"] if keys else _COLUMNS
        # Counts and rows are of one version. In a newer one a compaction may have moved the counted rows into other
        # files, and they would count twice.
        succeeded = _of_one_outcome(files, where, _SUCCEEDED)
        if singles:
            succeeded = {name: file for name, file in succeeded.items() if _is_above(file, singles)}
        with self.outcomes.errors():
            # Of a file that is not opened, the rows would count as acked without a proof.
            for lost in self.outcomes.storage.without_size({file.path: file.size for file in succeeded.values()}):
                raise FileNotFoundError(f"{lost} does not exist, or does not have the size that the log names")
            shared = set()
            for name, file in succeeded.items():
                topic, partition = file.value("topic"), file.value("partition")
                if topic is None or partition is None:
                    shared.add(name)
                else:
                    reading.count_succeeded(TopicPartition(topic, partition), file.low["outcome"], file.rows or 0)
            for batch in _batches(files.dataset, shared.__contains__, _GROUP, None):
                reading.count_all(batch)
            for batch in _batches(files.dataset, lambda name: name not in succeeded, columns, as_expression(where)):
                reading.add(batch)
        return reading.result()

    def outcome_rows_of(self, turn: TurnId) -> Iterator[pa.RecordBatch]:
        """Yields what is stored of a turn: its attempts, the answers from outside, which have the number of the attempt
        that they end, and decisions, which have attempt 0."""
        dataset = self._outcome_files(turn).dataset
        columns = ["topic", "partition", "offset", "end_offset", "attempt", "outcome", "answer", "error_class"]
        with self.outcomes.errors():
            yield from dataset.to_batches(columns=columns, filter=as_expression(self._where(turn)))

    def first_attempts_of(self, turn: TurnId) -> Counter[str]:
        """Returns for each outcome how many first attempts of a turn had it. The cost hardly grows with their number:
        it opens no file whose statistics hold the answer, so none that Spark's tasks have written, until a compaction
        mixes them with others."""
        files, where, counts = self._outcome_files(turn), self._where(turn), Counter[str]()
        counted = _of_one_outcome(files, where, list(Outcome))
        for file in counted.values():
            counts[file.low["outcome"]] += file.rows or 0
        with self.outcomes.errors():
            for batch in _batches(files.dataset, lambda name: name not in counted, ["outcome"], _first_attempts(where)):
                counts.update({outcome: number for (outcome,), number in _groups(batch, ["outcome"])})
        return counts

    def unacked_of(self, turn: TurnId) -> int:
        """Returns how many first attempts of a turn ended as `Unacked`, whatever the guarantee makes of that: `failed`
        or `dropped`. It holds one batch of rows at a time, and opens each file that may have a failure."""
        files, where = self._outcome_files(turn), self._where(turn)
        no_failure = [word for word in Outcome if word not in (Outcome.FAILED, Outcome.DROPPED)]
        others = _of_one_outcome(files, where, no_failure)
        chosen = _first_attempts(where) & (ds.field("error_class") == ErrorClass.UNACKED.value)
        with self.outcomes.errors():
            return sum(map(len, _batches(files.dataset, lambda name: name not in others, ["attempt"], chosen)))

    def last_failures(self, turn: TurnId, attempts: Attempts) -> Failures:
        """Returns why and when the given attempts failed, by partition and offset, as far as their rows are there. Most
        were made in `turn`, and only its files are opened. An attempt of an earlier turn, whose dead letter was not
        acknowledged then, is found by its offset: statistics rule most other files out."""
        if not attempts:
            return {}
        failed: Where = {"epoch": turn.epoch, "outcome": Outcome.FAILED.value}
        files = self._outcome_files(turn)
        with self.outcomes.errors():
            failures = _failures_in(files.dataset, {**failed, "turn": turn.n}, attempts)
            earlier = {
                tp: {offset: attempt for offset, attempt in by_offset.items() if (tp, offset) not in failures}
                for tp, by_offset in attempts.items()
            }
            if any(earlier.values()) and (table := self.outcomes.open()) is not None:
                failures |= _failures_in(pruned_dataset(self.outcomes, table, failed), failed, earlier)
        return failures

    def failed_classes_of(self, turn: TurnId) -> Iterator[FailedClass]:
        """Yields the classes of the attempts of a turn that failed; a class may come more than once. It holds one batch
        of rows at a time."""
        files, where = self._outcome_files(turn), self._where(turn)
        failures = [Outcome.FAILED.value, Outcome.DROPPED.value]
        others = _of_one_outcome(files, where, [word for word in Outcome if word not in failures])
        chosen = as_expression(where) & (ds.field("attempt") > 0) & ds.field("outcome").isin(failures)
        columns = ["error_class", "error_place", "error_message"]
        with self.outcomes.errors():
            for batch in _batches(files.dataset, lambda name: name not in others, columns, chosen):
                counted = pa.Table.from_batches([batch]).group_by(columns[:2])
                for row in counted.aggregate([([], "count_all"), ("error_message", "one")]).to_pylist():
                    yield FailedClass(
                        row["error_class"], row["error_place"], row["count_all"], row["error_message_one"]
                    )

    def _outcome_files(self, turn: TurnId) -> TurnFiles:
        # Decisions of a run are stored after its outcomes. An action has decisions only.
        applications = [self._application(turn.epoch, kind) for kind in ("outcomes", "decisions")]
        return self.outcomes.turn_files(self._where(turn), applications, turn.n)


def _first_attempts(where: Where) -> ds.Expression:
    """Chooses the first attempts of a turn. A row with an answer is no attempt: it ends one of this turn or another."""
    return as_expression(where) & (ds.field("attempt") == 1) & ds.field("answer").is_null()


class _Reading:
    """What was read of a turn so far. Below `singles`, rows that succeeded at once are kept too."""

    def __init__(self, singles: Singles) -> None:
        self._singles = singles
        self._counts: dict[TopicPartition, Counter[str]] = {}
        self._fresh: Counter[TopicPartition] = Counter()
        self._rows: dict[TopicPartition, list[OutcomeColumns]] = {}

    def count_succeeded(self, tp: TopicPartition, outcome: str, number: int) -> None:
        """Counts records that succeeded at their first attempt."""
        self._counts.setdefault(tp, Counter())[outcome] += number
        self._fresh[tp] += number

    def count_all(self, batch: pa.RecordBatch) -> None:
        """Counts rows, each of a record that succeeded at its first attempt."""
        for (topic, partition, outcome), number in _groups(batch, _GROUP):
            self.count_succeeded(TopicPartition(topic, partition), outcome, number)

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts rows of _COLUMNS, and keeps those that did not succeed at once."""
        first = pc.equal(batch.column("attempt"), 1)
        succeeded = pc.and_(first, pc.is_in(batch.column("outcome"), pa.array(_SUCCEEDED, pa.string())))
        # A row with an answer is no attempt of this turn: it ends one that may have been made in an earlier turn.
        succeeded = pc.and_(succeeded, batch.column("answer").is_null())
        if self._singles:
            succeeded = pc.and_(succeeded, pa.array(self._is_above(batch)))
        self.count_all(batch.filter(succeeded))
        rest = batch.filter(pc.invert(succeeded))
        columns = _columns(rest)
        for tp, rows in _rows_of_partitions(rest):
            part = columns.where(rows)
            self._rows.setdefault(tp, []).append(part)
            numbers = np.zeros(len(part.results), dtype=np.int64)
            np.add.at(numbers, part.codes, part.ends - part.offsets)  # a row of a range counts its offsets
            for (outcome, _), number in zip(part.results, numbers.tolist(), strict=True):
                if number:
                    self._counts.setdefault(tp, Counter())[outcome.value] += number
            self._fresh[tp] += int(((part.attempts == 1) & ~part.answered).sum())

    def _is_above(self, batch: pa.RecordBatch) -> Bools:
        above, offsets = np.ones(len(batch), dtype=np.bool_), batch.column("offset").to_numpy()
        for tp, rows in _rows_of_partitions(batch):
            above[rows] = offsets[rows] >= self._singles.get(tp, 0)
        return above

    def result(self) -> TurnOutcomes:
        """Returns what was read."""
        # One partition after the other, so that only its rows are in memory twice: all may be millions.
        rows = {tp: OutcomeColumns.concat(self._rows.pop(tp)) for tp in list(self._rows)}
        return TurnOutcomes(rows, self._counts, self._fresh)


def _is_above(file: TurnFile, singles: Singles) -> bool:
    """Returns whether a file holds no row below `singles`. One that several topic-partitions share may hold some."""
    topic, partition, low = file.value("topic"), file.value("partition"), file.low.get("offset")
    if topic is None or partition is None or low is None:
        return False
    return bool(low >= singles.get(TopicPartition(topic, partition), 0))


def _of_one_outcome(files: TurnFiles, where: Where, outcomes: Sequence[str]) -> dict[str, TurnFile]:
    """Returns the files that hold only first attempts of the turn with one outcome, which is among `outcomes`, by name.
    A file without statistics is none of them, and so is one with answers from outside."""
    values = {**where, "attempt": 1}
    return {
        file.name: file
        for file in files.files
        if file.rows is not None
        and "answer" not in file.low
        and file.value("outcome") in outcomes
        and all(file.value(column) == value for column, value in values.items())
    }


def _batches(
    dataset: ds.Dataset, is_wanted: Callable[[str], bool], columns: Sequence[str], where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    """Yields columns of the rows that match `where`, in the wanted files. Reads one file after the other and one batch
    ahead, because a batch may have a hundred thousand rows."""
    fragments = [fragment for fragment in dataset.get_fragments() if is_wanted(file_name(fragment.path))]
    wanted = ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)
    yield from wanted.to_batches(
        columns=list(columns), filter=where, batch_readahead=1, fragment_readahead=1, fragment_scan_options=UNBUFFERED
    )
    # Arrow keeps freed memory for itself, which would count as ours until the end of the step.
    pa.default_memory_pool().release_unused()


def _groups(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yields the distinct values of some columns, and how many rows have them."""
    counted = pa.Table.from_batches([batch]).group_by(list(columns)).aggregate([([], "count_all")])
    values = (counted[name].to_pylist() for name in columns)
    yield from zip(zip(*values, strict=True), counted["count_all"].to_pylist(), strict=True)


def _columns(batch: pa.RecordBatch) -> OutcomeColumns:
    """Returns rows of _COLUMNS, of whatever topic-partition, as columns."""
    words, classes = (
        batch.column(name).dictionary_encode(null_encoding="encode") for name in ("outcome", "error_class")
    )
    codes = words.indices.to_numpy() * len(classes.dictionary) + classes.indices.to_numpy()
    results = [
        (Outcome(word), error_class)
        for word in words.dictionary.to_pylist()
        for error_class in classes.dictionary.to_pylist()
    ]
    dues = batch.column("due").cast(pa.timestamp("us", "UTC"))
    return OutcomeColumns(
        batch.column("offset").to_numpy(),
        batch.column("end_offset").fill_null(-1).to_numpy(),
        batch.column("attempt").to_numpy(),
        batch.column("handled_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy(),
        codes.astype(np.int32),
        results,
        None if dues.null_count == len(dues) else dues.cast(pa.int64()).fill_null(NEVER).to_numpy(),
        answer_codes(batch.column("answer").to_pylist()) if batch.column("answer").null_count < len(batch) else None,
        _keys(batch),
    )


def _keys(batch: pa.RecordBatch) -> Int64s | None:
    """Returns the keys of the rows as the ledger stores them; None if they were not read."""
    if "key_hash64" not in batch.schema.names:
        return None
    hashes = batch.column("key_hash64")
    return storable(hashes.fill_null(0).to_numpy(), hashes.is_valid().to_numpy(zero_copy_only=False))


def _rows_of_partitions(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, npt.NDArray[np.int64]]]:
    """Yields each topic-partition with the indexes of its rows."""
    topics = batch.column("topic").dictionary_encode()
    partitions = batch.column("partition").to_numpy()
    order = np.lexsort((partitions, topics.indices.to_numpy()))
    sorted_by = [topics.indices.to_numpy()[order], partitions[order]]
    changes = np.any([column[1:] != column[:-1] for column in sorted_by], axis=0)
    for rows in np.split(order, np.flatnonzero(changes) + 1):
        if len(rows):
            yield TopicPartition(topics[int(rows[0])].as_py(), int(partitions[rows[0]])), rows


def _failures_in(dataset: ds.Dataset, where: Where, attempts: Attempts) -> Failures:
    """Returns the failures among the rows of a dataset that match `where`."""
    offsets = sorted({offset for by_offset in attempts.values() for offset in by_offset})
    topics = sorted({tp.topic for tp, by_offset in attempts.items() if by_offset})
    column = ds.field("offset")
    # Arrow skips files and row groups by the bounds; `isin` alone does not always let it.
    in_bounds = (column >= offsets[0]) & (column <= offsets[-1]) & column.isin(offsets)
    wanted = as_expression(where) & ds.field("topic").isin(topics) & in_bounds
    newest: dict[tuple[TopicPartition, int], int] = {}
    failures: Failures = {}
    for batch in dataset.to_batches(columns=_FAILURE_COLUMNS, filter=wanted):
        for topic, partition, offset, attempt, n, message, handled_at in zip(*batch.to_pydict().values(), strict=True):
            tp = TopicPartition(topic, partition)
            # A void turn may have made the same attempt before. Its rows do not count; those of the later turn do.
            if attempts.get(tp, {}).get(offset) == attempt and n >= newest.get((tp, offset), 0):
                newest[tp, offset] = n
                failures[tp, offset] = LastFailure(message, handled_at.astimezone(UTC))
    return failures
