"""What runs in a handler's process: it calls handlers for its Spark task, one request after another.

The module of a handler's process has a function `serve`; this one is for the handler of records. The fork server
imports it before it forks (`ackline.spark.isolation.fork_server`).
"""

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ackline.errors import AcklineError, FatalError
from ackline.handler import Handler, Tier
from ackline.spark.handlers.load import load_call
from ackline.spark.handlers.outcomes import RowOutcome
from ackline.spark.isolation import frames
from ackline.spark.isolation.call_log import CallLog

Respond = Callable[[Any], object]
"""Makes the calls of a request, and returns the response."""


class Observer:
    """The `CallObserver` of a handler's process: logs calls, and sends to the task what must not be lost with this
    process."""

    def __init__(self, data: socket.socket, log: CallLog) -> None:
        self._data = data
        self._log = log

    def wrap(self, handler: Handler, tier: Tier) -> Handler:
        """Returns the handler; each call of it is logged before it is made."""
        return self._log.wrap(handler, tier)

    def waiting(self) -> AbstractContextManager[None]:
        """Returns a context whose time does not count against the limit of the call under way."""
        return self._log.waiting()

    def report(self, offset: int, outcome: RowOutcome) -> None:
        """Sends the outcome of the record at `offset` at once."""
        frames.send(self._data, ("outcome", (offset, outcome)))

    def begin_call(self, number: int) -> None:
        """Logs that the call `number` of the request begins."""
        self._log.begin_call(number)

    def returned(self, number: int, result: object) -> None:
        """Sends what the call `number` has returned, so that it is not lost with this process."""
        frames.send(self._data, ("returned", (number, result)))

    def raised(self, number: int, result: object) -> None:
        """Sends the figures of the call `number`, which has raised. `report` sends its outcome."""
        frames.send(self._data, ("raised", (number, result)))


def serve(data: socket.socket, log: CallLog) -> None:
    """Calls the handler of records on batches, as a Spark task does."""
    serve_requests(data, log, lambda start, observer: load_call(start[0], start[1], observer))


def serve_requests(data: socket.socket, log: CallLog, load: Callable[[Any, Observer], Respond]) -> None:
    """Serves requests until the task closes the socket. `load` imports the handlers; it gets the task's first message.

    Sends an AcklineError of `load` or of a request to the task.
    """
    try:
        respond = load(frames.receive(data), Observer(data, log))
        frames.send(data, ("ready", None))
        while True:
            request = frames.receive(data)
            log.open_batch()
            response = respond(request)
            log.end_batch()
            frames.send(data, ("response", response))
    except EOFError:
        return
    except AcklineError as error:
        frames.send(data, ("error", error))
    except Exception as error:
        # The process may be out of memory because of what the handler keeps. A new process has room again. The task
        # has in the call log what this process was given, and has received what it reported.
        if isinstance(error, MemoryError) or log.state().given:
            os._exit(1)
        # The error's text may quote a record, so only its class is sent.
        failure = FatalError(f"the handler's process failed outside of the handler ({type(error).__name__})")
        frames.send(data, ("error", failure))
