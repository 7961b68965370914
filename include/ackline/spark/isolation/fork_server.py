"""The process between a Spark task and its handler's process: it has imported everything but the handler, has no
thread and no connection, and only forks. A handler's process that died is replaced within milliseconds that way, and
what is forked is clean, which a Python worker in the middle of reading Kafka is not.

Commands come on one socket, and on it goes back how each process ended. When that socket closes, whoever held it is
gone, and so are the forker, the handler's process and what that has started; should the forker itself be killed, the
kernel ends the handler's process with it.
"""

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import AbstractContextManager

from ackline.errors import AcklineError, FatalError
from ackline.handler import Handler, Tier
from ackline.spark.handlers.call import Unacked
from ackline.spark.isolation import frames
from ackline.spark.isolation.call_log import CallLog, Head, head_of

COMMAND = struct.Struct("=cqq")
FORK, END, QUIT = b"F", b"E", b"Q"
"""Fork, with two descriptors: the new process's socket and its call log. End a call: the process is killed if the head
of its log is still as said, in any case if `since` is 0. Quit: as soon as the process, whose socket is closed, is."""
STATUS = struct.Struct("=q")
GRACE = 5.0
"""Seconds that a handler's process has to end by itself when its task is done, for what it has registered `atexit`."""

_STOPS_WITHIN = 1.0
_PR_SET_PDEATHSIG = 1


class Forker:
    """One handler's process at a time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = 0
        self._log = -1
        self._quit_at: float | None = None
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def serve(self) -> tuple[int, int] | None:
        """None when all is over; in each forked process the descriptors of its socket and its log."""
        while self._pid or self._quit_at is None:
            left = None if self._quit_at is None else max(0.0, self._quit_at - time.monotonic())
            ready, _, _ = select.select([self._control.fileno(), self._woken], [], [], left)
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if self._control.fileno() in ready:
                born = self._obey()
                if born is not None:
                    return born
            if not ready:
                self._kill()
        return None

    def _obey(self) -> tuple[int, int] | None:
        said, descriptors, _, _ = socket.recv_fds(self._control, COMMAND.size, 2)
        if len(said) < COMMAND.size:  # whoever wanted outcomes is gone: end at once what would go on without it
            self._kill()
            os._exit(0)
        command, begun, since = COMMAND.unpack(said)
        if command == FORK:
            return self._fork(*descriptors)
        if command == END:
            self._end(Head(begun, since))
        elif command == QUIT:
            self._quit_at = time.monotonic() + GRACE
        return None

    def _fork(self, data: int, log: int) -> tuple[int, int] | None:
        forker = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _die_with(forker)
            os.setsid()  # a group of its own: what it starts ends with it
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._woken, self._wake, self._log):
                if end >= 0:
                    os.close(end)
            self._control.close()
            for end in (data, log):  # not for what the handler starts
                os.set_inheritable(end, False)
            return data, log
        os.close(data)
        if self._log >= 0:
            os.close(self._log)
        self._log = log
        return None

    def _end(self, head: Head) -> None:
        """Kill the process for a call, unless that has come back meanwhile: then the next one is not to blame."""
        if self._pid and head.since:
            os.kill(self._pid, signal.SIGSTOP)
            until = time.monotonic() + _STOPS_WITHIN  # in the midst of a kernel call it does not, nor does it go on
            while not os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOHANG) and time.monotonic() < until:
                if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    return
                time.sleep(0.001)
            if head_of(self._log) != head:
                os.kill(self._pid, signal.SIGCONT)
                return
        self._kill()

    def _kill(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGKILL)
                os.killpg(self._pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Say how the process ended. What it has started is killed before its number is free for others."""
        if self._pid and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self._kill()
            _, status = os.waitpid(self._pid, 0)
            self._pid = 0
            with contextlib.suppress(OSError):
                self._control.send(STATUS.pack(status))


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(0)


class _Told:
    """What a handler's process says while it is at work."""

    def __init__(self, data: socket.socket, log: CallLog) -> None:
        self._data = data
        self._log = log

    def over(self, handler: Handler, tier: Tier) -> Handler:
        """Note each call."""
        return self._log.over(handler, tier)

    def waiting(self) -> AbstractContextManager[None]:
        """Around what a call waits for through no fault of its own."""
        return self._log.waiting()

    def told(self, offset: int, one: Unacked) -> None:
        """Send it at once: it must not be lost with this process."""
        frames.send(self._data, ("told", (offset, one)))


def answer_batches(data: socket.socket, log: CallLog) -> None:
    """The life of a handler's process: work, then batches of rows, each answered as it would be in the task itself."""
    from ackline.spark.handlers.answering import answering

    try:
        answer = answering(frames.receive(data), _Told(data, log))
        frames.send(data, ("ready", None))
        while True:
            rows = frames.receive(data)
            log.opened()
            answers = answer(rows)
            log.idle()
            frames.send(data, ("answers", answers))
    except EOFError:
        return
    except AcklineError as error:
        frames.send(data, ("raised", error))
    except Exception as error:  # without its text, which may quote a record
        # Out of memory, say, by what the handler has kept. A new process has room, and what this one was given and has
        # said is known without it.
        if isinstance(error, MemoryError) or log.head().begun:
            os._exit(1)
        frames.send(data, ("raised", FatalError(f"answering failed in the handler's process ({type(error).__name__})")))


def main() -> None:
    """Run by `ackline.spark.isolation.handler_process`, with the number of the socket as the one argument."""
    import ackline.spark.handlers.answering  # noqa: F401 - so that what is forked need not

    control = socket.socket(fileno=int(sys.argv.pop()))
    gc.collect()
    gc.freeze()
    born = Forker(control).serve()
    if born is not None:
        data, log = born
        answer_batches(socket.socket(fileno=data), CallLog(log))
