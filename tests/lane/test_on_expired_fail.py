"""`on_expired: fail` (S41): wherever retention is found to have taken records, the run stops and names them.

Nothing is settled as expired, every later run stops in the same way, and a skip or `on_expired: record` lets the lane
go on.
"""

from contextlib import nullcontext, suppress
from typing import Any

import pytest

from ackline.errors import RetentionPassed
from ackline.ledger.fold import PartitionState
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.steps import plan, run
from tests.support.memory import READ, Hook
from tests.support.memory_adapters import MemoryAdapters, no_session
from tests.support.memory_lane import AT_MOST_ONCE, DEAD, FAILS, NOON, OK, TP, MemoryLane

GENESIS, RUN, VOID = TurnKind.GENESIS, TurnKind.RUN, TurnKind.VOID
RETRY_AT_ONCE = {"initial_delay": "0s"}


def failing_lane(*values: bytes, **settings: Any) -> MemoryLane:
    """A lane whose runs stop at expired records."""
    return MemoryLane(*values, **{"on_expired": "fail", **settings})


def refusal(lane: MemoryLane, adapters: MemoryAdapters | None = None) -> str:
    """The message of a run that stops, after it has settled nothing."""
    before = lane.state()
    with pytest.raises(RetentionPassed) as caught:
        lane.run(adapters)
    assert (lane.state(), (caught.value.topic, caught.value.partition)) == (before, TP)
    return str(caught.value)


def skip_to_log_start(lane: MemoryLane) -> None:
    """What the message advises: `ackline skip lane --to earliest`."""
    lane.perform(TurnKind.SKIP, {TP: lane.log().start})


def rows(lane: MemoryLane) -> set[tuple[int, int | None, Outcome]]:
    return {(row.offset, row.end_offset, row.outcome) for row in lane.effective_rows()}


def expires_once_outcomes_are_stored(lane: MemoryLane) -> Hook:
    """Retention takes the first record between the turn's outcomes and the dead letter that reads it again."""

    def hook(_operation: str, _when: str) -> None:
        if lane.world.tables.outcomes:
            lane.log().expire(1)

    return hook


def expires_at_poll(lane: MemoryLane) -> Hook:
    """Retention takes the first record while replay reads."""

    def hook(operation: str, when: str) -> None:
        if (operation, when) == ("poll", READ):
            lane.log().expire(1)

    return hook


def test_s41_what_was_not_read_yet_is_named_before_anything_is_planned_and_a_skip_lets_the_lane_go_on() -> None:
    lane = failing_lane(OK, OK).after_run()
    lane.produce(OK, OK, OK)
    lane.log().expire(4)
    plans = len(lane.world.tables.plans)
    message = refusal(lane)
    assert "orders[0] [2, 4)" in message
    assert "`ackline skip lane --topic orders --partition 0 --to earliest --reason …`" in message
    assert "`on_expired: record`" in message
    assert refusal(lane) == message
    with pytest.raises(RetentionPassed):
        plan.preview(lane.adapters())
    assert len(lane.world.tables.plans) == plans
    skip_to_log_start(lane)
    lane.run()
    assert (rows(lane), lane.calls(), lane.committed()) == ({(2, 4, Outcome.SKIPPED)}, [(0, 1), (1, 1), (4, 1)], 5)


def test_s41_pending_records_are_named_though_they_are_not_due_and_record_lets_the_lane_go_on() -> None:
    lane = failing_lane(OK, FAILS, OK, FAILS, OK, retry={"initial_delay": "1h"}).after_run()
    lane.log().expire(4)
    assert "orders[0] [1, 2), [3, 4)." in refusal(lane)
    lane.settings["on_expired"] = "record"
    lane.run()
    assert (lane.state().complete_to, lane.pending()) == (5, [(1, 2), (3, 4)])
    lane.world.now = NOON.replace(hour=23)
    lane.run()
    assert {(1, None, Outcome.EXPIRED), (3, None, Outcome.EXPIRED)} <= rows(lane)
    assert lane.committed() == 5


def test_s41_a_retry_that_is_gone_when_it_is_read_makes_the_turn_void() -> None:
    """Nothing that the turn handled beside it counts, and nothing loops: the next run stops before it plans."""
    lane = failing_lane(FAILS, OK, OK, retry=RETRY_AT_ONCE).after_run()
    lane.produce(OK)
    message = refusal(lane, lane.adapters(hook=expires_at_poll(lane)))
    assert "orders[0] [0, 1)" in message
    assert "turn 2 (lane live, epoch 0) of lane is void" in message
    assert lane.kinds() == [GENESIS, RUN, VOID]
    assert "Nothing was planned" in refusal(lane)
    assert (lane.kinds()[3:], lane.ranges(Outcome.EXPIRED)) == ([], [])
    skip_to_log_start(lane)
    lane.run()
    assert (0, 1, Outcome.SKIPPED) in rows(lane)
    assert lane.calls().count((3, 1)) == 2, "what a void turn handled is handled again"
    assert lane.committed() == 4


