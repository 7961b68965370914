"""Calls the handlers of a tree in a process of its own, so that a crash or a hang fails only the tuples of its call.

The process gets the inputs of a call as bytes, and sends back what the handler answered, packed, with its inputs as
positions (`ackline.spark.trees.answers`). Everything else stays in the task. A call is never repeated: the process
sends each answer before it makes the next call. So if it dies, every call before the last one has its answers, the last
one has failed, and a new process makes the rest.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ackline.outcome import Outcome
from ackline.pending import NEVER
from ackline.spark.handlers.outcomes import Clock, Outcomes, RowOutcome
from ackline.spark.isolation.handler_process import Death, HandlerProcess
from ackline.spark.records import Records
from ackline.spark.settings import TaskSettings
from ackline.spark.task_run import without_secrets
from ackline.spark.trees.answers import Answer
from ackline.spark.trees.calls import Seeds, TreeCalls
from ackline.spark.trees.edge_log import edge_log_of
from ackline.spark.trees.inputs import Input
from ackline.spark.trees.isolated_program import Returned, SentInput, StepCalls, TreeProgram
from ackline.spark.trees.output_rows import OutputRows
from ackline.stream_functions import load_steps
from ackline.topology import SOURCE_STEP, Step
from ackline.tuples import Durations

PROGRAM = "ackline.spark.trees.isolated_program"
CALLS_A_REQUEST = 20
"""Calls of a step in one request, at most. Sending a request takes about as long as ten short calls. The task keeps the
results of all calls of a request in memory."""


def tree_calls(settings: TaskSettings, now: Clock, outputs: OutputRows | None, step: int = SOURCE_STEP) -> TreeCalls:
    """Returns the calls of a task that gets the tuples of `step`, or reads records; isolated if the settings say so.
    Raises ConfigError for a handler of a step that does not import in this process."""
    if settings.replay.isolated:
        return IsolatedTreeCalls(settings, now, outputs, step)
    topology = settings.replay.topology
    assert topology is not None
    steps = load_steps(topology)
    return TreeCalls(topology, steps, settings.topic_partitions, now, outputs, edge_log_of(settings), step)


class IsolatedTreeCalls(TreeCalls):
    """The calls of a task in the process `process`. Start it before the first call, and close it at the end."""

    def __init__(self, settings: TaskSettings, now: Clock, outputs: OutputRows | None, step: int) -> None:
        replay, tps = without_secrets(settings.replay), settings.topic_partitions
        assert replay.topology is not None
        super().__init__(replay.topology, (), tps, now, outputs, edge_log_of(settings), step)
        self._limit = replay.record_timeout
        self.process = HandlerProcess(
            PROGRAM, TreeProgram(replay, settings.tier, tps, step == SOURCE_STEP), self._limit
        )
        self._called_ahead: dict[int, Returned] = {}

    def deliver_records(self, records: Records, outcomes: Outcomes, seeds: Seeds) -> None:
        """Delivers what the handler has emitted for records. `outcomes` are those of the calls alone; adds those of
        records in flight that have no event."""
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
        """Makes the calls of several inputs in one request, which is several times faster. Each of them must go to
        `call_step` next: that finds its answers here."""
        made = self._make_calls(step, [(given,) for given in inputs])
        self._called_ahead = {id(given): returned for given, returned in zip(inputs, made, strict=True)}

    def answers_of_step(
        self, step: Step, argument: Any, given: Sequence[Input]
    ) -> tuple[RowOutcome | None, list[Answer]]:
        """Has the process call the handler. Returns what `TreeCalls.answers_of_step` returns there, or how the process
        has died in the call."""
        returned = self._called_ahead.pop(id(given[0]), None)
        if returned is None:
            [returned] = self._make_calls(step, [given])
        return returned.outcome, returned.answers

    def _make_calls(self, step: Step, calls: Sequence[Sequence[Input]]) -> list[Returned]:
        """Has the process make calls, each once. Returns what each of them came to."""
        made: list[Returned] = []
        while len(made) < len(calls):
            rest = [[SentInput.of(each) for each in given] for given in calls[len(made) :]]
            response = self.process.request(StepCalls(step.number, rest), len(rest))
            returned = [result for _, result in self.process.take_returned()]
            if isinstance(response, Death) and len(response.given) > len(returned):
                # The last call that the process was given has no answer, whether it had returned or not.
                returned.append(self._lost(response, len(rest[len(returned)])))
            made += returned
        self.figures.spans[step.number] += [each.lasted for each in made if each.lasted]
        self._add_lost(step.number)
        return made

    def _lost(self, death: Death, inputs: int) -> Returned:
        among = "" if inputs == 1 else f" in a call for {inputs} tuples"
        return Returned(0, 0, [], death.failure(0, self._limit, self._now(), among))

    def _add_lost(self, number: int) -> None:
        self.figures.of_step(number).execute.add(self.process.lost)
        self.process.lost = Durations()
