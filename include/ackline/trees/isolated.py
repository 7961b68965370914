"""Calls the handlers of a tree in a process of its own, so that a crash or a hang fails only the tuples of its call.

`IsolatedTreeCalls` is the task's side. `serve` runs in the process: it calls the handlers, and sends back what they
answer. Only a handler runs there, and the reading of its answers, which may run its generator. The events, the edges
and the rows stay in the task, so a death loses nothing but the call under way.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from ackline.handler import Durations, Handler, Origin, Record, Tier
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import NEVER
from ackline.pipeline.functions import load_steps
from ackline.pipeline.topology import SOURCE_STEP, Step
from ackline.trees.answers import Emissions
from ackline.trees.arrow_calls import Seeds
from ackline.trees.batch import edge_log_of
from ackline.trees.calls import LoopCalls, TreeCalls
from ackline.trees.output_rows import OutputRows
from ackline.trees.rows import Edges
from ackline.trees.tuples import Packed, Tuples
from ackline.worker.call import forks
from ackline.worker.isolation.handler_process import Death, HandlerProcess
from ackline.worker.isolation.serving import CallLog, Observer, RecordCalls, serve_requests
from ackline.worker.outcomes import Clock, Outcomes, RowOutcome, outcome_clock
from ackline.worker.progress import note_calls
from ackline.worker.records import Int64s, Records
from ackline.worker.run import part_of_task, without_secrets
from ackline.worker.settings import ReplaySettings, TaskSettings
from ackline.worker.streams import load_call


@dataclass(frozen=True, slots=True)
class TreeProgram:
    """The first message to the process. With `source` the process also imports the handler of records."""

    replay: ReplaySettings
    tier: Tier
    topic_partitions: tuple[TopicPartition, ...]
    source: bool


class SentCall(NamedTuple):
    """The inputs of a call: the numbers of their streams, keys and values packed, and the records that they come
    from."""

    streams: Sequence[int]
    content: Packed
    origins: Sequence[tuple[Origin, ...]]


StepCalls = tuple[int, Sequence[SentCall]]
"""A request for calls of one step: its number, and the inputs of each call."""


class Returned(NamedTuple):
    """The result of one handler call. `begun` is a time of `perf_counter_ns`, which all processes of a machine share;
    `lasted` is in nanoseconds. `others` are what it answered beside what it has emitted, with the deadline of an
    InFlight."""

    begun: int
    lasted: int
    emitted: Emissions
    others: Sequence[Any] = ()
    due: int | None = None
    outcome: RowOutcome | None = None
    """How the call of a step failed; None for one that did not, and for calls of the handler of records."""


class _Calls(TreeCalls):
    """The calls in the process, whose tuples have origins and no edges."""

    given: Sequence[tuple[Origin, ...]] = ()

    def origins(self, edges: Edges) -> Sequence[tuple[Origin, ...]]:
        """Returns the origins that the task has sent."""
        return self.given


class _Handlers:
    """The handlers of a task, imported. Raises ConfigError for one that does not import."""

    def __init__(self, program: TreeProgram, observer: Observer) -> None:
        self._observer = observer
        replay = program.replay
        assert replay.topology is not None
        self._steps = {step.number: step for step in replay.topology.steps}
        steps = load_steps(replay.topology)
        clock = outcome_clock(replay.now, replay.not_before)
        self._calls = _Calls(replay.topology, steps, program.topic_partitions, clock)
        self._call_source = load_call(replay, program.tier, observer, self._returning) if program.source else None

    def respond(self, request: RecordCalls | StepCalls) -> Outcomes | None:
        """Makes the calls of a request one after the other, and sends the result of each before it makes the next one.
        Returns the outcomes of records, and None for a step."""
        self._calls.begin()
        if isinstance(request, RecordCalls):
            assert self._call_source is not None
            return self._call_source(request.records)
        step = self._steps[request[0]]
        for number, (streams, content, self._calls.given) in enumerate(request[1]):
            tuples = Tuples(np.array(streams), Edges.none(len(content)), content)
            self._observer.log.begin_call(number)
            begun = perf_counter_ns()
            made = self._calls.loop(step, tuples, np.array([0, len(content)]))
            emitted, others, outcome = self._calls.reader(step).take(), made.others.get(0, ()), made.failures.get(0)
            returned = Returned(begun, perf_counter_ns() - begun, emitted, others, outcome=outcome)
            self._observer.returned(number, returned)
        return None

    def _returning(self, handler: Handler) -> Handler:
        """Returns a function that calls the handler of records, and sends its answers before it returns."""
        emitted = self._calls.source

        def call(record: Record) -> None:
            before, begun = forks(), perf_counter_ns()
            try:
                others, due = self._calls.read_source(handler, record)
            except BaseException:
                if before == forks():  # a copy that the handler has forked must send nothing
                    self._observer.raised(record.offset, Returned(begun, perf_counter_ns() - begun, Emissions()))
                raise
            lasted = perf_counter_ns() - begun
            self._observer.returned(record.offset, Returned(begun, lasted, emitted.take(), others, due))

        return call


def serve(data: socket.socket, log: CallLog) -> None:
    """Calls the handlers of a tree for a Spark task, whose requests come from the socket `data`."""
    serve_requests(data, log, lambda program, observer: _Handlers(program, observer).respond)


PROGRAM = "ackline.trees.isolated"
CALLS_A_REQUEST = 20
"""Calls of a step in one request, at most. Sending a request takes about as long as ten short calls. The task keeps the
results of all calls of a request in memory."""


def tree_calls(settings: TaskSettings, now: Clock, outputs: OutputRows | None, step: int = SOURCE_STEP) -> TreeCalls:
    """Returns the calls of a task that gets the tuples of `step`, or that reads records if this is SOURCE_STEP. The
    settings decide whether they are isolated. Raises ConfigError if the handler of a step can't be imported in this
    process."""
    if settings.replay.isolated:
        return IsolatedTreeCalls(settings, now, outputs, step)
    topology = settings.replay.topology
    assert topology is not None
    given = settings.topic_partitions, now, outputs, edge_log_of(settings), step, part_of_task(), settings.parts
    calls = TreeCalls(topology, load_steps(topology), *given)
    calls.call_ahead()
    return calls


class IsolatedTreeCalls(TreeCalls):
    """The calls of a task whose handlers run in `process`. Start it before the first call; close it at the end."""

    def __init__(self, settings: TaskSettings, now: Clock, outputs: OutputRows | None, step: int) -> None:
        replay, tps = without_secrets(settings.replay), settings.topic_partitions
        assert replay.topology is not None
        given = edge_log_of(settings), step, part_of_task(), settings.parts
        super().__init__(replay.topology, (), tps, now, outputs, *given)
        self._limit = replay.record_timeout
        self.process = HandlerProcess(
            PROGRAM, TreeProgram(replay, settings.tier, tps, step == SOURCE_STEP), self._limit
        )

    def deliver_records(self, records: Records, outcomes: Outcomes, seeds: Seeds) -> None:
        """Delivers what the handler has emitted for records. `outcomes` are those of the calls; this adds the outcome
        of each record in flight that has no event."""
        not_acked = {int(records.offsets[outcome.row]) for outcome in outcomes.not_acked}
        self._add_lost(SOURCE_STEP)
        for offset, returned in self.process.take_returned():
            self.figures.spans[SOURCE_STEP].append(returned.lasted)
            if offset in not_acked:
                continue
            row, count = int(np.searchsorted(records.offsets, offset)), len(returned.emitted)
            self.source.emitted.extend(returned.emitted)
            times = returned.begun, returned.begun + returned.lasted
            if self.called_source(records.record(row), seeds, *times, count, returned.others, returned.due) is not None:
                time, due = int(outcomes.handled_at[row]), None if returned.due == NEVER else returned.due
                outcomes.not_acked.append(RowOutcome(row, Outcome.IN_FLIGHT, None, None, time, due))
        outcomes.not_acked.sort(key=lambda outcome: outcome.row)

    def loop(self, step: Step, tuples: Tuples, bounds: Int64s) -> LoopCalls:
        """Makes the process call the handler for one tuple after the other, or with those of one key after the
        other. Several calls in one request are several times faster."""
        calls, emitted, content = LoopCalls([], {}, {}), self.reader(step).emitted, tuples.content
        origins, streams = self.origins(tuples.edges), tuples.streams.tolist()
        assert isinstance(content, Packed)
        sent = (
            SentCall(streams[start:end], content.slice(start, end), origins[start:end])
            for start, end in pairwise(bounds.tolist())
        )
        most, room = self.most_emitted, self.room
        while chunk := list(islice(sent, 1 if step.join else CALLS_A_REQUEST)):
            for returned in self._make_calls(step, chunk):
                if returned.outcome is not None:
                    calls.failures[len(calls.counts)] = returned.outcome
                if returned.others:
                    calls.others[len(calls.counts)] = returned.others
                emitted.extend(returned.emitted)
                calls.counts.append(len(returned.emitted))
            if step.grouped:
                note_calls(len(chunk))
            if len(emitted) >= most or emitted.size >= room:
                break
        return calls

    def _make_calls(self, step: Step, calls: Sequence[SentCall]) -> list[Returned]:
        """Makes the process make each of these calls once. Returns their results, in the same order."""
        made: list[Returned] = []
        while len(made) < len(calls):
            rest = calls[len(made) :]
            response = self.process.request((step.number, rest), len(rest))
            returned = [result for _, result in self.process.take_returned()]
            if isinstance(response, Death) and len(response.given) > len(returned):
                # The last call that the process was given has no answer, whether it had returned or not.
                inputs = len(rest[len(returned)].content)
                among = "" if inputs == 1 else f" in a call for {inputs} tuples"
                failure = response.failure(0, self._limit, self.now(), among)
                returned.append(Returned(0, 0, Emissions(), outcome=failure))
            made += returned
        self.figures.spans[step.number] += [each.lasted for each in made if each.lasted]
        self._add_lost(step.number)
        return made

    def _add_lost(self, number: int) -> None:
        self.figures.of_step(number).execute.add(self.process.lost)
        self.process.lost = Durations()