def test_s41_a_dead_letter_whose_record_is_gone_makes_the_turn_void() -> None:
    lane = failing_lane(DEAD, OK)
    with pytest.raises(RetentionPassed, match=r"orders\[0\] \[0, 1\).* is void"):
        lane.run(lane.adapters(hook=expires_once_outcomes_are_stored(lane)))
    assert lane.kinds() == [GENESIS, VOID]
    assert "Nothing was planned" in refusal(lane)
    skip_to_log_start(lane)
    lane.run()
    assert rows(lane) == {(0, 1, Outcome.SKIPPED)}


def test_s41_a_fresh_range_that_is_gone_when_it_is_read_makes_the_turn_void_and_the_next_plan_refuses() -> None:
    lane = failing_lane(OK, OK, OK).after_plan()
    lane.log().expire(2)
    assert "orders[0] [0, 2)" in refusal(lane)
    assert lane.kinds() == [GENESIS, VOID]


def test_s41_the_replay_step_of_a_dag_stops_as_well() -> None:
    lane = failing_lane(OK, OK, OK).after_plan()
    lane.log().expire(2)
    with pytest.raises(RetentionPassed, match="Nothing was planned"):
        run.replay_until_records(lane.adapters(), no_session)


@pytest.mark.parametrize(
    ("guarantee", "kind", "settled"), [("at_least_once", VOID, set()), (AT_MOST_ONCE, RUN, {(1, 3, Outcome.EXPIRED)})]
)
def test_s41_a_turn_planned_under_record_is_void_once_the_file_says_fail_unless_it_is_claimed(
    guarantee: str, kind: TurnKind, settled: set[Any]
) -> None:
    """At most once, the plan passes over what retention took, and the group has moved over it: it is never void."""
    lane = failing_lane(OK, on_expired="record", guarantee=guarantee).after_run()
    lane.produce(OK, OK, OK)
    lane.log().expire(3)
    lane.plan_and_replay()
    lane.settings["on_expired"] = "fail"
    with pytest.raises(RetentionPassed, match=r"orders\[0\] \[1, 3\).* is void") if kind is VOID else nullcontext():
        lane.settle()
    assert (lane.kinds()[-1], rows(lane)) == (kind, settled)
    lane.produce(OK, OK)
    lane.log().expire(5)
    assert f"orders[0] [{lane.state().complete_to}, 5)" in refusal(lane)


def test_a_paused_partition_is_not_checked() -> None:
    lane = failing_lane(OK).after_run()
    lane.produce(OK, OK)
    lane.perform(TurnKind.PAUSE)
    lane.log().expire(2)
    lane.run()
    assert lane.state() == PartitionState(1)


@pytest.mark.parametrize("policy", ["record", "fail"])
@pytest.mark.parametrize("read_again", ["for its retry", "for its letter"])
def test_killed_between_any_two_writes_and_run_again_nothing_is_settled_as_expired_by_fail(
    policy: str, read_again: str
) -> None:
    """At every point where a process may stop, while retention takes the record that it reads again."""
    for stop in range(200):
        if read_again == "for its retry":
            lane = failing_lane(FAILS, OK, on_expired=policy, retry=RETRY_AT_ONCE).after_run()
            lane.produce(OK)
            expires = expires_at_poll(lane)
        else:
            lane = failing_lane(DEAD, OK, on_expired=policy).after_plan()
            expires = expires_once_outcomes_are_stored(lane)
        if not _killed(lane, stop, expires):
            assert stop > 10
            break
        with pytest.raises(RetentionPassed) if policy == "fail" else nullcontext():
            lane.run()
        assert bool(lane.ranges(Outcome.EXPIRED)) == (policy == "record"), f"killed at step {stop}"
    else:
        raise AssertionError("the run did not end")


def _killed(lane: MemoryLane, stop: int, expires: Hook) -> bool:
    """Whether a run was killed at its operation number `stop`; False where it has ended before."""
    left = stop

    def hook(operation: str, when: str) -> None:
        nonlocal left
        expires(operation, when)
        if left == 0:
            raise KeyboardInterrupt
        left -= 1

    try:
        with suppress(RetentionPassed):
            lane.run(lane.adapters(hook=hook))
    except KeyboardInterrupt:
        lane.log().expire(1)
        return True
    return False
