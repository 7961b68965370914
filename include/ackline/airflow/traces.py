"""The trace of a replay task goes on in its Spark driver, which is a process of its own.

Airflow configures OpenTelemetry in the task. The task hands the trace, and the login of the collector, to the driver
with the other secrets. The driver exports to the same collector: it inherits the variables `OTEL_…` of the task, but
for the headers, which hold the login and would reach the processes of the handlers.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

_HEADERS = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?HEADERS")
_PARENT = "traceparent"
FLUSH_SECONDS = 5.0
"""How long a driver that has ended waits for a collector that does not answer."""

log = logging.getLogger(__name__)


def without_headers(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables without those that hold the login of a collector."""
    return {name: value for name, value in environment.items() if not _HEADERS.fullmatch(name)}


def trace_of_task() -> dict[str, str] | None:
    """Returns what a driver needs to go on with the trace of this task; None if nothing of the trace is exported."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None or not api.get_current_span().get_span_context().trace_flags.sampled:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {**carrier, **{name: value for name, value in os.environ.items() if _HEADERS.fullmatch(name)}}


@contextmanager
def continued_trace(trace: Mapping[str, str] | None) -> Iterator[None]:
    """Runs the block in the trace that a task has handed over, and sends its spans before it returns, for at most
    FLUSH_SECONDS. Loads nothing of OpenTelemetry without a trace.

    Nothing about the trace raises, or stops the block: a driver without it does the same work.
    """
    if trace is None or _PARENT not in trace:
        yield
        return
    try:
        provider, token = _begin(trace)
    except Exception as error:  # an exporter that is not installed; its text may hold an address with a password
        log.warning("the spans of this driver are not exported (%s)", type(error).__name__)
        yield
        return
    from opentelemetry import context

    try:
        yield
    finally:
        context.detach(token)
        # In a thread, because an exporter repeats what a collector does not take until its own time-out is over.
        flush = threading.Thread(target=provider.shutdown, name="ackline-spans", daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)


def _begin(trace: Mapping[str, str]) -> tuple[Any, Any]:
    """Configures the exporter as Airflow does in its tasks, and makes the span of the task the current one. Returns the
    provider, and the token that makes the span no longer current."""
    from opentelemetry import context
    from opentelemetry import trace as api
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # The JVM of Spark, which starts the processes of the handlers, runs already: it does not get these variables.
    os.environ.update({name: value for name, value in trace.items() if _HEADERS.fullmatch(name)})
    name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    (exporter,) = entry_points(group="opentelemetry_traces_exporter", name=name)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter.load()()))
    api.set_tracer_provider(provider)
    return provider, context.attach(TraceContextTextMapPropagator().extract(trace))
