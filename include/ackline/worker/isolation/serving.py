"""What runs in a handler's process, and the messages between it and its Spark task.

Messages between a handler's process and its Spark task: pickled values, each behind its length.

This is not `multiprocessing.connection.Connection`, because only a socket that never blocks keeps two promises:
- A death is noticed while the task sends a batch. A daemon that the handler has forked may keep the dead process's end
  of the socket open, and nothing reads from it. `Connection.send` would block there for ever. The task instead waits
  for room in the socket and for the fork server's report of the death at the same time.
- A process that stops in the middle of a message does not stop its task. `Connection.poll` and `wait` report a message
  by its first byte, and `recv` then blocks until the last one, so no time limit would hold and no death be noticed.

On a non-blocking descriptor, `Connection` loses its place in the middle of a message.

What runs in a handler's process: it calls handlers for its Spark task, one request after another.

The module of a handler's process has a function `serve`; this one is for the handler of records. The fork server
imports it before it forks (`ackline.worker.isolation.fork_server`).
"""

import os
import pickle
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ackline.errors import AcklineError, FatalError
from ackline.handler import Handler, Tier
from ackline.worker.isolation.call_log import CallLog
from ackline.worker.outcomes import RowOutcome
from ackline.worker.streams import load_call

_LENGTH = struct.Struct("=q")
_CHUNK = 1 << 20


def frame(value: object) -> list[memoryview]:
    """Returns `value` as the pieces to send, none of them empty."""
    body = pickle.dumps(value, protocol=5)
    return [memoryview(_LENGTH.pack(len(body))), memoryview(body)]


def send(to: socket.socket, value: object) -> None:
    """Sends all of `value`. A short value is one write, so a process that is killed has sent it whole or not at all."""
    length, body = frame(value)
    if len(body) < _CHUNK:
        to.sendall(length.tobytes() + body)
    else:
        to.sendall(length)
        to.sendall(body)


def receive(source: socket.socket) -> Any:
    """Returns the next value. Raises EOFError if the other side is gone."""
    length = _LENGTH.unpack(_receive_exactly(source, _LENGTH.size))[0]
    return pickle.loads(_receive_exactly(source, length))


def _receive_exactly(source: socket.socket, size: int) -> bytearray:
    received = bytearray(size)
    room = memoryview(received)
    while room:
        count = source.recv_into(room, min(len(room), _CHUNK))
        if not count:
            raise EOFError
        room = room[count:]
    return received


class Inbox:
    """Collects values from a non-blocking socket, piece by piece."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._next_size = _LENGTH.size
        self._in_body = False

    def read(self, source: socket.socket) -> bool:
        """Reads what is there. Returns False if nothing more will come."""
        while True:
            try:
                piece = source.recv(_CHUNK)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not piece:
                return False
            self._bytes += piece

    def next(self) -> Any:
        """Returns the next value that is complete, or None."""
        while len(self._bytes) >= self._next_size:
            piece = self._bytes[: self._next_size]
            del self._bytes[: self._next_size]
            self._in_body = not self._in_body
            if self._in_body:
                self._next_size = _LENGTH.unpack(piece)[0]
                continue
            self._next_size = _LENGTH.size
            return pickle.loads(piece)
        return None


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
        send(self._data, ("outcome", (offset, outcome)))

    def begin_call(self, number: int) -> None:
        """Logs that the call `number` of the request begins."""
        self._log.begin_call(number)

    def returned(self, number: int, result: object) -> None:
        """Sends what the call `number` has returned, so that it is not lost with this process."""
        send(self._data, ("returned", (number, result)))

    def raised(self, number: int, result: object) -> None:
        """Sends the figures of the call `number`, which has raised. `report` sends its outcome."""
        send(self._data, ("raised", (number, result)))


def serve(data: socket.socket, log: CallLog) -> None:
    """Calls the handler of records on batches, as a Spark task does."""
    serve_requests(data, log, lambda start, observer: load_call(start[0], start[1], observer))


def serve_requests(data: socket.socket, log: CallLog, load: Callable[[Any, Observer], Respond]) -> None:
    """Serves requests until the task closes the socket. `load` imports the handlers; it gets the task's first message.

    Sends an AcklineError of `load` or of a request to the task.
    """
    try:
        respond = load(receive(data), Observer(data, log))
        send(data, ("ready", None))
        while True:
            request = receive(data)
            log.open_batch()
            response = respond(request)
            log.end_batch()
            send(data, ("response", response))
    except EOFError:
        return
    except AcklineError as error:
        send(data, ("error", error))
    except Exception as error:
        # The process may be out of memory because of what the handler keeps. A new process has room again. The task
        # has in the call log what this process was given, and has received what it reported.
        if isinstance(error, MemoryError) or log.state().given:
            os._exit(1)
        # The error's text may quote a record, so only its class is sent.
        failure = FatalError(f"the handler's process failed outside of the handler ({type(error).__name__})")
        send(data, ("error", failure))
