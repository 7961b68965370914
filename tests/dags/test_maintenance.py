"""The DAG that keeps the tables quick: cheap to parse, every six hours, and its one task does what the command does."""

from pathlib import Path

import pytest
from airflow.sdk import BaseOperator, Context, CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowFailException

from ackline.airflow.maintenance import maintenance_dag
from ackline.audit.schemas import TABLES
from ackline.audit.store import LedgerStore
from tests.contract.lane_rows import plan, settlement
from tests.dags.project import parsed


@pytest.fixture
def task() -> BaseOperator:
    """Its task."""
    [found] = maintenance_dag("dags/maintenance.py").tasks
    assert isinstance(found, BaseOperator)
    return found


def test_parsing_opens_no_socket_and_loads_nothing_heavy() -> None:
    """As for the file that makes the pipelines' DAGs."""
    found = parsed("maintenance.py")
    assert (found["dags"], found["heavy"], found["opened"]) == (["ackline_maintenance"], [], [])


def test_it_runs_every_six_hours_one_run_at_a_time_and_never_for_days_gone_by() -> None:
    """What one run left undone, the next one does."""
    made = maintenance_dag("dags/maintenance.py")
    assert made.timetable == CronDataIntervalTimetable("20 */6 * * *", timezone="UTC")
    assert (made.max_active_runs, made.catchup) == (1, False)
    assert [(one.task_id, one.retries) for one in made.tasks] == [("maintain", 4)]


def test_its_task_maintains_the_tables_below_the_audit_root(
    task: BaseOperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says what it did, in numbers."""
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    store = LedgerStore(str(tmp_path), "orders", "live")
    store.store_settlement(settlement(0))
    store.store_plan(plan(1))
    store.store_outcomes(plan(1).turn, [])
    store.store_settlement(settlement(1), plan(1))

    done = task.execute(Context())
    assert [(one["table"], one["files"]) for one in done] == [(name, name != "outcomes") for name in TABLES]


def test_what_trying_again_does_not_mend_fails_at_once(
    task: BaseOperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is rubbish stays so."""
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    LedgerStore(str(tmp_path), "orders", "live").store_settlement(settlement(0))
    for entry in (tmp_path / "settlements" / "_delta_log").glob("*.json"):
        entry.write_text("{rubbish")
    with pytest.raises(AirflowFailException, match="the table settlements at"):
        task.execute(Context())
