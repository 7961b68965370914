"""The task of a step, outside Spark: what it keeps in memory, and what it passes on."""

from collections.abc import Iterator
from datetime import date

import pyarrow as pa

from ackline.handler import Tier
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.spark.output.outcome_files import OutcomeTarget
from ackline.spark.settings import ReplaySettings, TaskSettings
from ackline.spark.trees.calls import TreeCalls
from ackline.spark.trees.outbox import Outbox
from ackline.spark.trees.packed_events import EventFormat
from ackline.spark.trees.rows import MANIFEST, Event, Root
from ackline.spark.trees.step_run import handle_step
from ackline.topology import Topology
from ackline.tuples import Emit, Tuple
from ackline.turns import LIVE, TurnId
from tests.unit.spark.trees.stages import steps_of

TP = TopicPartition("orders", 0)
MIB = 1 << 20
TUPLES = 100
handled: list[Tuple] = []


def grow(given: Tuple) -> Emit:
    """Emits a MiB."""
    handled.append(given)
    return Emit(bytes(MIB), key=given.key)


def end(_: Tuple) -> None:
    """Acks."""


STEPS = steps_of(
    {"name": "grow", "handler": f"{__name__}:grow", "input": "source", "group_by": "key"},
    {"name": "end", "handler": f"{__name__}:end", "input": "grow", "group_by": "key"},
)


def task_settings(topology: Topology) -> TaskSettings:
    """The settings of a task of a turn over one topic-partition."""
    target = OutcomeTarget("/nowhere", TurnId("orders", LIVE, 0, 1), date(2024, 5, 6), "run")
    replay = ReplaySettings(
        "shop:split", deliver_tombstones=False, on_failure=Outcome.FAILED, now=None, topology=topology
    )
    return TaskSettings(target, replay, Tier.RECORD, TP.topic, None, None, (TP,))


def tuples_and_an_event() -> pa.RecordBatch:
    """Small tuples for the first step, and the row of an event."""
    calls = TreeCalls(STEPS, [grow, end], [TP], lambda: 1)
    outbox = Outbox(len(STEPS.steps))
    for number in range(TUPLES):
        calls._deliver(-1, calls._packed(Emit(number), "source", (), frozenset(), lambda: iter(())), (), number)
    outbox.add_event(Root(0, 5, 1), Event(-1, 11, len(STEPS.steps)), 1)
    outbox.add_tuples(calls)
    return pa.Table.from_batches(outbox.take(last=True)).combine_chunks().to_batches()[0]


def test_a_step_keeps_a_few_mib_of_what_its_handler_emits_however_large_it_is() -> None:
    handled.clear()
    calls_before_a_batch: list[int] = []
    sizes: list[int] = []
    for batch in _handled():
        calls_before_a_batch.append(len(handled) - sum(calls_before_a_batch))
        sizes.append(batch.nbytes)
    assert len(handled) == TUPLES
    assert max(calls_before_a_batch) <= 20
    assert max(sizes) <= 20 * MIB


def test_a_step_passes_events_on_as_they_are() -> None:
    rows = [row for batch in _handled() for row in batch.to_pylist()]
    [passed_on] = [row for row in rows if row["step"] is None and row["tp"] != MANIFEST]
    sums = EventFormat(len(STEPS.steps)).sums([passed_on["payload"]])
    assert (sums.offsets.tolist(), sums.xors.tolist()) == ([5], [0])


def _handled() -> Iterator[pa.RecordBatch]:
    return handle_step(task_settings(STEPS), STEPS.steps[0])(iter([tuples_and_an_event()]))
