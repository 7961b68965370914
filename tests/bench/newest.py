"""`make bench`, eighth part: what tables with `rows: newest` cost a turn that goes forward, and a large correction.

The turns and the tables are real; Kafka is in memory, and tasks run in this process. The correction replaces one record
in a hundred of a table that a lane has filled in files of a million rows: those of one stretch of each partition, and,
in a table of a tenth of the size, each hundredth record, which is in each file.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from rich.console import Console

from ackline.delta.files import DataFileWriter
from ackline.delta.reads import table_files
from ackline.ledger.offsets import Ranges, TopicPartition
from ackline.ledger.published import FinalFile, TableOfTurn, marks_with
from ackline.ledger.turns import LIVE, TurnId, number_of
from ackline.outputs import publish, settled, written
from ackline.outputs.newest_rows import OlderRows
from ackline.outputs.output_table import ANCHORS, OF_ROW, OUTPUT_LAYOUT, OutputTable
from tests.bench.figures import MIB, Figure, measure, show_figures, sizes_from
from tests.worker.disk_lane import DiskBackfill, lane_of

RECORDS, TURNS = 20_000, 5
MOST_PERCENT = 2
"""Of the time of a turn, what may go into the marks of its tables and the question whether they hold older rows."""
ROWS, PARTITIONS, A_FILE, OFTEN = 100_000_000, 4, 1_000_000, 100
MOST_MIB = 1_024
FILE = {"handler": "tests.worker.disk_handlers:emit", "outputs": [{"from": "source", "table": "totals"}]}
OWN = ((settled, "_replacing"), (publish, "_upon"), (written._Named, "add"))
"""What a turn does for `rows: newest` alone."""


def main() -> None:
    sizes = sizes_from(
        "newest",
        __doc__,
        records=(RECORDS, "records of a turn"),
        turns=(TURNS, "turns"),
        rows=(ROWS, "rows of the table"),
    )
    console = Console()
    spent, whole = forward(sizes.records, sizes.turns)
    most = Figure(
        "of a turn for newest rows", 100 * spent / whole, "%", most=MOST_PERCENT, note=f"{whole:.1f} s a turn"
    )
    show_figures(console, f"a turn of {sizes.records:,} records with a row each, after a backfill", [most])
    for name, rows, every in (("one stretch", sizes.rows, False), ("each hundredth", sizes.rows // 10, True)):
        cost = measure(correction, rows, every)
        figures = [
            Figure(
                "find the rows and write the files", cost.seconds, "s", note=f"{rows / cost.seconds:,.0f} rows a second"
            ),
            Figure("peak memory", cost.peak / MIB, "MiB more", most=MOST_MIB),
        ]
        show_figures(console, f"replace {rows // OFTEN:,} of {rows:,} rows: {name}", figures)


def forward(records: int, turns: int) -> tuple[float, float]:
    """Returns the seconds of a turn that `rows: newest` takes, and those of the whole turn. A backfill has published
    in the table, so each turn has to compare its offsets with the marks."""
    spent = 0.0

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal spent
            begun = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                spent += time.perf_counter() - begun

        return wrapped

    with lane_of(FILE) as lane, ExitStack() as patches:

        def turn() -> None:
            for _ in range(records):
                lane.produce(b"{}")
            lane.run()

        turn()
        DiskBackfill(lane, "b", "orders:0:0-1").run()
        for owner, name in OWN:
            patches.enter_context(patch.object(owner, name, timed(getattr(owner, name))))
        begun = time.perf_counter()
        for _ in range(turns):
            turn()
        return spent / turns, (time.perf_counter() - begun) / turns


def correction(rows: int, scattered: bool) -> Callable[[], object]:
    """Returns the correction of a table with so many rows, which this fills first."""
    folder = TemporaryDirectory(prefix="ackline-bench-")
    table, of_partition = OutputTable(f"{folder.name}/table", {"id": "long"}), rows // PARTITIONS
    table.create()
    turn, files = TurnId("bench", LIVE, 0, 1), list[FinalFile]()
    for partition in range(PARTITIONS):
        for start in range(0, of_partition, A_FILE):
            files.append(filled(table, turn, partition, start, min(start + A_FILE, of_partition)))
    ends = {f"orders/{partition}": of_partition for partition in range(PARTITIONS)}
    marks = marks_with({}, TableOfTurn(rows, files, ends=ends), is_new=True)
    table.append(written.entries(files), "ackline/l/bench/live/output", number_of(turn, 1), more=marks)
    older = OlderRows(table, chosen(of_partition, scattered), lambda *_: {}, TurnId("bench", "backfill-b", 0, 1))
    return partial(_correct, older, folder)


def _correct(older: OlderRows, _: object) -> None:
    table, before = older.table, rows_of(older.table)
    assert table.append([], "ackline/l/bench/backfill-b/output", 1, upon=older.without)
    assert before - rows_of(table) == sum(int((ends - starts).sum()) for starts, ends in older.records.values())


def rows_of(table: OutputTable) -> int:
    """Returns how many rows a table has."""
    return sum(table_files(table.opened())["num_records"].to_pylist())


def chosen(of_partition: int, scattered: bool) -> dict[TopicPartition, Ranges]:
    """Returns one record in a hundred of each partition."""
    starts = np.arange(0, of_partition, OFTEN) if scattered else np.array([of_partition // 2])
    ends = starts + (1 if scattered else of_partition // OFTEN)
    return {TopicPartition("orders", partition): (starts, ends) for partition in range(PARTITIONS)}


def filled(table: OutputTable, turn: TurnId, partition: int, start: int, end: int) -> FinalFile:
    """Writes a file with a row for each of these records."""
    offsets, number = pa.array(np.arange(start, end)), end - start
    ones = pa.array(np.ones(number, np.int32))
    topics = pa.array(["orders"] * number)
    partitions = pa.array(np.full(number, partition, np.int32))
    of_row = pa.StructArray.from_arrays(
        [topics, partitions, offsets, ones, pa.array(["acked"] * number)], [field.name for field in ANCHORS.value_type]
    )
    anchors = pa.ListArray.from_arrays(pa.array(np.arange(number + 1, dtype=np.int32)), of_row)
    columns = [topics, partitions, offsets, ones, pa.array([LIVE] * number), pa.array(np.zeros(number, np.int32)),
               pa.array(np.full(number, turn.n)), anchors, offsets]  # fmt: skip
    schema = pa.schema([*OF_ROW.remove_metadata(), ("id", pa.int64())])
    writer = DataFileWriter(table.storage, f"{partition}-{start}.parquet", schema)
    writer.write(pa.Table.from_arrays(columns, schema=schema), OUTPUT_LAYOUT.rows)
    done = writer.finish()
    return FinalFile(done.path, done.size, done.modification_time, {}, done.stats)


if __name__ == "__main__":
    main()
