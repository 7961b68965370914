"""Calls the handlers of Arrow steps, each on a batch of tuples, and delivers what they emit as columns.

A call notes the same edges, at the same places of the tree, as calls of a record handler on each of its tuples would.
So events and outcomes are the same, but the numbers are noted as arrays.

An Arrow step without `group_by` gets its tuples at the end of the batch of calls that emitted them. A call that raises,
or whose answer is invalid, fails all its tuples, as an Arrow handler of records fails its batch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.handler import SOURCE, Durations, Handler, Tier, tier_of
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.pipeline.streams import scalar_texts
from ackline.pipeline.topology import SOURCE_STEP, Step, Stream, Topology
from ackline.scrub import place_of_error, words_of_handler
from ackline.trees.answers import Texts
from ackline.trees.arrow_answers import HELD, BatchAnswer, BatchAnswerReader, EmittedRows, Verdict
from ackline.trees.batch import MAX_BYTES, ROW_BYTES, OpenedEdges
from ackline.trees.calls import MAX_CONSUMERS, Seeds, TreeCalls, delivering, log_emitted
from ackline.trees.columns import KEY, TUPLE, TupleColumns, values_of
from ackline.trees.output_rows import OutputColumns
from ackline.trees.parcels import ArrivedTuples, Refused, Unfit, WaitingTuples, parcel_rows, starts_of
from ackline.trees.payload import pack
from ackline.trees.rows import EdgeNumbers, EdgesOfRows, Int64s, Resolved, changes, root_ids
from ackline.worker.call import end_forked_copy, forks
from ackline.worker.outcomes import RowOutcome, TaskFailure, error_class_of, outcome_of_word, scrubbed_message


class ArrowTreeCalls(TreeCalls):
    """The calls of a task of a pipeline with Arrow handlers. `parts` tasks share the tuples of each step."""

    def __init__(self, topology: Topology, handlers: Sequence[Handler], *more: Any, parts: int, **named: Any) -> None:
        super().__init__(topology, handlers, *more, **named)
        self._arrow_steps = frozenset(n for n, handler in enumerate(handlers) if tier_of(handler) is Tier.ARROW)
        self._arrow = [step for step in topology.steps if step.number in self._arrow_steps]
        self._streams = topology.streams
        self._parts = parts
        self._weight = _FIRST_WEIGHT if any(not step.grouped for step in self._arrow) else 1.0
        """How many times larger a batch becomes when the Arrow steps at its end are called, as the last one did."""

    def takes_batches(self, step: Step) -> bool:
        """Returns whether a step has an Arrow handler, which takes batches of tuples."""
        return step.number in self._arrow_steps

    def begin(self) -> None:
        """Begins a batch, and forgets the calls since the last `end`."""
        super().begin()
        self._waiting = WaitingTuples()
        self._parcels: list[tuple[Step, TupleColumns]] = []

    @property
    def full(self) -> bool:
        """Whether the calls have emitted so much that the batch should end."""
        return self.fill >= 1

    @property
    def fill(self) -> float:
        """How full the batch is by what the calls have emitted: at 1 it should end."""
        return self._fill * self._weight

    @property
    def _fill(self) -> float:
        sent = float(sum(tuples.batch.nbytes + ROW_BYTES * len(tuples) for _, tuples in self._parcels))
        return max(super().fill, self._waiting.fill, sent / MAX_BYTES)

    # ---- the end of a batch -----------------------------------------------------------------------------------------

    def _hand_over(
        self, step: Step, number: int, stream: Stream, edges: EdgeNumbers, key: bytes, payload: bytes
    ) -> None:
        if self.takes_batches(step):
            self._waiting.add(step.number, number, edges, key, payload)
        else:
            super()._hand_over(step, number, stream, edges, key, payload)

    def _call_waiting(self) -> None:
        called, before = False, self._fill
        for step in self._arrow:  # in an order in which each comes after those that it takes from
            for tuples in self._waiting.take(step.number):
                if isinstance(tuples, Refused):  # no other task waits for it
                    refused = RowOutcome(0, Outcome.FAILED, ErrorClass.UNDECODABLE, tuples.reason, self._now())
                    self._note_problem(tuples.edges, step.number, refused)
                elif step.grouped:
                    self._parcels.append((step, tuples))
                else:
                    called = True
                    self._call(step, tuples)
        if called and before:
            self._weight = max(1.0, self._fill / before)
        if called and self.figures.source_calls:
            end = perf_counter_ns()
            self.figures.source_calls = [(edge, begun, end) for edge, begun, _ in self.figures.source_calls]

    def _opened(self) -> OpenedEdges:
        parcels = [(tuples.edges.numbers, step.number) for step, tuples in self._parcels]
        opened = [super()._opened(), *(OpenedEdges(edges, np.full(len(edges), step)) for edges, step in parcels)]
        return OpenedEdges(np.concatenate([each.edges for each in opened]), np.concatenate([e.steps for e in opened]))

    def _rows(self, resolved: Resolved) -> list[pa.RecordBatch]:
        rows = super()._rows(resolved)
        for step, tuples in self._parcels:
            rows += parcel_rows(step, tuples, resolved, self._parts)
        return rows

    # ---- calls ------------------------------------------------------------------------------------------------------

    def call_source_batch(self, handler: Handler, batch: pa.RecordBatch, seeds: Seeds) -> pa.Table:
        """Calls the handler of records of one topic-partition on a batch, and delivers what it emits. Returns a table
        with the outcome of each record. `seeds` is None if trees are not tracked. A record that emits nothing, or that
        is not tracked, has no event. Raises what the handler raises, and InvalidOutcome: nothing of its answers is
        delivered then."""
        begun, count = perf_counter_ns(), batch.num_rows

        def texts() -> Iterator[bytes | str]:
            return scalar_texts([batch.column(name).to_pylist() for name in ("key", "value", "headers")])

        try:
            answer = self._read(SOURCE, handler, batch, None, texts)
        finally:
            self.figures.spans[SOURCE_STEP].append(perf_counter_ns() - begun)
        verdicts = answer.verdicts
        with delivering():
            edges = self._root_edges(batch, answer.emitted, verdicts.keys(), seeds)
            self._deliver_answer(SOURCE, SOURCE_STEP, handler, answer, edges, verdicts.keys())
        end = perf_counter_ns()
        self.figures.source_calls += [(edge, begun, end) for edge in edges.numbers.tolist()]
        ended = count - len(edges.numbers) - len(verdicts)
        if ended > 0:
            self.figures.latency.add(Durations(ended, ended * (end - begun), end - begun))
        if not verdicts:
            return pa.table({"outcome": pa.repeat("acked", count)})
        said = [verdicts.get(row, _ACKED) for row in range(count)]
        return pa.table({
            "outcome": [verdict.word for verdict in said], "error_class": [verdict.error_class for verdict in said],
            "error_message": [verdict.message for verdict in said],
        })  # fmt: skip

    def _root_edges(
        self, batch: pa.RecordBatch, emitted: Sequence[EmittedRows], not_acked: Collection[int], seeds: Seeds
    ) -> EdgesOfRows:
        """Adds an edge for each acked record that has emitted something. Returns the edges by record."""
        counts = np.zeros(batch.num_rows, np.int64)
        for each in emitted:
            counts[each.inputs.numbers] = 1
            if (each.inputs.counts == 0).any():  # a row without anchors is of the whole call
                counts[:] = 1
        counts[list(not_acked)] = 0
        if seeds is None or not counts.any():
            return EdgesOfRows(np.empty(0, np.int64), np.zeros(batch.num_rows, np.int64))
        tp, seed = seeds[batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()]
        rows = np.flatnonzero(counts)
        offsets, attempts = (batch.column(name).to_numpy()[rows].astype(np.int64) for name in ("offset", "attempt"))
        ids = root_ids(seed, offsets, attempts).view(np.int64)
        tps = np.full(len(rows), tp, np.int64)
        return EdgesOfRows(self.batch.edges.add_given(tps, offsets, attempts, ids), counts)

    def call_batch(self, step: Step, arrived: ArrivedTuples | Unfit) -> None:
        """Calls the handler of a step with tuples of other tasks, and closes the edges that led to them. A join gets
        all tuples of each of its keys, the keys one after the other."""
        if isinstance(arrived, Unfit):
            for part in arrived.parts:
                self._fail_all(step, part.tuples(self.batch.edges), ErrorClass.UNDECODABLE, _UNFIT)
            return
        tuples = arrived.tuples(self.batch.edges)
        self._call(step, tuples, np.cumsum(starts_of(arrived.keys)) - 1 if step.join else None)

    def _call(self, step: Step, tuples: TupleColumns, groups: Int64s | None = None) -> None:
        """Calls the handler of a step on tuples. In a join, `groups` has the number of each tuple's key."""
        handler, begun = self._handlers[step.number], perf_counter_ns()
        columns = [*tuples.batch.columns[1:], tuples.batch.column(0), pa.array(np.arange(len(tuples)))]
        given = pa.RecordBatch.from_arrays(columns, names=[*tuples.batch.schema.names[1:], KEY, TUPLE])

        def texts() -> Iterator[bytes | str]:
            return scalar_texts(values_of(tuples.batch))

        try:
            answer = self._read(step.name, handler, given, groups, texts)
        except TaskFailure:
            raise
        except BaseException as error:  # sys.exit, too, is the outcome of this call alone
            # `Dead` gets the name of its module, so it means nothing to settle: it would bury all records of the batch.
            message = scrubbed_message(error, texts())
            self._fail_all(step, tuples, error_class_of(error), message, place_of_error(error))
            return
        finally:
            self.figures.spans[step.number].append(perf_counter_ns() - begun)
        verdicts = answer.verdicts
        outcomes = self._outcomes(handler, tuples, verdicts)
        self._close(step, tuples, outcomes, {row for row, verdict in verdicts.items() if verdict.word == HELD})
        # A record handler that raises delivers nothing; a join that fails single tuples delivers all that it emits.
        undelivered = () if step.join else outcomes.keys()
        self._deliver_answer(step.name, step.number, handler, answer, tuples.edges, undelivered, groups)

    def _fail_all(
        self, step: Step, tuples: TupleColumns, error_class: str, message: str | None, place: str | None = None
    ) -> None:
        outcome = RowOutcome(0, Outcome.FAILED, error_class, message, self._now(), error_place=place)
        self._close(step, tuples, dict.fromkeys(range(len(tuples)), outcome), ())

    def _read(
        self, name: str, handler: Handler, given: pa.RecordBatch, groups: Int64s | None, texts: Texts
    ) -> BatchAnswer:
        """Calls a handler, and returns what it answered. Raises what the handler raises, and InvalidOutcome."""
        try:
            answer = BatchAnswerReader(given.num_rows, groups).read(handler(given))
        except BaseException as error:
            if self._forks != forks():
                end_forked_copy(error)
            raise
        if self._forks != forks():
            end_forked_copy()
        for stream in sorted({each.stream for each in answer.emitted} - self._takers[name].keys()):
            answer.unknown[stream] = self._reader.unknown_stream(name, stream, texts, handler)
        return answer

    def _outcomes(
        self, handler: Handler, tuples: TupleColumns, verdicts: Mapping[int, Verdict]
    ) -> dict[int, RowOutcome]:
        """Returns the outcomes of tuples that the handler did not ack, but for those that it holds."""
        module, kept, time = str(getattr(handler, "__module__", "handler")), words_of_handler(handler), self._now()

        def payload_of(row: int) -> Iterator[bytes | str]:
            return scalar_texts(values_of(tuples.batch.slice(row, 1)))

        outcomes = {}
        for row, said in sorted(verdicts.items()):
            if said.word != HELD:
                outcome = outcome_of_word(
                    row, said.word, said.error_class, said.message, payload_of, time, module, kept
                )
                if outcome.error_class is None:
                    outcome = replace(outcome, error_class=ErrorClass.FAIL)
                outcomes[row] = outcome.at_row(0)
        return outcomes

    def _close(
        self, step: Step, tuples: TupleColumns, outcomes: Mapping[int, RowOutcome], held: Collection[int]
    ) -> None:
        """Closes the edges of the tuples that a call does not hold, and notes in the batch those that it did not
        ack."""
        edges, not_acked = tuples.edges, {*outcomes, *held}
        left_open = held if step.grouped else not_acked
        closed = edges.numbers
        if left_open:
            is_closed = np.ones(len(edges), np.bool_)
            is_closed[list(left_open)] = False
            closed = closed[np.repeat(is_closed, edges.counts)]
        if step.grouped:
            self.batch.closed += closed.tolist()
        else:
            self.batch.near += closed.tolist()
            self.batch.near_steps += [step.number] * len(closed)
        if step.join:
            counts = self.figures.of_step(step.number)
            counts.executed += len(edges)
            counts.acked += len(edges) - len(not_acked)
        else:
            self.figures.calls[step.number] += len(edges)
        for row in range(len(edges)) if self._edge_log is not None else sorted(not_acked):
            stream = self._streams[int(tuples.streams[row])]
            self._note_edges(step, stream, edges.of_row(row), outcomes.get(row), held=row in held)

    # ---- what a call has emitted ------------------------------------------------------------------------------------

    @staticmethod
    def _delivered(emitted: Sequence[EmittedRows], undelivered: Collection[int]) -> list[EmittedRows]:
        """Returns the rows that are delivered: those that belong to none of the rows `undelivered` of the call."""
        if not undelivered:
            return list(emitted)
        gone, kept = np.array(sorted(undelivered), np.int64), []
        for each in emitted:
            is_gone = np.zeros(len(each.inputs), np.bool_)
            is_gone[each.inputs.rows[np.isin(each.inputs.numbers, gone)]] = True
            if not is_gone.all():
                kept.append(each.take(np.flatnonzero(~is_gone)))
        return kept

    def _deliver_answer(
        self,
        name: str,
        number: int,
        handler: Handler,
        answer: BatchAnswer,
        given: EdgesOfRows,
        undelivered: Collection[int],
        groups: Int64s | None = None,
    ) -> None:
        """Delivers what a call has emitted. `given` are the edges of the rows that it was given, and `groups` the
        numbers of their keys in a join."""
        for each in self._delivered(answer.emitted, undelivered):
            self.figures.emitted[number] += len(each.inputs)
            parents = self._parents(each.inputs, given)
            blamed = self._blamed(each.inputs, parents, given, groups)
            if each.stream not in answer.unknown:
                self._deliver_rows(name, number, handler, each, parents, blamed)
                continue
            problem = answer.unknown[each.stream]
            outcome = RowOutcome(0, Outcome.FAILED, ErrorClass.UNKNOWN_STREAM, problem, self._now())
            for edges in blamed.of_rows():
                self._note_problem(edges, number, outcome)

    @staticmethod
    def _blamed(inputs: EdgesOfRows, parents: EdgesOfRows, given: EdgesOfRows, groups: Int64s | None) -> EdgesOfRows:
        """Returns for each row the edges whose records fail if it can't be delivered: those of its anchors. A row
        without anchors has all edges that led to the call, or to the tuples of its key if a join's row names some."""
        if parents.counts.all():
            return parents
        rows, starts = parents.of_rows(), np.cumsum(inputs.counts) - inputs.counts
        for row in np.flatnonzero(parents.counts == 0).tolist():
            if not inputs.counts[row]:
                rows[row] = tuple(given.numbers.tolist())
            elif groups is not None:
                of_key = np.flatnonzero(groups == groups[inputs.numbers[starts[row]]])
                rows[row] = tuple(given.take(of_key).numbers.tolist())
        return EdgesOfRows.of(rows)

    def _deliver_rows(
        self,
        name: str,
        number: int,
        handler: Handler,
        emitted: EmittedRows,
        parents: EdgesOfRows,
        blamed: EdgesOfRows,
    ) -> None:
        """Hands rows that a call has emitted to each step and output that takes their stream, as `_deliver` does
        with each tuple."""
        stream_number, stream, steps, outputs = self._takers[name][emitted.stream]
        if (witness := self._witness) is not None:
            for _, value in values_of(emitted.batch):
                witness.emitted(name, emitted.stream, value)
        if outputs:
            assert self._outputs is not None
            hidden = self._reader.hidden_fields(emitted.batch.schema.names[1:], handler)
            for output in outputs:
                self._outputs.add_columns(output, OutputColumns(number, emitted.batch, hidden, parents, blamed))
        packed: list[tuple[bytes, bytes]] | None = None
        for place, step in enumerate(steps):
            edges = self.batch.edges.add_edges_of_rows(parents, emitted.places * MAX_CONSUMERS + place)
            if (log := self._edge_log) is not None:
                self._logged += [partial(log_emitted, log, stream, step, of_row) for of_row in edges.of_rows()]
            if self.takes_batches(step):
                streams = np.full(len(edges), stream_number)
                self._waiting.add_columns(step.number, TupleColumns(streams, edges, emitted.batch))
                continue
            packed = packed or [pack(key, value) for key, value in values_of(emitted.batch)]
            for of_row, (key, payload) in zip(edges.of_rows(), packed, strict=True):
                self._hand_over(step, stream_number, stream, of_row, key, payload)

    def _parents(self, inputs: EdgesOfRows, given: EdgesOfRows) -> EdgesOfRows:
        """Returns the edges that lead to each row from the roots of its inputs: the first edge of each root, in the
        order of the roots."""
        of_inputs, rows = given.take(inputs.numbers), inputs.rows
        rows_of_edges = np.repeat(rows, of_inputs.counts)
        numbers = of_inputs.numbers
        if (inputs.counts > 1).any():
            roots = self.batch.edges.roots_of_given(numbers)
            order = np.lexsort([np.arange(len(numbers)), roots, rows_of_edges])
            numbers, rows_of_edges, roots = numbers[order], rows_of_edges[order], roots[order]
            first = changes(rows_of_edges) | changes(roots)
            numbers, rows_of_edges = numbers[first], rows_of_edges[first]
        return EdgesOfRows(numbers, np.bincount(rows_of_edges, minlength=len(inputs)))


_ACKED = Verdict("acked", None, None)
_UNFIT = "the tuples of its key have several types in one field, or more than 1 GB, and a join gets them in one batch"
_FIRST_WEIGHT = 20.0
"""The factor by which a batch is taken to grow before an Arrow step without `group_by` has been called."""
