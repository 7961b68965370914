"""The spans of a turn in memory: what they are called, what they hold, and that they cost nothing where no one traces.

A real run sends them to a real receiver in tests/airflow/test_dag.py.
"""

import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ackline.errors import NoProof
from ackline.lane.spans import span
from ackline.steps.settle import settle
from tests.support.memory_lane import FAILS, OK, MemoryLane

SECRET = "canary-4711"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What a task of Airflow has configured."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def lane() -> MemoryLane:
    return MemoryLane(OK, FAILS, OK, SECRET.encode(), partitions=2)


def held(found: ReadableSpan) -> dict[str, object]:
    """The attributes of a span without those that each one has."""
    attributes: dict[str, object] = {
        key.removeprefix("ackline."): value for key, value in (found.attributes or {}).items()
    }
    assert (attributes.pop("pipeline"), attributes.pop("lane")) == ("lane", "live")
    assert str(attributes.pop("run_id"))
    return attributes


def test_a_turn_is_spans_of_its_steps_with_the_turn_and_counts(
    lane: MemoryLane, exporter: InMemorySpanExporter
) -> None:
    lane.run()
    spans = {found.name: held(found) for found in exporter.get_finished_spans()}
    turn = {"epoch": 0, "turn": 1}
    assert spans["ackline.plan"] == {**turn, "adopted": False, "partitions": 2, "fresh": 4, "retries": 0}
    assert spans["ackline.replay"] == spans["ackline.replay.prepare"] == spans["ackline.replay.store"] == turn
    job = spans["ackline.replay.job"]
    assert {name: job[name] for name in ("epoch", "turn", "handler_calls", "acked")} == {
        **turn, "handler_calls": 4, "acked": 2
    }  # fmt: skip
    assert spans["ackline.settle"] == {**turn, "stored": True, "pending": 2, "acked": 2, "failed": 2}
    assert spans["ackline.commit"] == {**turn, "committed": 2}


def test_the_span_of_a_replay_has_the_code_that_it_hands_records_to(
    lane: MemoryLane, exporter: InMemorySpanExporter
) -> None:
    lane.world.code = "bundle shop 3f2a"
    lane.run()
    spans = {found.name: held(found) for found in exporter.get_finished_spans()}
    assert spans["ackline.replay"]["code"] == "bundle shop 3f2a"


def test_the_parts_of_replay_are_children_of_its_span(lane: MemoryLane, exporter: InMemorySpanExporter) -> None:
    lane.run()
    spans = {found.name: found for found in exporter.get_finished_spans()}
    replay = spans["ackline.replay"].context
    for name in ("prepare", "job", "store"):
        assert spans[f"ackline.replay.{name}"].parent == replay, name


def test_i13_no_span_holds_a_record_or_the_text_of_an_error(lane: MemoryLane, exporter: InMemorySpanExporter) -> None:
    lane.plan()
    with pytest.raises(NoProof, match="nothing proves"):
        settle(lane.adapters(), lane.plan().turn)
    lane.replay()
    (failed,) = [found for found in exporter.get_finished_spans() if not found.status.is_ok]
    assert (failed.name, failed.status.description, failed.events) == ("ackline.settle", "NoProof", ())
    shown = "".join(found.to_json() for found in exporter.get_finished_spans())
    assert SECRET not in shown
    assert "nothing proves" not in shown


def test_where_opentelemetry_is_not_loaded_a_span_loads_nothing_of_it(
    lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    with span(lane.adapters(), "plan") as note:
        note(None, partitions=1)
    lane.run()
    assert not [name for name in sys.modules if name.startswith("opentelemetry")]
