"""The steps killed at any line, and run again (S52, fault 23): in the end they have written the same.

On the in-memory parts, where a kill costs milliseconds; tests/chaos/test_kills.py kills real processes at each write.
"""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ackline import ledger, planning
from ackline.ledger import PendingKind
from ackline.offsets import TopicPartition
from ackline.pipeline import Pipeline
from ackline.steps import claim, decide, plan, replay, run, settle
from ackline.testing.memory import BEFORE, GroupCommit, HandlerCall, Hook, Posted, TableCommit, World, obey
from ackline.testing.memory_parts import memory_parts, no_session
from ackline.turns import TurnId
from tests.chaos.account import Policy, Rules
from tests.chaos.actor import Actor, Killed
from tests.chaos.oracle import Oracle

AT, GROUP, DEAD = TopicPartition("orders", 0), "g", "orders.dead"
RECORDS: tuple[bytes | None, ...] = (b"{}", b'{"fail": -1}', b'{"skip": true}', b'{"dead": true}', None, b'{"fail": 1}')
KILLED_IN = {str(Path(str(m.__file__)).resolve()) for m in (plan, replay, settle, decide, claim, run, ledger, planning)}
"""Files at whose lines a process may end: the steps, and the pure rules that they ask."""


def begun(**more: object) -> tuple[World, Pipeline]:
    """A world with six records, and a pipeline that has not run."""
    world = World(datetime(2026, 1, 1, tzinfo=UTC))
    log = world.create_topic(AT.topic).logs[0]
    world.create_topic(DEAD)
    for number, value in enumerate(RECORDS):
        log.append(value, world.now, key=b"%d" % number)
    world.handle = obey
    kafka = {"bootstrap_servers": "memory:1", "group_id": GROUP, "topics": [AT.topic]}
    retry = {"initial_delay": "0s", "period": "0s", "max_retries": 1}
    settings = {
        "name": "lane",
        "kafka": kafka,
        "handler": "a:b",
        "dead_letter": {"topic": DEAD},
        "retry": retry,
        **more,
    }
    return world, Pipeline.model_validate(settings)


def runs(world: World, pipeline: Pipeline, name: str, times: int = 1) -> None:
    for number in range(times):
        run.run(memory_parts(world, pipeline, f"{name}-{number}"), no_session)


def killed_at(line: int, work: Callable[[], None]) -> bool:
    """Do `work`, but end it right before the `line`-th line of the steps; whether there was such a line."""
    passed = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if frame.f_code.co_filename not in KILLED_IN:
            return None
        if event == "line":
            passed += 1
            if passed == line:
                raise Killed
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    except Killed:
        return True
    finally:
        sys.settrace(before)
    return False


def rows(world: World) -> set[tuple[int, int, str]]:
    """(offset, attempt, outcome) of all outcomes of turns that are settled."""
    stored: dict[TurnId, list[Any]] = world.tables.outcomes
    assert {turn.n for turn in stored} <= {turn.n for turn in world.tables.settlements}
    found = [(r.offset, r.attempt, str(r.outcome)) for files in stored.values() for f in files for r in f.rows[AT]]
    assert len(found) == len(set(found)), "an outcome is stored twice"
    return set(found)


def judged(world: World, pipeline: Pipeline) -> None:
    """By the oracle, which knows the history alone."""
    retry = pipeline.retry
    policy = Policy(retry.max_retries, retry.initial_delay, retry.period, retry.max_delay)
    rules = Rules(GROUP, pipeline.name, pipeline.kafka.isolation, "fail", policy, {}, DEAD, pipeline.lost_after, None)
    oracle = Oracle(world, rules)
    oracle.check()
    oracle.check_all_rows()


@pytest.mark.parametrize("turn", [1, 2])
def test_s52_killed_at_any_line_and_run_again_nothing_is_lost_and_no_outcome_is_there_twice(turn: int) -> None:
    """Fault 23, and 1, 3, 4, 29 at every line between the writes. Turn 1 has letters of its own, turn 2 retries."""
    twin, pipeline = begun()
    runs(twin, pipeline, "twin", 3)
    undisturbed = rows(twin)
    assert (len(undisturbed), twin.committed[GROUP, AT].offset) == (10, 6)
    line = 0
    while True:
        line += 1
        world, pipeline = begun()
        runs(world, pipeline, "before", turn - 1)
        struck = killed_at(line, lambda: runs(world, pipeline, "struck"))  # noqa: B023 - called at once
        judged(world, pipeline)
        runs(world, pipeline, "after", 3)
        judged(world, pipeline)
        assert rows(world) == undisturbed, f"line {line}"
        assert world.committed[GROUP, AT].offset == 6
        letters = [int(event.said["ackline.offset"]) for event in world.history if isinstance(event, Posted)]
        assert set(letters) == {1, 3}
        assert len(letters) <= 4
        if not struck:
            break
    assert line > 300


def test_s50_killed_at_any_line_at_most_once_hands_nothing_out_twice() -> None:
    """Fault 37: wherever it ends, each record is handled once or lost; the group moves before the first call."""
    line = 0
    while True:
        line += 1
        world, pipeline = begun(guarantee="at_most_once", dead_letter="none")
        struck = killed_at(line, lambda: runs(world, pipeline, "struck"))  # noqa: B023 - called at once
        world.now += pipeline.lost_after
        runs(world, pipeline, "after", 2)
        calls = [event for event in world.history if isinstance(event, HandlerCall)]
        assert len({call.offset for call in calls}) == len(calls), f"line {line}"
        if calls:
            first = next(n for n, event in enumerate(world.history) if isinstance(event, HandlerCall))
            commits = [event for event in world.history[:first] if isinstance(event, GroupCommit)]
            assert commits[-1].offsets[AT].offset == 6
        assert world.committed[GROUP, AT].offset == 6
        found = rows(world)
        assert found == {(0, 0, "lost")} or {offset for offset, _, _ in found} == set(range(6))
        if not struck:
            break
    assert line > 300


def test_two_that_settle_at_once_fold_the_decisions_that_are_stored_and_not_their_own() -> None:
    """The first has its letter acknowledged, the second has not, and stores what it decides before the first does."""
    world, pipeline = begun()

    def process(name: str) -> Actor:
        def work(hook: Hook) -> None:
            run.run(memory_parts(world, pipeline, name, hook), no_session)

        return Actor(name, work)

    first, second = process("first"), process("second")
    first.advance(lambda operation, when: (operation, when) == ("decisions", BEFORE))
    world.faults.letters.append("lost")
    second.advance(lambda operation, when: (operation, when) == ("settlement", BEFORE))
    tables = [event for event in world.history if isinstance(event, TableCommit)]
    assert [event.value for event in tables if event.application.endswith("decisions")] == [[]]
    first.advance(None)
    second.advance(None)
    judged(world, pipeline)
    assert (first.error, second.error) == (None, None)
    settled = memory_parts(world, pipeline, "third").store.newest()
    assert settled is not None
    assert settled.partitions[AT].state.pending_by_kind()[PendingKind.DEAD_LETTER] == 1
    runs(world, pipeline, "after", 3)
    judged(world, pipeline)
    assert world.committed[GROUP, AT].offset == 6
