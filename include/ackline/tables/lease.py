"""The lease of a turn: which process is replaying it, so that a second run need not handle the same records beside it.

A lease is advice. No write of the ledger depends on it: every commit of a turn is fenced by the turn's number, and two
processes that replay one turn store its outcomes once. Without the lease, both call the handler for every record, and
the work of one is thrown away. It holds no record, no setting and no user.

Beside it is the note of a run that has stopped with an error, which is advice too: for readers that have no broker to
find out what a lane stands still for. `ProcessIdentity` names a process by its number and its start, because the system
gives the number to another process later.
"""

import os
import secrets
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from pathlib import Path

import psutil

from ackline.errors import AcklineError, HandedOut, TransientError, command_of
from ackline.ledger.turns import TurnId
from ackline.stored import Stored

_TICKS = 100
"""Linux counts the start of a process in hundredths of a second since boot."""


def own_children() -> "set[ProcessIdentity]":
    """Returns the processes that this one has started and that still run."""
    identities = (ProcessIdentity.of(child.pid) for child in psutil.Process().children())
    return {identity for identity in identities if identity is not None}


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process number, and the start of that process in hundredths of a second since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Returns the identity of the process that has this number now; None if none has, or if it has ended."""
        try:
            process = psutil.Process(pid)
            if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return None
            return cls(pid, _started(process))
        except (psutil.Error, ValueError, OverflowError):
            return None

    @classmethod
    def decode(cls, text: str) -> "ProcessIdentity":
        """Returns the identity that `str()` wrote as PID:STARTED. Raises ValueError for any other text."""
        pid, started = text.split(":")
        return cls(int(pid), int(started))

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    def alive(self) -> bool:
        """Returns whether this process still runs; False if another process has its number now."""
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Sends the signal to this process; does nothing if it no longer runs."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _started(process: psutil.Process) -> int:
    """Returns the start of a process, counted from boot. psutil adds the boot time, which changes with the system
    clock: two equal readings of it prove which one it added."""
    while True:
        boot = psutil.boot_time()
        created = process.create_time()
        if psutil.boot_time() == boot:
            return round((created - boot) * _TICKS)
        process = psutil.Process(process.pid)


RENEWAL_SECONDS = 20.0
"""How often a process renews the lease of the turn that it replays."""
MISSED_RENEWALS = 3
"""How many renewals in a row are missing when a lease counts as given up."""
Position = tuple[int, int, int]
"""How far a lane is: its newest epoch that has a settlement, and the numbers of the last settlement and plan of it; -1
for none. Positions are compared in this order."""
_MAX_TEXT = 250
_MAX_SENTENCE = 1500
_REPEATED = 3
"""So many transient errors in a row, without progress, are no longer taken for one that passes."""


@dataclass(frozen=True, slots=True)
class Lease(Stored):
    """Which process replays a turn, and since when. `mark` changes with each renewal."""

    turn: str
    run_id: str
    host: str
    machine: str
    """The boot of the host and the namespace of process numbers: within it, a process number means one process."""
    process: str
    """The text of a `ProcessIdentity`; empty if the process could not be identified."""
    since: datetime
    holder: str
    """A random word, which tells the leases of two processes apart."""
    renewals: int = 0

    def __post_init__(self) -> None:
        texts = (self.turn, self.run_id, self.host, self.machine, self.process, self.holder)
        if not all(len(text) <= _MAX_TEXT and text.isprintable() for text in texts) or self.since.tzinfo is None:
            raise ValueError("a text is too long or not printable, or the time has no zone")

    @classmethod
    def of_this_process(cls, turn: TurnId, run_id: str, since: datetime) -> "Lease":
        """Returns a new lease of a turn for this process."""
        process = ProcessIdentity.of(os.getpid())
        identity, run_id = str(process) if process else "", "".join(filter(str.isprintable, run_id))[:_MAX_TEXT]
        return cls(str(turn), run_id, socket.gethostname(), _machine(), identity, since, secrets.token_hex(8))

    def renewed(self) -> "Lease":
        """Returns the lease after one more renewal."""
        return replace(self, renewals=self.renewals + 1)

    @property
    def mark(self) -> str:
        """A text that changes if the lease is renewed or taken over."""
        return f"{self.holder}:{self.renewals}"

    def process_has_ended(self) -> bool:
        """Returns whether the process is known to have ended. False for a process of another machine."""
        if not self.machine or self.machine != _machine():
            return False
        with suppress(ValueError):
            return not ProcessIdentity.decode(self.process).alive()
        return False

    @property
    def pid(self) -> int | None:
        """The number of the process; None if it could not be identified."""
        with suppress(ValueError):
            return ProcessIdentity.decode(self.process).pid
        return None

    def __str__(self) -> str:
        process = self.pid or "unknown"
        since = self.since.isoformat(timespec="seconds")
        return f"run {self.run_id} on host {self.host} (process {process}) since {since}"


class HolderState(StrEnum):
    """Whether the process that holds a lease still works on the turn, as far as another process can find out."""

    ACTIVE = "active"
    """It has renewed the lease within MISSED_RENEWALS renewals."""
    LAPSED = "lapsed"
    """It has not, so the next run goes on with the turn."""
    ENDED = "ended"
    """Its process is known to have ended. The next run goes on with the turn at once."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds the lease of an open turn. `unrenewed` is how long ago it has renewed the lease."""

    lease: Lease
    unrenewed: timedelta
    state: HolderState

    @classmethod
    def of(cls, lease: Lease, renewed_at: datetime, now: datetime) -> "Holder":
        """Returns the holder of a lease whose file was last written at `renewed_at`."""
        unrenewed = max(now - renewed_at, timedelta())
        if lease.process_has_ended():
            return cls(lease, unrenewed, HolderState.ENDED)
        lapsed = unrenewed > timedelta(seconds=MISSED_RENEWALS * RENEWAL_SECONDS)
        return cls(lease, unrenewed, HolderState.LAPSED if lapsed else HolderState.ACTIVE)


