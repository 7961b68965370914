"""A receiver of the metrics and the spans of OpenTelemetry over HTTP."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Points = dict[str, list[tuple[dict[str, str], float]]]
"""The received points, by name of the metric: tags and value of each."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span, with the ids of its trace and of its parent, and the class of the error that has ended it."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    attributes: dict[str, Any]
    error: str


@dataclass(frozen=True, slots=True)
class Received:
    """What has arrived at `port`."""

    port: int
    points: Points = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    logins: set[str | None] = field(default_factory=set)
    """The header `authorization` of the requests."""

    def named(self, name: str) -> list[Span]:
        """Returns the spans of this name."""
        return [span for span in self.spans if span.name == name]


@contextmanager
def receiver() -> Iterator[Received]:
    """Runs an OTLP receiver over HTTP; yields what it receives."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            text = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            received.logins.add(self.headers.get("authorization"))
            if self.path.endswith("/traces"):
                received.spans.extend(spans_in(ExportTraceServiceRequest.FromString(text)))
            else:
                keep(ExportMetricsServiceRequest.FromString(text), received.points)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Received(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def spans_in(request: Any) -> Iterator[Span]:
    """Yields the spans of a request."""
    for span in (s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans):
        found = {tag.key: getattr(tag.value, tag.value.WhichOneof("value")) for tag in span.attributes}
        error = span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else ""
        yield Span(span.name, span.trace_id, span.span_id, span.parent_span_id, found, error)


def keep(request: Any, points: Points) -> None:
    """Keep the newest value of each point."""
    for metric in (m for r in request.resource_metrics for scope in r.scope_metrics for m in scope.metrics):
        for point in [*metric.gauge.data_points, *metric.sum.data_points]:
            tags = {tag.key: tag.value.string_value for tag in point.attributes}
            value = point.as_double if point.HasField("as_double") else float(point.as_int)
            kept = [earlier for earlier in points.get(metric.name, []) if earlier[0] != tags]
            points[metric.name] = [*kept, (tags, value)]


def environment(port: int) -> dict[str, str]:
    """The variables by which Airflow sends its metrics and its spans to the receiver."""
    return {
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "AIRFLOW__TRACES__OTEL_ON": "True",
        "OTEL_TRACES_EXPORTER": "otlp_proto_http",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
