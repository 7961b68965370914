"""The steps are killed at each line and run again (S52, fault 23): in the end they have written the same.

Here the adapters are in memory; tests/chaos/test_kills.py kills real processes at each write. One run is traced. A kill
at a line leaves the world as it is right before that line, because a killed process runs no more code. Most lines write
nothing, so a kill there leaves the same world as a kill at the line before, and what the next runs do depends on the
world alone. So the test goes on once from each different world, and that covers a kill at every line that the run
reaches.
"""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ackline.dead_letters import send
from ackline.lane import claim, commit
from ackline.ledger import fold, planning
from ackline.ledger.fold import PendingKind
from ackline.steps import decide, plan, replay, run, run_plan, settle
from tests.chaos.account import Policy, Rules
from tests.chaos.oracle import Oracle
from tests.support.actor import Actor, Killed
from tests.support.memory import BEFORE, GroupCommit, HandlerCall, Hook, TableCommit
from tests.support.memory_lane import DEAD, FAILS, FAILS_ONCE, GROUP, OK, TP, MemoryLane

STEPS = (plan, run_plan, replay, settle, commit, decide, send, claim, run)
KILLED_IN = {str(Path(str(module.__file__)).resolve()) for module in (*STEPS, fold, planning)}
"""The files at whose lines a process is killed: the steps, and the pure rules that they call."""


def six_records(**settings: Any) -> MemoryLane:
    """Returns a lane that has not run, with a record of each kind."""
    retry = {"initial_delay": "0s", "period": "0s", "max_retries": 1}
    return MemoryLane(OK, FAILS, b'{"skip": true}', DEAD, None, FAILS_ONCE, retry=retry, **settings)


def run_times(lane: MemoryLane, run_id: str, times: int = 1) -> None:
    for number in range(times):
        lane.run(lane.adapters(f"{run_id}-{number}"))


def worlds_at_each_line(lane: MemoryLane) -> dict[bytes, int]:
    """Runs once. Returns each world that a kill at a line of the steps leaves, with the first such line."""
    worlds: dict[bytes, int] = {}
    passed = 0

    def look(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if frame.f_code.co_filename not in KILLED_IN:
            return None
        if event == "line":
            passed += 1
            worlds.setdefault(pickle.dumps(lane.world), passed)
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        run_times(lane, "struck")
    finally:
        sys.settrace(before)
    worlds.setdefault(pickle.dumps(lane.world), passed + 1)
    assert passed > 300
    assert len(worlds) > 5
    return worlds


def struck_at_each_line(turns_before: int = 0, **settings: Any) -> Iterator[tuple[int, MemoryLane]]:
    """Yields each world that a kill leaves, in a lane of its own, with the line of the kill."""
    lane = six_records(**settings)
    run_times(lane, "before", turns_before)
    for world, line in worlds_at_each_line(lane).items():
        struck = six_records(**settings)
        struck.world = pickle.loads(world)
        yield line, struck


def rows(lane: MemoryLane) -> set[tuple[int, int, str]]:
    """Returns (offset, attempt, outcome) of all outcomes. All turns are settled, and no outcome is stored twice."""
    stored = lane.world.tables.outcomes
    assert {turn.n for turn in stored} <= {turn.n for turn in lane.world.tables.settlements}
    found = [(r.offset, r.attempt, str(r.outcome)) for files in stored.values() for f in files for r in f.rows[TP]]
    assert len(found) == len(set(found))
    return set(found)


def judge(lane: MemoryLane) -> None:
    pipeline = lane.adapters().pipeline
    retry = pipeline.retry
    policy = Policy(retry.max_retries, retry.initial_delay, retry.period, retry.max_delay)
    dead, lost_after = pipeline.dead_letter_topic, pipeline.lost_after
    rules = Rules(GROUP, pipeline.name, pipeline.kafka.isolation, "fail", policy, {}, dead, lost_after, None)
    oracle = Oracle(lane.world, rules)
    oracle.check()
    oracle.check_tables()


@pytest.mark.parametrize("turn", [1, 2])
def test_s52_killed_at_any_line_and_run_again_nothing_is_lost_and_no_outcome_is_there_twice(turn: int) -> None:
    """Fault 23, and faults 1, 3, 4, 29 at every line between the writes. Turn 1 sends dead letters, turn 2 retries."""
    twin = six_records()
    run_times(twin, "twin", 3)
    undisturbed = rows(twin)
    assert (len(undisturbed), twin.committed()) == (10, 6)
    for line, lane in struck_at_each_line(turns_before=turn - 1):
        judge(lane)
        run_times(lane, "after", 3)
        judge(lane)
        assert rows(lane) == undisturbed, f"line {line}"
        assert lane.committed() == 6
        letters = [int(letter.headers["ackline.offset"]) for letter in lane.letters()]
        assert set(letters) == {1, 3}
        assert len(letters) <= 4


def test_s50_killed_at_any_line_at_most_once_hands_nothing_out_twice() -> None:
    """Fault 37: each record is handled once or lost, and the group moves before the first call."""
    for line, lane in struck_at_each_line(guarantee="at_most_once", dead_letter="none"):
        judge(lane)
        lane.world.now += lane.adapters().pipeline.lost_after
        run_times(lane, "after", 2)
        judge(lane)
        offsets = lane.offsets()
        assert len(set(offsets)) == len(offsets), f"line {line}"
        history = lane.world.history
        if offsets:
            first_call = next(n for n, event in enumerate(history) if isinstance(event, HandlerCall))
            commits = [event for event in history[:first_call] if isinstance(event, GroupCommit)]
            assert commits[-1].offsets[TP].offset == 6
        assert lane.committed() == 6
        stored = rows(lane)
        assert stored == {(0, 0, "lost")} or {offset for offset, _, _ in stored} == set(range(6))


def test_letters_of_a_killed_settle_are_sent_again_with_the_same_coordinates() -> None:
    """Fault 29: the same letter, with the same key and headers, may be on the topic twice, and is there at least once
    (I6)."""
    lane = MemoryLane(FAILS, OK, DEAD, retry={"max_retries": 0}).after_replay()
    lane.die("decisions", BEFORE)
    with pytest.raises(Killed):
        lane.settle()
    first = lane.letters()
    assert [(letter.headers["ackline.offset"], letter.value) for letter in first] == [("0", FAILS), ("2", DEAD)]
    lane.run()
    assert lane.letters()[2:] == first


def test_two_that_settle_at_once_fold_the_decisions_that_are_stored_and_not_their_own() -> None:
    """The first process gets its acknowledgement, the second does not; but the second stores its decisions first."""
    lane = six_records()

    def process(run_id: str) -> Actor:
        def work(hook: Hook) -> None:
            lane.run(lane.adapters(run_id, hook))

        return Actor(run_id, work)

    first, second = process("first"), process("second")
    first.advance(lambda operation, when: (operation, when) == ("decisions", BEFORE))
    lane.world.faults.letters.append("lost")
    second.advance(lambda operation, when: (operation, when) == ("settlement", BEFORE))
    commits = [event for event in lane.world.history if isinstance(event, TableCommit)]
    assert [commit.value for commit in commits if commit.application.endswith("decisions")] == [[]]
    first.advance(None)
    second.advance(None)
    judge(lane)
    assert (first.error, second.error, lane.state().pending_by_kind()[PendingKind.DEAD_LETTER]) == (None, None, 1)
    run_times(lane, "after", 3)
    judge(lane)
    assert lane.committed() == 6
