"""A process that dies, or holds its breath, at one durable write of a step.

Its one argument is JSON: `file`, `audit` and `now` say what to work on, `step` what to do, and `write`, `when` and
`what` where it is struck. `kill` is SIGKILL to itself; `hold` prints "held" and goes on when a line comes on standard
input, as if nothing had been. `largest` is how many bytes a file may have, as on a disk that is full. An
AcklineError is exit status 1.
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

from ackline.audit.store import LedgerStore
from ackline.errors import AcklineError
from ackline.kafka.dead_letters import DeadLetters
from ackline.kafka.group import Group
from ackline.pipeline import load
from ackline.spark.session import open_session
from ackline.steps import plan, replay, run, settle
from ackline.steps.parts import open_parts

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
    "replay": lambda parts: replay.replay(parts, open_session),
    "settle": settle.settle,
    "run": lambda parts: run.run(parts, open_session),
}


def strike(what: str) -> None:
    """What happens to this process."""
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print("held", flush=True)
    sys.stdin.readline()


def arm(write: str, when: str, what: str) -> None:
    """Have it happen right before or right after the first such write."""
    owner, name = WRITES[write]
    real = getattr(owner, name)

    def armed(self: Any, *arguments: Any, **named: Any) -> Any:
        setattr(owner, name, real)
        if when == "before":
            strike(what)
        done = real(self, *arguments, **named)
        if write == "letters":  # sent lazily: all of them are acknowledged once the answers are there
            done = iter(list(done))
        if when == "after":
            strike(what)
        return done

    setattr(owner, name, armed)


def main(order: dict[str, str]) -> int:
    """Carry out the step."""
    if "write" in order:
        arm(order["write"], order["when"], order["what"])
    if "largest" in order:  # Python ignores the signal that comes with the error
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(order["largest"]), resource.RLIM_INFINITY))
    now = datetime.fromisoformat(order["now"])
    pipeline = load(Path(order["file"]))
    try:
        with open_parts(
            pipeline, run_id=f"victim-{os.getpid()}", actor="victim", now=now, audit=order["audit"]
        ) as parts:
            STEPS[order["step"]](parts)
    except AcklineError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
