"""Starting victims: processes of a lab's pipeline that die or hold at one write."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.e2e.lab import ROOT, Lab

SECONDS = 240


def start(
    one: Lab, step: str, write: str = "", when: str = "before", what: str = "kill", largest: int | None = None
) -> subprocess.Popen[str]:
    """A process that carries out `step`, and is struck at `write` where one is named."""
    one.judged = False
    order = {
        "file": str(one.folder / "pipelines" / f"{one.name}.yaml"),
        "audit": one.audit,
        "now": one.now.isoformat(),
        "step": step,
    } | ({"write": write, "when": when, "what": what} if write else {})
    order |= {"largest": str(largest)} if largest is not None else {}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.victim", json.dumps(order)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(one: Lab, step: str, write: str, when: str) -> None:
    """Have a step killed right before or after a write."""
    with ended(start(one, step, write, when)) as victim:
        _, said = victim.communicate(timeout=SECONDS)
        assert victim.returncode == -signal.SIGKILL, said


@contextmanager
def held(one: Lab, step: str, write: str, when: str = "before") -> Iterator[subprocess.Popen[str]]:
    """A process that sleeps at a write while the block runs; `wake` ends its sleep."""
    with ended(start(one, step, write, when, "hold")) as victim:
        assert victim.stdout is not None
        line = victim.stdout.readline()
        while line and line.strip() != "held":
            line = victim.stdout.readline()
        assert line.strip() == "held", victim.communicate(timeout=SECONDS)[1]
        yield victim


def wake(victim: subprocess.Popen[str]) -> tuple[int, str]:
    """Let a held process go on; its exit status, and what it said of errors."""
    _, said = victim.communicate("\n", timeout=SECONDS)
    return victim.returncode, said


@contextmanager
def ended(victim: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The process, and all that it started, gone at the end of the block."""
    try:
        yield victim
    finally:
        with suppress(ProcessLookupError):
            os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
        for stream in (victim.stdin, victim.stdout, victim.stderr):
            if stream is not None and not stream.closed:
                stream.close()
