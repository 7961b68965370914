"""Victims: processes that run one step of a lab, and kill or pause themselves at one durable write.

Each is forked from a server that has imported all of this. A strike is (write, when, what): the write is one of
`WRITES`, right before or right after which the process sends SIGKILL to itself (`kill`), or prints "paused" and waits
for a line on standard input (`pause`).
"""

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ackline.backfill import run as backfill
from ackline.backfill.choose import choose_offsets
from ackline.errors import AcklineError
from ackline.forms.arguments import BackfillArguments
from ackline.kafka.dead_letters import DeadLetters
from ackline.kafka.group import Group
from ackline.lane.adapters import open_adapters
from ackline.lane.lease import WhenHeld
from ackline.ledger.turns import LIVE
from ackline.pipeline.pipeline import load
from ackline.spark.session import open_session
from ackline.steps import plan, replay, run, settle
from ackline.tables.store import LedgerStore
from tests.e2e.forked import ForkedProcess
from tests.e2e.lab import Lab

SECONDS = 240
Strike = tuple[str, str, str]
WRITES: dict[str, tuple[type, str]] = {
    "genesis": (LedgerStore, "store_settlement"),
    "plan": (LedgerStore, "store_plan"),
    "claim": (LedgerStore, "store_claim"),
    "start": (LedgerStore, "store_start_marker"),
    "outcomes": (LedgerStore, "store_outcomes"),
    "letters": (DeadLetters, "send"),
    "decisions": (LedgerStore, "store_decisions"),
    "settlement": (LedgerStore, "store_settlement"),
    "commit": (Group, "commit"),
}
STEPS: dict[str, Callable[..., Any]] = {
    "plan": plan.plan,
    "replay": lambda adapters: replay.replay(adapters, open_session),
    "settle": settle.settle,
    "run": lambda adapters: run.run(adapters, open_session),
    "backfill": lambda adapters: backfill.run_backfill(adapters, open_session),
}


def arm(write: str, when: str, what: str) -> None:
    """Makes the strike happen at the first such write of this process."""
    owner, name = WRITES[write]
    real = getattr(owner, name)

    def strike() -> None:
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        print("paused", flush=True)
        sys.stdin.readline()

    def armed(self: Any, *arguments: Any, **named: Any) -> Any:
        setattr(owner, name, real)
        if when == "before":
            strike()
        done = real(self, *arguments, **named)
        if write == "letters":  # a generator: when it is exhausted, all letters are acknowledged
            done = iter(list(done))
        if when == "after":
            strike()
        return done

    setattr(owner, name, armed)


def main(
    file: Path, audit: str, now: datetime, step: str, strike: Strike | None, largest: int | None, ranges: Sequence[str]
) -> int:
    """Runs the step, and returns the exit status: an AcklineError is 1. `largest` limits the size of each file in
    bytes, as a full disk does."""
    lane = "backfill-b" if step == "backfill" else LIVE
    if strike is not None:
        arm(*strike)
    if largest is not None:  # Python ignores the signal that comes with the error
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    run_id, held = f"victim-{os.getpid()}", WhenHeld.TAKE_OVER
    try:
        with open_adapters(
            load(file), run_id=run_id, actor="victim", now=now, audit=audit, lane=lane, when_held=held
        ) as adapters:
            if ranges:
                arguments = BackfillArguments(tuple(ranges))
                backfill.begin(adapters, arguments, choose_offsets(adapters, arguments))
            STEPS[step](adapters)
    except AcklineError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


# ---- the side of the tests -------------------------------------------------------------------------------------------


def start(
    lane: Lab,
    step: str,
    write: str = "",
    when: str = "before",
    what: str = "kill",
    largest: int | None = None,
    ranges: Sequence[str] = (),
) -> ForkedProcess:
    """Starts a process that runs `step` and, if `write` is given, kills or pauses itself at that write. The step
    `backfill` begins a backfill of `ranges` under the id `b`, and runs it."""
    lane.judged = False
    strike = (write, when, what) if write else None
    return ForkedProcess(main, lane.file, lane.audit, lane.now, step, strike, largest, ranges)


def kill(lane: Lab, step: str, write: str, when: str, ranges: Sequence[str] = ()) -> None:
    """Runs a step that is killed right before or right after a write."""
    with ended(start(lane, step, write, when, ranges=ranges)) as victim:
        _, errors = victim.communicate(timeout=SECONDS)
        assert victim.returncode == -signal.SIGKILL, errors


@contextmanager
def paused_at(lane: Lab, step: str, write: str) -> Iterator[ForkedProcess]:
    """A process that is paused right before a write while the block runs; `wake` lets it go on."""
    with ended(start(lane, step, write, "before", "pause")) as victim:
        assert "paused\n" in victim.stdout, victim.communicate(timeout=SECONDS)[1]
        yield victim


def wake(victim: ForkedProcess) -> tuple[int | None, str]:
    """Lets a paused process go on to its end; returns its exit status and its standard error."""
    _, errors = victim.communicate("\n", timeout=SECONDS)
    return victim.returncode, errors


@contextmanager
def ended(victim: ForkedProcess) -> Iterator[ForkedProcess]:
    """Kills the process and its children at the end of the block."""
    try:
        yield victim
    finally:
        with suppress(ProcessLookupError):
            os.killpg(victim.pid, signal.SIGKILL)
        victim.close()


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
