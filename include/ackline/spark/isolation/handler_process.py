"""A handler's process, seen from the task that it works for: batches go in, answers come out, or it dies.

Between the two stands a `Forker`, which starts it, ends it and says how it ended. All waiting is done in one place, on
both sockets at once, so that neither a death nor a hang goes unnoticed.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ackline.errors import AcklineError, TransientError
from ackline.spark.handlers.call import Answers, Unacked
from ackline.spark.isolation import frames
from ackline.spark.isolation.call_log import CallLog, Head
from ackline.spark.isolation.fork_server import COMMAND, END, FORK, GRACE, QUIT, STATUS
from ackline.spark.records import Int64s, Records

STARTS_WITHIN = 600.0
"""Seconds that a handler may take to be imported: a model may have to be loaded."""
_PATH = "ACKLINE_FORKER_PATH"
# What the task can import, its process can; the path goes by the environment, for a command line is short.
_BOOT = (
    f"import json, os, sys; sys.path[:] = json.loads(os.environ.pop('{_PATH}')); "
    "from ackline.spark.isolation.fork_server import main; main()"
)
_LOOK_EVERY = 60.0
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a handler's process, before it had answered.

    `begun` are the offsets that the handler was given, in that order; `told` says what became of those that were not
    acked, by offset. `batch`: they were given in one call. `under_way`: the last call had not come back. `late`: it was
    ended for that call's duration.
    """

    how: str
    begun: Int64s
    told: Mapping[int, Unacked]
    batch: bool
    under_way: bool
    late: bool


class HandlerProcess:
    """One at a time; another is started when one has died. `limit` is that of one call, in seconds."""

    def __init__(self, work: object, limit: float | None) -> None:
        self._work, self._limit = work, limit
        self._log = CallLog.create()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._forker = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno())],
                env={**os.environ, _PATH: json.dumps([os.path.abspath(entry) for entry in sys.path])},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._data: socket.socket | None = None

    def ask(self, rows: Records) -> Answers | Death:
        """What the handler makes of `rows`.

        Raises what `answer` would raise in the task, and TransientError where no process can be had.
        """
        self._log.clear(len(rows))
        if self._data is None:
            born = self._start()
            if isinstance(born, Death):
                return born
        answers = self._exchange(rows, None)
        assert isinstance(answers, Answers | Death)
        return answers

    def _start(self) -> object:
        self._data, theirs = socket.socketpair()
        self._data.setblocking(False)
        with theirs:
            self._command(FORK, Head(0, 0), theirs.fileno(), self._log.descriptor)
        return self._exchange(self._work, time.monotonic() + STARTS_WITHIN)

    def _command(self, command: bytes, head: Head = Head(0, 0), *descriptors: int) -> None:
        try:
            socket.send_fds(self._control, [COMMAND.pack(command, *head)], descriptors)
        except OSError:
            raise _no_forker() from None

    def _exchange(self, value: object, until: float | None) -> object:
        """Send `value`, and wait for the answer or the process's death."""
        assert self._data is not None
        out, inbox, told = frames.frame(value), frames.Inbox(), dict[int, Unacked]()
        accused: Head | None = None
        open_ = True
        while True:
            events = self._wait(open_, bool(out), until if accused is None else time.monotonic() + 1)
            if self._data.fileno() in events and open_:
                open_ = self._write(out) and inbox.take(self._data)
                for answer in self._answers(inbox, told):
                    return answer
                if not open_:  # dead already, or it has closed what it can't work without
                    self._command(END)
            if self._control.fileno() in events:
                return self._died(inbox, told, accused)
            late = self._late(until)
            if late is not None and late != accused:
                accused = late
                self._command(END, late)

    def _wait(self, data: bool, writing: bool, until: float | None) -> set[int]:
        """The sockets on which something happens, before a call may be overdue."""
        assert self._data is not None
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if data:
            poll.register(self._data, select.POLLIN | (select.POLLOUT if writing else 0))
        patience = _LOOK_EVERY if until is None else min(_LOOK_EVERY, until - time.monotonic())
        if self._limit is not None:
            since = self._log.head().since
            left = self._limit if since <= 0 else self._limit - (time.monotonic_ns() - since) / _NS
            patience = min(patience, left)
        return {number for number, _ in poll.poll(max(1, patience * 1000))}

    def _write(self, out: list[memoryview]) -> bool:
        """Send what fits; False where nobody will read it."""
        assert self._data is not None
        with contextlib.suppress(BlockingIOError):
            while out:
                try:
                    sent = self._data.send(out[0])
                except ConnectionError:
                    return False
                out[0] = out[0][sent:]
                if not out[0]:
                    del out[0]
        return True

    def _answers(self, inbox: frames.Inbox, told: dict[int, Unacked]) -> Iterator[object]:
        """The answer, once it is there. Raises the error that stands in its place."""
        while (found := inbox.next()) is not None:
            kind, value = found
            if kind == "told":
                told[value[0]] = value[1]
            elif kind == "raised":
                assert isinstance(value, AcklineError)
                raise value
            else:
                yield value

    def _died(self, inbox: frames.Inbox, told: dict[int, Unacked], accused: Head | None) -> object:
        """What the process has left behind: its answer, if that was sent."""
        assert self._data is not None
        said = b""
        with contextlib.suppress(ConnectionError):  # it has died over a command that it did not read
            said = self._control.recv(STATUS.size)
        if len(said) < STATUS.size:
            raise _no_forker()
        data, self._data = self._data, None
        with data:
            inbox.take(data)
        for answer in self._answers(inbox, told):
            return answer
        head = self._log.head()
        how = _ended(os.waitstatus_to_exitcode(STATUS.unpack(said)[0]))
        late = accused is not None and head == accused
        return Death(how, self._log.begun(), told, self._log.batch, bool(head.since), late)

    def _late(self, until: float | None) -> Head | None:
        """The call that outlasts the limit, if one does; `Head(0, 0)` for a start that does."""
        if until is not None and time.monotonic() > until:
            return Head(0, 0)
        head = self._log.head()
        if self._limit is not None and head.since > 0 and time.monotonic_ns() - head.since > self._limit * _NS:
            return head
        return None

    def close(self) -> None:
        """End it: when it is not in the midst of a call, in its own time."""
        if self._data is not None:
            self._data.close()
        with contextlib.suppress(TransientError):
            self._command(QUIT)
        try:
            self._forker.wait(2 * GRACE)
        except subprocess.TimeoutExpired:
            self._forker.kill()
            self._forker.wait()
        self._control.close()
        self._log.close()


def _no_forker() -> TransientError:
    return TransientError("the process that starts the handler's process is gone; the same step may succeed later")


def _ended(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
