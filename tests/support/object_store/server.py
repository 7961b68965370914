"""The S3 server of the tests: moto, in an environment of its own.

Requests are served one after the other, because moto itself checks a condition and stores the object in two steps. A
bucket whose name begins with `careless` ignores the condition of a put, as some stores do.
"""

import sys
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

CARELESS = "/careless"


class OneAtATime:
    """Passes one request at a time to an application."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith(CARELESS):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with self._lock:
            return [b"".join(self._application(environ, start))]


class Handler(WSGIRequestHandler):  # type: ignore[misc]
    """Keeps connections open, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        """Does nothing."""


if __name__ == "__main__":
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=Handler)
