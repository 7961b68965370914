"""The trace of a replay task goes on in its driver, and its collector's login reaches no process of a handler."""

import os
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from ackline.airflow import traces
from ackline.airflow.driver_hook import driver_environment
from tests.airflow import otlp_receiver

LOGIN = "canary-of-the-collector"
TASK = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DRIVER = """
import sys
import time
from types import SimpleNamespace
from ackline.airflow import traces
from ackline.lane.spans import span

traces.FLUSH_SECONDS = float(sys.argv[3])
handed_over = {"traceparent": sys.argv[1], "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={sys.argv[2]}"}
lane = SimpleNamespace(pipeline=SimpleNamespace(name="orders"), store=SimpleNamespace(lane="live"), run_id="r")
with traces.continued_trace(handed_over if sys.argv[1] else None):
    with span(lane, "replay") as note:
        note(handler_calls=3)
    ended = time.monotonic()
print("done", "opentelemetry.trace" in sys.modules, "late" if time.monotonic() - ended > 5 else "")
"""


def run_driver(port: int, traceparent: str = TASK, seconds: float = 10, **changed: str) -> str:
    environment = {**os.environ, **otlp_receiver.environment(port), **changed}
    command = [sys.executable, "-c", DRIVER, traceparent, LOGIN, str(seconds)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_the_spans_of_a_driver_are_children_of_its_task_and_sent_before_it_ends() -> None:
    with otlp_receiver.receiver() as received:
        assert run_driver(received.port) == "done True"
    (replay,) = received.named("ackline.replay")
    _, trace_id, task, _ = TASK.split("-")
    assert (replay.trace_id.hex(), replay.parent_id.hex()) == (trace_id, task)
    assert replay.attributes["ackline.handler_calls"] == 3
    assert received.logins == {LOGIN}


def test_a_driver_whose_task_traces_nothing_loads_nothing_of_opentelemetry() -> None:
    with otlp_receiver.receiver() as received:
        assert run_driver(received.port, traceparent="") == "done False"
    assert received.spans == []


@pytest.mark.parametrize("changed", [{}, {"OTEL_TRACES_EXPORTER": "not_installed"}])
def test_a_collector_that_is_away_or_not_known_stops_no_driver(changed: dict[str, str]) -> None:
    """The exporter would repeat its request for ten seconds."""
    assert run_driver(9, seconds=0.1, **changed) == "done True"


def test_i13_the_login_of_the_collector_travels_with_the_secrets_and_in_no_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={LOGIN}", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": LOGIN}
    for name, value in {**headers, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector"}.items():
        monkeypatch.setenv(name, value)
    assert LOGIN not in str(driver_environment())
    assert driver_environment()["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector"
    assert traces.trace_of_task() is None, "nothing records"
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(shutdown_on_exit=False))
    with trace.get_tracer("airflow").start_as_current_span("worker.replay") as task:
        handed_over = traces.trace_of_task()
    assert handed_over is not None
    assert headers.items() <= handed_over.items()
    own = task.get_span_context()
    assert handed_over["traceparent"].startswith(f"00-{own.trace_id:032x}-{own.span_id:016x}-")
