"""Where partitions stand, in memory: what is said of a log that is empty, gone, another one, or shorter than it was."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ackline.errors import AcklineError
from ackline.offsets import LogBounds, TopicPartition
from ackline.pipeline import Pipeline
from ackline.steps import operator_actions
from ackline.steps.plan import plan
from ackline.steps.replay import replay
from ackline.steps.run import run
from ackline.steps.status import PartitionStatus, status, status_and_missing, topics_of
from ackline.testing.memory import MemoryLog, World
from ackline.testing.memory_kafka import MemoryCluster
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from ackline.testing.memory_store import MemoryStore
from ackline.turns import LIVE, TurnKind
from tests.unit.strategies import NOON

AT, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def world() -> World:
    """A topic of two partitions: in the first, of four records the second and the third fail for good."""
    world = World(NOON)
    world.create_topic("orders", 2)
    for second, value in enumerate((b"{}", b'{"fail": -1}', b'{"fail": -1}', b"{}")):
        log(world).append(value, NOON + timedelta(seconds=second))
    world.now += timedelta(minutes=1)
    return world


def log(world: World, tp: TopicPartition = AT) -> MemoryLog:
    found = world.log(tp)
    assert found is not None
    return found


def parts_of(world: World, topics: tuple[str, ...] = ("orders",), **settings: Any) -> MemoryParts:
    kafka = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": list(topics)}
    same = {"name": "orders", "kafka": kafka, "handler": "a:b", "dead_letter": "none", "start": "earliest"}
    return memory_parts(world, Pipeline.model_validate({**same, "retry": {"initial_delay": "1h"}, **settings}), "run")


def of(world: World, tp: TopicPartition = AT, **settings: Any) -> PartitionStatus:
    (found,) = [one for one in status(parts_of(world, **settings)) if (one.topic, one.partition) == tp]
    return found


@pytest.fixture
def leaderless(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no partition has a leader."""
    topics = MemoryCluster.topics

    def without(cluster: MemoryCluster, names: Any) -> Any:
        found = topics(cluster, names).items()
        return {name: replace(info, partitions=dict.fromkeys(info.partitions, False)) for name, info in found}

    monkeypatch.setattr(MemoryCluster, "topics", without)


def test_before_the_first_run_it_is_where_that_would_start(world: World) -> None:
    one = of(world)
    assert (one.floor, one.read, one.lag, one.lag_seconds, one.committed, one.why) == (0, 0, 4, 60.0, None, None)
    assert MemoryStore(world, "orders", LIVE).newest() is None, "nothing is stored"


def test_a_partition_that_loses_its_leader_has_no_lag_neither_now_nor_in_its_settlement(
    world: World, request: pytest.FixtureRequest
) -> None:
    """0 would say that all is well."""
    run(parts_of(world), no_session)
    request.getfixturevalue("leaderless")
    one = of(world)
    assert (one.why, one.log_start, one.log_end, one.lag, one.lag_seconds) == ("no leader", None, None, None, None)
    assert (one.floor, one.read, one.oldest_pending_offset, one.oldest_pending_at) == (1, 4, 1, None)
    run(parts_of(world), no_session)
    operator_actions.perform_action(parts_of(world), TurnKind.PAUSE, lambda _: {AT: 1, TWO: 0}, "x")
    run(parts_of(world), no_session)
    for turn in (2, 4):
        for tp in (AT, TWO):
            settled = next(s for t, s in world.tables.settlements.items() if t.n == turn)
            assert not {"log_start", "log_end", "lag", "lag_seconds"} & (settled.partitions[tp].metrics or {}).keys()
    (topic,) = topics_of(status(parts_of(world)))
    assert (topic.lag, topic.lag_seconds, topic.partitions) == (None, None, 2)


def test_a_topic_that_is_gone_is_missing_and_has_no_lag(world: World) -> None:
    run(parts_of(world), no_session)
    world.delete_topic("orders")
    found, missing = status_and_missing(parts_of(world))
    assert [(one.why, one.lag, one.lag_seconds) for one in found] == [("missing", None, None)] * 2
    assert missing == ("orders",)
    assert of(world, topics=("payments",)).why == "no longer subscribed"


def test_s42_a_topic_created_again_is_not_caught_up(world: World) -> None:
    """However long it has become: offsets of the old one mean nothing in it."""
    run(parts_of(world), no_session)
    world.delete_topic("orders")
    world.create_topic("orders", 2)
    for _ in range(4):
        log(world).append(b"{}", NOON)
    one = of(world)
    assert (one.why, one.log_end, one.lag, one.lag_seconds) == ("created again", 4, None, None)
    with pytest.raises(AcklineError, match="created again"):
        run(parts_of(world), no_session)


def test_s42_a_log_that_ends_below_what_was_read_is_truncated_and_not_caught_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(parts_of(world), no_session)
    monkeypatch.setattr(MemoryCluster, "_bounds", lambda *_: LogBounds(0, 0, 0))
    one = of(world)
    assert (one.why, one.lag, one.lag_seconds) == ("truncated", -1, None)
    assert of(world, TWO).why is None


def test_s41_where_retention_passed_the_floor_the_lag_is_as_old_as_what_is_left(world: World) -> None:
    run(parts_of(world), no_session)
    assert of(world).oldest_pending_at == NOON + timedelta(seconds=1)
    log(world).expire(3)
    one = of(world)
    assert (one.floor, one.log_start, one.lag, one.lag_seconds) == (1, 3, 3, 57.0)
    assert (one.oldest_pending_offset, one.oldest_pending_at) == (1, None), "nobody knows its time any more"
    log(world).expire(4)
    assert (of(world).lag, of(world).lag_seconds) == (3, None)


def test_s50_the_floor_of_a_claimed_turn_is_the_claims(world: World) -> None:
    """What the group holds is never above the floor that is shown."""
    once: dict[str, Any] = {"guarantee": "at_most_once"}
    plan(parts_of(world, **once))
    assert (of(world, **once).floor, of(world, **once).committed) == (0, None)
    world.faults.jobs.append("failed")
    with pytest.raises(AcklineError):
        replay(parts_of(world, **once), no_session)
    one = of(world, **once)
    assert (one.floor, one.committed, one.read, one.lag) == (4, 4, 0, 0)


def test_a_topic_that_is_not_there_yet_is_named(world: World) -> None:
    found, missing = status_and_missing(parts_of(world, topics=("orders", "payments")))
    assert (len(found), missing) == (2, ("payments",))
