"""replay: when a handler is isolated, what the tasks are given, and what happens to the log while it is read."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ackline.errors import AcklineError, ConfigError, FatalError, TopicChanged, TransientError
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.steps.replay import job_of
from tests.support.memory import AFTER
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import AT_LEAST_ONCE, AT_MOST_ONCE, FAILS, NO_GUARANTEE, OK, MemoryLane

Isolation = tuple[bool, str, float | None]
PLAIN: Isolation = (False, "", None)


class Starts:
    """A lane with three records, and for each start of a job how its handler is isolated."""

    def __init__(self, **settings: Any) -> None:
        self.lane = MemoryLane(OK, OK, OK, **settings)
        self.jobs: list[Isolation] = []

    def adapters(self, **changes: Any) -> MemoryAdapters:
        adapters = self.lane.adapters()

        def run_job(spark: Any, job: Any, on_progress: Any) -> Any:
            self.jobs.append((job.settings.isolated, job.isolation_reason, job.settings.record_timeout))
            return adapters.run_job(spark, job, on_progress)

        return self.lane.adapters(**{"run_job": run_job, **changes})

    def run(self, **changes: Any) -> None:
        self.lane.run(self.adapters(**changes))

    def fail(self, times: int) -> None:
        """So many runs whose job does not come back."""
        self.lane.world.faults.jobs.extend(["failed"] * times)
        for _ in range(times):
            with pytest.raises(TransientError):
                self.run()

    def counted(self) -> dict[str, int]:
        """The turn that each counted start of a plan has last taken."""
        numbers = self.lane.world.tables.numbers["plans"]
        return {name.rsplit("/", 1)[-1]: number for name, number in numbers.items() if "try" in name}


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, NO_GUARANTEE])
def test_the_fourth_start_without_outcomes_isolates_and_the_next_plan_does_not(guarantee: str) -> None:
    starts = Starts(guarantee=guarantee)
    starts.fail(4)
    starts.run()
    isolated = (True, "started 3 times without outcomes", None)
    assert starts.jobs == [PLAIN] * 3 + [isolated] * 2
    starts.lane.produce(OK)
    starts.run()
    assert (starts.jobs[5:], starts.counted()) == ([PLAIN], {"try-1": 2, "try-2": 1, "try-3": 1})


def test_a_start_is_counted_before_it_is_made() -> None:
    """A start that takes its process with it leaves nothing but its number."""
    starts = Starts()
    starts.lane.plan()

    def dies(*_: Any) -> Any:
        raise SystemExit

    for number in (1, 2, 3):
        with pytest.raises(SystemExit):
            starts.lane.replay(starts.adapters(run_job=dies))
        assert starts.counted()[f"try-{number}"] == 1
    starts.lane.replay(starts.adapters())
    assert starts.jobs[0][0]


def test_a_spark_that_does_not_start_counts_no_start_of_the_turn_and_isolates_no_handler() -> None:
    """No Java, a full disk, an executor that is unfit: no handler was reached."""
    starts = Starts()
    starts.lane.plan()

    def does_not_start(*_: Any) -> None:
        raise TransientError("Spark did not start")

    for _ in range(4):
        with pytest.raises(TransientError, match="did not start"):
            starts.lane.replay(starts.adapters(check_job=does_not_start))
    assert starts.counted() == {}
    starts.run()
    assert (starts.jobs, starts.counted()) == ([PLAIN], {"try-1": 1})


def test_an_empty_plan_and_one_whose_outcomes_are_stored_are_not_started() -> None:
    starts = Starts()
    starts.lane.plan()
    for step in (starts.lane.replay, starts.lane.replay, starts.lane.run, starts.lane.run):
        step(starts.adapters())
    assert starts.counted() == {"try-1": 1}


def test_s50_a_claimed_plan_has_one_start_and_is_never_tried_again() -> None:
    starts = Starts(guarantee=AT_MOST_ONCE)
    starts.fail(1)
    with pytest.raises(TransientError, match="handed out by another process"):
        starts.run()
    assert (starts.jobs, starts.counted()) == ([PLAIN], {})


@pytest.mark.parametrize("error", ["WorkerLost", "Timeout", "ValueError"])
def test_a_record_that_killed_its_process_is_tried_again_in_isolation(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was overdue is ended by the limit again: in a process of its own, or by being cancelled."""
    starts = Starts(retry={"initial_delay": "0s"})
    starts.lane.produce(FAILS)
    monkeypatch.setattr("tests.support.memory_adapters.error_class_of", lambda _: error)
    starts.run()
    starts.run()
    reason = "it tries a record again that has killed its process"
    assert starts.jobs == [PLAIN, (True, reason, None) if error == "WorkerLost" else PLAIN]


