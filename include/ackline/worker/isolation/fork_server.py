"""The fork server between a Spark task and its handler's process. It has imported everything but the handler, has no
thread and no connection, and only forks.

So a handler's process that died is replaced within milliseconds. A fork of the Spark task's own Python worker would
instead be a copy in the middle of reading Kafka.

Commands come in on one socket, and on it the fork server reports how each process ended. When that socket closes, the
task has ended, and the fork server kills the handler's process and all that this has started. If the fork server itself
is killed, the kernel kills the handler's process.
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
from importlib import import_module

from ackline.worker.isolation.serving import CallLog, CallState, is_under_way

COMMAND = struct.Struct("=cqq")
"""A command, and the `CallState` that END_CALL needs."""
FORK, END_CALL, QUIT = b"F", b"E", b"Q"
"""FORK comes with two descriptors: the new process's socket, and its call log.

END_CALL kills the process if the state of its call log is still the given one; in any case if `began_at` is 0.

QUIT ends the fork server as soon as the process, whose socket is closed, has ended."""
STATUS = struct.Struct("=q")
EXIT_GRACE = 5.0
"""Seconds that a handler's process has to end by itself after its task, for what it has registered `atexit`."""

_STOP_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


class ForkServer:
    """Runs one handler's process at a time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = 0
        self._log = -1
        self._quit_at: float | None = None
        self._child_ended, self._wakeup = os.pipe()
        for end in (self._child_ended, self._wakeup):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)

    def serve(self) -> tuple[int, int] | None:
        """Returns None after QUIT. In each forked process it returns the descriptors of its socket and its call log."""
        while self._pid or self._quit_at is None:
            left = None if self._quit_at is None else max(0.0, self._quit_at - time.monotonic())
            ready, _, _ = select.select([self._control.fileno(), self._child_ended], [], [], left)
            if self._child_ended in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._child_ended, 4096)
                self._reap()
            if self._control.fileno() in ready:
                forked = self._handle_command()
                if forked is not None:
                    return forked
            if not ready:
                self._kill()
        return None

    def _handle_command(self) -> tuple[int, int] | None:
        message, descriptors, _, _ = socket.recv_fds(self._control, COMMAND.size, 2)
        if len(message) < COMMAND.size:  # the task has ended, so nothing may go on handling its records
            self._kill()
            os._exit(0)
        command, given, began_at = COMMAND.unpack(message)
        if command == FORK:
            return self._fork(*descriptors)
        if command == END_CALL:
            self._end_call(CallState(given, began_at))
        elif command == QUIT:
            self._quit_at = time.monotonic() + EXIT_GRACE
        return None

    def _fork(self, data: int, log: int) -> tuple[int, int] | None:
        fork_server = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _die_with(fork_server)
            os.setsid()  # a process group of its own, so that what the handler starts is killed with it
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._child_ended, self._wakeup, self._log):
                if end >= 0:
                    os.close(end)
            self._control.close()
            for end in (data, log):  # programs that the handler starts must not get these
                os.set_inheritable(end, False)
            return data, log
        os.close(data)
        if self._log >= 0:
            os.close(self._log)
        self._log = log
        return None

    def _end_call(self, call: CallState) -> None:
        """Kills the process for an overdue call. Does not if the call has returned meanwhile: the next call is not to
        blame for it. The process is stopped while this reads its log, so no call returns in between."""
        if self._pid and call.began_at:
            os.kill(self._pid, signal.SIGSTOP)
            until = time.monotonic() + _STOP_SECONDS  # a process inside a system call does not stop, nor go on
            while not os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOHANG) and time.monotonic() < until:
                if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    return
                time.sleep(0.001)
            if not is_under_way(self._log, call):
                os.kill(self._pid, signal.SIGCONT)
                return
        self._kill()

    def _kill(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGKILL)
                os.killpg(self._pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Reports how the process ended, if it has. First kills what it has started, because after `waitpid` the kernel
        may give its number to another process."""
        if self._pid and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self._kill()
            _, status = os.waitpid(self._pid, 0)
            self._pid = 0
            with contextlib.suppress(OSError):
                self._control.send(STATUS.pack(status))


def _die_with(parent: int) -> None:
    """Makes the kernel kill this process when `parent` ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(0)


def main() -> None:
    """The fork server's program. `ackline.worker.isolation.handler_process` runs it with the number of the socket and
    the module of the handler's process as arguments. That module has a function `serve`, which gets the process's
    socket and its call log."""
    module = import_module(sys.argv.pop())  # once here, so that no forked process has to import it
    control = socket.socket(fileno=int(sys.argv.pop()))
    gc.collect()
    gc.freeze()
    forked = ForkServer(control).serve()
    if forked is not None:
        data, log = forked
        module.serve(socket.socket(fileno=data), CallLog(log))
