"""`make bench`, eighth part: handlers that wait, in two processes that each do what a Spark task does with its records.

The records are in memory, and no outcome is written: this measures the calls alone. Beside it a loop written by hand
keeps as many coroutines under way, and stores nothing of what came of them.
"""

import asyncio
import random
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console

from ackline import Emit, Record, Tuple
from ackline.handler import Tier
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.order import Order
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnId
from ackline.pipeline.functions import load_steps
from ackline.pipeline.topology import StepBlock, topology
from ackline.trees.arrow_calls import Seeds
from ackline.trees.calls import TreeCalls
from ackline.worker.files import OutcomeTarget
from ackline.worker.records import Records
from ackline.worker.run import TaskRun
from ackline.worker.settings import ReplaySettings, TaskSettings
from ackline.worker.streams import load_calls
from ackline.worker.tasks import handle_batches
from ackline.worker.under_way import CallsUnderWay
from tests.bench.figures import MIB, Figure, memory, reset_peak, show_figures, sizes_from

TASKS, CONCURRENCY, RECORDS = 2, 100, 20_000
KEYS = 10_000
PORTION = 2_000
"""Records whose trees a task delivers at a time."""
BATCH, BATCH_BYTES = 10_000, 32 * MIB
"""The most that Spark gives a task at a time."""
WAIT, LEAST, MOST = 0.02, 0.001, 0.2
"""Seconds that a call waits: always the same, or drawn between two."""


class Measured(NamedTuple):
    seconds: float
    cpu: float
    peak: int


async def wait(record: Record) -> None:
    """Waits as long as each other call."""
    await asyncio.sleep(WAIT)


async def wait_drawn(record: Record) -> None:
    """Waits for a time that is drawn."""
    await asyncio.sleep(random.uniform(LEAST, MOST))


def block(record: Record) -> None:
    """Waits in a thread."""
    time.sleep(WAIT)


async def wait_or_fail(record: Record) -> None:
    """Waits, and fails for each hundredth record."""
    await asyncio.sleep(WAIT)
    if record.offset % 100 == 0:
        raise ValueError


def nothing(record: Record) -> None:
    """Does nothing."""


async def wait_in_step(given: Tuple) -> None:
    """Waits for a tuple."""
    await asyncio.sleep(WAIT)


def block_in_step(given: Tuple) -> None:
    """Waits for a tuple in a thread."""
    time.sleep(WAIT)


def main() -> None:
    options = sizes_from("waiting", __doc__, records=(RECORDS, "records of each of the two tasks"))
    records: int = options.records
    at_once, mean = TASKS * CONCURRENCY, (LEAST + MOST) / 2
    by_hand = measured(_by_hand, records)
    tasks = {name: measured(_in_a_task, records, name) for name in ("wait", "block", "wait_drawn")}
    unordered = measured(_in_a_run, records, "wait", Order.NONE)
    by_key = measured(_in_a_run, records, "wait", Order.KEY)
    failing = measured(_in_a_run, records, "wait_or_fail", Order.KEY)
    nothing = {order: measured(_in_a_run, records, "nothing", order, None) for order in (Order.NONE, Order.KEY)}
    steps = {name: measured(_in_a_step, records, name) for name in ("wait_in_step", "block_in_step")}
    large = measured(_in_a_task, records // 4, "wait", 1000, 10_000)

    def rate(name: str) -> float:
        return TASKS * records / tasks[name].seconds

    def cpu(result: Measured) -> float:
        return result.cpu / records / TASKS * 1e6

    figures = [
        Figure("async def, 20 ms", rate("wait"), "records/s", least=0.85 * at_once / WAIT),
        Figure("threads, 20 ms", rate("block"), "records/s", least=0.7 * at_once / WAIT),
        Figure("async def, 1 to 200 ms", rate("wait_drawn"), "records/s", least=0.85 * at_once / mean),
        Figure(
            "a step, async def, 20 ms",
            TASKS * records / steps["wait_in_step"].seconds,
            "tuples/s",
            least=0.85 * at_once / WAIT,
        ),
        Figure(
            "a step, threads, 20 ms",
            TASKS * records / steps["block_in_step"].seconds,
            "tuples/s",
            least=0.7 * at_once / WAIT,
        ),
        Figure("a loop by hand, 20 ms", TASKS * records / by_hand.seconds, "records/s"),
        Figure("async def, more than the loop by hand", cpu(tasks["wait"]) - cpu(by_hand), "µs of CPU", most=25),
        Figure("threads", cpu(tasks["block"]), "µs of CPU", most=60),
        Figure("order: key, of the rate without", unordered.seconds / by_key.seconds, "times", least=0.7),
        Figure("order: key, one of 100 fails", unordered.seconds / failing.seconds, "times", least=0.6),
        Figure("a handler that does nothing", cpu(nothing[Order.NONE]), "µs of CPU"),
        Figure("a handler that does nothing, order: key", cpu(nothing[Order.KEY]), "µs of CPU", most=20),
        Figure("1,000 under way, records of 10 kB", large.peak / MIB, "MiB a process", most=300),
    ]
    show_figures(Console(), f"{TASKS} tasks with {CONCURRENCY} calls under way each", figures)


def measured(task: Callable[..., Measured], *arguments: Any) -> Measured:
    """Runs a task in two processes at once. Returns the longest time, the CPU of both, and the highest memory."""
    with ProcessPoolExecutor(TASKS, get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.1] * TASKS))  # both are there
        results = [each.result() for each in [pool.submit(task, *arguments) for _ in range(TASKS)]]
    return Measured(max(each.seconds for each in results), sum(each.cpu for each in results), results[0].peak)


