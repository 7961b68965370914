"""Reads what the handler of an Arrow step, or of Arrow records, answers for a batch.

It answers with batches. The column `_input` has for each row the rows of the call that it came from; without it, row N
came from row N. A row is emitted with its fields as the value, with `key` and to `stream`, unless its `outcome` is
failed, skipped, dead or held, which is then the outcome of the rows that it came from. A batch without fields emits
nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.handler import DEFAULT_STREAM
from ackline.ledger.offsets import Bools
from ackline.trees.columns import KEY, MOST_BYTES, TUPLE, NoColumn, emitted_column, one_array
from ackline.trees.rows import Int64s, Lists, changes
from ackline.trees.tuples import EmittedRows
from ackline.worker.call import kind_and_fault, outcome_columns, refuse_false, refuse_unfinished, text_in
from ackline.worker.outcomes import INVALID_WORD, OUTCOME_WORDS, InvalidOutcome

INPUT, OUTCOME, STREAM = "_input", "outcome", "stream"
_OF_OUTCOME = ("error_class", "error_message")
HELD = "held"
_RANKS = {"dead": 0, "failed": 1, HELD: 2, "skipped": 3}
"""Of several outcomes of one tuple the worst counts."""
_SMALL = 1 << 16
"""Bytes that may be copied although no row of the batch uses them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome that a handler gave a row of its call: `word` is `failed`, `skipped`, `dead` or `held`."""

    word: str
    error_class: str | None
    message: str | None


@dataclass(slots=True)
class BatchAnswer:
    """The rows that a handler emitted for a batch, and its verdicts on the rows of the batch."""

    emitted: list[EmittedRows] = field(default_factory=list)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    """By the number of the row of the call. A row without a verdict is acked."""
    unknown: dict[str, str] = field(default_factory=dict)
    """The error text of each stream that was emitted to and that no step or output takes."""


class BatchAnswerReader:
    """Reads the answer to one call for `count` rows. In a join, `groups` has the number of each row's key."""

    def __init__(self, count: int, groups: Int64s | None = None) -> None:
        self._count = count
        self._groups = groups
        self._answer = BatchAnswer()
        self._emitted: list[tuple[Any, Lists, pa.RecordBatch]] = []

    def read(self, result: Any) -> BatchAnswer:
        """Returns the answer of a handler, which returns or yields any number of batches and tables. Runs a generator
        to its end. Raises InvalidOutcome for any other answer, Arrow's own error for a broken column, and what a
        generator raises."""
        if result is None:
            return self._answer
        if isinstance(result, pa.RecordBatch | pa.Table):
            result = (result,)
        elif type(result) is not GeneratorType and not isinstance(result, Iterator | list | tuple):
            refuse_unfinished(result)
            refuse_false(result)
            raise InvalidOutcome(f"the handler returned {_fault(result)}, or return nothing")
        for answer in result:
            if not isinstance(answer, pa.RecordBatch | pa.Table):
                raise InvalidOutcome(f"the handler yielded {_fault(answer)}")
            self._read_batch(answer)
        self._place()
        return self._answer

    def _read_batch(self, answer: pa.RecordBatch | pa.Table) -> None:
        names = answer.schema.names
        if len(set(names)) < len(names):
            raise InvalidOutcome("two columns of the yielded batch have one name")
        if answer.nbytes > MOST_BYTES:
            raise InvalidOutcome("a yielded batch takes more than 1 GB; yield it in parts")
        answer.validate(full=True)  # bytes that are no text raise only when they are read, or end the process
        columns = {name: one_array(answer.column(name)) for name in names}
        inputs = self._inputs(columns, answer.num_rows)
        emits = np.ones(answer.num_rows, np.bool_)
        if OUTCOME in columns:
            emits = self._read_outcomes(columns, inputs, answer)
            columns = {name: column for name, column in columns.items() if name not in (OUTCOME, *_OF_OUTCOME)}
        fields = {name: column for name, column in columns.items() if name not in (INPUT, TUPLE, KEY, STREAM)}
        if not fields:
            return
        rows = np.flatnonzero(emits)
        if not len(rows):
            return
        keys = columns.get(KEY, pa.nulls(answer.num_rows))
        batch = _copied({KEY: keys, **fields})
        stream = columns.get(STREAM)
        if len(rows) < answer.num_rows:
            chosen = pa.array(rows)
            inputs, batch = inputs.take(rows), batch.take(chosen)
            stream = None if stream is None else stream.take(chosen)
        self._emitted.append((stream, inputs, batch))

    def _inputs(self, columns: Mapping[str, pa.Array], rows: int) -> Lists:
        """Returns for each row the rows of the call that it came from. Raises InvalidOutcome for a wrong `_input`."""
        column = columns.get(INPUT)
        if column is None:
            given = columns.get(TUPLE)
            if rows != self._count or (given is not None and given.to_pylist() != list(range(rows))):
                raise InvalidOutcome(
                    f"a batch of {rows} rows came of a call with {self._count}, or in another order: add the column "
                    f"{INPUT} with the number in {TUPLE} of the row that each row came from"
                )
            return Lists.one_each(np.arange(rows))
        kind, counts, flat = column.type, None, column
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            if column.null_count:
                raise InvalidOutcome(f"{INPUT} holds a null; write an empty list for a row that no record waits for")
            counts, flat = pc.list_value_length(column).to_numpy().astype(np.int64), column.flatten()
        if flat.null_count or not (pa.types.is_integer(flat.type) or not len(flat)):
            raise InvalidOutcome(f"{INPUT} holds something else than numbers of rows, or lists of them")
        numbers = flat.cast(pa.int64()).to_numpy() if len(flat) else np.empty(0, np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self._count:
            raise InvalidOutcome(
                f"{INPUT} names a row that the call was not given; its rows are 0 to {self._count - 1}"
            )
        inputs = Lists.one_each(numbers) if counts is None else Lists(numbers, counts)
        self._check_groups(inputs)
        return inputs

    def _check_groups(self, inputs: Lists) -> None:
        """Raises InvalidOutcome for a row that came from several tuples, but for those of one key in a join."""
        if (inputs.counts <= 1).all():
            return
        if self._groups is None:
            raise InvalidOutcome(f"{INPUT} names several rows at once, which only a step with `join: true` may do")
        groups, rows = self._groups[inputs.numbers], inputs.rows
        changes = (np.diff(groups) != 0) & (np.diff(rows) == 0)
        if changes.any():
            raise InvalidOutcome(f"{INPUT} names rows of several keys at once; a join emits rows of one key each")

    def _read_outcomes(
        self, columns: Mapping[str, pa.Array], inputs: Lists, answer: pa.RecordBatch | pa.Table
    ) -> Bools:
        """Notes each outcome but acked. Returns which rows of the answer are acked: only these are emitted."""
        words, classes, messages = outcome_columns(answer)
        held = pc.equal(words, HELD)
        if pc.any(held).as_py() and self._groups is None:
            raise InvalidOutcome("an outcome is held, which only a step with `join: true` may answer")
        if words.null_count or not pc.all(pc.or_(held, pc.is_in(words, OUTCOME_WORDS)), min_count=0).as_py():
            raise InvalidOutcome(INVALID_WORD)
        acked: Bools = pc.equal(words, "acked").to_numpy(zero_copy_only=False)
        ends = np.cumsum(inputs.counts)
        for row in np.flatnonzero(~acked).tolist():
            verdict = Verdict(words[row].as_py(), text_in(classes, row), text_in(messages, row))
            of_row = inputs.numbers[ends[row] - inputs.counts[row] : ends[row]].tolist()
            if not of_row:
                raise InvalidOutcome(f"an outcome is {verdict.word}, and {INPUT} names no row for it")
            for number in of_row:
                before = self._answer.verdicts.get(number)
                if before is None or _RANKS[verdict.word] < _RANKS[before.word]:
                    self._answer.verdicts[number] = verdict
        return acked

    def _place(self) -> None:
        """Numbers the emitted rows of each tuple, in a join of each key, and adds the rows to the answer by stream."""
        if not self._emitted:
            return
        counts = np.concatenate([inputs.counts for _, inputs, _ in self._emitted])
        numbers = np.concatenate([inputs.numbers for _, inputs, _ in self._emitted])
        groups = np.full(len(counts), -1, np.int64)
        first = numbers[(np.cumsum(counts) - counts)[counts > 0]]
        groups[counts > 0] = first if self._groups is None else self._groups[first]
        places, start = places_within(groups), 0
        for stream, inputs, batch in self._emitted:
            of_batch, calls = (column[start : start + len(inputs)] for column in (places, groups))
            start += len(inputs)
            for name, rows in _rows_by_stream(stream, len(inputs)):
                whole = EmittedRows(name, inputs, calls, of_batch, batch)
                self._answer.emitted.append(whole if len(rows) == len(inputs) else whole.take(rows))


def _fault(answer: Any) -> str:
    found = kind_and_fault(answer, steps=True)
    name = type(answer).__name__ if found is None else found[0]
    return f"{name}; yield a pyarrow.RecordBatch"


def _copied(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Returns a batch in memory of its own: a handler may reuse the memory of an array that it has yielded."""
    try:
        arrays = [emitted_column(column, name) for name, column in columns.items()]
    except NoColumn as error:
        raise InvalidOutcome(str(error)) from None
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    if batch.get_total_buffer_size() > 2 * batch.nbytes + _SMALL:  # a part of larger arrays, of which it would copy all
        return batch.take(pa.array(np.arange(batch.num_rows)))
    return batch.copy_to(pa.default_cpu_memory_manager())


def places_within(groups: Int64s) -> Int64s:
    """Returns for each row how many rows before it have the same group."""
    order = np.argsort(groups, kind="stable")
    in_order = groups[order]
    begins = changes(in_order)
    starts = np.flatnonzero(begins)
    places = np.empty(len(groups), np.int64)
    places[order] = np.arange(len(groups)) - starts[np.cumsum(begins) - 1]
    return places


def _rows_by_stream(column: pa.Array | None, count: int) -> Sequence[tuple[str, Int64s]]:
    """Returns each stream with the numbers of its rows. A null is the default stream."""
    if column is None or column.null_count == count:
        return [(DEFAULT_STREAM, np.arange(count))]
    try:
        names = column.cast(pa.string()).fill_null(DEFAULT_STREAM).dictionary_encode()
    except pa.ArrowException:
        raise InvalidOutcome(f"the column {STREAM} holds something else than names of streams") from None
    codes = names.indices.to_numpy()
    return [(name, np.flatnonzero(codes == code)) for code, name in enumerate(names.dictionary.to_pylist())]
