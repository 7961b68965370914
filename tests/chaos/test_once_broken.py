"""What the machine once found broken, each as the shortest way there."""

from datetime import UTC, datetime

import pytest

from ackline.commit_rule import Committed
from ackline.errors import GroupMoved
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.pipeline import Pipeline
from ackline.steps import plan, replay, run
from ackline.testing.memory import World
from ackline.testing.memory_parts import memory_parts, no_session
from tests.chaos.account import rows_of
from tests.chaos.config import Config
from tests.chaos.machine import Turmoil

AT = TopicPartition("orders", 0)


def test_a_void_turn_remembers_that_its_plan_met_a_commit_of_ours() -> None:
    """Else somebody who moves the group back to where the lane once started is overwritten in silence (S36)."""
    world = World(datetime(2026, 1, 1, tzinfo=UTC))
    log = world.create_topic("orders").logs[0]
    for _ in range(4):
        log.append(b"{}", world.now)
    world.committed["g", AT] = Committed(1, "")
    kafka = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders"]}
    settings = {"name": "lane", "kafka": kafka, "handler": "a:b", "dead_letter": "none", "max_records_per_run": 1}
    pipeline = Pipeline.model_validate(settings)
    run.run(memory_parts(world, pipeline, "one"), no_session)
    plan.plan(memory_parts(world, pipeline, "two"))
    log.expire(3)
    assert replay.replay(memory_parts(world, pipeline, "two"), no_session).void
    world.committed["g", AT] = Committed(1, "")
    with pytest.raises(GroupMoved):
        run.run(memory_parts(world, pipeline, "three"), no_session)


def test_a_topic_created_again_while_settle_reads_its_dead_letters_makes_none_of_its_own_dead() -> None:
    machine = Turmoil()
    machine.begin(Config())
    machine.outage = True
    machine.append(machine.log(0), [{}])
    machine.append(machine.log(1), [{}])
    machine.holds()
    machine.start(0, [], "run", ("letter", "before"), False)
    machine.holds()
    machine.topics_change(1, "recreated")
    machine.holds()
    machine.finish(0)
    machine.holds()
    dead = [
        tp.topic
        for turn in machine.oracle.epochs[-1].turns.values()
        for tp, row in rows_of(turn.decisions)
        if row.outcome is Outcome.DEAD
    ]
    assert dead == ["orders"]  # and none of the other topic, the one created again
