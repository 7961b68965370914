"""Which requests a plan makes of the broker, and how many retries one plan can hold."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from ackline.pipeline.pipeline import Pipeline
from ackline.steps.plan import plan
from ackline.steps.run import run
from tests.support.memory import READ, World
from tests.support.memory_adapters import memory_adapters, no_session

OF_TABLES = {"settlements", "settlement", "plans", "plan"}
"""What a plan reads of the tables and not of the broker."""
NOON = datetime(2024, 10, 4, 12, tzinfo=UTC)


def pipeline(**given: object) -> Pipeline:
    """A pipeline over two topics."""
    kafka = {"bootstrap_servers": "memory", "group_id": "g", "topics": ["orders", "payments"]}
    return Pipeline.model_validate(
        {"name": "p", "kafka": kafka, "handler": "handlers.any:handle", "dead_letter": "none", **given}
    )


def planning_requests(behind: int, limit: int) -> Counter[str]:
    """How often one plan makes each request of the broker, over logs that are `behind` records ahead of the ledger."""
    world = World(NOON)
    for name in ("orders", "payments"):
        world.create_topic(name, 3)
    run(memory_adapters(world, pipeline(max_records_per_run=limit), "first"), no_session)
    for tp in world.partitions():
        log = world.log(tp)
        assert log is not None
        for _ in range(behind):
            log.append(b"{}", NOON)
    requests: Counter[str] = Counter()

    def count(name: str, when: str) -> None:
        requests.update([name] if when == READ and name not in OF_TABLES else [])

    plan(memory_adapters(world, pipeline(max_records_per_run=limit), "second", count))
    return requests


@pytest.mark.parametrize(("limit", "times"), [(5_000_000, {}), (1, {"times": 1})])
def test_the_requests_of_planning_do_not_depend_on_how_far_behind_it_is(limit: int, times: dict[str, int]) -> None:
    """Storm's spout requests offset after offset. A plan asks for topics and commits once, and for the bounds of all
    logs twice: before it chooses its ranges, and before it is stored. Where a run can't read all that is new, it asks
    once for the times of the first unread records."""
    wanted = {"topics": 1, "committed": 1, "bounds": 2, **times}
    assert planning_requests(1, limit) == planning_requests(2_000, limit) == wanted


def test_thousands_of_retries_with_the_same_due_time_are_one_plan_and_none_comes_early() -> None:
    """S18: none a millisecond before it, and all of them at it."""
    world = World(NOON)
    log = world.create_topic("orders").logs[0]
    world.create_topic("payments")
    for _ in range(5_000):
        log.append(b'{"fail": 1}', NOON)
    waiting = pipeline(retry={"initial_delay": "1h"})
    assert run(memory_adapters(world, waiting, "first"), no_session).calls == 5_000
    world.now += timedelta(hours=1) - timedelta(milliseconds=1)
    assert run(memory_adapters(world, waiting, "early"), no_session).calls == 0
    world.now += timedelta(milliseconds=1)
    due = run(memory_adapters(world, waiting, "due"), no_session)
    assert due.calls == 5_000
    assert due.outcomes == {"acked": 5_000}
    [due_plan] = due.plans
    assert sum(len(planned.retries) for planned in due_plan.partitions.values()) == 1, "equal neighbours are one run"
