"""Calls a handler in a process of its own, so that a crash or a hang is the outcome of the record that caused it.

`HandlerProcess` is the process as its Spark task sees it: the task sends requests, and the process responds or dies. A
fork server (`ackline.worker.isolation.fork_server`) starts the process, kills it, and reports how it ended. The task
waits in one place, on both sockets at once, so it notices a death as well as a hang.

`IsolatedHandler` is the handler of records there. If the process dies before it answers, it finds the culprit:
- A record handler gets one record at a time. The record of the last call caused the death, and fails. Records before it
  keep the outcomes that they had. A new process gets the rest; no record is given to the handler twice.
- If many calls were under way, those that had ended keep their outcomes, and the others are made again, one after the
  other, until the culprit has its outcome. At most once allows no second call, so there each of them fails.
- An Arrow handler gets a batch. The batch is halved and tried again until the culprit is alone. At most once allows no
  second call, so there the whole batch fails.

If no call had begun, no record caused the death: the handler died at its import, or in a thread of its own between two
batches. Another process gets the same records. After three such deaths in a row the Spark task fails, because a fourth
process would die, too.
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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ackline.errors import AcklineError, FatalError, TransientError
from ackline.handler import Durations, Tier
from ackline.ledger.order import NO_KEY
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.pending import NEVER
from ackline.worker.gate import Gate
from ackline.worker.isolation import serving
from ackline.worker.isolation.fork_server import COMMAND, END_CALL, EXIT_GRACE, FORK, QUIT, STATUS
from ackline.worker.isolation.serving import NO_CALL, CallLog, CallState, RecordCalls
from ackline.worker.outcomes import Clock, Outcomes, RowOutcome
from ackline.worker.records import Int64s, Records
from ackline.worker.settings import ReplaySettings

MAX_IDLE_DEATHS = 3
"""After this many deaths in a row without a call the handler fails its Spark task."""
START_LIMIT = 600.0
"""Seconds that the import of a handler may take: it may have to load a model."""
_PATH = "ACKLINE_FORK_SERVER_PATH"
# The process gets the import path of its task. The path goes by the environment, because a command line is short.
_START = (
    f"import json, os, sys; sys.path[:] = json.loads(os.environ.pop('{_PATH}')); "
    "from ackline.worker.isolation.fork_server import main; main()"
)
_MAX_WAIT = 60.0
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a handler's process that had not answered."""

    how: str
    """How it ended, such as "was killed by SIGKILL"."""
    given: Int64s
    """The offsets that the handler was given, or the numbers of the calls, in their order."""
    reported: Mapping[int, RowOutcome | None]
    """By offset or number of the call: the outcome of a record that was not acked; None for a call that returned."""
    as_batch: bool
    """One call got all of them."""
    in_call: bool
    """The last call had not returned."""
    timed_out: bool
    """The task had the process killed, because that call took too long."""
    rows: Int64s | None = None
    """Where many calls were under way at once: the words of the call log, by row. `given` holds rows then."""

    accused: int = -1
    """Of these, the row for which the task had the process killed."""
    buffers: bool = False
    """Handlers may have kept what they got until they are closed, so what has returned may not be done."""

    @property
    def under_way(self) -> Int64s:
        """The rows whose calls were under way, where many were at once."""
        return np.flatnonzero(self.rows > 0) if self.rows is not None else np.empty(0, np.int64)

    def failure(self, row: int, limit: float | None, time: int, among: str = "") -> RowOutcome:
        """Returns the outcome of a row in whose call the process died. `limit` is the time limit of a call in seconds,
        `time` is in microseconds since 1970, and `among` ends the message, such as " in a batch of 3 records"."""
        if self.timed_out:
            error_class, message = ErrorClass.TIMEOUT, f"the handler did not return within {limit:g} s"
        else:
            error_class, message = ErrorClass.WORKER_LOST, f"the handler's process {self.how}"
        return RowOutcome(row, Outcome.FAILED, error_class, message + among, time)


