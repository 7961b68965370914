"""What a task does with rows for outputs, outside Spark."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from ackline.offsets import TopicPartition
from ackline.outputs import Output
from ackline.spark.settings import OutputTargets
from ackline.spark.trees import output_rows
from ackline.spark.trees.answers import EmittedRow
from ackline.spark.trees.edge_columns import EdgeColumns
from ackline.spark.trees.output_rows import BadRow, OutputRow, OutputRows
from ackline.spark.trees.payload import copied
from ackline.turns import LIVE, TurnId

TOTALS = Output(0, "totals", None, None)
EDGES = EdgeColumns()
TP = TopicPartition("orders", 3)


def rows(folder: Path) -> OutputRows:
    return OutputRows(OutputTargets(TurnId("shop", LIVE, 0, 1), f"{folder}/staged", str(folder), {}), [TP])


def row(value: object, offset: int = 7) -> OutputRow:
    EDGES.add_input_edge(0, offset, 1, 99)
    return OutputRow(2, EmittedRow(None, *copied(value)), (len(EDGES.parents) - 1,))


def flushed(of_task: OutputRows) -> list[BadRow]:
    return list(of_task.flush(EDGES.resolve()))


def test_the_first_task_with_rows_decides_the_columns_for_all(tmp_path: Path) -> None:
    first, second = rows(tmp_path), rows(tmp_path)
    first.add(TOTALS, row({"sum": 1}))
    assert flushed(first) == []
    bad = row({"sum": "many"})
    second.add(TOTALS, bad)
    second.add(TOTALS, row({"sum": 2}))
    assert flushed(second) == [BadRow(bad, "a row does not fit the table totals: its sum is no long")]
    [file] = second.close()
    [staged] = pq.read_table(tmp_path / "staged" / file.path).to_pylist()
    assert staged == {"_anchors": [{**TP._asdict(), "offset": 7, "attempt": 1}], "sum": 2}
    assert json.loads((tmp_path / output_rows.columns_file("totals")).read_text()) == {"sum": "long"}


def test_rows_of_nulls_alone_decide_no_columns(tmp_path: Path) -> None:
    of_task = rows(tmp_path)
    of_task.add(TOTALS, row({"sum": None}))
    [bad] = flushed(of_task)
    assert bad.reason == "no columns of the table totals follow from nulls alone; write `columns`"
    of_task.add(TOTALS, row({"sum": 1.5}))
    assert flushed(of_task) == []
    assert [file.rows for file in of_task.close()] == [1]


def test_a_row_with_a_name_that_no_file_can_hold_fails_alone(tmp_path: Path) -> None:
    of_task = rows(tmp_path)
    bad = row(json.loads('{"sum": 1, "\\ud800": 1}'))
    of_task.add(TOTALS, bad)
    of_task.add(TOTALS, row({"sum": 2}))
    assert flushed(of_task) == [
        BadRow(bad, "a row does not fit the table totals: it has a field that is no column there")
    ]
    assert [file.rows for file in of_task.close()] == [1]


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    of_task = rows(tmp_path)
    for number in range(output_rows._ROWS_A_GROUP):
        of_task.add(TOTALS, row({"sum": number}, number))
    assert flushed(of_task) == []
    assert list((tmp_path / "staged").iterdir())
    of_task.discard()
    assert not list((tmp_path / "staged").iterdir())


def test_large_rows_ask_to_be_flushed(tmp_path: Path) -> None:
    of_task = rows(tmp_path)
    of_task.add(TOTALS, row({"text": "x" * (16 << 20)}))
    assert of_task.full
    assert flushed(of_task) == []
    assert not of_task.full
