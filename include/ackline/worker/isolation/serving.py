"""What runs in a handler's process, the log of its calls, and the messages between it and its Spark task.

The process calls handlers for the task, one request after another, by the function `serve` of `ackline.worker.streams`
or of `ackline.trees.isolated`, which the fork server has imported.

The process logs each call before it makes the call, in memory that it shares with the task, so the log survives
whatever the call does. If the process dies, or a call does not end, the task reads there which records the handler was
given. The log holds offsets and times, never a payload.

A message is a pickled value behind its length, in a socket that never blocks the task.
`multiprocessing.connection.Connection` can't keep these two promises:
- The task notices a death while it sends a batch. A daemon that the handler has forked may keep the dead process's end
  of the socket open, and nothing reads from it: `Connection.send` would block there for ever. The task instead waits
  for room in the socket and for the fork server's report of the death at the same time.
- A process that stops in the middle of a message does not stop its task. `Connection.poll` and `wait` report a message
  by its first byte, and `recv` then blocks until the last one, so no time limit would hold and no death be noticed. On
  a non-blocking descriptor, `Connection` loses its place in the middle of a message.
"""

import mmap
import os
import pickle
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ackline.calling import close_handlers
from ackline.errors import AcklineError, FatalError
from ackline.handler import Handler, Record, Tier
from ackline.worker.outcomes import RowOutcome
from ackline.worker.records import Int64s, Records

_WORD = 8
# The words of the log: how many rows the handler was given, when the call under way began (0: none is under way),
# whether it was given the rows as one batch, whether its handlers may write only when they are closed, and then the
# offsets of the rows.
_GIVEN, _BEGAN_AT, _AS_BATCH, _BUFFERS, _OFFSETS = 0, 1, 2, 3, 4
# The third word where many calls are under way at once. Then the words after these are those of the rows: 0
# before the call, the time when it began (as above) while it is under way, and _ENDED after it.
_ROWS, _ENDED, _LATER = 2, -1, 2**62
# In place of that time: a call is under way, and waits for the schema registry, which is not the handler's doing.
_WAITING = -1
_STATE = struct.Struct("=qq")
_INITIAL_ROWS = 1024


class CallState(NamedTuple):
    """How many rows of the batch the handler was given, and when the call under way began (CLOCK_MONOTONIC, ns).
    `began_at` is 0 if no call is under way, and negative while a call waits for the schema registry."""

    given: int
    began_at: int

    @classmethod
    def of_row(cls, row: int, began_at: int) -> "CallState":
        """Returns the state of one of many calls that are under way at once: `given` is below zero."""
        return cls(-1 - row, began_at)

    @property
    def row(self) -> int:
        """The row of one of many calls."""
        return -1 - self.given


NO_CALL = CallState(0, 0)


