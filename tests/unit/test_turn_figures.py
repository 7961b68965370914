"""Figures over turns, in memory: what a repeat, a reset, a void turn, and turns without rows make of them."""

from dataclasses import replace
from typing import Any

import pytest

from ackline.errors import AcklineError, ConfigError, TooManyFailures
from ackline.metrics import TOTALS, Report
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.pipeline import Pipeline
from ackline.steps import operator_actions
from ackline.steps.effective_settings import in_force, rows_are_off
from ackline.steps.plan import plan
from ackline.steps.replay import replay
from ackline.steps.run import replay_on, run
from ackline.steps.settle import settle
from ackline.testing.memory import MemoryLog, World
from ackline.testing.memory_kafka import MemoryCluster
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from ackline.testing.memory_store import MemoryStore, MemoryTable
from ackline.turns import LIVE, SettledPartition, TurnKind
from tests.unit.strategies import NOON

AT = TopicPartition("orders", 0)
ZERO = dict.fromkeys(TOTALS, 0)


@pytest.fixture
def world() -> World:
    """A topic of one partition, empty."""
    world = World(NOON)
    world.create_topic("orders")
    return world


def parts_of(world: World, run_id: str = "run", **settings: Any) -> MemoryParts:
    kafka = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders"]}
    same = {"name": "orders", "kafka": kafka, "handler": "a:b", "dead_letter": "none", "start": "earliest"}
    return memory_parts(world, Pipeline.model_validate({**same, **settings}), run_id)


def log(world: World) -> MemoryLog:
    found = world.log(AT)
    assert found is not None
    return found


def records(world: World, *values: bytes) -> None:
    for value in values:
        log(world).append(value, NOON)


def settled(world: World) -> SettledPartition:
    newest = MemoryStore(world, "orders", LIVE).newest()
    assert newest is not None
    return newest.partitions[AT]


def test_i9_whoever_settles_a_turn_stores_the_same_figures_and_totals(world: World) -> None:
    """Killed after the decisions, a second process folds to what the first would have stored."""
    records(world, b"{}", b'{"fail": -1}', b"{}")
    settings: dict[str, Any] = {"retry": {"max_retries": 0}}
    plan(parts_of(world, **settings))
    replay(parts_of(world, **settings), no_session)
    seen = []

    def killed(store: MemoryStore, settlement: Any, plan: Any = None) -> bool:
        seen.append(settlement.partitions[AT])
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "store_settlement", killed)
        with pytest.raises(KeyboardInterrupt):
            settle(parts_of(world, "first", **settings))
    one = settle(parts_of(world, "second", **settings))
    assert one.stored is not None
    assert settled(world) == seen[0]
    assert settled(world).totals == ZERO | {"acked": 2, "failed": 1, "dead": 1}
    assert settle(parts_of(world, "third", **settings)).stored is None


def test_a_reset_begins_at_0_and_a_void_turn_adds_nothing(world: World) -> None:
    records(world, b"{}", b"{}")
    run(parts_of(world), no_session)
    before = settled(world)
    records(world, b'{"fail": 1}')
    breaker: dict[str, Any] = {"breaker": {"failure_ratio": 0.5, "min_records": 1}}
    with pytest.raises(TooManyFailures):
        run(parts_of(world, **breaker), no_session)
    assert settled(world).totals == before.totals == ZERO | {"acked": 2}
    operator_actions.perform_action(parts_of(world), TurnKind.RESET, lambda _: {AT: 0}, "again")
    assert (settled(world).totals, settled(world).metrics) == (None, None)
    run(parts_of(world), no_session)
    assert settled(world).totals == ZERO | {"acked": 2, "failed": 1}


def test_totals_go_on_where_an_earlier_version_kept_none(world: World) -> None:
    records(world, b"{}")
    run(parts_of(world), no_session)
    for turn, one in world.tables.settlements.items():
        old = {tp: replace(row, metrics=None, totals=None) for tp, row in one.partitions.items()}
        world.tables.settlements[turn] = replace(one, partitions=old)
    records(world, b"{}")
    run(parts_of(world), no_session)
    assert settled(world).totals == ZERO | {"acked": 1}


def test_a_broker_that_has_no_time_for_a_record_fails_no_settlement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> Any:
        raise AcklineError("away")

    records(world, b'{"fail": 1}', b"{}")
    monkeypatch.setattr(MemoryCluster, "record_times", away)
    run(parts_of(world), no_session)
    metrics = settled(world).metrics
    assert metrics is not None
    assert (metrics["lag"], "lag_seconds" in metrics) == (2, False)


