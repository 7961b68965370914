"""A process that makes the runs of a soak, one after the other, with one warm Spark session.

    python -m tests.soak.runner FOLDER

It stands for a scheduler with a worker that keeps its session. Each order is a line of JSON on standard input, each
answer a line on standard output. A run opens the pipeline anew, as a task of Airflow does, and waits for the lease of
another process as the command does. `skew` is by how many seconds the time of the soak is ahead of the machine's: the
time of tasks too, from the start of their job. `behind` is by how many seconds the clock of the process that plans and
settles is behind that time.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ackline.backfill import run as backfill
from ackline.backfill.choose import choose_offsets
from ackline.backfill.perform import backfill_pipeline
from ackline.errors import AcklineError
from ackline.forms.arguments import BackfillArguments, lane_of
from ackline.lane.adapters import Progress, open_adapters
from ackline.ledger.turns import LIVE
from ackline.spark.job import ReplayResult, run_replay
from ackline.spark.session import open_session
from ackline.steps import run as run_step
from ackline.worker.settings import ReplayJob
from tests.soak.fleet import Fleet, reopen
from tests.support import journal


class Runner:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.members = fleet, fleet.by_name()

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Runs a pipeline, or begins and runs a backfill of it. Returns what came of it."""
        begun = time.perf_counter()
        answer: dict[str, Any] = {"name": order["name"], "turns": 0, "calls": 0}
        try:
            answer |= self._run(order)
        except AcklineError as error:
            answer["error"] = [type(error).__name__, str(error)]
        except Exception as error:
            answer["crash"] = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}"
        return answer | {"seconds": time.perf_counter() - begun}

    def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        skew, behind = (timedelta(seconds=order.get(name, 0)) for name in ("skew", "behind"))

        def run_job(session: Callable[[], SparkSession], job: ReplayJob, progress: Progress | None) -> ReplayResult:
            settings = replace(job.settings, now=datetime.now(UTC) + skew)
            return run_replay(session(), replace(job, settings=settings), progress)

        pipeline, lane = self.members[order["name"]].load(), LIVE
        arguments = BackfillArguments(tuple(order.get("ranges", ())))
        if order["do"] == "backfill":
            lane = lane_of(order["id"])
            pipeline = backfill_pipeline(pipeline, lane, arguments)
        run_id = f"soak-{order['round']}-{order['attempt']}"
        with open_adapters(
            pipeline, self.fleet.connection, run_id=run_id, actor="soak", audit=self.fleet.audit, lane=lane
        ) as opened:
            adapters = replace(opened, clock=lambda: datetime.now(UTC) + skew - behind, run_job=run_job)
            if lane == LIVE:
                done = run_step.run(adapters, spark)
            else:
                if backfill.find_backfill(adapters.store) is None:
                    if not arguments.ranges:
                        return {"settled": True, "empty": True}
                    choice = choose_offsets(adapters, arguments)
                    if not choice.partitions:  # retention has taken all of it meanwhile
                        return {"settled": True, "empty": True}
                    backfill.begin(adapters, arguments, choice)
                done = backfill.run_backfill(adapters, spark)
            newest, open_plan = adapters.newest_and_open_plan()
        ends = {tp: row.log.end for tp, row in done.plans[-1].partitions.items()} if done.plans else {}
        floors = {tp: settled.state.floor for tp, settled in newest.partitions.items()} if newest else {}
        lag = sum(max(0, end - floors[tp]) for tp, end in ends.items() if tp in floors)
        settled = open_plan is None and newest is not None and _is_settled(newest, ends)
        return {"turns": len(done.plans), "calls": done.calls, "outcomes": dict(done.outcomes),
                "lag": lag, "settled": settled}  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """Returns the heap of the JVM after a collection."""
        jvm: Any = spark().sparkContext._jvm
        jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        return {"jvm_heap": runtime.totalMemory() - runtime.freeMemory()}


def _is_settled(newest: Any, ends: dict[Any, int]) -> bool:
    """Returns whether nothing is pending, and the floor is at the end of each log."""
    return all(not s.state.pending and s.state.floor >= ends.get(tp, 0) for tp, s in newest.partitions.items())


def spark() -> SparkSession:
    return open_session("soak")


def main(folder: Path) -> None:
    """Starts Spark, and answers orders until standard input ends."""
    # A descriptor of its own, which the JVM does not inherit: it ends with this process, and what the JVM, a handler or
    # a library prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runner = Runner(reopen(folder))
    os.environ[journal.JOURNAL] = str(folder / "journals" / "calls")  # before Spark starts its Python workers
    spark()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = runner.figures() if order["do"] == "figures" else runner.run(order)
        print(json.dumps(answer), file=answers, flush=True)
    spark().stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
