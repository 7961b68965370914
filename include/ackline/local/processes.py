"""Server processes that are started here, outlive nobody by accident, and are ended for certain.

A server leads a session of its own, so that Ctrl-C reaches the caller alone and all that the server starts
can be found again. A guard ends it when the caller dies without having stopped it. A detached server has no
guard: its owner writes its `Identity` down, which no process matches that was given the same number since.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

POLL_SECONDS = 0.05
KILL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Identity:
    """A process beyond doubt: its number, and when it started in the kernel's ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Who has this number now; None if nobody has, or only a dead one that is not yet buried."""
        try:
            # The name in parentheses is free text; behind it the state is the first field, the start the
            # twentieth.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return Identity.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Signal this very process, if it still runs."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Server:
    """A server that `start` started."""

    def __init__(self, process: subprocess.Popen[bytes], *, guarded: bool) -> None:
        self._process = process
        # A child that died at once is not yet buried, so that its number is still its own.
        self.identity = Identity.of(process.pid) or Identity(process.pid, started=-1)
        self._guard = _Guard(self.identity) if guarded else None

    @property
    def pid(self) -> int:
        return self.identity.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def stop(self, grace_seconds: float) -> None:
        """End it and all of its session: asked first, killed after the grace period. Any number of times."""
        end([self.identity], grace_seconds)
        self._process.wait()
        self._dismiss_guard()

    def kill(self) -> None:
        """SIGKILL to the server alone, as in a crash; what it had started goes on until `stop`."""
        self.identity.send(signal.SIGKILL)
        self._process.wait()

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None


class _Guard:
    """Ends a server once the caller's end of a pipe is closed, which the caller's death does too."""

    def __init__(self, server: Identity) -> None:
        reading, self._writing = os.pipe()
        command = [sys.executable, "-m", "ackline.local.processes", str(server.pid), str(server.started)]
        self._process = subprocess.Popen(
            command,
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reading)

    def dismiss(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._writing)


def start(command: Sequence[str], *, env: Mapping[str, str], log: Path, folder: Path, detached: bool = False) -> Server:
    """Start a server in a folder, its output appended to `log`. Only a detached one survives the caller."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(process, guarded=not detached)


def end(leaders: Iterable[Identity], grace_seconds: float) -> None:
    """End these session leaders with their sessions and descendants: SIGTERM, SIGKILL after the grace period.

    What a leader that is gone has left behind is ended too, unless somebody else has its number by now.
    Raises TimeoutError when something survives SIGKILL.
    """
    leaders = list(leaders)
    known: set[Identity] = set()

    def remaining() -> set[Identity]:
        known.update(*(_family(leader) for leader in leaders))
        return {member for member in known if member.alive()}

    def killed() -> bool:
        for member in remaining():
            member.send(signal.SIGKILL)
        return not remaining()

    for member in remaining():
        member.send(signal.SIGTERM)
    if not wait_until(lambda: not remaining(), grace_seconds) and not wait_until(killed, KILL_SECONDS):
        raise TimeoutError(f"processes {sorted(member.pid for member in remaining())} can't be ended")


def wait_until(ready: Callable[[], bool], seconds: float, poll_seconds: float = POLL_SECONDS) -> bool:
    """Ask until the answer is yes, for at most so long; whether it was."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_seconds)
    return True


def _family(leader: Identity) -> set[Identity]:
    """All of a leader's session and all of its descendants, itself included."""
    if Identity.of(leader.pid) not in (None, leader):
        return set()
    pids = {pid for pid in psutil.pids() if _session(pid) == leader.pid}
    if leader.alive():
        with suppress(psutil.NoSuchProcess):
            pids |= {child.pid for child in psutil.Process(leader.pid).children(recursive=True)}
    return {identity for pid in pids if (identity := Identity.of(pid)) is not None}


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _guard(pid: int, started: int) -> None:
    sys.stdin.buffer.read()
    end([Identity(pid, started)], grace_seconds=0)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), int(sys.argv[2]))