class HandlerProcess:
    """One process at a time; the next request after a death starts another. Each process imports the module `program`
    and gets `start` as its first message. A call may take `limit` seconds."""

    def __init__(self, program: str, start: object, limit: float | None) -> None:
        self._first_message, self._limit = start, limit
        self._idle_deaths = self._calls = 0
        self._returned: list[tuple[int, Any]] = []
        self.lost = Durations()
        """How many calls the process has died in, and how long they took."""
        self._log = CallLog.create()
        self._control, remote = socket.socketpair()
        with remote:
            self._fork_server = subprocess.Popen(
                [sys.executable, "-c", _START, str(remote.fileno()), program],
                env={**os.environ, _PATH: json.dumps([os.path.abspath(entry) for entry in sys.path])},
                stdin=subprocess.DEVNULL,
                pass_fds=[remote.fileno()],
                start_new_session=True,
            )
        self._data: socket.socket | None = None

    def request(self, request: object, calls: int) -> object:
        """Has the process make the calls of a request, of which there are at most `calls`. Returns the response, or the
        `Death` of the process. Raises what the calls and the handler's import raise in the process, TransientError if
        the fork server is gone, and FatalError if processes died three times in a row before they made a call."""
        self._calls = calls
        self._log.begin_batch(calls)
        response = self._start() if self._data is None else None
        if not isinstance(response, Death):
            response = self._exchange(request, None)
        self._count_idle_death(response)
        return response

    def _count_idle_death(self, response: object) -> None:
        if not isinstance(response, Death) or response.in_call or len(response.under_way):
            self._idle_deaths = 0
            return
        self._idle_deaths += 1
        if self._idle_deaths >= MAX_IDLE_DEATHS:
            raise FatalError(
                f"the handler's process {response.how}, {MAX_IDLE_DEATHS} times while it had no record to handle; "
                f"check what the handler's import, its threads and its `close` do"
            )

    def calls_ended(self) -> int:
        """Returns how many calls of the request under way have ended; 0 while one call has all its rows."""
        if (rows := self._log.rows(self._calls)) is not None:
            return int(np.count_nonzero(rows < 0))
        return 0 if self._log.as_batch else max(0, self._log.state().given - 1)

    def take_returned(self) -> list[tuple[int, Any]]:
        """Returns what calls have returned or raised since the last time, with the offset or the number of the call,
        and forgets it."""
        returned, self._returned = self._returned, []
        return returned

    def close_handlers(self) -> None:
        """Has the process close the handlers that are classes. Raises the AcklineError of a `close`, and TransientError
        if the process dies in one."""
        self._log.begin_batch(0)
        if self._data is None:
            return
        death = self._exchange(None, None)
        if isinstance(death, Death) and death.buffers:  # others have nothing to write there
            raise TransientError(f"the handler's process {death.how} while its handlers were closed")

    def start(self) -> None:
        """Starts the process without a record. If it dies, the next call starts another. Raises what the handler's
        import raises in the process, and TransientError if the fork server is gone."""
        self._log.begin_batch(0)
        if self._data is None:
            self._start()

    def _start(self) -> object:
        self._data, remote = socket.socketpair()
        self._data.setblocking(False)
        with remote:
            self._command(FORK, NO_CALL, remote.fileno(), self._log.descriptor)
        return self._exchange(self._first_message, time.monotonic() + START_LIMIT)

    def _command(self, command: bytes, call: CallState = NO_CALL, *descriptors: int) -> None:
        try:
            socket.send_fds(self._control, [COMMAND.pack(command, *call)], descriptors)
        except OSError:
            raise _no_fork_server() from None

    def _exchange(self, value: object, until: float | None) -> object:
        """Sends `value`, and waits for the response or the process's death."""
        assert self._data is not None
        unsent, inbox, reported = serving.frame(value), serving.Inbox(), dict[int, RowOutcome | None]()
        accused: CallState | None = None
        connected = True
        while True:
            ready = self._wait(connected, bool(unsent), until if accused is None else time.monotonic() + 1)
            if self._data.fileno() in ready and connected:
                connected = self._send(unsent) and inbox.read(self._data)
                for response in self._responses(inbox, reported):
                    return response
                if not connected:  # the process is dead, or the handler has closed the process's socket
                    self._command(END_CALL)
            if self._control.fileno() in ready:
                return self._death(inbox, reported, accused)
            overdue = self._overdue_call(until)
            if overdue is not None and overdue != accused:
                accused = overdue
                self._command(END_CALL, overdue)

    def _wait(self, connected: bool, sending: bool, until: float | None) -> set[int]:
        """Waits for events, at most until a call may be overdue. Returns the descriptors of the ready sockets."""
        assert self._data is not None
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if connected:
            poll.register(self._data, select.POLLIN | (select.POLLOUT if sending else 0))
        patience = _MAX_WAIT if until is None else min(_MAX_WAIT, until - time.monotonic())
        if self._limit is not None:
            began_at = self._call_under_way().began_at
            left = self._limit if began_at <= 0 else self._limit - (time.monotonic_ns() - began_at) / _NS
            patience = min(patience, left)
        return {descriptor for descriptor, _ in poll.poll(max(1, patience * 1000))}

    def _send(self, unsent: list[memoryview]) -> bool:
        """Sends what fits into the socket. Returns False if the process no longer reads from it."""
        assert self._data is not None
        with contextlib.suppress(BlockingIOError):
            while unsent:
                try:
                    sent = self._data.send(unsent[0])
                except ConnectionError:
                    return False
                unsent[0] = unsent[0][sent:]
                if not unsent[0]:
                    del unsent[0]
        return True

    def _responses(self, inbox: serving.Inbox, reported: dict[int, RowOutcome | None]) -> Iterator[object]:
        """Yields the process's response if it has come, and raises an error that came in its place. Keeps what the
        process reports before that."""
        while (message := inbox.next()) is not None:
            kind, value = message
            if kind == "outcome":
                reported[value[0]] = value[1]
            elif kind in ("returned", "raised"):
                self._returned.append(value)
                if kind == "returned":
                    reported[value[0]] = None
            elif kind == "error":
                assert isinstance(value, AcklineError)
                raise value
            else:
                yield value

    def _death(self, inbox: serving.Inbox, reported: dict[int, RowOutcome | None], accused: CallState | None) -> object:
        """Returns the response that the process has sent before it died, or else its death."""
        assert self._data is not None
        status = b""
        with contextlib.suppress(ConnectionError):  # the fork server died before it read a command
            status = self._control.recv(STATUS.size)
        if len(status) < STATUS.size:
            raise _no_fork_server()
        data, self._data = self._data, None
        with data:
            inbox.read(data)
        for response in self._responses(inbox, reported):
            return response
        state, given, rows = self._log.state(), self._log.given(), self._log.rows(self._calls)
        if rows is not None:
            given = np.flatnonzero(rows)
        if state.began_at > 0 and len(given) and given[-1] not in reported:
            self.lost.measure(time.monotonic_ns() - state.began_at)
        return Death(
            how=_describe_exit(os.waitstatus_to_exitcode(STATUS.unpack(status)[0])),
            given=given,
            reported=reported,
            as_batch=self._log.as_batch,
            in_call=bool(state.began_at),
            timed_out=accused is not None
            and (state == accused if rows is None else bool(rows[accused.row] == accused.began_at)),
            rows=rows,
            accused=accused.row if accused is not None and rows is not None else -1,
            buffers=self._log.buffers,
        )

    def _call_under_way(self) -> CallState:
        """Returns the call under way that began first."""
        rows = self._log.rows(self._calls)
        if rows is None:
            return self._log.state()
        if not (rows > 0).any():
            return NO_CALL
        first = int(np.where(rows > 0, rows, NEVER).argmin())
        return CallState.of_row(first, int(rows[first]))

    def _overdue_call(self, until: float | None) -> CallState | None:
        """Returns a call that exceeds its limit, NO_CALL for a start that does, and None if neither does."""
        if until is not None and time.monotonic() > until:
            return NO_CALL
        state = self._call_under_way()
        if self._limit is not None and state.began_at > 0 and time.monotonic_ns() - state.began_at > self._limit * _NS:
            return state
        return None

    def close(self) -> None:
        """Ends the process and the fork server. An idle process may run what the handler has registered `atexit`."""
        if self._data is not None:
            self._data.close()
        with contextlib.suppress(TransientError):
            self._command(QUIT)
        try:
            self._fork_server.wait(2 * EXIT_GRACE)
        except subprocess.TimeoutExpired:
            self._fork_server.kill()
            self._fork_server.wait()
        self._control.close()
        self._log.close()