@pytest.mark.parametrize(
    ("settings", "limit"), [({"handler_isolation": "process"}, None), ({"record_timeout": "1m30s"}, 90.0)]
)
def test_isolation_that_the_file_asks_for_holds_from_the_first_start(
    settings: dict[str, str], limit: float | None
) -> None:
    starts = Starts(**settings)
    starts.fail(4)
    # An `async def` needs no process for its limit, and then has a reason for one.
    reason = "started 3 times without outcomes" if limit else ""
    assert starts.jobs == [(True, "", limit)] * 3 + [(True, reason, limit)]


@pytest.mark.parametrize(("guarantee", "once", "on_failure"), [
    (AT_LEAST_ONCE, False, Outcome.FAILED),
    (AT_MOST_ONCE, True, Outcome.DROPPED),
    (NO_GUARANTEE, False, Outcome.DROPPED),
])  # fmt: skip
@pytest.mark.parametrize("tombstones", ["skip", "deliver"])
def test_the_job_carries_the_guarantee_and_what_becomes_of_tombstones(
    guarantee: str, once: bool, on_failure: Outcome, tombstones: str
) -> None:
    lane = MemoryLane(OK, guarantee=guarantee, tombstones=tombstones)
    settings = job_of(lane.adapters(), lane.plan()).settings
    assert (settings.once, settings.on_failure) == (once, on_failure)
    assert settings.deliver_tombstones == (tombstones == "deliver")


def adapters_that_end_with(lane: MemoryLane, change: Callable[[], object]) -> MemoryAdapters:
    """Adapters whose job is followed by a change of the log, before its outcomes are stored."""
    adapters = lane.adapters()

    def run_job(*arguments: Any) -> Any:
        result = adapters.run_job(*arguments)
        change()
        return result

    return lane.adapters(run_job=run_job)


def test_retention_that_passes_what_was_read_already_takes_no_outcome_away() -> None:
    """What was handled stays acked; it is not read again, and does not become `expired`."""
    lane = MemoryLane(OK, OK, OK)
    lane.run(adapters_that_end_with(lane, lambda: lane.log().expire(2)))
    assert (dict(lane.settled().counts), lane.calls()) == ({"acked": 3}, [(0, 1), (1, 1), (2, 1)])


def test_s42_a_topic_created_again_while_it_was_read_proves_nothing() -> None:
    """The new topic has as many records: neither bounds nor leader epoch differ, only the topic id."""
    lane = MemoryLane(OK, OK)
    with pytest.raises(TopicChanged, match="created again"):
        lane.run(adapters_that_end_with(lane, lambda: lane.create("orders", records=2)))
    assert lane.newest().kind is TurnKind.VOID
    assert (lane.state().complete_to, lane.committed()) == (0, None)


def test_s41_a_plan_of_retries_alone_goes_on_where_retention_has_passed_all_that_was_read() -> None:
    """The retries are expired one by one. Their turn is not void, because the next turn would meet the same."""
    lane = MemoryLane(FAILS, FAILS, retry={"max_retries": 3}, max_uncommitted=2).after_run()
    lane.produce(OK, OK, OK)
    lane.plan()
    lane.log().expire(4)
    lane.replay()
    lane.settle()
    assert (lane.newest().kind, lane.pending(), dict(lane.settled().counts)) == (TurnKind.RUN, [], {"expired": 2})


def test_a_leader_elected_without_truncation_while_a_turn_is_open_does_not_make_it_void() -> None:
    lane = MemoryLane(OK, OK).after_plan()
    lane.log().elect()
    lane.run()
    assert (lane.newest().kind, lane.newest().turn.n, lane.committed()) == (TurnKind.RUN, 1, 2)


def test_an_unreadable_range_is_not_void_once_another_run_has_stored_its_outcomes() -> None:
    """The other run has read the range before retention took it; a void turn would make its outcomes ineffective."""
    lane = MemoryLane(OK, OK).after_plan()

    def other_run_reads_and_retention_follows() -> None:
        lane.replay(lane.adapters("other"))
        lane.log().expire(2)

    lane.strike("bounds", other_run_reads_and_retention_follows)
    lane.replay()
    lane.settle()
    assert (lane.newest().kind, dict(lane.settled().counts)) == (TurnKind.RUN, {"acked": 2})


