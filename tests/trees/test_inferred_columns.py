"""How the tasks of a turn infer the columns of a table that does not exist yet, and what the driver reads of them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.published import StagedFile
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline import output_columns
from ackline.pipeline.outputs import Output
from ackline.stored import DamagedError
from ackline.trees.output_rows import InferredColumns, OutputRows, columns_of_staged, staged_path
from ackline.trees.rows import Roots
from ackline.worker.settings import OutputTargets
from tests.trees.stages import rows_block

TOTALS = Output(0, "totals", None, None)
TP = TopicPartition("orders", 3)

MakeTask = Callable[..., "Task"]


class Task:
    def __init__(self, folder: Path, begun: dict[str, str]) -> None:
        self._folder, self._begun = folder, begun
        self._rows = OutputRows(OutputTargets(TurnId("shop", LIVE, 0, 1), str(folder), {}, {0: begun}), [TP])
        self._roots = Roots()
        self._files: list[StagedFile] = []

    def stage(self, *values: Any) -> list[str]:
        """Stages rows as one batch. Returns the reason for each row that does not fit."""
        self._rows.add(TOTALS, rows_block(self._roots, *values))
        found = self._rows.flush(self._roots)
        return [bad.reason.removeprefix("a row does not fit the table totals: ") for bad in found]

    def close(self) -> list[dict[str, Any]]:
        self._files = self._rows.close()
        tables = [pq.read_table(self._folder / file.path).drop_columns(["_anchors"]) for file in self._files]
        assert [file.rows for file in self._files] == [table.num_rows for table in tables]
        return [row for table in tables for row in table.to_pylist()]

    @property
    def columns(self) -> Any:
        """What the driver names as columns of these files."""
        return columns_of_staged(str(self._folder), "totals", self._begun, [file.path for file in self._files])


@pytest.fixture
def task(tmp_path: Path) -> MakeTask:
    return lambda **begun: Task(tmp_path, begun)


def test_a_field_that_comes_later_becomes_a_column(task: MakeTask) -> None:
    one = task()
    assert one.stage({"id": 1, "note": None}, {"id": 2}) == []
    assert one.stage({"id": 3, "note": "late"}, {"id": 4}) == []
    assert one.stage({"id": 5, "price": 1.5}) == []
    assert one.close() == [
        {"id": 1}, {"id": 2}, {"id": 3, "note": "late"}, {"id": 4, "note": None}, {"id": 5, "note": None, "price": 1.5},
    ]  # fmt: skip
    assert one.columns == {"id": "long", "note": "string", "price": "double"}


def test_rows_without_a_field_in_common_share_a_table(task: MakeTask) -> None:
    one = task()
    assert one.stage("oops") == []
    assert one.stage({"id": 1}, {"id": 2}) == []
    assert one.close() == [{"value": "oops"}, {"value": None, "id": 1}, {"value": None, "id": 2}]


def test_a_field_of_one_task_has_the_type_that_the_first_task_has_given_it(task: MakeTask) -> None:
    first, second = task(), task()
    assert first.stage({"id": 1}) == []
    assert first.stage({"id": 1, "note": "text"}) == []
    assert second.stage({"id": 2, "note": 7}) == ["its note is no string (it is of type int)"]
    assert second.stage({"id": 2, "price": 1.5}) == []
    assert first.stage({"id": 1, "price": 2}, {"price": "free"}) == ["its price is no double (it is of type str)"]
    assert second.close() == [{"id": 2, "note": None, "price": 1.5}]
    assert first.close() == [{"id": 1}, {"id": 1, "note": "text"}, {"id": 1, "note": None, "price": 2.0}]
    assert first.columns == second.columns == {"id": "long", "note": "string", "price": "double"}


def test_the_driver_names_the_columns_of_the_files_alone(task: MakeTask) -> None:
    lost, counted = task(), task()
    counted.stage({"id": 1})
    lost.stage({"id": 1, "note": "text"})
    counted.close()
    assert counted.columns == {"id": "long"}


def test_a_turn_begins_from_the_columns_of_rows_that_wait(task: MakeTask) -> None:
    one = task(id="string")
    assert one.stage({"id": 1}) == ["its id is no string (it is of type int)"]
    assert one.stage({"id": "a"}) == []
    one.close()
    assert one.columns == {"id": "string"}
    assert one.stage({"id": "b", "note": "text"}) == []
    one.close()
    assert one.columns == {"id": "string", "note": "string"}


def test_two_names_that_differ_in_case_make_one_column_whichever_task_comes_first(task: MakeTask) -> None:
    first, second = task(), task()
    assert first.stage({"id": 1, "Note": "text"}) == []
    assert second.stage({"id": 2, "note": "text"}) == ["its field note is none of the columns id and 1 more"]


def test_tasks_that_add_columns_at_once_lose_none_and_agree(tmp_path: Path) -> None:
    def add(number: int) -> InferredColumns:
        of_task = InferredColumns(str(tmp_path), "totals", {})
        for field in range(10):
            of_task.add_fields(
                [{f"of {number} {field}".replace(" ", "_"): 1, f"all_{field}": number if number % 2 else "x"}]
            )
        return of_task

    with ThreadPoolExecutor(4) as pool:
        tasks = list(pool.map(add, range(4)))
    newest = max(tasks, key=lambda of_task: of_task.number).columns
    assert len(newest) == 4 * 10 + 10
    for of_task in tasks:
        assert of_task.columns.items() <= newest.items()


def test_no_task_and_no_driver_goes_on_with_columns_that_are_damaged(tmp_path: Path) -> None:
    of_task = InferredColumns(str(tmp_path), "totals", {})
    of_task.add_fields([{"id": 1}])
    next(tmp_path.glob("columns-*-1.json")).write_text('{"id": 5}')
    with pytest.raises(DamagedError):
        InferredColumns(str(tmp_path), "totals", {}).add_fields([{"id": 1}])
    with pytest.raises(DamagedError):
        columns_of_staged(str(tmp_path), "totals", {}, [staged_path(0, 1)])


def test_a_row_with_fields_beyond_the_limit_of_inferred_columns_fails(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_columns, "MOST_INFERRED", 3)
    one = task()
    (bad,) = one.stage(*({f"customer_{number}": 1} for number in range(4)))
    assert bad.startswith("its field customer_3 is none of the columns customer_")
    assert len(one.close()) == 3
