"""The maintenance DAG: cheap to parse, every six hours, and its one task does what `ackline maintain` does."""

from pathlib import Path

import pytest
from airflow.sdk import BaseOperator, Context, CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowFailException

from ackline.airflow.operate import maintenance_dag
from ackline.tables.schemas import TABLES
from ackline.tables.store import LedgerStore
from tests.airflow.project import parsed
from tests.tables.lane_rows import plan, settlement


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaseOperator:
    """The DAG's task; its audit root is `tmp_path`."""
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    [task] = maintenance_dag("dags/maintenance.py").tasks
    assert isinstance(task, BaseOperator)
    return task


def test_parsing_opens_no_socket_and_loads_nothing_heavy() -> None:
    result = parsed("maintenance.py")
    assert (result["dags"], result["heavy"], result["opened"]) == (["ackline_maintenance"], [], [])


def test_it_runs_every_six_hours_one_run_at_a_time_and_without_catchup() -> None:
    """The next run does what a run left undone."""
    made = maintenance_dag("dags/maintenance.py")
    assert made.timetable == CronDataIntervalTimetable("20 */6 * * *", timezone="UTC")
    assert (made.max_active_runs, made.catchup) == (1, False)
    assert [(task.task_id, task.retries) for task in made.tasks] == [("maintain", 4)]


def test_its_task_maintains_the_tables_below_the_audit_root(task: BaseOperator, tmp_path: Path) -> None:
    """It returns what it did, in numbers."""
    store = LedgerStore(str(tmp_path), "orders", "live")
    store.store_settlement(settlement(0))
    store.store_plan(plan(1))
    store.store_outcomes(plan(1).turn, [])
    store.store_settlement(settlement(1), plan(1))
    done = task.execute(Context())
    assert (done["tables"], done["files"]) == (3, 2)
    assert {table["table"]: table["files"] for table in done["most_files"]} == {
        name: name != "outcomes" for name in TABLES
    }


def test_an_error_that_no_retry_can_solve_fails_at_once(task: BaseOperator, tmp_path: Path) -> None:
    """A damaged Delta log stays damaged."""
    LedgerStore(str(tmp_path), "orders", "live").store_settlement(settlement(0))
    for entry in (tmp_path / "orders" / "settlements" / "_delta_log").glob("*.json"):
        entry.write_text("{rubbish")
    with pytest.raises(AirflowFailException, match="the table settlements at"):
        task.execute(Context())