@dataclass(frozen=True, slots=True)
class StoppedRun(Stored):
    """Why a run has stopped, as it has noted itself. A note is out of date once the lane has moved from its position:
    the times of two hosts can't be compared."""

    at: datetime
    run_id: str
    reason: str
    """The class of the error."""
    sentence: str
    command: str
    """The command that ends it."""
    lasting: bool
    """Whether each run stops so until an operator acts; False for an error that may end by itself."""
    position: Position
    """How far the lane was: also of a run that had no turn, which has stopped before its plan, or of a lane that has
    not begun."""
    times: int = 1
    """How many runs in a row have stopped there with an error that may end by itself, this one included. Does not count
    runs that leave their turn to another process."""

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ValueError("the time has no zone")

    @classmethod
    def of(
        cls, error: AcklineError, pipeline: str, run_id: str, at: datetime, position: Position,
        before: "StoppedRun | None" = None,
    ) -> "StoppedRun":  # fmt: skip
        """Returns the note of a run that has stopped with this error; `before` is that of the run before it. Adds to a
        transient error that it comes again and again, because each run by itself calls it one that may pass."""
        lasting = not isinstance(error, TransientError)
        counts = not isinstance(error, HandedOut)  # of a run that leaves its turn to another process, nothing is known
        times = int(counts)
        if not lasting and before is not None and not before.lasting and before.position == position:
            times += before.times
        if counts and times >= _REPEATED:
            error.add_advice(
                f"The last {times} runs have stopped with an error that may end by itself, and no turn was planned or "
                f"settled in between: do not rely on that; `ackline doctor {pipeline}` checks what a run needs"
            )
        command = command_of(error, pipeline)
        return cls(at, run_id[:_MAX_TEXT], error.kind, str(error)[:_MAX_SENTENCE], command, lasting, position, times)


@cache
def _machine() -> str:
    """Returns a text for the boot and the process namespace of this host; empty where the system has neither."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    return ""
