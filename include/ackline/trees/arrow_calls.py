"""Calls the Arrow handlers of a tree, each on a batch of records or tuples.

A call makes the same edges, at the same places of the tree, as calls of a record handler on each of its tuples would.

An Arrow step without `group_by` gets its tuples at the end of the batch of calls that emitted them. A call that raises,
or whose answer is invalid, fails all its tuples, as an Arrow handler of records fails its batch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns

import numpy as np
import pyarrow as pa

from ackline.calling import TaskFailure
from ackline.errors import FatalError
from ackline.handler import SOURCE, Durations, Handler
from ackline.ledger.offsets import Bools
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.pipeline.streams import scalar_texts
from ackline.pipeline.topology import SOURCE_STEP, Step
from ackline.scrub import place_of_error, words_of_handler
from ackline.trees.answers import Texts
from ackline.trees.arrow_answers import HELD, BatchAnswer, BatchAnswerReader, Verdict
from ackline.trees.batch import SourceCalls
from ackline.trees.columns import KEY, TUPLE, values_of
from ackline.trees.delivery import Delivery
from ackline.trees.parcels import Arrived, Unfit, starts_of
from ackline.trees.rows import Edges, Int64s, root_ids
from ackline.trees.tuples import EmittedRows, Tuples
from ackline.worker.call import end_forked_copy, forks
from ackline.worker.outcomes import RowOutcome, error_class_of, outcome_of_word, scrubbed_message

Seeds = Mapping[tuple[str, int], tuple[int, int]] | None
"""By topic and partition: the index of the topic-partition in the job, and the seed of the ids of its edges."""


class ArrowCalls:
    """Calls Arrow handlers, and delivers what they emit. `handlers` are those of all steps, by number."""

    def __init__(self, delivery: Delivery, handlers: Sequence[Handler]) -> None:
        self._delivery = delivery
        self._handlers = handlers

    def call_source(self, handler: Handler, batch: pa.RecordBatch, seeds: Seeds) -> pa.Table:
        """Calls the handler of records of one topic-partition on a batch, and delivers what it emits. Returns a table
        with the outcome of each record. `seeds` is None if trees are not tracked. A record that emits nothing, or that
        is not tracked, has no event. Raises what the handler raises, and InvalidOutcome: nothing of its answers is
        delivered then."""
        begun, count, figures = perf_counter_ns(), batch.num_rows, self._delivery.figures

        def texts() -> Iterator[bytes | str]:
            return scalar_texts([batch.column(name).to_pylist() for name in ("key", "value", "headers")])

        try:
            answer = self._read(SOURCE, handler, batch, None, texts)
        finally:
            figures.spans[SOURCE_STEP].append(perf_counter_ns() - begun)
        verdicts = answer.verdicts
        try:
            edges = self._root_edges(batch, answer.emitted, verdicts.keys(), seeds)
            self._deliver(SOURCE, SOURCE_STEP, handler, answer, edges, verdicts.keys(), np.arange(count + 1))
        except TaskFailure:
            raise
        except BaseException as error:  # not the handler's fault, and no outcome is right: half of it is delivered
            failure = FatalError(f"what a handler emitted could not be delivered ({type(error).__name__})")
            raise TaskFailure(failure) from None
        end, roots = perf_counter_ns(), edges.roots
        if len(roots):
            figures.source_calls.append(SourceCalls(roots, np.full(len(roots), begun), np.full(len(roots), end)))
        ended = count - len(roots) - len(verdicts)
        if ended > 0:
            figures.latency.add(Durations(ended, ended * (end - begun), end - begun))
        if not verdicts:
            return pa.table({"outcome": pa.repeat("acked", count)})
        said = [verdicts.get(row, _ACKED) for row in range(count)]
        return pa.table({
            "outcome": [verdict.word for verdict in said], "error_class": [verdict.error_class for verdict in said],
            "error_message": [verdict.message for verdict in said],
        })  # fmt: skip

    def _root_edges(
        self, batch: pa.RecordBatch, emitted: Sequence[EmittedRows], not_acked: Collection[int], seeds: Seeds
    ) -> Edges:
        """Adds a root for each acked record that has emitted something. Returns the edges by record."""
        counts = np.zeros(batch.num_rows, np.int64)
        for each in emitted:
            counts[each.inputs.numbers] = 1
            if (each.inputs.counts == 0).any():  # a row without anchors is of the whole call
                counts[:] = 1
        counts[list(not_acked)] = 0
        if seeds is None or not counts.any():
            return Edges.none(batch.num_rows)
        tp, seed = seeds[batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()]
        rows = np.flatnonzero(counts)
        offsets, attempts = (batch.column(name).to_numpy()[rows].astype(np.int64) for name in ("offset", "attempt"))
        ids = root_ids(np.full(len(rows), seed, np.uint64), offsets, attempts)
        return Edges(ids, self._delivery.batch.roots.add(np.full(len(rows), tp), offsets, attempts), counts)

    def call_arrived(self, step: Step, arrived: Arrived | Unfit) -> None:
        """Calls the handler of a step with tuples of other tasks, and closes the edges that led to them. A join gets
        all tuples of each of its keys, the keys one after the other."""
        roots = self._delivery.batch.roots
        if isinstance(arrived, Unfit):
            for part in arrived.parts:
                self._fail_all(step, part.tuples(roots), ErrorClass.UNDECODABLE, _UNFIT)
            return
        self.call(step, arrived.tuples(roots), starts_of(arrived.keys) if step.join else None)

    def call(self, step: Step, tuples: Tuples, begins: Bools | None = None) -> None:
        """Calls the handler of a step on tuples, which are columns. In a join, `begins` says for each tuple whether it
        is the first one of its key."""
        handler, begun, content = self._handlers[step.number], perf_counter_ns(), tuples.content
        assert isinstance(content, pa.RecordBatch)
        columns = [*content.columns[1:], content.column(0), pa.array(np.arange(len(tuples)))]
        given = pa.RecordBatch.from_arrays(columns, names=[*content.schema.names[1:], KEY, TUPLE])
        groups = None if begins is None else np.cumsum(begins) - 1

        def texts() -> Iterator[bytes | str]:
            return scalar_texts(values_of(content))

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
            self._delivery.figures.spans[step.number].append(perf_counter_ns() - begun)
        outcomes = self._outcomes(handler, content, answer.verdicts)
        held = {row for row, verdict in answer.verdicts.items() if verdict.word == HELD}
        self._delivery.close(step, tuples, outcomes, held)
        # A record handler that raises delivers nothing; a join that fails single tuples delivers all that it emits.
        undelivered = () if step.join else outcomes.keys()
        bounds = np.arange(len(tuples) + 1) if begins is None else np.append(np.flatnonzero(begins), len(tuples))
        self._deliver(step.name, step.number, handler, answer, tuples.edges, undelivered, bounds)

    def _fail_all(
        self, step: Step, tuples: Tuples, error_class: str, message: str | None, place: str | None = None
    ) -> None:
        time = self._delivery.now()
        outcome = RowOutcome(0, Outcome.FAILED, error_class, message, time, error_place=place)
        self._delivery.close(step, tuples, dict.fromkeys(range(len(tuples)), outcome))

    def _read(
        self, name: str, handler: Handler, given: pa.RecordBatch, groups: Int64s | None, texts: Texts
    ) -> BatchAnswer:
        """Calls a handler, and returns what it answered. Raises what the handler raises, and InvalidOutcome."""
        before, readers = self._delivery.forks, self._delivery.readers
        try:
            answer = BatchAnswerReader(given.num_rows, groups).read(handler(given))
        except BaseException as error:
            if before != forks():
                end_forked_copy(error)
            raise
        if before != forks():
            end_forked_copy()
        for stream in sorted({each.stream for each in answer.emitted} - readers.takers[name].keys()):
            answer.unknown[stream] = readers.unknown_stream(name, stream, texts, handler)
        return answer

    def _outcomes(
        self, handler: Handler, content: pa.RecordBatch, verdicts: Mapping[int, Verdict]
    ) -> dict[int, RowOutcome]:
        """Returns the outcomes of tuples that the handler did not ack, but for those that it holds."""
        module, time = str(getattr(handler, "__module__", "handler")), self._delivery.now()
        kept = words_of_handler(handler)

        def payload_of(row: int) -> Iterator[bytes | str]:
            return scalar_texts(values_of(content.slice(row, 1)))

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

    def _deliver(
        self,
        name: str,
        number: int,
        handler: Handler,
        answer: BatchAnswer,
        given: Edges,
        undelivered: Collection[int],
        bounds: Int64s,
    ) -> None:
        """Delivers what a call has emitted, but for the rows that belong to any of the rows `undelivered` of the call.
        `given` are the edges of the rows that it was given."""
        gone = np.array(sorted(undelivered), np.int64)
        for each in answer.emitted:
            is_gone = np.zeros(len(each), np.bool_)
            is_gone[each.inputs.rows[np.isin(each.inputs.numbers, gone)]] = True
            if is_gone.all():
                continue
            emitted = each.take(np.flatnonzero(~is_gone)) if is_gone.any() else each
            self._delivery.figures.emitted[number] += len(emitted)
            if emitted.stream in answer.unknown:
                problems = [answer.unknown[emitted.stream]] * len(emitted)
                self._delivery.refuse(number, emitted, given, bounds, problems)
                continue
            if self._delivery.readers.takers[name][emitted.stream].outputs:
                assert isinstance(emitted.content, pa.RecordBatch)
                hidden = self._delivery.readers.hidden_fields(emitted.content.schema.names[1:], handler)
                emitted = replace(emitted, hidden=dict.fromkeys(range(len(emitted)), hidden) if hidden else {})
            self._delivery.deliver(number, name, emitted, given, bounds)


_ACKED = Verdict("acked", None, None)
_UNFIT = "the tuples of its key have several types in one field, or more than 1 GB, and a join gets them in one batch"