class CallLog:
    """The log of one batch at a time. The task passes `descriptor` to the handler's process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map()

    @classmethod
    def create(cls) -> "CallLog":
        """Makes a new log in this process."""
        descriptor = os.memfd_create("ackline-calls")
        os.ftruncate(descriptor, (_OFFSETS + _INITIAL_ROWS) * _WORD)
        return cls(descriptor)

    def _map(self) -> None:
        self._memory = mmap.mmap(self.descriptor, 0)
        self._words = memoryview(self._memory).cast("q")

    def _unmap(self) -> None:
        self._words.release()
        self._memory.close()

    def begin_batch(self, rows: int) -> None:
        """In the task: empties the log for a batch of `rows` rows. The handler's process must be idle."""
        if len(self._words) < _OFFSETS + rows:
            self._unmap()
            os.ftruncate(self.descriptor, (_OFFSETS + rows) * _WORD)
            self._map()
        self._words[_BEGAN_AT] = 0
        self._words[_GIVEN] = 0
        self._words[_AS_BATCH] = 0
        self._words[_OFFSETS : _OFFSETS + rows] = memoryview(bytes(rows * _WORD)).cast("q")

    def open_batch(self) -> None:
        """In the handler's process: makes room for the batch that the task has begun."""
        if os.fstat(self.descriptor).st_size > self._words.nbytes:
            self._unmap()
            self._map()

    def begin_call(self, number: int) -> None:
        """In the handler's process: logs that a call begins, by its number in the batch instead of an offset."""
        words = self._words
        given = words[_GIVEN]
        words[_OFFSETS + given] = number
        words[_BEGAN_AT] = time.monotonic_ns()  # before the count, as in `wrap`
        words[_GIVEN] = given + 1

    def set_buffers(self, buffers: bool) -> None:
        """In the handler's process: notes whether a record may count as handled only once the handlers are closed."""
        self._words[_BUFFERS] = int(buffers)

    @property
    def buffers(self) -> bool:
        """What `set_buffers` has noted."""
        return bool(self._words[_BUFFERS])

    def begin_rows(self) -> None:
        """In the handler's process: from now on many calls of the batch may be under way at once."""
        self._words[_AS_BATCH] = _ROWS

    def begin_row(self, row: int, grace: float) -> None:
        """In the handler's process: logs that the call of a row begins, or `grace` seconds from now."""
        self._words[_OFFSETS + row] = time.monotonic_ns() + int(grace * 1e9)

    def withdraw_row(self, row: int) -> None:
        """In the handler's process: logs that the handler has not been called for the row."""
        self._words[_OFFSETS + row] = 0

    def pause_row(self, row: int) -> int:
        """In the handler's process: from now on the time counts for no call of the row. Returns what `go_on` takes."""
        now, begun = time.monotonic_ns(), self._words[_OFFSETS + row]
        self._words[_OFFSETS + row] = _LATER
        return now - begun

    def go_on(self, row: int, taken: int) -> None:
        """In the handler's process: the call of the row, which has taken so many nanoseconds, goes on."""
        self._words[_OFFSETS + row] = time.monotonic_ns() - taken

    def end_row(self, row: int) -> None:
        """In the handler's process: logs that the call of a row has ended. Call it after `Observer.report`."""
        self._words[_OFFSETS + row] = _ENDED

    def rows(self, count: int) -> Int64s | None:
        """Returns the words of the first rows: 0 before the call, positive while it is under way, negative after it.
        None if one call follows the other."""
        # Not by the map, which the task may be growing while its progress is read.
        words = np.frombuffer(os.pread(self.descriptor, (_OFFSETS + count) * _WORD, 0), np.int64)
        return words[_OFFSETS:] if words[_AS_BATCH] == _ROWS else None

    def end_batch(self) -> None:
        """In the handler's process: logs that the last call has returned."""
        self._words[_BEGAN_AT] = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The time in this context does not count against the limit of the call under way."""
        words, now = self._words, time.monotonic_ns()
        began_at, words[_BEGAN_AT] = words[_BEGAN_AT], _WAITING
        try:
            yield
        finally:
            words[_BEGAN_AT] = began_at + time.monotonic_ns() - now

    def state(self) -> CallState:
        """Returns the progress of the batch. While the process runs, `began_at` may be one call ahead of `given`."""
        return read_state(self.descriptor)

    def given(self) -> Int64s:
        """Returns the offsets that the handler was given, in that order."""
        return np.array(self._words[_OFFSETS : _OFFSETS + self._words[_GIVEN]], dtype=np.int64)

    @property
    def as_batch(self) -> bool:
        """Whether one call got all rows, so that any of them may be the culprit."""
        return self._words[_AS_BATCH] == 1

    def wrap(self, handler: Handler, tier: Tier) -> Handler:
        """Returns the handler; each call of it is logged before it is made."""
        words, now = self._words, time.monotonic_ns

        def logged_record_call(record: Record) -> object:
            # The offset before the count, so that no death leaves a counted row without its offset. The time before the
            # count, so that no death leaves a counted row for which no call is under way: it would pass for acked.
            given = words[_GIVEN]
            words[_OFFSETS + given] = record.offset
            words[_BEGAN_AT] = now()
            words[_GIVEN] = given + 1
            return handler(record)

        def logged_batch_call(batch: pa.RecordBatch) -> object:
            given = words[_GIVEN]
            for word, offset in enumerate(batch.column("offset").to_pylist(), _OFFSETS + given):
                words[word] = offset
            words[_AS_BATCH] = 1
            words[_GIVEN] = given + batch.num_rows
            words[_BEGAN_AT] = now()
            return handler(batch)

        logged = logged_record_call if tier is Tier.RECORD else logged_batch_call
        logged.__module__ = getattr(handler, "__module__", None) or "handler"
        return logged

    def close(self) -> None:
        """Frees the memory."""
        self._unmap()
        os.close(self.descriptor)


def is_under_way(descriptor: int, call: CallState) -> bool:
    """Returns whether a call is still under way by the log behind a descriptor."""
    if call.given >= 0:
        return read_state(descriptor) == call
    word = os.pread(descriptor, _WORD, (_OFFSETS + call.row) * _WORD)
    return int.from_bytes(word, sys.byteorder, signed=True) == call.began_at


def read_state(descriptor: int) -> CallState:
    """Returns the state of the log behind a descriptor."""
    return CallState(*_STATE.unpack(os.pread(descriptor, _STATE.size, 0)))


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


class RecordCalls(NamedTuple):
    """A request: the calls of some records."""

    records: Records
    alone: bool
    """Each call is made after the end of the one before, though the handler may have many under way."""


Respond = Callable[[Any], object]


class Observer:
    """Has the log of the calls in a handler's process, and sends to the task what must not be lost with this process,
    which any call may end."""

    def __init__(self, data: socket.socket, log: CallLog) -> None:
        self._data = data
        self._lock = Lock()
        self.log = log

    def report(self, offset: int, outcome: RowOutcome) -> None:
        """Sends the outcome of the record at `offset` at once. Calls that are under way at once may each report."""
        with self._lock:
            send(self._data, ("outcome", (offset, outcome)))

    def returned(self, number: int, result: object) -> None:
        """Sends what the call `number` has returned, so that it is not lost with this process."""
        send(self._data, ("returned", (number, result)))

    def raised(self, number: int, result: object) -> None:
        """Sends the figures of the call `number`, which has raised. `report` sends its outcome."""
        send(self._data, ("raised", (number, result)))


def serve_requests(data: socket.socket, log: CallLog, load: Callable[[Any, Observer], Respond]) -> None:
    """Serves requests until the task closes the socket. `load` imports the handlers; it gets the task's first message.
    Sends an AcklineError of `load` or of a request to the task."""
    try:
        respond = load(receive(data), Observer(data, log))
        send(data, ("ready", None))
        while True:
            request = receive(data)
            log.open_batch()
            response = None
            if request is None:
                close_handlers()
            else:
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
        if isinstance(error, MemoryError) or log.state().given or log.rows(1) is not None:
            os._exit(1)
        # The error's text may quote a record, so only its class is sent.
        failure = FatalError(f"the handler's process failed outside of the handler ({type(error).__name__})")
        send(data, ("error", failure))
