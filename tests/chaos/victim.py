"""A process that runs one step of a lab, and kills or pauses itself at one durable write.

Its argument is a JSON object. `file`, `audit` and `now` name the pipeline, the tables and the time, and `step` is the
step. `write` and `when` (before, after) are the place of the strike, and `what` is the strike: `kill` sends SIGKILL to
the process itself; `pause` prints "paused" and waits for a line on standard input. `largest` limits the size of each
file in bytes, as a full disk does. An AcklineError is exit status 1.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from ackline.backfill import run as backfill
from ackline.backfill.choose import choose_offsets
from ackline.errors import AcklineError
from ackline.kafka.dead_letters import DeadLetters
from ackline.kafka.group import Group
from ackline.lane.adapters import Adapters, open_adapters
from ackline.lane.lease import WhenHeld
from ackline.ledger.turns import LIVE
from ackline.pipeline.arguments import BackfillArguments
from ackline.pipeline.pipeline import load
from ackline.spark.session import open_session
from ackline.steps import plan, replay, run, settle
from ackline.tables.store import LedgerStore

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
}


def strike(what: str) -> None:
    """Kills or pauses this process."""
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print("paused", flush=True)
    sys.stdin.readline()


def arm(write: str, when: str, what: str) -> None:
    """Makes the strike happen right before or right after the first such write."""
    owner, name = WRITES[write]
    real = getattr(owner, name)

    def armed(self: Any, *arguments: Any, **named: Any) -> Any:
        setattr(owner, name, real)
        if when == "before":
            strike(what)
        done = real(self, *arguments, **named)
        if write == "letters":  # a generator: when it is exhausted, all letters are acknowledged
            done = iter(list(done))
        if when == "after":
            strike(what)
        return done

    setattr(owner, name, armed)


def run_backfill(adapters: Adapters, options: dict[str, str]) -> None:
    """Begins a backfill of ranges and runs it; without ranges, resumes the lane. Only the genesis is a write of its
    beginning, so the strike at any other write is armed after that."""
    strikes_genesis = options["write"] == "genesis"
    if strikes_genesis:
        arm(options["write"], options["when"], options["what"])
    if "ranges" in options:
        arguments = BackfillArguments(tuple(options["ranges"].split()))
        backfill.begin(adapters, arguments, choose_offsets(adapters, arguments))
    if not strikes_genesis:
        arm(options["write"], options["when"], options["what"])
    backfill.run_backfill(adapters, open_session)


def main(options: dict[str, str]) -> int:
    """Runs the step and returns the exit status."""
    backfills = options["step"] == "backfill"
    if "write" in options and not backfills:
        arm(options["write"], options["when"], options["what"])
    if "largest" in options:  # Python ignores the signal that comes with the error
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(options["largest"]), resource.RLIM_INFINITY))
    now = datetime.fromisoformat(options["now"])
    pipeline = load(Path(options["file"]))
    try:
        lane = "backfill-b" if backfills else LIVE
        with open_adapters(
            pipeline,
            run_id=f"victim-{os.getpid()}",
            actor="victim",
            now=now,
            audit=options["audit"],
            lane=lane,
            when_held=WhenHeld.TAKE_OVER,
        ) as adapters:
            if backfills:
                run_backfill(adapters, options)
            else:
                STEPS[options["step"]](adapters)
    except AcklineError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
