"""A run of Airflow's own backfill on a lane in memory. It plays the run of `backfill__NAME` by that DAG's operators."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.param import process_params
from airflow.sdk.exceptions import (
    DagRunTriggerException,
    DownstreamTasksSkipped,
)

from ackline.airflow import backfill, dags, interval
from ackline.airflow.backfill import BeginBackfillOperator
from ackline.airflow.interval import Interval, IntervalPlanOperator
from ackline.backfill.run import find_backfill, run_backfill
from ackline.pipeline.pipeline import Pipeline
from tests.support.memory_adapters import MemoryAdapters, memory_adapters, no_session
from tests.support.memory_lane import OK, MemoryLane

START = datetime(2026, 2, 1, tzinfo=UTC)
END = START + timedelta(days=1)
LANE = "backfill-20260201t000000z-20260202t000000z"
RUN_ID = "backfill__2026-02-02T00:00:00+00:00"


class IntervalRun:
    """The DAG run of one interval of `replay__lane`, and the runs of `backfill__lane` that it has started."""

    def __init__(self, live: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live, self.paused, self.pushed = live, False, dict[tuple[str, str, str], Any]()
        self.started, self.tries = datetime(2026, 3, 1, tzinfo=UTC), 1
        self.later_tasks: dict[str, str | None] = {"replay": None, "settle": None}
        self.params: dict[str, Any] = {}
        self.run_type: Any = SimpleNamespace(value="backfill")
        self.interval: tuple[datetime | None, datetime | None] = (START, END)
        self.run_id, self.skipped = RUN_ID, list[str]()

        @contextmanager
        def opened(
            pipeline: Pipeline, context: Any, actor: str = "airflow", lane: str = "live"
        ) -> Iterator[MemoryAdapters]:
            yield memory_adapters(live.world, pipeline, context["run_id"], lane=lane)

        for module in (interval, backfill):
            monkeypatch.setattr(module, "opened", opened)
        monkeypatch.setattr(backfill, "DriverHook", lambda *_, **__: None)
        monkeypatch.setattr("ackline.pipeline.functions.check_functions", lambda *_: None)

    def dag(self) -> DAG:
        return dags.replay_dag(self.live.adapters().pipeline, "dags/replay.py")

    def context(self, dag: DAG) -> Any:
        params = process_params(dag, dag.get_task("plan"), self.params, suppress_exception=False)
        run = SimpleNamespace(
            conf=self.params,
            run_type=self.run_type, data_interval_start=self.interval[0], data_interval_end=self.interval[1],
            start_date=self.started, triggering_user_name="ada",
        )  # fmt: skip
        return {"params": params, "dag_run": run, "run_id": self.run_id, "ti": self._ti()}

    def _ti(self) -> Any:
        def states(dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
            assert (dag_id, task_ids, run_ids) == ("replay__lane", ["replay", "settle"], [self.run_id])
            return {self.run_id: self.later_tasks}

        def pulled(task_ids: list[str], dag_id: str, run_id: str, key: str) -> list[Any]:
            return [self.pushed.get((run_id, task, key)) for task in task_ids]

        return SimpleNamespace(
            try_number=self.tries, get_task_states=states, xcom_pull=pulled,
            get_dag=lambda dag_id: SimpleNamespace(is_paused=self.paused),
            xcom_push=lambda key, value: self.pushed.update({(self.run_id, "plan", key): value}),
        )  # fmt: skip

    def task(self, task_id: str) -> tuple[Any, Any]:
        dag = self.dag()
        return dag.get_task(task_id), self.context(dag)

    # ---- what the task plan does ------------------------------------------------------------------------------------

    def plan(self) -> DagRunTriggerException | None:
        """Runs `plan`. Returns the run that it starts; None if it ends and skips the other tasks."""
        task, context = self.task("plan")
        assert isinstance(task, IntervalPlanOperator)
        try:
            task.execute(context)
        except DagRunTriggerException as started:
            return started
        except DownstreamTasksSkipped as ended:
            self.skipped = ended.tasks
            return None
        raise AssertionError("plan has planned a turn of the live lane")

    def starts(self) -> DagRunTriggerException:
        """Runs `plan`, which must start a run; returns that run."""
        started = self.plan()
        assert started is not None
        return started

    def finish(self, started: DagRunTriggerException, state: str = "success") -> Any:
        """Resumes `plan` when the started run has ended. Returns its result."""
        task, context = self.task("plan")
        event = {"run_ids": [started.dag_run_id], started.dag_run_id: state}
        with pytest.raises(DownstreamTasksSkipped):
            task.execute_complete(context, ("DagStateTrigger", event))
        return self.pushed.get((self.run_id, "plan", "return_value"))

    def whole(self) -> None:
        """Clears all tasks of the run after it has ended, as `--reprocess-behavior completed` does."""
        self.later_tasks = {"replay": None, "settle": None}
        self.started += timedelta(hours=1)
        self.tries += 1

    def cleared(self) -> None:
        """Clears the task plan alone after the run has ended."""
        self.later_tasks = {"replay": "skipped", "settle": "skipped"}
        self.started += timedelta(hours=1)
        self.tries += 1

    def retried(self) -> None:
        """The process of plan has died, and Airflow tries the task once more."""
        self.tries += 1

    # ---- what the started run does ----------------------------------------------------------------------------------

    def begin(self, started: DagRunTriggerException) -> Any:
        """Runs the task `begin` of the started run, with the values that it was started with."""
        dag = backfill.backfill_dag(self.live.adapters().pipeline, "dags/backfill.py")
        dag.params.update(started.conf or {})
        task = dag.get_task("begin")
        assert isinstance(task, BeginBackfillOperator)
        run = SimpleNamespace(triggering_user_name="ada")
        ti = SimpleNamespace(
            xcom_push=lambda key, value: self.pushed.update({(started.dag_run_id, "begin", key): value})
        )
        context: Any = {"params": dag.params.validate(), "dag_run": run, "run_id": started.dag_run_id, "ti": ti}
        return task.execute(context)

    @property
    def lane(self) -> str:
        start, end = self.interval
        assert start is not None
        assert end is not None
        return Interval(start, end).lane

    def adapters(self) -> MemoryAdapters:
        return memory_adapters(self.live.world, self.live.adapters().pipeline, "child", lane=self.lane)

    def is_settled(self) -> bool:
        found = find_backfill(self.adapters().store)
        return found is not None and found.account.settled

    def replay(self, started: DagRunTriggerException, records: int | None = None) -> None:
        """Does what the two tasks of the started run do."""
        self.begin(started)
        run_backfill(self.adapters(), no_session, records)

    def replayed(self) -> DagRunTriggerException:
        """A run of plan, of what it starts, and of plan again."""
        started = self.starts()
        self.replay(started)
        self.finish(started)
        return started

    def epoch(self) -> int | None:
        found = find_backfill(self.adapters().store)
        return None if found is None else found.newest.turn.epoch


def two_of_four(monkeypatch: pytest.MonkeyPatch) -> IntervalRun:
    """Returns a run of an interval with two of four records; the pipeline has handled all four."""
    lane = MemoryLane(retry={"max_retries": 0}, schedule="@daily", backfill={"confirm_above": 3})
    for hours in (-1, 0, 23, 24):
        lane.produce(OK, time=START + timedelta(hours=hours))
    return IntervalRun(lane.after_run(), monkeypatch)