def _timed(work: Callable[[], object]) -> Measured:
    reset_peak()
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(time.perf_counter() - begun, cpu, memory("VmHWM"))


def _batches(records: int, size: int) -> Iterator[Records]:
    most = min(BATCH, BATCH_BYTES // size)
    for start in range(0, records, most):
        count = min(most, records - start)
        offsets = np.arange(start, start + count, dtype=np.int64)
        keys = pa.array([b"%d" % (offset * 7919 % KEYS) for offset in range(start, start + count)], pa.binary())
        ends = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))
        values = pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(bytes(count * size))])
        times, attempts = np.full(count, 1_600_000_000_000_000), np.ones(count, np.int32)
        yield Records(TopicPartition("orders", 0), offsets, times, keys, values, None, attempts)


def _in_a_task(records: int, handler: str, concurrency: int = CONCURRENCY, size: int = 190) -> Measured:
    settings = ReplaySettings(f"{__name__}:{handler}", False, Outcome.FAILED, None, concurrency=concurrency)
    calls = load_calls(settings, Tier.RECORD)
    assert isinstance(calls, CallsUnderWay)

    def work() -> None:
        handled = sum(len(part) for batch in _batches(records, size) for part, _ in calls.take(batch))
        assert handled + sum(len(part) for part, _ in calls.finish()) == records

    result = _timed(work)
    calls.close()
    return result


def _in_a_run(records: int, handler: str, order: Order, concurrency: int | None = CONCURRENCY) -> Measured:
    """As Spark's task does all of it, but for reading and for the files of outcomes."""
    replay = ReplaySettings(
        f"{__name__}:{handler}", False, Outcome.FAILED, None, concurrency=concurrency, order=order,
        key_hash_secret=b"a secret of the bench", record_outcomes=False,
    )  # fmt: skip
    target = OutcomeTarget("", TurnId("bench", "live", 0, 1), date(2024, 1, 1), "bench")

    def work() -> None:
        with TaskRun(TaskSettings(target, replay, Tier.RECORD, "orders")) as run:
            assert not list(handle_batches(run, _batches(records, 190)))
            list(run.finish())

    return _timed(work)


def _emit(record: Record) -> Emit:
    return Emit("x" * 100)


def _in_a_step(records: int, handler: str) -> Measured:
    step = StepBlock(name="wait", handler=f"{__name__}:{handler}", input=["source"], concurrency=CONCURRENCY)
    of, tp = topology([step]), TopicPartition("orders", 0)
    calls = TreeCalls(of, load_steps(of), [tp], lambda: 1)
    calls.call_ahead()
    seeds: Seeds = {(tp.topic, tp.partition): (0, 4711)}

    def work() -> None:
        for batch in _batches(records, 190):
            for start in range(0, len(batch), PORTION):
                for record in batch.slice(start, PORTION):
                    calls.call_source(_emit, record, seeds)
                    calls.advance()
                calls.end()

    result = _timed(work)
    calls.ahead.close()
    return result


def _by_hand(records: int) -> Measured:
    async def loop() -> None:
        under_way = asyncio.Semaphore(CONCURRENCY)

        async def call(record: Record) -> None:
            await wait(record)
            under_way.release()

        async with asyncio.TaskGroup() as group:
            for batch in _batches(records, 190):
                for record in batch:
                    await under_way.acquire()
                    group.create_task(call(record))

    return _timed(lambda: asyncio.run(loop()))


if __name__ == "__main__":
    main()
