"""Metrics and totals over turns: what a repeat, a reset, a void turn, and turns without outcome rows make of them."""

from dataclasses import replace
from typing import Any

import pytest

from ackline.errors import AcklineError, ConfigError, TooManyFailures
from ackline.lane.turn_metrics import outcome_rows_are_off
from ackline.ledger.metrics import TOTALS, TurnReport
from ackline.ledger.outcomes import Outcome
from ackline.ledger.states import Signals
from ackline.ledger.turns import TurnKind
from ackline.steps import run
from tests.support.memory_adapters import no_session
from tests.support.memory_kafka import MemoryCluster
from tests.support.memory_lane import AT_LEAST_ONCE, AT_MOST_ONCE, FAILS, FAILS_ONCE, NO_GUARANTEE, OK, TP, MemoryLane
from tests.support.memory_store import MemoryStore
from tests.support.memory_table import MemoryTable

ZERO = dict.fromkeys(TOTALS, 0)


def test_i9_every_process_that_settles_a_turn_stores_the_same_metrics_and_totals() -> None:
    """Killed after the decisions; a second process folds to what the first would have stored."""
    lane = MemoryLane(OK, FAILS, OK, retry={"max_retries": 0}, dead_letter="none").after_replay()
    computed = []

    def killed(_: MemoryStore, settlement: Any, _plan: Any = None) -> bool:
        computed.append(settlement.partitions[TP])
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "store_settlement", killed)
        with pytest.raises(KeyboardInterrupt):
            lane.settle(lane.adapters("first"))
    assert lane.settle(lane.adapters("second")).stored is not None
    assert (lane.settled(), lane.settled().totals) == (computed[0], ZERO | {"acked": 2, "failed": 1, "dead": 1})
    assert lane.settle(lane.adapters("third")).stored is None


def test_a_reset_begins_at_0_and_a_void_turn_adds_nothing() -> None:
    lane = MemoryLane(OK, OK).after_run()
    before = lane.settled()
    lane.produce(FAILS_ONCE)
    lane.settings["breaker"] = {"failure_ratio": 0.5, "min_records": 1}
    lane.run_fails(TooManyFailures)
    assert lane.settled().totals == before.totals == ZERO | {"acked": 2}
    assert (lane.metrics()["log_end"], lane.metrics()["lag"]) == (3, 1), "I20: the plan of the void turn saw a record"
    lane.settings.clear()
    lane.perform(TurnKind.RESET, {TP: 0})
    started = lane.settled().metrics or {}
    assert lane.settled().totals is None
    assert started == {"log_start": 0, "log_end": 3, "lag": 3, "floor_since": started["floor_since"]}
    lane.run()
    assert lane.settled().totals == ZERO | {"acked": 2, "failed": 1}


def test_totals_go_on_where_an_earlier_version_kept_none() -> None:
    lane = MemoryLane(OK).after_run()
    settlements = lane.world.tables.settlements
    for turn, settlement in settlements.items():
        rows = {tp: replace(row, metrics=None, totals=None) for tp, row in settlement.partitions.items()}
        settlements[turn] = replace(settlement, partitions=rows)
    lane.produce(OK)
    lane.run()
    assert lane.settled().totals == ZERO | {"acked": 1}


def test_a_broker_that_has_no_time_for_a_record_fails_no_settlement(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> Any:
        raise AcklineError("away")

    lane = MemoryLane(FAILS_ONCE, OK)
    monkeypatch.setattr(MemoryCluster, "record_times", away)
    lane.run()
    assert (lane.metrics()["lag"], "lag_seconds" in lane.metrics()) == (2, False)


def test_the_report_of_the_tasks_is_stored_with_the_turn_also_where_rows_are_kept() -> None:
    lane = MemoryLane(OK).after_run()
    report = lane.adapters().store.report_of(lane.newest().turn)
    assert isinstance(report, TurnReport)
    assert (report.recorded, report.counts) == (True, {TP: {"acked": 1}})
    assert not outcome_rows_are_off(lane.adapters().store)


def lane_without_rows(*values: bytes, guarantee: str = NO_GUARANTEE, **settings: Any) -> MemoryLane:
    return MemoryLane(*values, guarantee=guarantee, record_outcomes=False, dead_letter="none", **settings)


def test_a_run_without_rows_goes_on_past_gaps_until_it_meets_a_record() -> None:
    """In one process, and as the tasks of a DAG, where replay looks for records in the report."""
    lane = lane_without_rows(max_records_per_run=3)
    lane.log().add_gap(5)
    lane.produce(OK, FAILS_ONCE)
    lane.log().add_gap(5)
    done = lane.run()
    assert ([plan.turn.n for plan in done.plans], done.outcomes) == ([1, 2], {"acked": 1})
    lane.plan()
    run.replay_until_records(lane.adapters(), no_session)
    lane.settle()
    assert (lane.settled().counts, lane.settled().gaps) == ({"dropped": 1}, 2)
    assert Signals.of(lane.settled().metrics).failing_share == 1.0, "the report counts what has no row"
    assert lane.settled().totals == ZERO | {"acked": 1, "dropped": 1}
    assert not any(lane.world.tables.outcomes.values())
    assert outcome_rows_are_off(lane.adapters().store)


def test_counts_that_the_delta_log_has_expired_are_unknown_and_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lane_without_rows(OK, OK).after_replay()
    monkeypatch.setattr(MemoryTable, "note_of", lambda *_: None)
    lane.settle()
    assert (lane.settled().gaps, lane.settled().counts, lane.floor()) == (None, {}, 2)
    assert "fetches" not in lane.metrics()


def test_a_turn_planned_without_rows_is_not_handed_out_at_least_once() -> None:
    """A failure without a row would pass for a gap, and be lost."""
    lane = lane_without_rows(OK, FAILS_ONCE, OK).after_plan()
    without_rows = lane.settings
    lane.settings = {**without_rows, "guarantee": AT_LEAST_ONCE, "record_outcomes": True}
    lane.run_fails(ConfigError, "guarantee was changed")
    lane.settings = without_rows
    lane.run()
    assert (lane.settled().counts, lane.settled().gaps) == ({"acked": 2, "dropped": 1}, 0)


def test_s50_a_range_that_is_lost_is_a_row_and_no_gap() -> None:
    lane = lane_without_rows(OK, OK, guarantee=AT_MOST_ONCE, lost_after="0s").after_plan()
    lane.world.faults.jobs.append("failed")
    with pytest.raises(AcklineError):
        lane.replay()
    lane.run()
    assert (lane.settled().counts, lane.settled().gaps) == ({Outcome.LOST: 2}, 0)
    assert lane.metrics()["lost_in_ranges"] == 2
