"""Messages between a handler's process and the one that started it: pickled values, each behind its length."""

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("=q")
_CHUNK = 1 << 20


def frame(value: object) -> list[memoryview]:
    """`value` as it is sent, in pieces; none is empty."""
    body = pickle.dumps(value, protocol=5)
    return [memoryview(_LENGTH.pack(len(body))), memoryview(body)]


def send(to: socket.socket, value: object) -> None:
    """Send `value` whole. A short one is one write: whoever is killed has sent it, or has not."""
    length, body = frame(value)
    if len(body) < _CHUNK:
        to.sendall(length.tobytes() + body)
    else:
        to.sendall(length)
        to.sendall(body)


def receive(whence: socket.socket) -> Any:
    """The next value. Raises EOFError where the other side is gone."""
    length = _LENGTH.unpack(_exactly(whence, _LENGTH.size))[0]
    return pickle.loads(_exactly(whence, length))


def _exactly(whence: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    room = memoryview(found)
    while room:
        count = whence.recv_into(room, min(len(room), _CHUNK))
        if not count:
            raise EOFError
        room = room[count:]
    return found


class Inbox:
    """Values that come in pieces, as a socket that must not be waited for hands them out."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._want = _LENGTH.size
        self._in_body = False

    def take(self, whence: socket.socket) -> bool:
        """Read what is there; False where no more will come."""
        while True:
            try:
                piece = whence.recv(_CHUNK)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not piece:
                return False
            self._bytes += piece

    def next(self) -> Any:
        """The next whole value, or None."""
        while len(self._bytes) >= self._want:
            piece = self._bytes[: self._want]
            del self._bytes[: self._want]
            self._in_body = not self._in_body
            if self._in_body:
                self._want = _LENGTH.unpack(piece)[0]
                continue
            self._want = _LENGTH.size
            return pickle.loads(piece)
        return None
