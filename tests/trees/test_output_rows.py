"""What a task does with rows for outputs, outside Spark."""

import json
import logging
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ackline.handler import SOURCE, Emit, Record
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.outputs import Output, OutputBlock
from ackline.pipeline.topology import topology
from ackline.trees import output_rows
from ackline.trees.calls import TreeCalls
from ackline.trees.output_rows import OutputRows, RowBlock
from ackline.trees.rows import Roots
from ackline.worker.settings import OutputTargets
from tests.trees.stages import NOW, SEEDS, TP, rows_block

TOTALS = Output(0, "totals", None, None)
HOUR = timedelta(hours=1)
ROOTS = Roots()


def rows(folder: Path) -> OutputRows:
    return OutputRows(OutputTargets(TurnId("shop", LIVE, 0, 1), f"{folder}/staged", {}), [TP])


def row(value: object, offset: int = 7) -> RowBlock:
    return rows_block(ROOTS, value, offset=offset)


def flushed(of_task: OutputRows) -> list[tuple[int, int, str]]:
    """The step, the offset of the record and the reason of each row that does not fit."""
    bad = list(of_task.flush(ROOTS))
    return [(each.step, ROOTS.root(int(each.edges.roots[0])).offset, each.reason) for each in bad]


def test_the_first_task_with_rows_decides_the_columns_for_all(tmp_path: Path) -> None:
    first, second = rows(tmp_path), rows(tmp_path)
    first.add(TOTALS, row({"sum": 1}))
    assert flushed(first) == []
    second.add(TOTALS, row({"sum": "many"}, 8))
    second.add(TOTALS, row({"sum": 2}))
    assert flushed(second) == [(2, 8, "a row does not fit the table totals: its sum is no long (it is of type str)")]
    [file] = second.close()
    [staged] = pq.read_table(tmp_path / "staged" / file.path).to_pylist()
    assert staged == {"_anchors": [{**TP._asdict(), "offset": 7, "attempt": 1}], "sum": 2}


def test_rows_of_nulls_alone_decide_no_columns(tmp_path: Path) -> None:
    of_task = rows(tmp_path)
    of_task.add(TOTALS, row({"sum": None}))
    [(_, _, reason)] = flushed(of_task)
    assert reason == "no columns of the table totals follow from nulls alone; write `columns`"
    of_task.add(TOTALS, row({"sum": 1.5}))
    assert flushed(of_task) == []
    assert [file.rows for file in of_task.close()] == [1]


def test_a_row_with_a_name_that_no_file_can_hold_fails_alone(tmp_path: Path) -> None:
    of_task = rows(tmp_path)
    of_task.add(TOTALS, row(json.loads('{"sum": 1, "\\ud800": 1}'), 8))
    of_task.add(TOTALS, row({"sum": 2}))
    reason = "a row does not fit the table totals: its field *** is none of the columns sum"
    assert flushed(of_task) == [(2, 8, reason)]
    assert [file.rows for file in of_task.close()] == [1]


def test_times_at_the_ends_of_the_calendar_are_staged_and_times_beyond_it_fail_alone(tmp_path: Path) -> None:
    of_task, last, first = rows(tmp_path), datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
    beyond = last.replace(tzinfo=timezone(-HOUR)), first.replace(tzinfo=timezone(HOUR))
    for offset, at in enumerate((*beyond, last, first)):
        of_task.add(TOTALS, row({"at": at}, offset))
    reason = "a row does not fit the table totals: its at is no timestamp"
    assert flushed(of_task) == [(2, offset, reason) for offset in range(2)]
    [file] = of_task.close()
    assert pq.read_table(tmp_path / "staged" / file.path)["at"].to_pylist() == [last, first]


@pytest.mark.parametrize("offset", ["12a", 1.5, Decimal("0.5"), True, 7, b"\0", datetime(2026, 1, 1, tzinfo=UTC)])
@pytest.mark.parametrize("name", ["offset", "record_timestamp"])
def test_a_field_may_have_the_name_of_a_column_of_the_ledger(name: str, offset: object, tmp_path: Path) -> None:
    of_task = rows(tmp_path)
    of_task.add(TOTALS, row({name: offset}))
    assert flushed(of_task) == []
    [file] = of_task.close()
    assert pq.read_table(tmp_path / "staged" / file.path)[name].to_pylist() == [offset]


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    of_task = rows(tmp_path)
    for number in range(output_rows._ROWS_A_GROUP):
        of_task.add(TOTALS, row({"sum": number}, number))
    assert flushed(of_task) == []
    of_task.add(TOTALS, row({"count": 1}))
    of_task.add(TOTALS, row({"sum": 1}))
    assert flushed(of_task) == []
    assert len(list((tmp_path / "staged").glob("*.parquet"))) == 1
    of_task.discard()
    assert not list((tmp_path / "staged").glob("*.parquet"))


