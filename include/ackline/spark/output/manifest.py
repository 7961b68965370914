"""The manifest of a Spark task: the rows that the task returns to the driver, with its files and its counts."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from ackline.metrics import FetchTimes
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.outputs import StagedFile
from ackline.spark.output.written_file import WrittenFile
from ackline.tuples import Durations, StepCounts

_FILE_COLUMNS = {
    "path": ("string", pa.string()),
    "size": ("long", pa.int64()),
    "rows": ("long", pa.int64()),
    "outcome": ("string", pa.string()),
    "stats": ("string", pa.string()),
    "modification_time": ("long", pa.int64()),
}
_COLUMNS = _FILE_COLUMNS | {
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "calls": ("long", pa.int64()),
    "fetched": ("long", pa.int64()),
    "out_of_range": ("long", pa.int64()),
    "fetches": ("long", pa.int64()),
    "fetch_seconds": ("double", pa.float64()),
    "fetch_seconds_max": ("double", pa.float64()),
    "trees": ("long", pa.int64()),
    "unacked": ("long", pa.int64()),
    "times": ("long", pa.int64()),
    "nanoseconds": ("long", pa.int64()),
    "nanoseconds_max": ("long", pa.int64()),
    "step": ("string", pa.string()),
    "executed": ("long", pa.int64()),
    "emitted": ("long", pa.int64()),
    "acked": ("long", pa.int64()),
    "failed": ("long", pa.int64()),
    "output": ("int", pa.int32()),
}
MANIFEST_DDL = ", ".join(f"{name} {spark_type}" for name, (spark_type, _) in _COLUMNS.items())
MANIFEST_SCHEMA = pa.schema([(name, arrow_type) for name, (_, arrow_type) in _COLUMNS.items()])


def manifest(
    files: Iterable[WrittenFile],
    counts: Mapping[tuple[TopicPartition, Outcome], int],
    waits: Mapping[TopicPartition, FetchTimes],
    calls: int,
    fetched: int,
    out_of_range: int,
    trees: int = 0,
    latency: Durations | None = None,
    steps: Mapping[str, StepCounts] | None = None,
    staged: Iterable[StagedFile] = (),
    unacked: int = 0,
) -> pa.RecordBatch:
    """Returns a row for each file, for each outcome of a topic-partition with its number of `rows`, for each
    topic-partition whose records the task waited for, and one for the task's own counts. Only the first kind has a
    `path`; the third has no `outcome`, and the fourth no `topic` either.

    With steps there is also a row for each `step`, and `trees` is how many trees the task sent to the acker or, as a
    negative number, has decided, `unacked` of them as `Unacked`. `times` and `nanoseconds` are the calls of a step or,
    without a `step`, the acked trees whose latency the task has measured. A row with an `output` names a staged
    file."""
    rows: list[dict[str, Any]] = [
        {name: getattr(file, name) for name in _FILE_COLUMNS} | {"outcome": file.outcome.value} for file in files
    ]
    for (tp, outcome), number in counts.items():
        rows.append({"topic": tp.topic, "partition": tp.partition, "outcome": outcome.value, "rows": number})
    for tp, wait in waits.items():
        times = {"fetches": wait.count, "fetch_seconds": wait.seconds, "fetch_seconds_max": wait.longest}
        rows.append({"topic": tp.topic, "partition": tp.partition, **times})
    totals = {"calls": calls, "fetched": fetched, "out_of_range": out_of_range, "trees": trees, "unacked": unacked}
    rows.append(totals | _spans(latency or Durations()))
    rows += [asdict(file) for file in staged]
    rows += [{"step": name, **done.numbers(), **_spans(done.execute)} for name, done in (steps or {}).items()]
    return pa.RecordBatch.from_pylist(rows, schema=MANIFEST_SCHEMA)


def durations_of(row: Any) -> Durations:
    """Returns the durations in a row of a step, or in that of a task's own counts."""
    return Durations(row.times, row.nanoseconds, row.nanoseconds_max)


def _spans(durations: Durations) -> dict[str, int]:
    return {"times": durations.count, "nanoseconds": durations.total, "nanoseconds_max": durations.longest}
