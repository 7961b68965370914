"""What runs in the handler's process of a task of a tree: it calls the handlers, and sends back what they answer.

Only a handler runs here, and the reading of its answers, which may run its generator. The task itself keeps the events,
the edges and the rows, so a death loses nothing but the call under way.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import NamedTuple

from ackline.handler import Handler, Record, Tier
from ackline.offsets import TopicPartition
from ackline.spark.handlers.call import forks
from ackline.spark.handlers.load import load_call
from ackline.spark.handlers.outcomes import Outcomes, RowOutcome, outcome_clock
from ackline.spark.isolation.call_log import CallLog
from ackline.spark.isolation.serving import Observer, serve_requests
from ackline.spark.records import Records
from ackline.spark.settings import ReplaySettings
from ackline.spark.trees.answers import Answer
from ackline.spark.trees.calls import TreeCalls
from ackline.spark.trees.inputs import Input, input_of
from ackline.stream_functions import load_steps
from ackline.topology import Stream
from ackline.tuples import Origin


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

    @classmethod
    def of(cls, given: Input) -> "SentInput":
        """Returns an input as it is sent."""
        stream = Stream(given.tuple.step, given.tuple.stream)
        return cls(given.key, given.payload, stream, given.tuple.origins)


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
        self._calls = TreeCalls(replay.topology, steps, program.topic_partitions, outcome_clock(replay.now))
        self._call_source = load_call(replay, program.tier, observer, self._returning) if program.source else None

    def respond(self, request: Records | StepCalls) -> Outcomes | None:
        """Makes the calls of a request one after the other. Sends what each of them came to before it makes the next
        one."""
        self._calls.begin()
        if isinstance(request, Records):
            assert self._call_source is not None
            return self._call_source(request)
        step = self._steps[request.step]
        for number, inputs in enumerate(request.calls):
            given = [input_of(*each, ()) for each in inputs]
            argument = tuple([each.tuple for each in given]) if step.join else given[0].tuple
            self._observer.begin_call(number)
            begun = perf_counter_ns()
            outcome, answers = self._calls.answers_of_step(step, argument, given)
            self._observer.returned(number, Returned(begun, perf_counter_ns() - begun, answers, outcome))
        return None

    def _returning(self, handler: Handler) -> Handler:
        """Returns the handler of records; what it emits is sent before its call returns."""

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
    """Calls the handlers of a tree for a Spark task."""
    serve_requests(data, log, lambda program, observer: _Handlers(program, observer).respond)
