"""`on_expired: fail` (S41): whatever retention takes, wherever it is found out, nothing is settled as expired, the run
says what is gone, every later run says it again, and an act or `record` lets the lane go on."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from ackline.errors import RetentionPassed
from ackline.ledger import PartitionState
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.pipeline import Pipeline
from ackline.steps import operator_actions, plan, replay, run, settle
from ackline.testing.memory import READ, HandlerCall, Hook, MemoryLog, World, no_hook
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from ackline.turns import TurnKind
from tests.unit.strategies import NOON

AT = TopicPartition("orders", 0)
Script = dict[str, Any]
FAILS, DEAD = {"fail": 9}, {"dead": True}


class Place:
    """A world with one topic, one partition, and a pipeline on it."""

    def __init__(self, *scripts: Script, **settings: Any) -> None:
        self.world = World(NOON)
        for topic in ("orders", "orders.dead"):
            self.world.create_topic(topic)
        self.settings = {
            "name": "lane",
            "kafka": {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders"]},
            "handler": "handlers:scripted",
            "dead_letter": {"topic": "orders.dead"},
            "on_expired": "fail",
            **settings,
        }
        self.produce(*scripts)

    @property
    def log(self) -> MemoryLog:
        return self.world.topics["orders"].logs[0]

    def produce(self, *scripts: Script) -> None:
        for script in scripts:
            self.log.append(json.dumps(script).encode(), NOON)

    def parts(self, hook: Hook = no_hook) -> MemoryParts:
        return memory_parts(self.world, Pipeline.model_validate(self.settings), "run", hook)

    def run(self, hook: Hook = no_hook) -> run.Ran:
        return run.run(self.parts(hook), no_session)

    def refused(self, hook: Hook = no_hook) -> str:
        """What a run says that stops; nothing may have been settled by it."""
        before = self.state()
        with pytest.raises(RetentionPassed) as caught:
            self.run(hook)
        assert self.state() == before
        assert (caught.value.topic, caught.value.partition) == AT
        return str(caught.value)

    def state(self) -> object:
        newest = self.parts().store.newest()
        assert newest is not None
        return newest.partitions[AT].state

    def kinds(self) -> list[TurnKind]:
        return [one.kind for one in self.world.tables.settlements.values()]

    def skip(self) -> None:
        """What the error says: `ackline skip lane --to earliest`."""
        parts = self.parts()
        operator_actions.perform_action(
            parts, TurnKind.SKIP, lambda _: {AT: parts.cluster.bounds([AT])[AT].start}, "retention"
        )

    def rows(self) -> set[tuple[int, int | None, Outcome]]:
        """Every row of a turn that counts but the acked."""
        settled = [(s.turn, s.kind) for s in self.world.tables.settlements.values()]
        found = [self.parts().store.outcomes_of(turn) for turn, kind in settled if kind is not TurnKind.VOID]
        rows = [row for one in found for rows in one.rows.values() for row in rows]
        return {(r.offset, r.end_offset, r.outcome) for r in rows if r.outcome is not Outcome.ACKED}

    def calls(self) -> list[tuple[int, int]]:
        return [(call.offset, call.attempt) for call in self.world.history if isinstance(call, HandlerCall)]


def expires(place: Place, operation: str, start: int) -> Hook:
    """Retention takes all below `start` when a process reads so."""

    def hook(now: str, when: str) -> None:
        if (now, when) == (operation, READ):
            place.log.expire(start)

    return hook


def test_s41_what_was_not_read_yet_is_named_before_anything_is_planned_and_a_skip_lets_the_lane_go_on() -> None:
    place = Place({}, {})
    place.run()
    place.produce({}, {}, {})
    place.log.expire(4)
    plans = len(place.world.tables.plans)

    said = place.refused()
    assert "orders[0] [2, 4)" in said
    assert "`ackline skip lane --topic orders --partition 0 --to earliest`" in said
    assert "`on_expired: record`" in said
    assert place.refused() == said
    with pytest.raises(RetentionPassed):
        plan.preview(place.parts())
    assert len(place.world.tables.plans) == plans

    place.skip()
    place.run()
    assert place.rows() == {(2, 4, Outcome.SKIPPED)}
    assert place.calls() == [(0, 1), (1, 1), (4, 1)]
    assert place.world.committed["g", AT].offset == 5


def test_s41_pending_records_are_named_though_they_are_not_due_and_record_lets_the_lane_go_on() -> None:
    place = Place({}, FAILS, {}, FAILS, {}, retry={"initial_delay": "1h"})
    place.run()
    place.log.expire(4)

    assert "orders[0] [1, 2), [3, 4)." in place.refused()

    place.settings["on_expired"] = "record"
    place.run()
    assert place.state() == PartitionState(5, place.state().pending)  # type: ignore[attr-defined]
    place.world.now = place.world.now.replace(hour=23)
    place.run()
    assert {(1, None, Outcome.EXPIRED), (3, None, Outcome.EXPIRED)} <= place.rows()
    assert place.world.committed["g", AT].offset == 5


def test_s41_a_retry_that_is_gone_when_it_is_read_makes_the_turn_void() -> None:
    """Nothing that the turn handled beside it counts, and nothing loops: the next run refuses before it plans."""
    place = Place(FAILS, {}, {}, retry={"initial_delay": "0s"})
    place.run()
    place.produce({})

    said = place.refused(expires(place, "poll", 1))
    assert "orders[0] [0, 1)" in said
    assert "turn 2 (lane live, epoch 0) of lane is void" in said
    assert place.kinds() == [TurnKind.GENESIS, TurnKind.RUN, TurnKind.VOID]
    assert "Nothing was planned" in place.refused()
    assert place.kinds()[3:] == []
    assert not any(outcome is Outcome.EXPIRED for _, _, outcome in place.rows())

    place.skip()
    place.run()
    assert (0, 1, Outcome.SKIPPED) in place.rows()
    assert place.calls().count((3, 1)) == 2, "what a void turn handled is handled again"
    assert place.world.committed["g", AT].offset == 4


def test_s41_a_dead_letter_whose_record_is_gone_makes_the_turn_void() -> None:
    place = Place(DEAD, {})

    with pytest.raises(RetentionPassed, match=r"orders\[0\] \[0, 1\).* is void"):
        place.run(_once_outcomes_are_stored(place, 1))
    assert place.kinds() == [TurnKind.GENESIS, TurnKind.VOID]
    assert "Nothing was planned" in place.refused()
    place.skip()
    place.run()
    assert place.rows() == {(0, 1, Outcome.SKIPPED)}


def _once_outcomes_are_stored(place: Place, start: int) -> Hook:
    def hook(_operation: str, _when: str) -> None:
        if place.world.tables.outcomes:
            place.log.expire(start)

    return hook


def test_s41_a_fresh_range_that_is_gone_when_it_is_read_makes_the_turn_void_and_the_next_plan_refuses() -> None:
    place = Place({}, {}, {})
    plan.plan(place.parts())
    place.log.expire(2)
    assert "orders[0] [0, 2)" in place.refused()
    assert place.kinds() == [TurnKind.GENESIS, TurnKind.VOID]


def test_s41_the_driver_of_the_replay_task_stops_as_well() -> None:
    place = Place({}, {}, {})
    plan.plan(place.parts())
    place.log.expire(2)
    with pytest.raises(RetentionPassed, match="Nothing was planned"):
        run.replay_on(place.parts(), no_session)


def test_s41_a_turn_planned_under_record_does_not_settle_expired_rows_once_the_file_says_fail() -> None:
    place = Place({}, on_expired="record")
    place.run()
    place.produce({}, {}, {})
    place.log.expire(3)
    plan.plan(place.parts())
    replay.replay(place.parts(), no_session)
    place.settings["on_expired"] = "fail"

    with pytest.raises(RetentionPassed, match=r"orders\[0\] \[1, 3\).* is void"):
        settle.settle(place.parts())
    assert place.kinds()[-1] is TurnKind.VOID
    assert place.rows() == set()


def test_s41_at_most_once_a_claimed_turn_is_never_void() -> None:
    """What retention took below it was passed over by its plan, under `record`; the group has moved over it."""
    place = Place({}, on_expired="record", guarantee="at_most_once")
    place.run()
    place.produce({}, {}, {})
    place.log.expire(3)
    plan.plan(place.parts())
    replay.replay(place.parts(), no_session)
    place.settings["on_expired"] = "fail"
    settle.settle(place.parts())
    assert place.kinds()[-1] is TurnKind.RUN
    assert place.rows() == {(1, 3, Outcome.EXPIRED)}
    place.produce({}, {})
    place.log.expire(5)
    assert "orders[0] [4, 5)" in place.refused()


def test_a_paused_partition_is_not_asked() -> None:
    place = Place({})
    place.run()
    place.produce({}, {})
    operator_actions.perform_action(place.parts(), TurnKind.PAUSE, lambda _: {AT: 1}, "")
    place.log.expire(2)
    place.run()
    assert place.state() == PartitionState(1)


@pytest.mark.parametrize("policy", ["record", "fail"])
@pytest.mark.parametrize("read_again", ["for its retry", "for its letter"])
def test_killed_between_any_two_writes_and_run_again_nothing_is_settled_as_expired_by_fail(
    policy: str, read_again: str
) -> None:
    """Every point at which a process may stop, while retention takes the record that it reads again."""
    for stop in range(200):
        if read_again == "for its retry":
            place = Place(FAILS, {}, on_expired=policy, retry={"initial_delay": "0s"})
            place.run()
            place.produce({})
            takes = expires(place, "poll", 1)
        else:
            place = Place(DEAD, {}, on_expired=policy)
            plan.plan(place.parts())
            takes = _once_outcomes_are_stored(place, 1)
        if not _stopped(place, stop, takes):
            assert stop > 10
            break
        with pytest.raises(RetentionPassed) if policy == "fail" else nullcontext():
            place.run()
        found = [row for row in place.rows() if row[2] is Outcome.EXPIRED]
        assert bool(found) == (policy == "record"), f"stopped at step {stop}"
    else:
        raise AssertionError("it never came to its end")


def _stopped(place: Place, stop: int, then: Callable[[str, str], None]) -> bool:
    """Whether a run was struck at its operation number `stop`."""
    left = stop

    def hook(operation: str, when: str) -> None:
        nonlocal left
        then(operation, when)
        if left == 0:
            raise KeyboardInterrupt
        left -= 1

    try:
        place.run(hook)
    except KeyboardInterrupt:
        place.log.expire(1)
        return True
    except RetentionPassed:
        return False
    return False
