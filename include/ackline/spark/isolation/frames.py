"""Messages between a handler's process and its Spark task: pickled values, each behind its length.

This is not `multiprocessing.connection.Connection`, because only a socket that never blocks keeps two promises:
- A death is noticed while the task sends a batch. A daemon that the handler has forked may keep the dead process's end
  of the socket open, and nothing reads from it. `Connection.send` would block there for ever. The task instead waits
  for room in the socket and for the fork server's report of the death at the same time.
- A process that stops in the middle of a message does not stop its task. `Connection.poll` and `wait` report a message
  by its first byte, and `recv` then blocks until the last one, so no time limit would hold and no death be noticed.

On a non-blocking descriptor, `Connection` loses its place in the middle of a message.
"""

import pickle
import socket
import struct
from typing import Any

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
