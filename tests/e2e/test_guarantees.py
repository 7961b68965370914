"""at_most_once and no_guarantee (S50, S51), and the breaker (S46)."""

from datetime import timedelta
from typing import Any

import pytest

from ackline.errors import ConfigError, RangeGone, TooManyFailures, TransientError
from ackline.steps import claim as claiming
from ackline.steps import replay as replaying
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of, fails


def test_s51_without_a_guarantee_the_group_moves_to_the_end_although_records_failed(lab: MakeLab) -> None:
    one = lab(guarantee="no_guarantee", max_uncommitted=1)
    one.records(4, fails([1, 2], -1))
    one.run()
    assert one.rows() == sorted([*all_of("acked", [0, 3]), *all_of("dropped", [1, 2])])
    assert one.committed() == 4
    assert one.run().calls == 0


def test_s50_at_most_once_the_group_has_moved_before_the_first_call(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = lab(guarantee="at_most_once", max_uncommitted=1)  # S51: it does not look at the window
    one.records(3, fails([1], -1))
    before: list[int | None] = []
    real = replaying._run_spark_job

    def spied(*given: Any) -> Any:
        before.append(one.committed())
        return real(*given)

    monkeypatch.setattr(replaying, "_run_spark_job", spied)
    one.run()
    assert before[0] == 3
    assert one.rows() == sorted([*all_of("acked", [0, 2]), Row(1, 1, "dropped")])
    assert one.committed() == 3
    assert one.run().calls == 0


def test_s50_what_was_handed_out_and_never_reported_is_lost_and_never_repeated(lab: MakeLab) -> None:
    one = lab(guarantee="at_most_once", lost_after="10m")
    one.records(3)
    plan = one.plan()
    with one.parts() as parts:  # a process that dies after it has started
        newest = parts.store.newest()
        assert newest is not None
        claiming.claim(parts, plan, newest)
        assert claiming.take_start_marker(parts, plan)
    with pytest.raises(TransientError, match="handed out by another process"):
        one.run()
    one.wait(timedelta(minutes=10).total_seconds())
    one.run()
    assert one.offsets() == []
    assert one.rows() == [Row(0, 0, "lost", 3)]
    assert one.committed() == 3
    one.records(1)
    one.run()
    assert one.offsets() == [3]


def test_s50_a_claim_that_was_not_started_is_handled_by_whoever_finds_it(lab: MakeLab) -> None:
    one = lab(guarantee="at_most_once")
    one.records(3)
    plan = one.plan()
    with one.parts() as parts:
        newest = parts.store.newest()
        assert newest is not None
        claiming.claim(parts, plan, newest)
    one.run()
    assert one.offsets() == [0, 1, 2]


def test_s50_a_handler_that_does_not_import_costs_no_turn(lab: MakeLab) -> None:
    one = lab(guarantee="at_most_once", handler="handlers.nowhere:handle")
    one.records(2)
    with pytest.raises(ConfigError, match="does not import"):
        one.run()
    assert one.committed() is None
    one.define(handler="ackline.testing.journal:handle")
    one.run()
    assert one.rows() == all_of("acked", [0, 1])
    one.judge(settled=True)


def test_s50_a_claimed_range_that_is_gone_is_lost_not_void(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = lab(guarantee="at_most_once")
    one.records(3)
    plan = one.plan()
    with one.parts() as parts:
        newest = parts.store.newest()
        assert newest is not None
        claiming.claim(parts, plan, newest)
    with monkeypatch.context() as patched:
        patched.setattr(replaying, "check_ranges", _gone)
        one.run()
    assert one.rows() == [Row(0, 0, "lost", 3)]


def _gone(*_: object, **__: object) -> None:
    raise RangeGone("taken by retention")


def test_the_guarantee_does_not_change_while_records_are_pending(lab: MakeLab) -> None:
    one = lab(retry={"period": "1h", "initial_delay": "1h"})
    one.records(2, fails([0], 1))
    one.run()
    one.define(guarantee="no_guarantee")
    with pytest.raises(ConfigError, match="while records are pending"):
        one.run()
    one.define(guarantee="at_least_once")


def test_s46_too_many_failures_void_the_turn_and_nothing_of_it_counts(lab: MakeLab) -> None:
    one = lab(breaker={"failure_ratio": 0.5, "min_records": 4}, retry={"max_retries": 0})
    one.records(4, fails([0, 1, 2], -1))
    with pytest.raises(TooManyFailures, match="too many failures: 3 of 4"):
        one.run()
    assert one.rows() == []
    assert one.committed() is None
    assert one.letters() == []
    with one.parts() as parts:
        stored = parts.store.newest()
    assert stored is not None
    assert stored.kind == "void"


def test_s46_dropped_records_trip_the_breaker_as_well_and_are_handled_again(lab: MakeLab) -> None:
    one = lab(guarantee="no_guarantee", breaker={"failure_ratio": 0.5, "min_records": 4})
    one.records(4, fails([0, 1, 2], -1))
    with pytest.raises(TooManyFailures, match="too many failures: 3 of 4"):
        one.run()
    assert (one.rows(), one.committed()) == ([], None)
    assert one.command("run", one.name, "--no-breaker").returncode == 0
    assert one.outcomes() == {"acked": 1, "dropped": 3}
    assert one.committed() == 4


def test_s46_twenty_poisonous_retries_never_trip_the_breaker(lab: MakeLab) -> None:
    one = lab(breaker={"failure_ratio": 0.5, "min_records": 4}, retry={"max_retries": 1})
    one.records(60, fails(range(20), -1))
    one.run()
    one.run()
    assert one.outcomes() == {"acked": 40, "failed": 40, "dead": 20}


def test_the_breaker_can_be_overridden(lab: MakeLab) -> None:
    one = lab(breaker={"failure_ratio": 0.1, "min_records": 1}, retry={"max_retries": 0})
    one.records(2, fails([0, 1], -1))
    with pytest.raises(TooManyFailures):
        one.run()
    done = one.command("run", one.name, "--no-breaker")
    assert done.returncode == 0, done.stderr
    assert one.committed() == 2
    one.judge(settled=True)
