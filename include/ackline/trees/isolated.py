"""Calls the handlers of a tree in a process of its own, so that a crash or a hang fails only the tuples of its call.

`IsolatedTreeCalls` is the task's side. `serve` runs in the process: it calls the handlers, and sends back what they
answer. Only a handler runs there, and the reading of its answers, which may run its generator. The events, the edges
and the rows stay in the task, so a death loses nothing but the call under way.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from ackline.handler import Durations, Handler, Origin, Record, Tier, tier_of
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import NEVER
from ackline.pipeline.functions import load_steps
from ackline.pipeline.topology import SOURCE_STEP, Step, Stream
from ackline.trees.answers import Answer, Input, input_of
from ackline.trees.arrow_calls import ArrowTreeCalls
from ackline.trees.batch import edge_log_of
from ackline.trees.calls import Seeds, TreeCalls
from ackline.trees.output_rows import OutputRows
from ackline.worker.call import forks
from ackline.worker.isolation.handler_process import Death, HandlerProcess
from ackline.worker.isolation.serving import CallLog, Observer, serve_requests
from ackline.worker.outcomes import Clock, Outcomes, RowOutcome, outcome_clock
from ackline.worker.records import Records
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


class SentInput(NamedTuple):
    """An input of a call: key and payload as bytes, the stream, and the records that the tuple comes from."""

    key: bytes
    payload: bytes
    stream: Stream
    origins: tuple[Origin, ...]


class StepCalls(NamedTuple):
    """A request for calls of one step, each with its inputs."""

    step: int
    calls: Sequence[Sequence[SentInput]]


class Returned(NamedTuple):
    """The result of one handler call. `begun` is a time of `perf_counter_ns`, which all processes of a machine share;
    `lasted` is in nanoseconds."""

    begun: int
    lasted: int
    answers: list[Answer]
    outcome: RowOutcome | None = None
    """How the call of a step failed; None for one that did not, and for calls of the handler of records."""


class _Handlers:
    """The handlers of a task, imported. Raises ConfigError for one that does not import."""

    def __init__(self, program: TreeProgram, observer: Observer) -> None:
        self._observer = observer
        replay = program.replay
        assert replay.topology is not None
        self._steps = {step.number: step for step in replay.topology.steps}
        steps = load_steps(replay.topology)
        clock = outcome_clock(replay.now, replay.not_before)
        self._calls = TreeCalls(replay.topology, steps, program.topic_partitions, clock)
        self._call_source = load_call(replay, program.tier, observer, self._returning) if program.source else None

    def respond(self, request: Records | StepCalls) -> Outcomes | None:
        """Makes the calls of a request one after the other, and sends the result of each before it makes the next one.
        Returns the outcomes of records, and None for a step."""
        self._calls.begin()
        if isinstance(request, Records):
            assert self._call_source is not None
            return self._call_source(request)
        step = self._steps[request.step]
        for number, inputs in enumerate(request.calls):
            given = [input_of(*each, ()) for each in inputs]
            argument = tuple([each.tuple for each in given]) if step.join else given[0].tuple
            self._observer.log.begin_call(number)
            begun = perf_counter_ns()
            outcome, answers = self._calls.answers_of_step(step, argument, given)
            self._observer.returned(number, Returned(begun, perf_counter_ns() - begun, answers, outcome))
        return None

    def _returning(self, handler: Handler) -> Handler:
        """Returns a function that calls the handler of records, and sends its answers before it returns."""

        def call(record: Record) -> None:
            before, begun = forks(), perf_counter_ns()
            try:
                answers = self._calls.answers_of_source(handler, record)
            except BaseException:
                if before == forks():  # a copy that the handler has forked must send nothing
                    self._observer.raised(record.offset, Returned(begun, perf_counter_ns() - begun, []))
                raise
            self._observer.returned(record.offset, Returned(begun, perf_counter_ns() - begun, answers))

        return call


def serve(data: socket.socket, log: CallLog) -> None:
    """Calls the handlers of a tree for a Spark task, whose requests come from the socket `data`."""
    serve_requests(data, log, lambda program, observer: _Handlers(program, observer).respond)


PROGRAM = "ackline.trees.isolated"
CALLS_A_REQUEST = 20
"""Calls of a step in one request, at most. Sending a request takes about as long as ten short calls. The task keeps the
results of all calls of a request in memory."""


def tree_calls(
    settings: TaskSettings,
    now: Clock,
    outputs: OutputRows | None,
    step: int = SOURCE_STEP,
    batches_of_records: bool = False,
) -> TreeCalls:
    """Returns the calls of a task that gets the tuples of `step`, or that reads records if this is SOURCE_STEP. The
    settings decide whether they are isolated, and `batches_of_records` is True for an Arrow handler of records. Raises
    ConfigError if the handler of a step can't be imported in this process."""
    if settings.replay.isolated:
        return IsolatedTreeCalls(settings, now, outputs, step)
    topology = settings.replay.topology
    assert topology is not None
    steps = load_steps(topology)
    given = topology, steps, settings.topic_partitions, now, outputs, edge_log_of(settings), step, part_of_task()
    if batches_of_records or any(tier_of(handler) is Tier.ARROW for handler in steps):
        return ArrowTreeCalls(*given, parts=settings.parts)
    return TreeCalls(*given)


