"""The DAG `backfill__NAME`: its form, and that its tasks do what `ackline backfill --wait` does."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.definitions.param import process_params
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    ParamValidationError,
)

from ackline.actions.actions import perform_action
from ackline.airflow import backfill, driver, operators
from ackline.airflow.backfill import (
    POLL,
    SHORTEST_WAIT,
    BeginBackfillOperator,
    ReplayBackfillOperator,
    form_of,
    id_of_run,
)
from ackline.backfill.perform import backfill_pipeline
from ackline.backfill.run import find_backfill, run_backfill
from ackline.forms.arguments import lane_of
from ackline.ledger.account import Account
from ackline.ledger.turns import TurnKind
from ackline.pipeline.pipeline import Pipeline
from tests.support.memory_adapters import MemoryAdapters, memory_adapters, no_session
from tests.support.memory_lane import FAILS, FAILS_ONCE, OK, MemoryLane

RUN_ID = "manual__2026-03-01T12:00:00+00:00"
MINUTE = timedelta(minutes=1)


class Form:
    """The trigger form of a pipeline's DAG; its driver runs in memory."""

    def __init__(self, live: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live, self.drivers, self.pushed = live, list[list[str]](), list[Any]()
        self.killed = False

        def opened(pipeline: Pipeline, _: Any, lane: str = "live", **__: Any) -> AbstractContextManager[MemoryAdapters]:
            return nullcontext(memory_adapters(live.world, pipeline, RUN_ID, lane=lane))

        for module in (backfill, operators):
            monkeypatch.setattr(module, "opened", opened)
        monkeypatch.setattr(backfill, "DriverHook", lambda *_, **__: None)
        monkeypatch.setattr("ackline.pipeline.functions.check_functions", lambda *_: None)
        monkeypatch.setattr(ReplayBackfillOperator, "_submit", lambda task, context: self._submit(task, context))

    def _submit(self, task: ReplayBackfillOperator, context: Any) -> None:
        """Does what the driver does with its arguments."""
        self.drivers.append(task._driver_arguments(context))
        form = form_of(context)
        with task._opened(context) as adapters:
            stored = find_backfill(adapters.store)
        assert stored is not None
        pipeline = backfill_pipeline(self.live.adapters().pipeline, form.lane, stored.arguments, form.max_rate)
        adapters = memory_adapters(self.live.world, pipeline, RUN_ID, lane=form.lane)
        run_backfill(adapters, no_session, 1 if self.killed else form.max_records)
        if self.killed:
            self.killed = False
            raise RuntimeError("the driver was killed")

    def dag(self) -> DAG:
        return backfill.backfill_dag(self.live.adapters().pipeline, "dags/backfill.py")

    def context(self, values: dict[str, Any], dag: DAG | None = None) -> Any:
        dag = dag or self.dag()
        ti = SimpleNamespace(xcom_push=lambda key, value: self.pushed.append((key, value)))
        run = SimpleNamespace(triggering_user_name="ada", conf=values)
        params = process_params(dag, dag.get_task("begin"), values, suppress_exception=False)
        return {"params": params, "dag_run": run, "run_id": RUN_ID, "ti": ti}

    def begin(self, **values: Any) -> dict[str, Any]:
        """Fill the form in and run the first task; returns what it returns."""
        dag = self.dag()
        task = dag.get_task("begin")
        assert isinstance(task, BeginBackfillOperator)
        return task.execute(self.context(values, dag))

    def replay(self, **values: Any) -> dict[str, Any]:
        """Run the second task of the same run."""
        dag = self.dag()
        task = dag.get_task("replay")
        assert isinstance(task, ReplayBackfillOperator)
        return task.execute(self.context(values, dag))

    def replay_waits(self, **values: Any) -> datetime:
        """Run the second task, which must be rescheduled. Returns until when."""
        with pytest.raises(AirflowRescheduleException) as caught:
            self.replay(**values)
        until: datetime = caught.value.reschedule_date
        return until

    def lanes(self) -> list[str]:
        return list(self.live.adapters().store.lanes())


@pytest.fixture
def live() -> MemoryLane:
    """A live lane that has handled four records: two of them once more, and one of them is dead."""
    retry = {"initial_delay": "1m", "period": "1m", "max_retries": 1, "multiplier": 1}
    lane = MemoryLane(OK, FAILS_ONCE, OK, FAILS, retry=retry, backfill={"confirm_above": 3}).after_run()
    lane.world.now += MINUTE
    return lane.after_run()


@pytest.fixture
def form(live: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> Form:
    return Form(live, monkeypatch)


def test_s73_a_run_changes_nothing_unless_it_is_confirmed(form: Form) -> None:
    written = len(form.live.world.history)
    shown = form.begin(ranges=["orders:0:0-2"])
    assert (shown["dry_run"], shown["asked"]["offsets"], shown["pending"]["unread"]) == (True, 2, 2)
    with pytest.raises(AirflowSkipException, match="confirm"):
        form.replay(ranges=["orders:0:0-2"])
    assert len(form.live.world.history) == written
    assert form.begin(ranges=["orders:0:0-2"], confirm=True) == {**shown, "dry_run": False}


def test_the_expression_of_the_form_is_stored_with_the_lane_and_one_that_is_none_is_refused(form: Form) -> None:
    written = len(form.live.world.history)
    for wrong in ("value.a =", "now() > timestamp"):
        with pytest.raises(AirflowFailException, match="--where: "):
            form.begin(all=True, where=wrong, confirm=True, confirm_offsets=4)
    assert len(form.live.world.history) == written
    form.begin(ranges=["orders:0:0-2"], where="value.fail IS NULL", confirm=True)
    stored = find_backfill(form.live.adapters().store.other_lane(lane_of(id_of_run(RUN_ID))))
    assert stored is not None
    assert stored.arguments.where == "value.fail IS NULL"


def test_a_run_handles_the_chosen_records_again_and_ends_with_the_account(form: Form) -> None:
    values = {"ranges": ["orders:0:0-1", "orders:0:2-3"], "confirm": True, "reason": "a test", "max_rate": 5}
    form.begin(**values)
    done = form.replay(**values)
    assert (done["settled"], done["outcomes"], done["asked"]["offsets"]) == (True, {"acked": 2}, 2)
    lane = lane_of(id_of_run(RUN_ID))
    assert form.drivers == [["lane", f"--run-id={RUN_ID}", f"--backfill={lane}", "--max-rate=5", "--reason=a test"]]
    committed = form.live.committed()
    assert committed == 4


def test_between_due_times_the_task_is_rescheduled_and_starts_no_driver_before(form: Form) -> None:
    values = {"outcome": "dead", "id": "redrive", "confirm": True}
    form.begin(**values)
    due = form.live.world.now + MINUTE
    assert [form.replay_waits(**values), form.replay_waits(**values)] == [due, due]
    assert len(form.drivers) == 1
    form.live.world.now = due
    assert form.replay(**values)["outcomes"] == {"dead": 1}
    form.live.world.now += MINUTE
    assert form.replay(**values)["settled"]
    assert len(form.drivers) == 2, "a settled lane needs none"


def test_a_cleared_run_resumes_its_lane_and_never_chooses_anew(form: Form) -> None:
    values = {"ranges": ["orders"], "confirm": True, "confirm_offsets": 4}
    form.begin(**values)
    form.killed = True
    with pytest.raises(RuntimeError):
        form.replay(**values)
    form.live.produce(OK)
    again = form.begin(**values)
    assert (again["asked"]["offsets"], again["lane"]) == (4, lane_of(id_of_run(RUN_ID)))
    form.live.world.now = form.replay_waits(**values)
    assert form.replay(**values)["outcomes"] == {"acked": 3, "dead": 1}
    assert len(form.lanes()) == 2


def test_at_the_deadline_the_run_fails_with_the_account_and_another_run_goes_on_by_the_id(form: Form) -> None:
    deadline = form.live.world.now + timedelta(seconds=30)
    values = {"outcome": "dead", "id": "redrive", "confirm": True, "deadline": deadline.isoformat()}
    form.begin(**values)
    assert form.replay_waits(**values) == deadline
    form.live.world.now = deadline
    with pytest.raises(AirflowFailException, match=r"the deadline .* has passed.*--id redrive"):
        form.replay(**values)
    [(key, account), (reason_key, reason)] = form.pushed
    assert (reason_key, reason.startswith("the deadline")) == ("reason", True)
    assert (key, account["settled"], account["pending"]["retry"]) == ("return_value", False, 1)
    form.live.world.now += MINUTE
    assert form.replay(id="redrive", confirm=True)["settled"]


def test_with_max_records_the_run_reads_so_many_and_waits_for_nothing(form: Form) -> None:
    values = {"ranges": ["orders:0:0-3"], "confirm": True, "max_records": 1}
    form.begin(**values)
    assert form.replay(**values)["pending"]["unread"] == 2


def test_more_than_confirm_above_offsets_need_their_number(form: Form) -> None:
    for number in (None, 3, 5):
        with pytest.raises(AirflowFailException, match=r"confirm_offsets: .* 4 offsets, more than"):
            form.begin(all=True, confirm=True, confirm_offsets=number)
    assert form.lanes() == ["live"]
    form.begin(all=True, confirm=True, confirm_offsets=4)


def test_what_matches_nothing_begins_no_lane(form: Form) -> None:
    values = {"outcome": "lost", "confirm": True}
    assert form.begin(**values)["asked"]["offsets"] == 0
    with pytest.raises(AirflowSkipException, match="nothing matches"):
        form.replay(**values)
    assert form.lanes() == ["live"]


def test_an_empty_error_class_never_means_any_error_class(form: Form) -> None:
    """The page fills it in for dead records without a class."""
    assert form.begin(outcome="dead", error_class="")["asked"]["offsets"] == 0
    assert form.begin(outcome="dead", error_class="ValueError")["asked"]["offsets"] == 1


def test_xcom_holds_totals_and_the_ten_longest_ranges(form: Form) -> None:
    form.live.produce(*[OK] * 40)
    form.live.run()
    ranges = [f"orders:0:{start}-{start + 1}" for start in range(0, 40, 2)] + ["orders:0:41-44"]
    asked = form.begin(ranges=ranges)["asked"]
    assert (asked["offsets"], len(asked["ranges"]), asked["more_ranges"]) == (23, 10, 11)
    assert asked["ranges"][0] == {"topic": "orders", "partition": 0, "start": 41, "end": 44}


@pytest.mark.parametrize(
    "values",
    [{"ranges": ["orders:0"], "handler": "os:system"}, {"ranges": ["a/b"]}, {"ranges": "orders"}, {"all": "yes"},
     {"outcome": "failed"}, {"of": "prod"}, {"id": "A b"}, {"max_records": 0}, {"max_rate": 10**10},
     {"epoch": -1}, {"all": True, "dead_letter": "mine"}, {"deadline": "soon"}, {"confirm": "yes"},
     {"error_class": "x" * 501}],
    ids=str,
)  # fmt: skip
def test_the_form_refuses_wrong_values(values: dict[str, Any], form: Form) -> None:
    with pytest.raises(ParamValidationError):
        form.begin(**values)


@pytest.mark.parametrize(("values", "message"), [
    ({}, "nothing was chosen"),
    ({"all": True, "ranges": ["orders"]}, "--all and a RANGE contradict"),
    ({"ranges": ["orders:0:5-2"]}, "range orders:0:5-2"),
    ({"from": "soon"}, "--from: "),
    ({"id": "gone"}, "id gone: lane has no such backfill"),
    ({"outcome": "dead", "of": "backfill-gone"}, "has no such lane yet"),
], ids=str)  # fmt: skip
def test_the_task_refuses_what_the_form_can_not(values: dict[str, Any], message: str, form: Form) -> None:
    with pytest.raises(AirflowFailException, match=message):
        form.begin(confirm=True, **values)
    assert form.lanes() == ["live"]


@pytest.mark.parametrize(
    "values",
    [{"ranges": "orders"}, {"all": 1}, {"max_records": 0}, {"max_rate": True}, {"deadline": "2026-01-01"},
     {"id": "A b"}, {"from": 5}, {"confirm": "yes"}],
    ids=str,
)  # fmt: skip
def test_the_task_refuses_wrong_values_that_came_by_other_means_than_the_form(
    values: dict[str, Any], form: Form
) -> None:
    context = form.context({})
    context["params"] = {**context["params"], **values}
    for task in form.dag().tasks:
        assert isinstance(task, BaseOperator)
        with pytest.raises(AirflowFailException, match=f"{next(iter(values))}"):
            task.execute(context)


def test_the_field_epoch_begins_a_new_epoch_of_a_settled_backfill_once(form: Form) -> None:
    values = {"ranges": ["orders:0:0-1"], "id": "b", "confirm": True}
    form.begin(**values)
    form.replay(**values)
    again = {**values, "epoch": 1}
    dry = form.begin(**{**again, "confirm": False})
    assert (dry["epoch"], dry["dry_run"], dry["pending"]["unread"]) == (1, True, 1)
    assert form.begin(**again)["pending"]["unread"] == 1
    assert form.begin(id="b", confirm=True)["epoch"] == 1, "without the field, the newest"
    done = form.replay(**again)
    assert (done["epoch"], done["settled"], done["outcomes"]) == (1, True, {"acked": 1})
    assert form.begin(**again)["outcomes"] == {"acked": 1}, "a cleared task finds the epoch begun"
    assert form.begin(**{**values, "epoch": 0})["epoch"] == 1, "an older epoch is never gone on with"
    assert form.live.offsets().count(0) == 3


@pytest.mark.parametrize("confirm", [False, True])
def test_the_field_epoch_refuses_an_epoch_before_its_time(confirm: bool, form: Form) -> None:
    form.begin(ranges=["orders:0:0-1"], id="b", confirm=True)
    for backfill_id, epoch, message in (
        ("b", 1, "epoch 0 of backfill-b .* is not settled"),
        ("c", 1, "has no epoch 0"),
    ):
        with pytest.raises(AirflowFailException, match=message):
            form.begin(ranges=["orders:0:0-1"], id=backfill_id, epoch=epoch, confirm=confirm)
    assert len(form.lanes()) == 2


def test_the_id_of_a_run_is_valid_and_its_own() -> None:
    runs = ["manual__a", "manual--a", "Ä", "x" * 300, RUN_ID]
    assert len({lane_of(id_of_run(run)) for run in runs}) == len(runs)


def test_the_driver_takes_the_turns_of_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(driver, "take_turns", lambda *arguments: taken.append(arguments))
    monkeypatch.setattr(driver, "end_with_task", lambda *_, **__: None)
    assert driver.main(["orders", "--run-id=r", "--backfill=backfill-b", "--max-records=7", "--reason=a test"]) == 0
    assert taken == [("orders", "r", driver.Secrets(), "backfill-b", 7, None, "a test")]


def test_what_is_due_in_a_paused_partition_starts_no_driver_and_is_looked_for_every_two_minutes(form: Form) -> None:
    """Else a driver would be started every ten seconds, and find nothing to read."""
    values = {"ranges": ["orders:0:3-4"], "confirm": True}
    form.begin(**values)
    form.replay_waits(**values)
    lane = lane_of(id_of_run(RUN_ID))
    adapters = memory_adapters(form.live.world, form.live.adapters().pipeline, "operator", lane=lane)
    perform_action(adapters, TurnKind.PAUSE, lambda newest: dict.fromkeys(newest.partitions, 0), "the topic is sick")
    form.live.world.now += timedelta(hours=1)
    started = len(form.drivers)
    assert form.replay_waits(**values) == form.live.world.now + POLL
    assert len(form.drivers) == started
    perform_action(adapters, TurnKind.RESUME, lambda newest: dict.fromkeys(newest.partitions, 0), "it is well")
    assert form.replay(**values)["settled"]


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(("pending", "due", "is_due", "waits"), [
    ({"retry": 1}, NOON + HOUR, False, HOUR),
    ({"retry": 1}, NOON, True, SHORTEST_WAIT),
    ({"unread": 1}, None, True, POLL),
    ({"dead_letter": 1}, None, True, POLL),
    ({"retry": 1, "dead_letter": 1}, NOON + HOUR, True, POLL),
    ({"retry": 1, "unread": 1}, NOON + HOUR, True, POLL),
    ({"retry": 1, "unread": 1}, NOON + MINUTE, True, MINUTE),
], ids=str)  # fmt: skip
def test_what_has_no_due_time_is_tried_every_two_minutes_although_a_retry_is_due_later(
    pending: dict[str, int], due: datetime | None, is_due: bool, waits: timedelta
) -> None:
    account = Account({}, {}, 0, Counter(pending), due)
    assert backfill.is_due(account, NOON) == is_due
    assert backfill.wait_until(account, NOON, None) == NOON + waits
    assert backfill.wait_until(account, NOON, NOON + SHORTEST_WAIT) == NOON + SHORTEST_WAIT


def test_the_fields_shadow_and_promote_do_what_their_options_do(form: Form) -> None:
    values = {"ranges": ["orders:0:0-1", "orders:0:2-3"], "id": "v2", "confirm": True}
    form.begin(**values, shadow=True)
    done = form.replay(**values, shadow=True)
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 2})
    with pytest.raises(AirflowFailException, match="promote takes what the shadow has: leave out RANGE"):
        form.begin(**values, promote=True)
    promote = {"id": "v2", "promote": True}
    assert form.begin(**promote)["dry_run"]
    assert form.lanes() == ["live", "backfill-v2"]
    form.begin(**promote, confirm=True)
    assert form.replay(**promote, confirm=True)["lane"] == "backfill-v2-promoted"
    assert form.drivers[-1][2] == "--backfill=backfill-v2-promoted"
    assert (form.live.offsets().count(0), form.lanes()[-1]) == (3, "backfill-v2-promoted")
