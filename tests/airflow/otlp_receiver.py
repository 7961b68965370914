"""A receiver of OpenTelemetry metrics over HTTP."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

Points = dict[str, list[tuple[dict[str, str], float]]]
"""The received points, by name of the metric: tags and value of each."""


@contextmanager
def receiver() -> Iterator[tuple[int, Points]]:
    """Runs an OTLP receiver over HTTP; yields its port, and the points that it receives."""
    points: Points = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            text = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            keep(ExportMetricsServiceRequest.FromString(text), points)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, points
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def keep(request: Any, points: Points) -> None:
    """Keep the newest value of each point."""
    for metric in (m for r in request.resource_metrics for scope in r.scope_metrics for m in scope.metrics):
        for point in [*metric.gauge.data_points, *metric.sum.data_points]:
            tags = {tag.key: tag.value.string_value for tag in point.attributes}
            value = point.as_double if point.HasField("as_double") else float(point.as_int)
            kept = [earlier for earlier in points.get(metric.name, []) if earlier[0] != tags]
            points[metric.name] = [*kept, (tags, value)]


def environment(port: int) -> dict[str, str]:
    """The variables by which Airflow sends its metrics to the receiver."""
    return {
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
