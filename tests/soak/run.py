"""`make soak`: pipelines that run every minute for an hour while things break, and a verdict at the end.

    python -m tests.soak.run --minutes 60 --pipelines 50 [--seed N]

Real are the broker, which is killed and started again; Spark, one warm session in each of two processes that make the
runs; Delta tables on the disk; the product's runs, from the plan to the commit of the group; producers, answers, and
two runs of one pipeline at once; and the kills of a process that makes runs, of its JVM and of Spark's Python workers.
Retention is DeleteRecords, and the log cleaner on a compacted topic. `ackline maintain` is real, too, but takes what is
ten minutes old for a week old (`tests.soak.maintenance`). Time jumps forward, and the
clock of a run is behind that of Spark's tasks. Not here are Airflow and a Spark session for each run: of fifty DAGs a
minute, two cores would start two. `tests/airflow/test_scheduler.py` kills the scheduler of a real Airflow in a turn.

A round in which all pipelines run takes a minute, or as long as the machine needs; the verdict counts the late ones.
Exits with 1 if the checker finds a violation, a record has no outcome, a run ends as none may, a process outlives its
runner, or what `tests.soak.judge` compares has grown.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ackline.local.broker import Broker
from tests.soak import account
from tests.soak.fleet import build
from tests.soak.judge import Growth, judge
from tests.soak.rounds import MINUTE, Soak, Tally

RATE = 40
"""Records a minute for each pipeline."""
MOST = 100
"""Violations that are printed."""
BROKER = {
    "log.cleaner.backoff.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    wrong: list[str]
    growths: list[Growth]
    tally: Tally
    delivered: int
    lines: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.wrong and not any(growth.grown for growth in self.growths)


def soak(
    folder: Path,
    minutes: float,
    pipelines: int,
    seed: int,
    *,
    rate: int = RATE,
    every: float = MINUTE,
    say: Callable[[str], None] = print,
) -> Verdict:
    """Runs a soak below a folder, which must be empty: rounds of `every` seconds, with `rate` records a minute for each
    pipeline. Returns its verdict."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(folder / "broker", config=BROKER))
        begun = time.monotonic()
        fleet = build(broker, folder / "fleet", pipelines)
        running = Soak(broker, fleet, seed, rate, say, every)
        stack.callback(running.stop)
        running.run(minutes)
        tally, delivered = running.tally, dict(running.writer.delivered)
        orphans = [f"a process outlives its runner: {text}" for text in running.bounced.orphans()]
        say("the checker reads")
        found = account.violations(fleet, delivered, list(tally.backfills))
        wrong = [*tally.wrong, *running.writer.refused, *orphans, *found]
        growths = judge(running.samples)
        say(
            f"{time.monotonic() - begun:.0f} s: {tally.runs} runs, {tally.turns} turns, {sum(delivered.values())} "
            f"records, outcomes {dict(tally.outcomes)}, {tally.rounds} rounds, {tally.late} of them late, "
            f"{len(tally.backfills)} backfills, answers {dict(running.writer.answered)}"
        )
        say(f"what happened: {dict(tally.strikes)}")
        say(f"runs that failed: {dict(tally.errors)}")
        return Verdict(wrong, growths, tally, sum(delivered.values()), list(tally.texts.values()))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--pipelines", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--rate", type=int, default=RATE, help="records a minute for each pipeline")
    parser.add_argument("--keep", type=Path, help="an empty folder to leave everything in")
    options = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(text, flush=True)

    say(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="ackline-soak-") as temporary:
        folder = options.keep or Path(temporary)
        verdict = soak(folder, options.minutes, options.pipelines, options.seed, rate=options.rate, say=say)
    for text in verdict.lines:
        say(f"  {text}")
    for growth in verdict.growths:
        say(str(growth))
    for text in verdict.wrong[:MOST]:
        say(f"WRONG: {text}")
    if len(verdict.wrong) > MOST:
        say(f"WRONG: {len(verdict.wrong) - MOST} more")
    say("every rule held, and nothing grew" if verdict.ok else f"seed {options.seed}: the soak has failed")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
