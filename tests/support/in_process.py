"""Runs replay jobs in this process, in place of Spark: `ackline.trees.in_process` runs their tasks.

Each test with the mark `each_runner` in tests/spark runs on both. A test needs Spark for what Spark does between the
tasks, for its Kafka source, for column handlers, and for a handler that kills its worker: here that is this process.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import pyarrow as pa

from ackline.handler import Tier, tier_of
from ackline.spark.job import ReplayResult, result_of, with_possible_isolation
from ackline.trees.in_process import manifests_of_tasks
from ackline.worker.settings import ReplayJob, TaskSettings, open_task_folder
from ackline.worker.streams import Streams, gets_batches, load_functions_of_job


def check_in_process(job: ReplayJob) -> None:
    """Raises what `run_in_process` raises before it reads a record."""
    with_possible_isolation(job, load_functions_of_job(job.settings))


def run_in_process(
    job: ReplayJob,
    manifests: Callable[[ReplayJob, TaskSettings], Sequence[pa.RecordBatch]] = manifests_of_tasks,
) -> ReplayResult:
    """Returns what `ackline.spark.job.run_replay` returns for the job, and commits nothing.

    `fetched_for_retries` also counts fresh records that are read exactly. Raises what the tasks raise, and FatalError
    for outcomes that are too many or too few.
    """
    handler = load_functions_of_job(job.settings)
    job = with_possible_isolation(job, handler)
    tps = tuple(sorted({*job.fresh, *job.retries}))
    topics = {tp.topic for tp in tps}
    tier = Tier.RECORD if isinstance(handler, Streams) else tier_of(handler)
    topic = topics.pop() if len(topics) == 1 else None
    once, turn = job.settings.once, job.target.turn
    opens = once and job.folder is None
    with open_task_folder(job.target.root, turn, once) if opens else nullcontext(job.folder) as folder:
        task = TaskSettings(
            job.target, job.settings, tier, topic, job.max_rate, folder, tps, progress=job.progress,
            waiting=job.waiting, gets_batches=gets_batches(handler),
        )  # fmt: skip
        batches = manifests(job, task)
    return result_of([SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()], job)