def test_large_rows_ask_to_be_flushed(tmp_path: Path) -> None:
    of_task = rows(tmp_path)
    of_task.add(TOTALS, row({"text": "x" * (16 << 20)}))
    assert of_task.fill >= 1
    assert flushed(of_task) == []
    assert of_task.fill < 1


def test_i17_what_one_call_emits_is_staged_in_portions_however_much_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of Arrow holds 2 GiB, and more than that in one batch would stop the turn."""
    monkeypatch.setattr(output_rows, "_BYTES_A_GROUP", 1)
    of_task, text = rows(tmp_path), "x" * (1 << 20)
    for number in range(50):
        of_task.add(TOTALS, row({"text": text}, number))
    of_task.add(TOTALS, row({"text": 2 * output_rows._MAX_WAITING_BYTES * "x"}, 50))
    assert flushed(of_task) == []
    [file] = of_task.close()
    content = pq.ParquetFile(tmp_path / "staged" / file.path).metadata
    assert [content.row_group(number).num_rows for number in range(content.num_row_groups)] == [16, 16, 16, 3]


@pytest.mark.parametrize("tracked", [True, False])
def test_a_row_without_anchors_that_does_not_fit_fails_the_record_of_its_call_or_is_logged(
    tracked: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_table = topology(
        [], [OutputBlock.model_validate({"from": SOURCE, "table": "t", "columns": {"value": "long"}})]
    )
    targets = OutputTargets(TurnId("shop", LIVE, 0, 1), f"{tmp_path}/staged", {0: {"value": "long"}})
    outputs = OutputRows(targets, [TP])
    calls = TreeCalls(with_table, (), [TP], lambda: NOW, outputs)
    for offset, value in enumerate(["bad", 1, "bad"]):
        record = Record(*TP, offset, None, None, value, (), 1)
        calls.call_source(lambda each: Emit(each.value, anchors=()), record, SEEDS if tracked else None)
    events = calls.end().events
    assert [int(events.rows["offset"][number]) for number in sorted(events.notes)] == ([0, 2] if tracked else [])
    assert [file.rows for file in outputs.close()] == [1]
    with caplog.at_level(logging.WARNING):
        calls.log_dropped()
    reason = "BadOutput: a row does not fit the table t: its value is no long (it is of type str)"
    text = f"dropped 2 tuples or rows of calls without a tracked record; no record fails for them. The first: {reason}"
    assert caplog.messages == ([] if tracked else [text])


@pytest.mark.parametrize(
    ("field", "shown"),
    [(None, "amuont"), ("amuont", "amuont"), ("zebra", "***"), ("amount", None)],
)
def test_a_field_that_is_no_column_is_named_if_its_name_stands_in_the_source_of_the_handler(
    field: str | None, shown: str | None, tmp_path: Path
) -> None:
    """Any other name may be of the record, and is masked."""
    blocks = [OutputBlock.model_validate({"from": SOURCE, "table": "t", "columns": {"amount": "long"}})]
    targets = OutputTargets(TurnId("shop", LIVE, 0, 1), f"{tmp_path}/staged", {0: {"amount": "long"}})
    outputs = OutputRows(targets, [TP])
    calls = TreeCalls(topology([], blocks), (), [TP], lambda: NOW, outputs)

    def handler(record: Record) -> Emit:
        return Emit({"amuont": 1} if record.value is None else {record.value: 1})

    calls.call_source(handler, Record(*TP, 0, None, None, field, (), 1), SEEDS)
    notes = list(calls.end().events.notes.values())
    reason = f"a row does not fit the table t: its field {shown} is none of the columns amount"
    assert [reason.encode() in note for note in notes] == ([] if shown is None else [True])
    outputs.discard()
