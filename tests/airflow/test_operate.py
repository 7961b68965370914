"""The forms of the DAGs, and the DAGs `operate__NAME` and `ackline_maintenance`, which do what the commands do."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG, BaseOperator, Context, CronDataIntervalTimetable, TriggerRule
from airflow.sdk.definitions.param import ParamsDict, process_params
from airflow.sdk.exceptions import AirflowFailException, DownstreamTasksSkipped, ParamValidationError

from ackline.airflow import operate, operators
from ackline.airflow.backfill import backfill_dag
from ackline.airflow.dags import replay_dag
from ackline.airflow.operate import maintenance_dag, operate_dag, run_params
from ackline.airflow.operators import PlanOperator, SettleOperator, airflow_errors
from ackline.forms.form import EVERYTHING, SETTING, Entered, RunRequest, run_request
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.pipeline.pipeline import Pipeline
from ackline.tables.schemas import TABLES
from ackline.tables.store import LedgerStore
from tests.support.memory_lane import FAILS, FAILS_ONCE, OK, TP, MemoryLane
from tests.support.pipeline_files import GOOD
from tests.tables.lane_rows import plan as plan_rows
from tests.tables.lane_rows import settlement

LATER = {"initial_delay": "1h", "period": "1h"}


class Form:
    """The trigger form of a lane's DAG."""

    def __init__(self, lane: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lane = lane
        opened = lambda *_, actor, **__: nullcontext(lane.adapters("manual__1", actor=actor))  # noqa: E731
        monkeypatch.setattr(operate, "opened", opened)

    def dag(self) -> DAG:
        return operate.operate_dag(self.lane.adapters().pipeline, "dags/operate.py")

    def trigger(self, **values: Any) -> dict[str, Any]:
        """Fill the form in and run the task; returns what it returns."""
        dag = self.dag()
        [task] = dag.tasks
        assert isinstance(task, operate.OperateOperator)
        run = SimpleNamespace(triggering_user_name="ada", conf=values)
        params = process_params(dag, task, values, suppress_exception=False)
        context: Any = {"params": params, "dag_run": run, "run_id": "manual__1"}
        result: dict[str, Any] = task.execute(context)
        return result


@pytest.fixture
def lane() -> MemoryLane:
    """A lane with two pending records and three unread ones."""
    lane = MemoryLane(OK, FAILS_ONCE, OK, FAILS, retry=LATER).after_run()
    lane.produce(OK, OK, OK)
    return lane


@pytest.fixture
def form(lane: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> Form:
    return Form(lane, monkeypatch)


ACTS: list[dict[str, Any]] = [
    {"action": "retry", "offsets": "1"},
    {"action": "skip", "to": "6"},
    {"action": "skip", "error_class": "ValueError"},
    {"action": "reset", "to": "earliest"},
    {"action": "reset", "by": "-1"},
    {"action": "pause", "topics": ["orders"], "partitions": [0]},
    {"action": "resume"},
]


@pytest.mark.parametrize("values", ACTS, ids=lambda values: " ".join(map(str, values.values())))
def test_s73_a_run_changes_nothing_unless_it_is_confirmed(values: dict[str, Any], lane: MemoryLane, form: Form) -> None:
    written = len(lane.world.history)
    shown = form.trigger(reason="a test", **values)
    assert (shown["dry_run"], len(lane.world.history)) == (True, written)
    done = form.trigger(reason="a test", confirm=True, **values)
    assert done == {**shown, "dry_run": False}
    settlement = list(lane.world.tables.settlements.values())[-1]
    assert (settlement.kind, settlement.actor, settlement.reason) == (values["action"], "ada", "a test")


def test_a_void_and_an_adoption_are_acts_of_the_same_form(lane: MemoryLane, form: Form) -> None:
    lane.plan()
    assert form.trigger(action="void", reason="a test", pause=True)["consequence"] == "void"
    assert form.trigger(action="void", reason="a test", pause=True, confirm=True)["not_paused"] is None
    assert (lane.kinds()[-1], lane.settled().paused) == ("void", True)
    lane.move_group(TP, 2, '{"ledger": "lost", "pipeline": "lane", "epoch": 0, "n": 9}')
    shown = form.trigger(action="adopt-ledger", reason="a test")
    assert (shown["ledgers"], shown["dry_run"]) == (["lost"], True)
    assert form.trigger(action="adopt-ledger", reason="a test", confirm=True) == {**shown, "dry_run": False}
    assert (lane.committed(), lane.ranges(Outcome.SKIPPED)) == (1, [])


@pytest.mark.parametrize(
    "values",
    [{"action": "delete"}, {"partitions": [-1]}, {"partitions": ["x"]}, {"topics": ["a/b"]}, {"by": "5"},
     {"offsets": "1/2"}, {"confirm": "yes"}, {"reason": "x" * 501}, {"partitions": []}, {"topics": []}],
    ids=str,
)  # fmt: skip
def test_the_form_refuses_wrong_values(values: dict[str, Any], form: Form) -> None:
    with pytest.raises(ParamValidationError):
        form.trigger(**values)


def test_a_run_that_changes_nothing_needs_no_reason(form: Form) -> None:
    assert form.trigger(action="reset", to="6")["dry_run"] is True


@pytest.mark.parametrize(("values", "message"), [
    ({"action": "skip", "to": "6"}, "reason: skip needs one"),
    ({"action": "reset", "to": "6", "reason": " "}, "reason: reset needs one"),
    ({"action": "pause", "to": "6"}, "to: pause takes no such value"),
    ({"action": "skip", "to": "soon", "reason": "x"}, "to: give an offset"),
    ({"action": "skip", "offsets": ":", "reason": "x"}, r"offsets: write A:B .*\(empty\)"),
    ({"action": "skip", "to": "0", "reason": "x"}, "below the floor"),
    ({"action": "pause", "partitions": [7]}, "no partition with --partition 7"),
    ({"action": "skip", "to": "latest", "partition": [3], "reason": "x"}, "partition: .*; did you mean partitions?"),
    ({"action": "skip", "to": "", "reason": "x"}, "to: an empty text chooses nothing"),
    ({"action": "pause", "dag": "x"}, "dag: the DAG has no such param; it has action, all_partitions, by, "),
    ({"action": "adopt-ledger", "reason": "x"}, "nothing to adopt"),
])  # fmt: skip
def test_the_task_refuses_what_the_form_can_not(values: dict[str, Any], message: str, form: Form) -> None:
    with pytest.raises(AirflowFailException, match=message):
        form.trigger(confirm=True, **values)
    assert form.lane.kinds() == ["genesis", "run"]


LIMIT = 100


@pytest.fixture
def params() -> ParamsDict:
    pipeline = Pipeline.model_validate({**yaml.safe_load(GOOD), "max_records_per_run": LIMIT})
    return ParamsDict(run_params(pipeline))


@pytest.mark.parametrize(("make", "tasks"), [
    (backfill_dag, [("begin", 4), ("replay", 4)]),
    (operate_dag, [("operate", 0)]),
    (replay_dag, [("plan", 4), ("replay", 4), ("settle", 4)]),
])  # fmt: skip
def test_each_field_has_a_title_and_a_description_and_an_act_is_never_retried(
    make: Callable[[Pipeline, str], DAG], tasks: list[tuple[str, int]], params: ParamsDict
) -> None:
    assert set(params) == {"max_records", "only_retries", "partitions", "table_gone", "confirm_offsets"}
    dag = make(Pipeline.model_validate(yaml.safe_load(GOOD)), "dags/file.py")
    for name in dag.params:
        assert dag.params.get_param(name).schema["title"], name
        assert dag.params.get_param(name).description, name
    assert [(task.task_id, task.retries) for task in dag.tasks] == tasks
    assert (dag.max_active_runs == 1) == (make is not backfill_dag)
    assert not dag.schedule, "the pipeline file has none"


@pytest.mark.parametrize("make", [backfill_dag, operate_dag, replay_dag])
def test_a_form_is_short_has_confirm_in_sight_and_asks_for_nothing_that_may_be_empty(
    make: Callable[[Pipeline, str], DAG],
) -> None:
    """Airflow's form shows a star at each field whose type has no null, all fields of a DAG, those of named sections
    closed, and `null` for a choice that has no text of its own."""
    params = make(Pipeline.model_validate(yaml.safe_load(GOOD)), "dags/file.py").params
    schemas = {name: params.get_param(name).schema for name in params}
    starred = [name for name, schema in schemas.items() if "null" not in schema["type"]]
    assert starred == (["action"] if make is operate_dag else [])
    open_ = [name for name, schema in schemas.items() if "section" not in schema]
    expected = {
        "backfill_dag": ["ranges", "confirm"],
        "operate_dag": ["action", "reason", "confirm"],
        "replay_dag": ["max_records", "only_retries", "partitions"],
    }
    assert open_ == expected[make.__name__]
    assert list(schemas)[: len(open_)] == open_, "they come first"
    for name, schema in schemas.items():
        if None in schema.get("enum", ()):
            assert schema["values_display"]["null"], name
        if schema["type"] == ["null", "array"]:
            assert schema["items"].get("type") in (None, "string"), "a line for each, and no editor of JSON"


def test_the_sections_of_the_form_name_the_actions_that_take_their_fields() -> None:
    titles = dict.fromkeys(param.schema.get("section") for param in operate.operate_params().values())
    assert list(titles) == [
        None,
        "Which partitions and records: retry, skip, reset, pause, resume",
        "Where to: skip, reset",
        "The open turn: void",
    ]


def test_numbers_may_come_as_lines_of_text(form: Form) -> None:
    texts, numbers = (form.trigger(action="pause", partitions=chosen) for chosen in (["0"], [0]))
    assert texts == numbers


def test_a_scheduled_run_has_the_defaults_and_asks_for_everything(params: ParamsDict) -> None:
    assert run_request(Entered(params.validate(), by_option=False), LIMIT) == EVERYTHING


VALID: list[tuple[dict[str, Any], RunRequest]] = [
    ({"max_records": 100}, RunRequest(100)),
    ({"only_retries": True}, RunRequest(only_retries=True)),
    ({"partitions": ["orders[0]", "a.b_c-d[12]"]},
     RunRequest(partitions=frozenset({TopicPartition("orders", 0), TopicPartition("a.b_c-d", 12)}))),
    ({"table_gone": ["totals"]}, RunRequest(table_gone=("totals",))),
]  # fmt: skip
WRONG: list[dict[str, Any]] = [
    {"max_records": 0}, {"max_records": 101}, {"max_records": "5"}, {"max_records": 1.5}, {"only_retries": "yes"},
    {"partitions": []}, {"partitions": "orders[0]"}, {"partitions": ["orders"]}, {"partitions": ["orders[-1]"]},
]  # fmt: skip


@pytest.mark.parametrize(("values", "request_"), VALID, ids=["max_records", "only_retries", "partitions", "table_gone"])
def test_the_form_and_the_task_take_the_same_values(
    params: ParamsDict, values: dict[str, Any], request_: RunRequest
) -> None:
    params.update(values)
    assert run_request(Entered(params.validate(), by_option=False), LIMIT) == request_


@pytest.mark.parametrize("values", WRONG, ids=str)
def test_a_wrong_value_is_refused_in_the_form_and_again_in_the_task(params: ParamsDict, values: dict[str, Any]) -> None:
    def trigger() -> None:
        params.update(values)
        params.validate()

    with pytest.raises(Exception, match="Invalid input for param"):
        trigger()
    with pytest.raises(AirflowFailException), airflow_errors():
        run_request(Entered(values, by_option=False), LIMIT)


def tasks_open(lane: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the tasks of a DAG open this lane, and check neither its handler nor the connection of Spark."""
    monkeypatch.setattr(operators, "opened", lambda *_: nullcontext(lane.adapters()))
    monkeypatch.setattr(operators, "DriverHook", lambda *_, **__: None)
    monkeypatch.setattr("ackline.pipeline.functions.check_functions", lambda *_: None)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MemoryLane]:
    """Runs the plan task of a run with these params on a lane; returns the lane."""

    def run(lane: MemoryLane, **values: Any) -> MemoryLane:
        tasks_open(lane, monkeypatch)
        context: Any = {"run_id": "manual__1", "params": values}
        PlanOperator(task_id="plan", pipeline=lane.adapters().pipeline).execute(context)
        return lane

    return run


def test_the_plan_of_a_triggered_run_reads_what_its_params_allow_and_stores_them(
    plan: Callable[..., MemoryLane],
) -> None:
    lane = plan(MemoryLane(OK, OK, OK), max_records=2, only_retries=False, partitions=["orders[0]"])
    open_plan = lane.adapters().store.open_plan(lane.newest())
    assert open_plan is not None
    assert len(open_plan.partitions[TP].fresh) == 2
    assert open_plan.settings[SETTING] == {"max_records": 2, "partitions": ["orders[0]"]}


def test_params_that_come_past_the_form_are_refused_before_anything_is_stored(
    plan: Callable[..., MemoryLane],
) -> None:
    lane = MemoryLane(OK)
    for values, message in (
        ({"max_records": -1}, "max_records: not valid"),
        ({"max_record": 1}, "max_record: .*; did you mean max_records?"),
        ({"partitions": []}, "partitions: not valid"),
    ):
        with pytest.raises(AirflowFailException, match=message):
            plan(lane, **values)
    assert lane.adapters().store.newest() is None


def test_a_conf_that_airflow_does_not_pass_on_is_refused(
    lane: MemoryLane, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the option Airflow runs the task with the defaults of its params."""
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "False")
    with pytest.raises(AirflowFailException, match="action: the conf of this run does not reach its params"):
        form.trigger(action="pause", confirm=True)
    assert lane.kinds() == ["genesis", "run"]


def test_a_plan_that_is_open_stays_as_it_is_and_the_log_names_that(
    plan: Callable[..., MemoryLane], capsys: pytest.CaptureFixture[str]
) -> None:
    lane = MemoryLane(OK, OK)
    before = lane.plan()
    plan(lane, only_retries=True)
    assert lane.adapters().store.open_plan(lane.newest()) == before
    assert "the params of this run do not apply to it" in capsys.readouterr().out


def test_a_plan_that_reads_nothing_stores_its_outcomes_and_skips_replay_and_settle_settles_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I11: an empty turn has its outcomes commit too, and settle runs after a replay that was skipped."""
    lane, pushed = MemoryLane(), dict[str, Any]()
    tasks_open(lane, monkeypatch)
    monkeypatch.setattr("ackline.airflow.metrics.publish_metrics", lambda *_: None)
    ti = SimpleNamespace(
        xcom_push=lambda key, value: pushed.update({key: value}), xcom_pull=lambda task_ids: pushed["return_value"]
    )
    context: Any = {"run_id": "manual__1", "params": {}, "ti": ti}
    dag = replay_dag(lane.adapters().pipeline, "dags/replay.py")
    plan_task, settle_task = dag.get_task("plan"), dag.get_task("settle")
    assert isinstance(plan_task, PlanOperator)
    assert isinstance(settle_task, SettleOperator)
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        plan_task.execute(context)
    plan = lane.adapters().store.open_plan(lane.newest())
    assert plan is not None
    assert (skipped.value.tasks, plan.empty, pushed["return_value"]["turn"]) == (["replay"], True, 1)
    assert lane.adapters().store.has_outcomes(plan.turn)
    assert settle_task.trigger_rule == TriggerRule.NONE_FAILED
    assert settle_task.execute(context)["turn"] == 1
    lane.produce(OK)
    assert plan_task.execute(context)["totals"]["fresh"] == 1


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaseOperator:
    """The DAG's task; its audit root is `tmp_path`."""
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    [task] = maintenance_dag("dags/maintenance.py").tasks
    assert isinstance(task, BaseOperator)
    return task


def test_it_runs_every_six_hours_one_run_at_a_time_and_without_catchup() -> None:
    made = maintenance_dag("dags/maintenance.py")
    assert made.timetable == CronDataIntervalTimetable("20 */6 * * *", timezone="UTC")
    assert (made.max_active_runs, made.catchup) == (1, False)
    assert [(task.task_id, task.retries) for task in made.tasks] == [("maintain", 4)]


def test_its_task_maintains_the_tables_below_the_audit_root(task: BaseOperator, tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), "orders", "live")
    store.store_settlement(settlement(0))
    store.store_plan(plan_rows(1))
    store.store_outcomes(plan_rows(1).turn, [])
    store.store_settlement(settlement(1), plan_rows(1))
    done = task.execute(Context())
    assert (done["tables"], done["files"]) == (3, 2)
    assert {table["table"]: table["files"] for table in done["most_files"]} == {
        name: name != "outcomes" for name in TABLES
    }


def test_an_error_that_no_retry_can_solve_fails_at_once(task: BaseOperator, tmp_path: Path) -> None:
    LedgerStore(str(tmp_path), "orders", "live").store_settlement(settlement(0))
    for entry in (tmp_path / "orders" / "settlements" / "_delta_log").glob("*.json"):
        entry.write_text("{rubbish")
    with pytest.raises(AirflowFailException, match="the table settlements at"):
        task.execute(Context())
