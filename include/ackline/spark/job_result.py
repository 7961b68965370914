"""What the tasks of a replay did, added up from the rows of their manifests (`ackline.spark.output.manifest`)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ackline.errors import FatalError
from ackline.metrics import FetchTimes
from ackline.offsets import TopicPartition, count
from ackline.outcome import Outcome
from ackline.outputs import StagedFile
from ackline.spark.output.manifest import durations_of
from ackline.spark.output.written_file import WrittenFile
from ackline.spark.settings import ReplayJob
from ackline.step_figures import StepFigures
from ackline.topology import Topology
from ackline.tuples import SOURCE, StepCounts


@dataclass(slots=True)
class ReplayResult:
    """What the tasks of a replay did. Outcomes in `counts` that are rows are in `files`, too."""

    files: tuple[WrittenFile, ...]
    counts: Mapping[TopicPartition, Mapping[Outcome, int]]
    calls: int
    """Records that the handler got."""
    fetched_for_retries: int
    """Records that the broker sent for the retries."""
    fetches: Mapping[TopicPartition, FetchTimes] = field(default_factory=dict)
    """How long tasks waited for records."""
    out_of_range: int = 0
    """Records whose timestamp is no time."""
    steps: StepFigures | None = None
    """What the steps did; None with neither `steps` nor `outputs`."""
    staged: tuple[StagedFile, ...] = ()
    """The files with rows for output tables."""
    unacked: int = 0
    """Attempts that ended as `Unacked`."""


def result_of(rows: Iterable[Any], topology: Topology | None) -> ReplayResult:
    """Adds up the rows of all tasks' manifests (`ackline.spark.output.manifest`)."""
    files: list[WrittenFile] = []
    counts: dict[TopicPartition, dict[Outcome, int]] = {}
    fetches: dict[TopicPartition, FetchTimes] = {}
    steps = StepFigures.of_steps(topology.names if topology else ())
    staged: list[StagedFile] = []
    calls = fetched = out_of_range = trees = unacked = 0
    for row in rows:
        if row.output is not None:
            staged.append(StagedFile(row.output, row.path, row.size, row.rows))
            continue
        if row.step is not None:
            steps.steps[row.step].add(StepCounts(row.executed, row.emitted, row.acked, row.failed, durations_of(row)))
            continue
        if row.path is not None:
            file = WrittenFile(row.path, row.size, row.rows, Outcome(row.outcome), row.stats, row.modification_time)
            files.append(file)
            continue
        if row.topic is None:
            calls, fetched = calls + row.calls, fetched + row.fetched
            out_of_range += row.out_of_range
            trees += row.trees
            unacked += row.unacked
            steps.latency.add(durations_of(row))
            continue
        tp = TopicPartition(row.topic, row.partition)
        if row.outcome is None:
            waited = FetchTimes(row.fetches, row.fetch_seconds, row.fetch_seconds_max)
            fetches[tp] = fetches.get(tp, FetchTimes()) + waited
            continue
        outcome = Outcome(row.outcome)
        counts_of_tp = counts.setdefault(tp, {})
        counts_of_tp[outcome] = counts_of_tp.get(outcome, 0) + row.rows
    if trees:
        raise FatalError(f"{abs(trees)} trees were begun and not decided, or decided twice; nothing was stored")
    figures = None
    if topology is not None:
        figures = steps
        _count_records(steps.steps[SOURCE], counts.values())
    return ReplayResult(tuple(files), counts, calls, fetched, fetches, out_of_range, figures, tuple(staged), unacked)


def _count_records(source: StepCounts, counts: Collection[Mapping[Outcome, int]]) -> None:
    """Counts the records that were acked and those that failed: what Storm counts of a spout. Only the acker can."""
    source.acked = sum(of_tp.get(Outcome.ACKED, 0) for of_tp in counts)
    source.failed = sum(of_tp.get(word, 0) for of_tp in counts for word in (Outcome.FAILED, Outcome.DROPPED))


def check_counts(result: ReplayResult, job: ReplayJob) -> None:
    """Raises FatalError if a topic-partition has more outcomes than offsets, or fewer than retries."""
    for tp in {*job.fresh, *job.retries, *result.counts}:
        outcomes = sum(result.counts.get(tp, {}).values())
        least = count(job.retries.get(tp, ()))
        most = least + (len(job.fresh[tp]) if tp in job.fresh else 0)
        if not least <= outcomes <= most:
            raise FatalError(
                f"{tp}: {outcomes} outcomes for {least} to {most} records; nothing was stored",
                topic=tp.topic,
                partition=tp.partition,
            )
