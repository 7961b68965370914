"""A partition filter of one's own: what it excludes is not read, and what it does wrong stops the plan (S33)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackline.errors import ConfigError
from ackline.offsets import TopicPartition
from ackline.partition_filter import load_partition_filter
from ackline.pipeline import Pipeline, load
from ackline.pipeline_folder import load_folder
from ackline.planning import PARKED
from ackline.steps import plan, run
from ackline.testing.memory import HandlerCall, World
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from tests.unit import filters
from tests.unit.pipeline_files import writer
from tests.unit.strategies import NOON

MODULE = "tests.unit.filters"


@pytest.fixture
def world() -> Iterator[World]:
    """A world with two topics of three partitions, a record in each."""
    world = World(NOON)
    for name in ("orders", "payments"):
        for log in world.create_topic(name, 3).logs.values():
            log.append(b"{}", NOON)
    filters.lets_in = {0}
    yield world
    filters.lets_in = {0}


def parts(world: World, function: str = "chosen", start: str = "earliest", **kafka: Any) -> MemoryParts:
    file = {
        "name": "lane", "handler": "handlers:any", "dead_letter": "none", "start": start,
        "kafka": {"bootstrap_servers": "memory:1", "group_id": "group", "partition_filter": f"{MODULE}:{function}",
                  **(kafka or {"topics": ["orders"]})},
    }  # fmt: skip
    return memory_parts(world, Pipeline.model_validate(file), "run")


def calls(world: World) -> list[tuple[str, int, int]]:
    return [(*one.tp, one.offset) for one in world.history if isinstance(one, HandlerCall)]


@pytest.mark.parametrize("kafka", [{"topics": ["orders", "payments"]}, {"pattern": "orders|payments"}])
def test_s33_only_the_partitions_that_it_lets_in_are_read(world: World, kafka: dict[str, Any]) -> None:
    filters.lets_in = {0, 2}
    run.run(parts(world, **kafka), no_session)
    assert calls(world) == [("orders", 0, 0), ("orders", 2, 0), ("payments", 0, 0), ("payments", 2, 0)]
    assert {tp.partition for _, tp in world.committed} == {0, 2}


def test_what_it_excludes_later_is_parked_and_goes_on_where_it_stood(world: World) -> None:
    filters.lets_in = {0, 1}
    run.run(parts(world), no_session)
    filters.lets_in = {0}
    for log in world.topics["orders"].logs.values():
        log.append(b"{}", NOON)
    ran = run.run(parts(world), no_session)
    assert ran.plans[0].partitions[TopicPartition("orders", 1)].why == PARKED
    assert world.committed["group", TopicPartition("orders", 1)].offset == 1
    filters.lets_in = {0, 1}
    run.run(parts(world), no_session)
    assert calls(world) == [("orders", 0, 0), ("orders", 1, 0), ("orders", 0, 1), ("orders", 1, 1)]


def test_what_it_lets_in_later_is_read_from_its_log_start_and_nothing_is_passed_over(world: World) -> None:
    """Also where the file starts at the end: nobody knows whether the topic was filtered out or not there (S32)."""
    both: dict[str, Any] = {"topics": ["orders", "payments"]}
    filters.lets_in = set()
    plan.plan(parts(world, start="latest", **both))
    filters.lets_in = {1}
    run.run(parts(world, start="latest", **both), no_session)
    assert calls(world) == [("orders", 1, 0), ("payments", 1, 0)]
    why = {one.why for planned in world.tables.plans.values() for one in planned.partitions.values()}
    assert "the topic was missing, or filtered out, at the last turn: log start" in why


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", r"raised LookupError: no such shard: 0, asked about orders\[0\]"),
        ("leaves", "raised SystemExit"),
        ("returns_a_number", "returned a int, not True or False"),
    ],
)
def test_one_that_does_not_answer_stops_the_plan_and_nothing_is_stored(world: World, function: str, said: str) -> None:
    for ask in (plan.plan, plan.preview):
        with pytest.raises(ConfigError, match=said) as caught:
            ask(parts(world, function))
        assert caught.value.key == "kafka.partition_filter"
    assert world.history == []


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"{MODULE}:nothing", "does not import: AttributeError"),
        ("tests.unit.nowhere:at_all", "does not import: ModuleNotFoundError"),
        (f"{MODULE}:NUMBER", "is not a function"),
        (f"{MODULE}:asynchronous", "is asynchronous"),
        (f"{MODULE}:of_one", "does not take a topic and a partition"),
    ],
)
def test_one_that_does_not_import_or_fit_is_told_when_the_pipeline_is_opened(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_partition_filter(path)


def test_it_is_refused_beside_explicit_partitions(tmp_path: Path) -> None:
    path = writer(tmp_path)(("topics: [orders]", f"partitions: {{orders: [0]}}\n  partition_filter: {MODULE}:chosen"))
    with pytest.raises(ConfigError, match=r"kafka.*`partitions` says it all"):
        load(path)


def test_two_files_with_one_group_and_topic_are_refused_whatever_their_filters_say(tmp_path: Path) -> None:
    """Which of them owns the group's offsets would be left to two pieces of code to agree on."""
    write = writer(tmp_path)
    write(("[orders]", f"[orders]\n  partition_filter: {MODULE}:chosen"))
    write(
        ("name: orders", "name: other"), ("[orders]", f"[orders]\n  partition_filter: {MODULE}:raises"), name="b.yaml"
    )
    assert len(load_folder(tmp_path).broken) == 2
