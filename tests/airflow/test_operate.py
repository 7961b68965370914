"""The DAG `operate__NAME`: its form, and that its task does what the command does."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

from ackline.airflow import operate
from ackline.ledger.outcomes import Outcome
from tests.airflow.project import parsed
from tests.airflow.test_parsing import here
from tests.support.memory_lane import FAILS, FAILS_ONCE, OK, TP, MemoryLane

__all__ = ["here"]

LATER = {"initial_delay": "1h", "period": "1h"}


class Form:
    """The trigger form of a lane's DAG."""

    def __init__(self, lane: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lane = lane

        @contextmanager
        def opened(*_: Any, actor: str, **__: Any) -> Iterator[Any]:
            yield lane.adapters("manual__1", actor=actor)

        monkeypatch.setattr(operate, "opened", opened)

    def dag(self) -> DAG:
        return operate.operate_dag(self.lane.adapters().pipeline, "dags/operate.py")

    def trigger(self, **values: Any) -> dict[str, Any]:
        """Fill the form in and run the task; returns what it returns."""
        dag = self.dag()
        dag.params.update(values)
        run = SimpleNamespace(triggering_user_name="ada")
        context: Any = {"params": dag.params.validate(), "dag_run": run, "run_id": "manual__1"}
        [task] = dag.tasks
        assert isinstance(task, operate.OperateOperator)
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
    [{"action": "delete"}, {"partitions": [-1]}, {"partitions": ["0"]}, {"topics": ["a/b"]}, {"by": "5"},
     {"offsets": "1-2"}, {"confirm": "yes"}, {"reason": "x" * 501}],
    ids=str,
)  # fmt: skip
def test_the_form_refuses_wrong_values(values: dict[str, Any], form: Form) -> None:
    with pytest.raises(ParamValidationError):
        form.trigger(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"action": "skip", "to": "6"}, "reason: skip needs one"),
        ({"action": "reset", "to": "6", "reason": " "}, "reason: reset needs one"),
        ({"action": "pause", "to": "6"}, "to: pause takes no such value"),
        ({"action": "skip", "to": "soon", "reason": "x"}, "to: give an offset"),
        ({"action": "skip", "offsets": ":", "reason": "x"}, r"offsets: write A:B .*\(empty\)"),
        ({"action": "skip", "to": "0", "reason": "x"}, "below the floor"),
        ({"action": "pause", "partitions": [7]}, "no partition with --partition 7"),
        ({"action": "adopt-ledger", "reason": "x"}, "nothing to adopt"),
    ],
)
def test_the_task_refuses_what_the_form_can_not(values: dict[str, Any], message: str, form: Form) -> None:
    with pytest.raises(AirflowFailException, match=message):
        form.trigger(confirm=True, **values)
    assert form.lane.kinds() == ["genesis", "run"]


def test_every_field_has_a_title_and_a_description_and_a_task_is_never_retried(form: Form) -> None:
    dag = form.dag()
    for name in dag.params:
        param = dag.params.get_param(name)
        assert param.schema["title"], name
        assert param.description, name
    assert not dag.schedule
    assert (dag.max_active_runs, [task.retries for task in dag.tasks]) == (1, [0])


@pytest.mark.usefixtures("here")
def test_parsing_opens_no_socket_and_loads_nothing_heavy() -> None:
    result = parsed("operate.py")
    assert (result["dags"], result["heavy"], result["opened"]) == (["operate__orders"], [], [])