# ---- without rows -------------------------------------------------------------------------------------------------

OFF: dict[str, Any] = {"guarantee": "no_guarantee", "record_outcomes": False}


def test_a_run_without_rows_goes_on_past_gaps_until_it_meets_a_record(world: World) -> None:
    """Both as one process and as the tasks of a DAG, where replay looks for what it has met."""
    log(world).gap(5)
    records(world, b"{}", b'{"fail": 1}')
    log(world).gap(5)
    done = run(parts_of(world, max_records_per_run=3, **OFF), no_session)
    assert [one.turn.n for one in done.plans] == [1, 2]
    assert done.outcomes == {"acked": 1}
    plan(parts_of(world, max_records_per_run=3, **OFF))
    replay_on(parts_of(world, **OFF), no_session)
    settle(parts_of(world, **OFF))
    assert settled(world).counts == {"dropped": 1}
    assert settled(world).gaps == 2
    assert settled(world).totals == ZERO | {"acked": 1, "dropped": 1}
    assert not any(world.tables.outcomes.values())
    assert rows_are_off(MemoryStore(world, "orders", LIVE))


def test_counts_that_are_forgotten_are_unknown_and_no_gaps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    records(world, b"{}", b"{}")
    plan(parts_of(world, **OFF))
    replay(parts_of(world, **OFF), no_session)
    monkeypatch.setattr(MemoryTable, "note_of", lambda *_: None)
    settle(parts_of(world, **OFF))
    assert (settled(world).gaps, settled(world).counts, settled(world).state.floor) == (None, {}, 2)
    metrics = settled(world).metrics
    assert metrics is not None
    assert "fetches" not in metrics


def test_a_turn_planned_without_rows_is_not_handed_out_at_least_once(world: World) -> None:
    """A failure that left no row would pass for a gap, and be lost."""
    records(world, b"{}", b'{"fail": 1}', b"{}")
    plan(parts_of(world, **OFF))
    with pytest.raises(ConfigError, match="guarantee was changed"):
        run(parts_of(world), no_session)
    run(parts_of(world, **OFF), no_session)
    assert (settled(world).counts, settled(world).gaps) == ({"acked": 2, "dropped": 1}, 0)


def test_s50_a_range_that_is_lost_is_a_row_and_no_gap(world: World) -> None:
    settings = {**OFF, "guarantee": "at_most_once", "lost_after": "0s"}
    records(world, b"{}", b"{}")
    plan(parts_of(world, **settings))
    world.faults.jobs.append("failed")
    with pytest.raises(AcklineError):
        replay(parts_of(world, **settings), no_session)
    run(parts_of(world, **settings), no_session)
    assert (settled(world).counts, settled(world).gaps) == ({Outcome.LOST: 1}, 0)
    metrics = settled(world).metrics
    assert metrics is not None
    assert metrics["lost_offsets"] == 2


def test_what_the_tasks_said_is_stored_with_the_turn_also_where_rows_are_kept(world: World) -> None:
    records(world, b"{}")
    run(parts_of(world), no_session)
    newest = MemoryStore(world, "orders", LIVE).newest()
    assert newest is not None
    report = MemoryStore(world, "orders", LIVE).report_of(newest.turn)
    assert isinstance(report, Report)
    assert (report.recorded, report.counts) == (True, {AT: {"acked": 1}})
    assert not rows_are_off(MemoryStore(world, "orders", LIVE))


def test_settings_in_force_are_all_of_them_on_one_line_and_properties_by_name_only(world: World) -> None:
    kafka: dict[str, Any] = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders", "payments"]}
    streams = [{"name": "paid", "topics": ["orders"], "handler": "a:b"}]
    kafka["properties"] = {"sasl.password": "canary", "client.id": "abc"}
    parts = parts_of(world, kafka=kafka, streams=streams)
    line = in_force(replace(parts, kafka={**parts.kafka, "sasl.password": "canary", "ssl.key.pem": "canary"}))
    assert "\n" not in line
    assert "canary" not in line
    said = line.split(" ")
    for one in (
        "guarantee=at_least_once", "record_outcomes=true", "kafka.topics=[orders,payments]", "retry.period=60s",
        "kafka.properties=[client.id,sasl.password]", "kafka.bootstrap_servers=memory",
        "kafka.connection.properties=bootstrap.servers,sasl.password,ssl.key.pem", "streams.0.name=paid",
    ):  # fmt: skip
        assert one in said, line
