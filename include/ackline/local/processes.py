"""Starts server processes on free ports, and ends each with all the processes that it has started.

A server leads a session of its own. So Ctrl-C reaches only the caller, and `end` can find every process that the server
has started. A guard process ends the server if the caller dies without having stopped it. A detached server has no
guard: its owner saves its `ProcessIdentity`, which no later process with the same number matches.

The ports are free ports of the loopback interface, below the range from which the system gives ports to outgoing
connections. So a server that is killed finds its port still free when it starts again, and a client that connects
meanwhile can't be connected to itself.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from ackline.local.connection import LOOPBACK
from ackline.stored import encode
from ackline.tables.lease import ProcessIdentity

LOWEST = 15_000
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Returns `count` different ports on which no server listens. Raises OSError if there are too few.

    A process gets each port only once, because the server that got it before may not listen yet.
    """
    candidates = range(LOWEST, _first_outgoing())
    chosen = []
    for port in random.SystemRandom().sample(candidates, len(candidates)):
        if port not in _given and is_free(port):
            chosen.append(port)
        if len(chosen) == count:
            _given.update(chosen)
            return chosen
    raise OSError(f"no {count} free ports between {LOWEST} and {candidates.stop}")


def is_free(port: int) -> bool:
    """Returns whether a server could listen on the port now, on any interface."""
    for host in (LOOPBACK, ""):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((host, port))
                server.listen(1)
            except OSError:
                return False
    return True


def _first_outgoing() -> int:
    """Returns the first port for outgoing connections; Linux's default if the system does not report a usable one."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768
    return first if first > LOWEST + 1_000 else 32_768


POLL_SECONDS = 0.05
KILL_SECONDS = 20.0


class Startable(ABC):
    """A server, or several: a context manager that starts and stops it."""

    @abstractmethod
    def start(self) -> None:
        """Starts the server and waits until it is ready."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the server. May be called repeatedly."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def save(file: Path, content: object) -> None:
    """Writes a value as JSON for its owner alone, all of it or nothing. It may hold a password."""
    scratch = file.with_suffix(".new")
    scratch.touch(mode=0o600)
    scratch.write_text(encode(content))
    scratch.replace(file)


class Server:
    """A server process, started by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], *, guarded: bool) -> None:
        self._process = process
        # A child that has died already is a zombie: it has no identity, and keeps its number until `wait`.
        self.identity = ProcessIdentity.of(process.pid) or ProcessIdentity(process.pid, started=-1)
        self._guard = _Guard(self.identity) if guarded else None

    @property
    def pid(self) -> int:
        return self.identity.pid

    def alive(self) -> bool:
        """Returns whether the server still runs."""
        return self._process.poll() is None

    def stop(self, grace_seconds: float) -> None:
        """Ends the server and its session with SIGTERM, then SIGKILL after the grace period. May be called
        repeatedly."""
        end([self.identity], grace_seconds)
        self._process.wait()
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None

    def kill(self, session: bool = False) -> None:
        """Sends SIGKILL to the server, like a crash; the processes that it has started go on until `stop`.

        With `session`, also to these, as when the machine or the container of the server ends.
        """
        members = _family(self.identity) if session else {self.identity}
        while members:
            for member in members:
                member.send(signal.SIGKILL)
            # A process may have started another one before it got the signal.
            members = {member for member in _family(self.identity) if member.alive()} if session else set()
        self._process.wait()


class _Guard:
    """Ends a server when the caller's end of a pipe is closed; the caller's death closes it too."""

    def __init__(self, server: ProcessIdentity) -> None:
        read_end, self._write_end = os.pipe()
        command = [sys.executable, "-m", "ackline.local.processes", str(server.pid), str(server.started)]
        self._process = subprocess.Popen(
            command,
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)

    def dismiss(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write_end)


def start(command: Sequence[str], *, env: Mapping[str, str], log: Path, folder: Path, detached: bool = False) -> Server:
    """Starts a server in a folder and appends its output to `log`. Only a detached server survives the caller."""
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


def end(leaders: Iterable[ProcessIdentity], grace_seconds: float) -> None:
    """Ends session leaders with their sessions and descendants: SIGTERM, then SIGKILL after the grace period.

    The rest of a session whose leader is gone is ended too, unless another process has the leader's number by now.
    Raises TimeoutError if a process survives SIGKILL.
    """
    leaders = list(leaders)
    known: set[ProcessIdentity] = set()

    def remaining() -> set[ProcessIdentity]:
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
    """Calls `ready` until it returns true, for at most `seconds`; returns whether it did."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_seconds)
    return True


def end_of(log: Path) -> str:
    """Returns the end of a server's log, for an error."""
    return log.read_text(errors="replace")[-800:].strip()


def _family(leader: ProcessIdentity) -> set[ProcessIdentity]:
    """Returns the processes of a leader's session and its descendants, the leader included; none if another process
    has its number."""
    if ProcessIdentity.of(leader.pid) not in (None, leader):
        return set()
    pids = {pid for pid in psutil.pids() if _session(pid) == leader.pid}
    if leader.alive():
        with suppress(psutil.NoSuchProcess):
            pids |= {child.pid for child in psutil.Process(leader.pid).children(recursive=True)}
    return {identity for pid in pids if (identity := ProcessIdentity.of(pid)) is not None}


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


if __name__ == "__main__":  # the guard of a server
    sys.stdin.buffer.read()
    end([ProcessIdentity(int(sys.argv[1]), int(sys.argv[2]))], grace_seconds=0)