class IsolatedTreeCalls(TreeCalls):
    """The calls of a task whose handlers run in `process`. Start it before the first call; close it at the end."""

    def __init__(self, settings: TaskSettings, now: Clock, outputs: OutputRows | None, step: int) -> None:
        replay, tps = without_secrets(settings.replay), settings.topic_partitions
        assert replay.topology is not None
        super().__init__(replay.topology, (), tps, now, outputs, edge_log_of(settings), step, part_of_task())
        self._limit = replay.record_timeout
        self.process = HandlerProcess(
            PROGRAM, TreeProgram(replay, settings.tier, tps, step == SOURCE_STEP), self._limit
        )
        self._called_ahead: dict[int, Returned] = {}

    def deliver_records(self, records: Records, outcomes: Outcomes, seeds: Seeds) -> None:
        """Delivers what the handler has emitted for records. `outcomes` are those of the calls; this adds the outcome
        of each record in flight that has no event."""
        not_acked = {int(records.offsets[outcome.row]) for outcome in outcomes.not_acked}
        self._add_lost(SOURCE_STEP)
        for offset, returned in self.process.take_returned():
            self.figures.spans[SOURCE_STEP].append(returned.lasted)
            if offset in not_acked:
                continue
            if not returned.answers:
                self.figures.latency.measure(returned.lasted)
                continue
            row = int(np.searchsorted(records.offsets, offset))
            waiting = self.deliver_source(returned.answers, records.record(row), seeds, returned.begun)
            if waiting is not None:
                time, due = int(outcomes.handled_at[row]), None if waiting.due == NEVER else waiting.due
                outcomes.not_acked.append(RowOutcome(row, Outcome.IN_FLIGHT, None, None, time, due))
        outcomes.not_acked.sort(key=lambda outcome: outcome.row)

    def call_ahead(self, step: Step, inputs: Sequence[Input]) -> None:
        """Makes the calls of several inputs in one request, which is several times faster. The caller passes each input
        to `call_step` next, which takes the result from here."""
        made = self._make_calls(step, [(given,) for given in inputs])
        self._called_ahead = {id(given): returned for given, returned in zip(inputs, made, strict=True)}

    def answers_of_step(
        self, step: Step, argument: Any, given: Sequence[Input]
    ) -> tuple[RowOutcome | None, list[Answer]]:
        """Makes the process call the handler. Returns how the call failed, if it failed or the process died in it, and
        the answers."""
        returned = self._called_ahead.pop(id(given[0]), None)
        if returned is None:
            [returned] = self._make_calls(step, [given])
        return returned.outcome, returned.answers

    def _make_calls(self, step: Step, calls: Sequence[Sequence[Input]]) -> list[Returned]:
        """Makes the process make each of these calls once. Returns their results, in the same order."""
        made: list[Returned] = []
        while len(made) < len(calls):
            rest = [
                [SentInput(key, payload, Stream(of.step, of.stream), of.origins) for of, _, key, payload in given]
                for given in calls[len(made) :]
            ]
            response = self.process.request(StepCalls(step.number, rest), len(rest))
            returned = [result for _, result in self.process.take_returned()]
            if isinstance(response, Death) and len(response.given) > len(returned):
                # The last call that the process was given has no answer, whether it had returned or not.
                inputs = len(rest[len(returned)])
                among = "" if inputs == 1 else f" in a call for {inputs} tuples"
                returned.append(Returned(0, 0, [], response.failure(0, self._limit, self._now(), among)))
            made += returned
        self.figures.spans[step.number] += [each.lasted for each in made if each.lasted]
        self._add_lost(step.number)
        return made

    def _add_lost(self, number: int) -> None:
        self.figures.of_step(number).execute.add(self.process.lost)
        self.process.lost = Durations()
