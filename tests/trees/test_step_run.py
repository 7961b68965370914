"""The task of a step, outside Spark: what it keeps in memory, and what it passes on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ackline.handler import Emit, Record, Tuple, arrow_handler
from ackline.pipeline.topology import Topology
from ackline.trees.batch import Outbox
from ackline.trees.calls import TreeCalls
from ackline.trees.events import EventFormat
from ackline.trees.payload import unpack
from ackline.trees.rows import MANIFEST
from ackline.trees.stages import handle_step
from tests.trees.stages import TP, steps_of, task_of

MIB = 1 << 20
TUPLES = 100
handled: list[Tuple] = []
joined: list[list[Any]] = []
calls_for: list[int] = []


def grow(given: Tuple) -> Emit:
    """Emits a MiB."""
    handled.append(given)
    return Emit(bytes(MIB), key=given.key)


def end(_: Tuple) -> None:
    """Acks."""


def keep(given: Tuple) -> None:
    """Keeps the tuple."""
    handled.append(given)


def join(given: Sequence[Tuple]) -> None:
    """Keeps the values of each call."""
    joined.append([each.value for each in given])


def large(given: Sequence[Tuple]) -> Iterator[Emit]:
    """Emits a MiB for each tuple."""
    for each in given:
        yield Emit(bytes(MIB), anchors=(each,))


@arrow_handler
def grow_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Emits 64 KiB for each tuple."""
    calls_for.append(batch.num_rows)
    return pa.record_batch({"value": pa.repeat(bytes(MIB // 16), batch.num_rows), "key": batch.column("key")})


JOIN = steps_of(
    {"name": "join", "handler": f"{__name__}:join", "input": "source", "group_by": "key", "join": True},
)
LARGE = steps_of(
    {"name": "large", "handler": f"{__name__}:large", "input": "source", "group_by": "key", "join": True},
    {"name": "end", "handler": f"{__name__}:end", "input": "large", "group_by": "key"},
)
END = {"name": "end", "handler": f"{__name__}:end", "group_by": "key"}
KEEP = steps_of({**END, "handler": f"{__name__}:keep", "input": "source"})
STEPS = steps_of(
    {"name": "grow", "handler": f"{__name__}:grow", "input": "source", "group_by": "key"},
    {"name": "end", "handler": f"{__name__}:end", "input": "grow", "group_by": "key"},
)


def tuples_and_an_event() -> pa.RecordBatch:
    """Small tuples for the first step, and the row of an event."""
    return sent_rows(STEPS, [grow, end], 1, lambda _: [Emit(number) for number in range(TUPLES)])


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


def test_a_step_has_one_tuple_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unpacked value may take twenty times its bytes, and a batch of Spark holds 32 MiB."""
    handled.clear()
    waiting: list[int] = []

    def unpacked(*arguments: Any) -> Any:
        waiting.append(len(waiting) + 1 - len(handled))
        return unpack(*arguments)

    monkeypatch.setattr("ackline.trees.calls.unpack", unpacked)
    rows = sent_rows(KEEP, [keep], 1, lambda _: [Emit([number], key=number) for number in range(300)])
    assert list(handle_step(task_of(KEEP), KEEP.steps[0])(iter([rows])))
    assert len(handled) == 300
    assert set(waiting) == {1}


def test_a_step_passes_events_on_as_they_are() -> None:
    given = tuples_and_an_event()
    [event] = events_of([given])
    assert event in events_of(list(handle_step(task_of(STEPS), STEPS.steps[0])(iter([given]))))


def test_a_join_gets_all_tuples_of_a_key_however_they_are_divided_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark cuts batches anywhere, also within the parcels of a bucket. Each tuple still counts once. The parcels are
    never made one: the tuples of a key may have more than the 2 GiB that a column of Arrow holds."""
    parts = [
        sent_rows(JOIN, [join], 10, lambda _: [Emit(str(n), key="abcde"[n]) for n in range(5)], first)
        for first in range(0, 40, 10)
    ]
    tuples = pa.Table.from_batches(parts).filter(pc.field("step") == 0).sort_by("tp").combine_chunks().to_batches()[0]
    for size in (1, 2, 3, 7, 40):
        joined.clear()
        batches = [tuples.slice(start, size) for start in range(0, len(tuples), size)]
        with monkeypatch.context() as patch:
            for name in ("concat_batches", "concat_arrays", "concat_tables"):
                patch.setattr(pa, name, None)
            found = list(handle_step(task_of(JOIN), JOIN.steps[0])(iter(batches)))
        assert sorted(joined) == [[str(n)] * 40 for n in range(5)]
        sums = EventFormat(1).sums(events_of([*parts, *found]))
        assert sums.offsets.tolist() == list(range(40))
        assert not sums.xors.any()
        assert not sums.open_tuples.any()
        assert sums.acked.tolist() == [[5] * 40]


def test_a_join_that_emits_much_ends_its_batches_between_two_keys() -> None:
    """Each of these batches has an event of the record, and each event counts."""
    rows = sent_rows(LARGE, [large, end], 1, lambda _: [Emit(n, key=n) for n in range(60)])
    tuples = rows.filter(pc.is_valid(rows["step"])).sort_by([("tp", "ascending")])
    found = list(handle_step(task_of(LARGE), LARGE.steps[0])(iter([tuples])))
    assert len([batch for batch in found if batch.nbytes > MIB]) > 2
    sums = EventFormat(2).sums(events_of([rows, *found]))
    assert (sums.acked.tolist(), sums.open_tuples.tolist()) == ([[60], [0]], [[0], [60]])


@pytest.mark.parametrize("near", [True, False])
def test_an_arrow_step_gets_about_as_many_tuples_as_emit_what_a_batch_should_hold(near: bool) -> None:
    block = {"name": "grow", "handler": f"{__name__}:grow_batch", "input": "source"}
    grow = steps_of(block if near else {**block, "group_by": "key"}, {**END, "input": "grow"})
    calls_for.clear()
    calls, outbox = TreeCalls(grow, [grow_batch, end], [TP], lambda: 1, parts=4), Outbox()
    for offset in range(1500):
        record = Record(TP.topic, TP.partition, offset, None, None, None, (), 1)
        calls.call_source(lambda each: Emit(each.offset, key=each.offset), record, {(TP.topic, TP.partition): (0, 11)})
        if calls.advance():
            outbox.add(calls.end())
    outbox.add(calls.end())
    sent = [batch for batch in outbox.take(last=True) if batch.column("step").null_count < len(batch)]
    found = sent if near else list(handle_step(task_of(grow), grow.steps[0])(iter(sent)))
    assert sum(calls_for) == 1500
    assert max(calls_for) <= 500
    assert max(calls_for[2:]) <= 300
    assert max(batch.nbytes for batch in found) <= 40 * MIB


def sent_rows(
    topology: Topology, handlers: list[Any], records: int, source: Callable[[Record], list[Emit]], first: int = 0
) -> pa.RecordBatch:
    calls, outbox = TreeCalls(topology, handlers, [TP], lambda: 1), Outbox()
    for offset in range(first, first + records):
        record = Record(TP.topic, TP.partition, offset, None, None, None, (), 1)
        calls.call_source(source, record, {(TP.topic, TP.partition): (0, 11)})
    outbox.add(calls.end())
    return pa.Table.from_batches(outbox.take(last=True)).combine_chunks().to_batches()[0]


def events_of(batches: list[pa.RecordBatch]) -> list[bytes]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [row["payload"] for row in rows if row["step"] is None and row["tp"] != MANIFEST]


def _handled() -> Iterator[pa.RecordBatch]:
    return handle_step(task_of(STEPS), STEPS.steps[0])(iter([tuples_and_an_event()]))


def test_an_isolated_step_sends_what_its_handler_emits_before_it_is_much() -> None:
    settings = task_of(STEPS)
    settings = replace(settings, replay=replace(settings.replay, isolated=True))
    sizes = [batch.nbytes // MIB for batch in handle_step(settings, STEPS.steps[0])(iter([tuples_and_an_event()]))]
    assert sum(sizes) >= 100
    assert max(sizes) < 40