def fail_after_the_job(lane: MemoryLane, operation: str, errors: Sequence[AcklineError]) -> MemoryAdapters:
    """Adapters whose first operations of this kind after the job raise these errors, one each. They never wait."""

    def fail(error: AcklineError) -> None:
        raise error

    def change() -> None:
        for error in errors:
            lane.strike(operation, partial(fail, error))

    return adapters_that_end_with(lane, change)


AWAY = TransientError("the broker does not answer")
REFUSED = ConfigError("the broker refuses the login")
FULL = FatalError("the table outcomes can't be used: no space left on device")


class FailsOnce:
    """Fails one call of an adapter between the start marker and the commit of the outcomes, those of Spark left out."""

    def __init__(self, lane: MemoryLane, error: AcklineError, failing: int | None = None) -> None:
        self.error, self.failing, self.calls = error, failing, list[str]()
        self._is_between = self._in_job = False
        adapters = lane.adapters(hook=self._hook)
        self.adapters = replace(adapters, run_job=self._job(adapters.run_job))

    def _hook(self, operation: str, when: str) -> None:
        if (operation, when) == ("start", AFTER):
            self._is_between = True
        elif (operation, when) == ("outcomes", AFTER):
            self._is_between = False
        elif self._is_between and not self._in_job:
            self.calls.append(operation)
            if self.failing == len(self.calls) - 1:
                raise self.error

    def _job(self, run_job: Any) -> Any:
        def run(*arguments: Any) -> Any:
            self._in_job = True
            try:
                return run_job(*arguments)
            finally:
                self._in_job = False
                self.calls.append("job")

        return run


@pytest.mark.parametrize("error", [AWAY, REFUSED, FULL], ids=str)
def test_s50_at_most_once_no_call_of_an_adapter_between_marker_and_report_loses_a_record_by_failing_once(
    error: AcklineError,
) -> None:
    every = FailsOnce(once := MemoryLane(OK, OK, guarantee=AT_MOST_ONCE), error)
    once.run(every.adapters)
    assert every.calls[0] == "job", "nothing stands between the marker and Spark"
    assert {"topics", "bounds", "outcomes"} < set(every.calls)
    for number in range(1, len(every.calls)):
        lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
        lane.run(FailsOnce(lane, error, number).adapters)
        assert (lane.ranges(Outcome.LOST), dict(lane.settled().counts)) == ([], {"acked": 2}), every.calls[number]


@pytest.mark.parametrize("what", ["table", "task folder"])
def test_s50_at_most_once_what_can_not_be_made_ready_stops_the_turn_before_its_claim(what: str) -> None:
    """The table of the outcomes, and the folder in which tasks prove that they may start."""
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE)

    def fail() -> None:
        raise FULL

    adapters = lane.adapters()
    if what == "table":
        adapters.store.outcomes.create = fail  # type: ignore[method-assign]
    else:
        lane.strike("task folder", fail)
    with pytest.raises(FatalError, match="no space left"):
        lane.run(adapters)
    assert not adapters.store.has_claim(lane.plan().turn)
    lane.run()
    assert (lane.ranges(Outcome.LOST), dict(lane.settled().counts)) == ([], {"acked": 1})


def test_s50_at_most_once_a_broker_that_stays_away_after_the_job_ends_the_driver_after_minutes() -> None:
    lane, waits = MemoryLane(OK, guarantee=AT_MOST_ONCE), list[float]()
    adapters = fail_after_the_job(lane, "topics", [AWAY] * 100)
    with pytest.raises(TransientError, match="does not answer"):
        lane.run(replace(adapters, sleep=waits.append))
    assert 240 < sum(waits) < 600


def test_at_most_once_a_range_that_is_gone_after_the_job_is_not_checked_again() -> None:
    lane, waits = MemoryLane(OK, guarantee=AT_MOST_ONCE), list[float]()
    adapters = replace(adapters_that_end_with(lane, lambda: lane.create("orders", records=1)), sleep=waits.append)
    lane.run(adapters)
    assert (lane.ranges(Outcome.LOST), waits) == ([(0, 1)], [])


def test_at_least_once_the_next_run_repeats_what_could_not_be_checked() -> None:
    lane = MemoryLane(OK)
    with pytest.raises(TransientError, match="does not answer"):
        lane.run(fail_after_the_job(lane, "topics", [AWAY]))
    lane.run()
    assert lane.offsets() == [0, 0]