def _no_fork_server() -> TransientError:
    return TransientError("the fork server of the handler's process has ended; the same step may succeed later")


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


RECORDS_PROGRAM = "ackline.worker.streams"
_ROWS_AFTER_DEATH = 100
"""The next process after a death first gets this many rows. If many records kill their process, the large rest of the
batch is not sent again for each of them."""


class IsolatedHandler:
    """Calls a handler in a process of its own: in `process`, or in one that it starts. `now` gives the time of the
    outcome of a call in which the process died."""

    def __init__(self, settings: ReplaySettings, tier: Tier, now: Clock, process: HandlerProcess | None = None) -> None:
        self._once, self._limit = settings.once, settings.record_timeout
        self._now = now
        self._process = process or HandlerProcess(RECORDS_PROGRAM, (settings, tier), settings.record_timeout)

    def __call__(self, records: Records, gate: Gate | None = None) -> Outcomes:
        """Returns the outcome of each record. Records that have order keys pass the gate before each request, because a
        death may have ended the call of one that others wait for. Raises what `HandlerProcess.request` raises."""
        remaining = [(np.arange(len(records)), False)]
        parts: list[tuple[Int64s, Outcomes]] = []
        while remaining:
            rows, alone = remaining.pop()
            part = records if len(rows) == len(records) else records.take(rows)
            if gate is not None and (held := gate.all_held_back(part, self._now())):
                waits = np.array([each.row for each in held])
                outcomes = [each.at_row(row) for row, each in enumerate(held)]
                parts.append((rows[waits], Outcomes(np.full(len(held), held[0].handled_at), outcomes)))
                if len(rest := np.delete(rows, waits)):
                    remaining.append((rest, alone))
                continue
            result = self._process.request(RecordCalls(part, alone), len(part))
            if isinstance(result, Death):
                decided, again = self._split(part, result, alone)
                if len(decided):
                    parts.append((rows[decided], self._outcomes_after_death(part, decided, result)))
                    if gate is not None:
                        gate.note_all(part.take(decided), parts[-1][1].not_acked)
                remaining += [(rows[indexes], is_alone) for indexes, is_alone in again if len(indexes)]
            else:
                assert isinstance(result, Outcomes)
                parts.append((rows, result))
                if gate is not None:
                    gate.note_all(part, result.not_acked)
        if len(parts) == 1:
            return parts[0][1]
        whole = Outcomes(np.empty(len(records), np.int64), calls=sum(outcomes.calls for _, outcomes in parts))
        whole.insert(parts)
        return whole

    def _split(self, part: Records, death: Death, alone: bool) -> tuple[Int64s, list[tuple[Int64s, bool]]]:
        """Returns the rows of `part` whose outcome the death decides, and those to try again: the last list first, each
        with whether its calls are made one after the other."""
        given = np.isin(np.arange(len(part)) if death.rows is not None else part.offsets, death.given)
        begun, rest = np.flatnonzero(given), np.flatnonzero(~given)
        if not len(begun):
            return begun, [(rest, alone)]
        again = self._called_again(part, death, begun, alone) if not death.as_batch else begun[:0]
        if len(again) or death.rows is not None:
            # What a class has kept is done when its `close` has returned, at the end of a request: one for each row.
            size = 1 if death.buffers else max(1, len(again))
            parts = [(again[start : start + size], True) for start in range(0, len(again), size)]
            return np.setdiff1d(begun, again), [(rest, alone), *reversed(parts)]
        if not death.as_batch:
            return begun, [(rest[_ROWS_AFTER_DEATH:], alone), (rest[:_ROWS_AFTER_DEATH], alone)]
        if self._once or len(begun) == 1:
            return begun, [(rest, alone)]
        half = len(begun) // 2
        return begun[:0], [(rest, alone), (begun[half:], alone), (begun[:half], alone)]

    def _outcomes_after_death(self, part: Records, decided: Int64s, death: Death) -> Outcomes:
        time = self._now()
        if death.as_batch:
            not_acked = [self._failure(row, death, time, len(decided)) for row in range(len(decided))]
        else:
            failures = dict.fromkeys(part.offsets[self._culprits(part, death)].tolist(), self._failure(0, death, time))
            if death.accused >= 0:  # the neighbours of an overdue call have died with it
                neighbour = self._failure(0, replace(death, timed_out=False), time)
                overdue = int(part.offsets[death.accused])
                failures = {offset: failures[offset] if offset == overdue else neighbour for offset in failures}
            not_acked = list(_outcomes_of_calls(part.offsets[decided], death, failures))
        return Outcomes(np.full(len(decided), time, dtype=np.int64), not_acked, len(decided))

    def _culprits(self, part: Records, death: Death) -> Int64s:
        """Returns the rows that fail by the death, as far as they are not called again."""
        reported = [offset for offset, outcome in death.reported.items() if outcome is not None]
        if death.rows is not None:
            returned = np.flatnonzero(death.rows < 0)
            culprits = death.under_way
        else:
            # A process that dies between the two writes of the log leaves a call without a row.
            last = death.given[-1:] if death.in_call else death.given[:0]
            culprits = np.flatnonzero(np.isin(part.offsets, last))
            returned = np.flatnonzero(np.isin(part.offsets, np.setdiff1d(death.given, last)))
        if self._once and death.buffers:  # what these calls have kept is lost
            culprits = np.union1d(culprits, returned)
        return culprits[~np.isin(part.offsets[culprits], reported)]

    def _called_again(self, part: Records, death: Death, begun: Int64s, alone: bool) -> Int64s:
        """Returns the rows that are called again though their call had begun: none of those under way at once is known
        to be the culprit, as one that blocks the event loop holds up all others, and of what handlers have kept nothing
        is done. What follows such a row in the order of its key is called again, too. At most once none is."""
        if self._once:
            return begun[:0]
        culprits = self._culprits(part, death)
        again = begun[:0]
        if death.rows is not None and not alone and len(culprits) > 1:
            again = culprits
        if death.buffers:
            reported = [offset for offset, outcome in death.reported.items() if outcome is not None]
            returned = np.setdiff1d(begun, culprits)
            again = np.union1d(again, returned[~np.isin(part.offsets[returned], reported)])
        if len(again) and (keys := part.order_keys) is not None:
            firsts = {int(keys[row]): int(row) for row in again[::-1] if keys[row] != NO_KEY}
            followers = [row for row in begun.tolist() if firsts.get(int(keys[row]), row) < row]
            again = np.union1d(again, np.array(followers, dtype=again.dtype))
        return again

    def _failure(self, row: int, death: Death, time: int, rows: int = 1) -> RowOutcome:
        return death.failure(row, self._limit, time, "" if rows == 1 else f" in a batch of {rows} records")

    def calls_ended(self) -> int:
        """Returns how many calls of the request under way have ended."""
        return self._process.calls_ended()

    def start(self) -> None:
        """Starts the process, which imports the handler. Raises what the import raises."""
        self._process.start()

    def close_handlers(self) -> None:
        """Raises what `HandlerProcess.close_handlers` raises."""
        self._process.close_handlers()

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def _outcomes_of_calls(offsets: Int64s, death: Death, failures: Mapping[int, RowOutcome]) -> Iterator[RowOutcome]:
    """Yields the outcomes that the process reported before it died, and the failures by the death."""
    for row, offset in enumerate(offsets.tolist()):
        if offset in death.reported:
            outcome = death.reported[offset]
            if outcome is not None:
                yield outcome.at_row(row)
        elif offset in failures:
            yield failures[offset].at_row(row)
