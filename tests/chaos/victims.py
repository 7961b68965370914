"""Starts victims: processes that run a step of a lab, and are killed or paused at one write."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.e2e.lab import ROOT, Lab

SECONDS = 240


def start(
    lane: Lab,
    step: str,
    write: str = "",
    when: str = "before",
    what: str = "kill",
    largest: int | None = None,
    ranges: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Starts a process that runs `step` and, if `write` is given, kills or pauses itself at that write. The step
    `backfill` reads `ranges` under the id `b`; without them, it resumes that lane."""
    lane.judged = False
    order = {
        "file": str(lane.folder / "pipelines" / f"{lane.name}.yaml"),
        "audit": lane.audit,
        "now": lane.now.isoformat(),
        "step": step,
    } | ({"write": write, "when": when, "what": what} if write else {})
    order |= {"largest": str(largest)} if largest is not None else {}
    order |= {"ranges": " ".join(ranges)} if ranges else {}
    return process("tests.chaos.victim", json.dumps(order))


def process(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a module of the tests as a process with pipes, in a group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(lane: Lab, step: str, write: str, when: str, ranges: Sequence[str] = ()) -> None:
    """Runs a step that is killed right before or right after a write."""
    with ended(start(lane, step, write, when, ranges=ranges)) as victim:
        _, errors = victim.communicate(timeout=SECONDS)
        assert victim.returncode == -signal.SIGKILL, errors


@contextmanager
def paused_at(lane: Lab, step: str, write: str, when: str = "before") -> Iterator[subprocess.Popen[str]]:
    """A process that is paused at a write while the block runs; `wake` lets it go on."""
    with ended(start(lane, step, write, when, "pause")) as victim:
        assert victim.stdout is not None
        line = victim.stdout.readline()
        while line and line.strip() != "paused":
            line = victim.stdout.readline()
        assert line.strip() == "paused", victim.communicate(timeout=SECONDS)[1]
        yield victim


def wake(victim: subprocess.Popen[str]) -> tuple[int, str]:
    """Lets a paused process go on to its end; returns its exit status and its standard error."""
    _, errors = victim.communicate("\n", timeout=SECONDS)
    return victim.returncode, errors


@contextmanager
def ended(victim: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kills the process and its children at the end of the block."""
    try:
        yield victim
    finally:
        with suppress(ProcessLookupError):
            os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
        for stream in (victim.stdin, victim.stdout, victim.stderr):
            if stream is not None and not stream.closed:
                stream.close()


def beside_next_call(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    before: Callable[[], object] = int,
    after: Callable[[], object] = int,
) -> None:
    """Makes the next call of a function do something before it or after it."""
    real = getattr(owner, name)

    def struck(*arguments: Any, **named: Any) -> Any:
        patch.setattr(owner, name, real)
        before()
        result = real(*arguments, **named)
        after()
        return result

    patch.setattr(owner, name, struck)
