"""Rescue from retention (S88): a pending record that retention takes is copied first, and read from its copy."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ackline.actions import actions
from ackline.errors import ConfigError, CopyGone
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import PendingKind
from ackline.ledger.states import Signals
from ackline.ledger.turns import TurnKind
from ackline.verify.check import judge
from tests.chaos.config import Config
from tests.chaos.evidence import evidence_of
from tests.support.actor import Killed
from tests.support.memory import AFTER, BEFORE, ArrivedCopy, LogRecord
from tests.support.memory_lane import FAILS, GROUP, NOON, OK, TP, MemoryLane

HOUR = timedelta(hours=1)
COPIES = TP._replace(topic="rescue")
TWICE = b'{"fail": 2}'
"""A record that fails twice, and is acked by its third attempt."""


def lane_with_rescue(*values: bytes | None, **settings: Any) -> MemoryLane:
    """A lane whose topic keeps records for a day, and whose retries come 19 hours after a failure."""
    retry = {"initial_delay": "19h", "period": "19h", "multiplier": 1.0, "max_delay": "19h", "max_retries": 3}
    lane = MemoryLane(*values, **{"rescue": {"topic": "rescue", "before": "6h"}, "retry": retry, **settings})
    lane.create("rescue")
    lane.world.topics["orders"].retention = 24 * HOUR
    return lane


def rescued(lane: MemoryLane) -> list[tuple[int, int, int]]:
    """(start, end, offset of the first copy) of the runs that the newest settlement has stored."""
    return [(run.start, run.end, run.first) for run in lane.state().copies]


def copies(lane: MemoryLane) -> list[bytes | None]:
    """The values of all copies that have arrived, in order."""
    return [event.value for event in lane.world.history if isinstance(event, ArrivedCopy)]


def run_at(lane: MemoryLane, hours: float) -> MemoryLane:
    lane.world.now = NOON + hours * HOUR
    lane.run()
    return lane


def judged(lane: MemoryLane) -> list[str]:
    """What the independent checker finds."""
    rules = replace(Config().rules(), group=GROUP, dead_letter_topic="dead")
    return judge(evidence_of(lane.world, rules)).violations


def outcomes(lane: MemoryLane) -> list[tuple[int, int, str]]:
    return [(row.offset, row.attempt, row.outcome.value) for row in lane.effective_rows()]


def test_s88_a_pending_record_is_copied_when_retention_is_near_and_its_retry_reads_the_copy() -> None:
    lane = lane_with_rescue(TWICE, OK)
    run_at(lane, 0)
    run_at(lane, 17)
    assert (rescued(lane), copies(lane)) == ([], []), "retention is seven hours away"
    run_at(lane, 18)
    assert (rescued(lane), copies(lane)) == ([(0, 1, 0)], [TWICE])
    lane.log().expire(2)
    seen: list[LogRecord] = []
    handle = lane.world.handle
    lane.world.handle = lambda record: (seen.append(record), handle(record))[1]  # type: ignore[func-returns-value, arg-type]
    run_at(lane, 19)
    assert (lane.offsets(), rescued(lane)) == ([0, 1, 0], [(0, 1, 0)]), "it has failed again, and keeps its copy"
    run_at(lane, 39)
    assert (lane.pending(), rescued(lane), lane.committed()) == ([], [], 2)
    assert outcomes(lane) == [(0, 1, "failed"), (0, 2, "failed")], "and never expired"
    assert copies(lane) == [TWICE], "no record is copied twice"
    assert judged(lane) == []


def test_s88_the_handler_gets_the_record_as_it_was() -> None:
    lane = lane_with_rescue()
    headers = [("ackline.pipeline", b"mine"), ("trace", None), ("trace", b"\xff")]
    lane.log().append(FAILS, NOON, key=b"k", headers=headers)
    records: list[Any] = []
    handle = lane.world.handle

    def keep(record: Any) -> Any:
        records.append(record)
        return handle(record)

    lane.world.handle = keep
    run_at(lane, 0)
    run_at(lane, 18)
    lane.log().expire(1)
    run_at(lane, 19)
    first, second = records
    for name in ("topic", "partition", "offset", "timestamp", "key", "value", "headers"):
        assert getattr(first, name) == getattr(second, name), name
    assert (first.attempt, second.attempt) == (1, 2)


def test_s88_only_what_retention_takes_within_the_time_is_copied() -> None:
    lane = lane_with_rescue(FAILS, OK, FAILS)
    lane.world.now = NOON + 3 * HOUR
    lane.produce(FAILS)
    run_at(lane, 18)
    assert (rescued(lane), lane.pending()) == ([(0, 1, 0), (2, 3, 1)], [(0, 1), (2, 4)])
    run_at(lane, 22)
    assert rescued(lane) == [(0, 1, 0), (2, 4, 1)], "neighbours whose copies are neighbours are one run"


def test_s88_a_record_that_is_dead_has_its_letter_made_of_the_copy() -> None:
    lane = lane_with_rescue(FAILS, retry={"max_retries": 0})
    lane.world.faults.letters.extend(["lost"] * 2)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.log().expire(1)
    assert lane.state().pending_by_kind()[PendingKind.DEAD_LETTER] == 1
    run_at(lane, 30)
    [letter] = lane.letters()
    assert (letter.value, letter.headers["ackline.offset"], letter.headers["ackline.topic"]) == (FAILS, "0", "orders")
    assert sorted(row.outcome for row in lane.effective_rows()) == [Outcome.DEAD, Outcome.FAILED]
    assert (rescued(lane), lane.committed()) == ([], 1)


@pytest.mark.parametrize(("operation", "when"), [("copy", AFTER), ("settlement", BEFORE), ("settlement", AFTER)])
def test_s88_killed_between_copy_and_ledger_the_record_is_copied_again_at_most(operation: str, when: str) -> None:
    lane = lane_with_rescue(TWICE)
    run_at(lane, 0)
    lane.die(operation, when)
    with pytest.raises(Killed):
        run_at(lane, 18)
    run_at(lane, 18)
    expected = 0 if (operation, when) == ("settlement", AFTER) else 1
    assert (len(copies(lane)), rescued(lane)) == (expected + 1, [(0, 1, expected)])
    lane.log().expire(1)
    run_at(lane, 19)
    run_at(lane, 39)
    assert (lane.pending(), outcomes(lane)) == ([], [(0, 1, "failed"), (0, 2, "failed")])
    assert judged(lane) == []


def test_s88_of_two_processes_that_settle_a_turn_the_stored_places_count() -> None:
    lane = lane_with_rescue(TWICE)
    run_at(lane, 0)
    lane.world.now = NOON + 18 * HOUR
    lane.plan_and_replay()
    lane.strike("settlement", lambda: lane.settle(lane.adapters("other")), BEFORE)
    lane.settle(lane.adapters("slow"))
    assert (len(copies(lane)), rescued(lane)) == (2, [(0, 1, 1)]), "the other one was first to store its settlement"
    lane.log().expire(1)
    run_at(lane, 19)
    assert lane.calls() == [(0, 1), (0, 2)]


def settle_beside(lane: MemoryLane, fault: str) -> None:
    """Settles a turn that has a record to copy, beside a rescue topic that is gone or fails."""
    run_at(lane, 0)
    lane.world.now = NOON + 18 * HOUR
    lane.plan_and_replay()
    if fault == "gone":
        lane.world.delete_topic("rescue")
    else:
        lane.world.faults.copies.append(fault)
    lane.settle()


@pytest.mark.parametrize("fault", ["gone", "lost", "refused"])
def test_s88_a_turn_whose_copies_fail_is_settled_without_them_and_the_next_one_tries_again(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    lane = lane_with_rescue(TWICE)
    settle_beside(lane, fault)
    assert (rescued(lane), lane.newest().turn.n) == ([], 2)
    assert "rescue" in caplog.text
    assert Signals.of(lane.metrics()).retention_at == NOON + 24 * HOUR
    if fault == "gone":
        error = lane.run_fails(ConfigError, "the rescue topic rescue of pipeline lane does not exist")
        assert "take `rescue` out of the file" in str(error)
        lane.create("rescue")
    run_at(lane, 18)
    assert rescued(lane) == [(0, 1, 0)]


def test_s88_retention_is_not_forecast_of_what_has_a_copy() -> None:
    lane = lane_with_rescue(FAILS)
    run_at(lane, 0)
    assert Signals.of(lane.metrics()).retention_at == NOON + 24 * HOUR
    run_at(lane, 18)
    assert Signals.of(lane.metrics()).retention_at is None
    lane.produce(FAILS)
    run_at(lane, 18.5)
    assert Signals.of(lane.metrics()).retention_at == NOON + 42 * HOUR


@pytest.mark.parametrize("what", ["deleted", "made again", "expired"])
def test_s88_a_copy_that_is_lost_while_its_original_is_there_is_made_again(what: str) -> None:
    lane = lane_with_rescue(TWICE)
    run_at(lane, 0)
    run_at(lane, 18)
    if what == "expired":
        lane.log(COPIES).expire(1)
    else:
        lane.create("rescue")
    run_at(lane, 18.5)
    assert (len(copies(lane)), rescued(lane)) == (2, [(0, 1, 1 if what == "expired" else 0)])
    lane.log().expire(1)
    run_at(lane, 19)
    assert lane.calls() == [(0, 1), (0, 2)]


@pytest.mark.parametrize("what", ["made again", "expired"])
@pytest.mark.parametrize("on_expired", ["record", "fail"])
def test_s88_a_record_that_is_gone_with_its_copy_stops_the_lane_until_an_operator_skips_it(
    what: str, on_expired: str
) -> None:
    lane = lane_with_rescue(FAILS, OK, on_expired=on_expired)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.log().expire(2)
    if what == "expired":
        lane.log(COPIES).expire(1)
    else:
        lane.create("rescue")
    lane.world.now = NOON + 19 * HOUR
    error = lane.run_fails(CopyGone, r"orders\[0\]: records are gone.*copies.*\[0, 1\)")
    assert "`ackline skip lane --topic orders --partition 0 --offsets 0:1 --reason …`" in str(error)
    assert outcomes(lane) == [(0, 1, "failed")], "it is never expired"


def test_one_command_skips_all_that_is_gone_with_its_copies_but_nothing_else_that_is_pending() -> None:
    lane = lane_with_rescue(FAILS, OK, FAILS, FAILS)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.create("rescue")
    lane.world.now = NOON + 19 * HOUR
    lane.log().expire(3)
    lane.run_fails(CopyGone, r"`ackline skip lane --topic orders --partition 0 --offsets 0:3 --reason …`")
    lane.log().expire(4)
    lane.run_fails(CopyGone, r"--offsets 0:4 --reason …`")


def test_s88_a_record_that_an_operator_skips_ends_the_stand_still() -> None:
    lane = lane_with_rescue(FAILS, OK)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.log().expire(2)
    lane.create("rescue")
    lane.run_fails(CopyGone)
    actions.perform_action(lane.adapters(), TurnKind.SKIP, lambda newest: {TP: lane.state().pending}, "it is gone")
    run_at(lane, 19)
    assert (lane.pending(), lane.committed()) == ([], 2)


@pytest.mark.parametrize("target", [0, 1])
def test_s88_a_reset_is_refused_that_would_lose_what_has_a_copy_alone(target: int) -> None:
    lane = lane_with_rescue(FAILS, OK, FAILS)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.log().expire(3)
    with pytest.raises(ConfigError, match=r"orders\[0\]: a new epoch that begins at offset . would lose . record"):
        lane.perform(TurnKind.RESET, {TP: target})
    lane.perform(TurnKind.RESET, {TP: 3})
    run_at(lane, 19)
    assert (lane.pending(), rescued(lane), lane.ranges(Outcome.EXPIRED)) == ([], [], [])


def test_s88_on_expired_fail_does_not_stop_at_what_has_a_copy() -> None:
    lane = lane_with_rescue(TWICE, OK, on_expired="fail")
    run_at(lane, 0)
    run_at(lane, 18)
    lane.log().expire(2)
    run_at(lane, 19)
    run_at(lane, 39)
    assert (lane.pending(), lane.committed()) == ([], 2)
