"""One function says how a partition is, and the worst that holds is what it says (I20)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import Outcome
from ackline.ledger.states import (
    FAILING_SHARE,
    NEW_RECORDS,
    PartitionFacts,
    Signals,
    State,
    signals_after,
    state_of,
    worst_state,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
IDLE = PartitionFacts(first_at_risk=10, lag=0, log_start=0, pending=0)
BEHIND = replace(IDLE, lag=5)


def having(facts: PartitionFacts, **signals: object) -> PartitionFacts:
    return replace(facts, signals=Signals(**signals))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (IDLE, State.UP_TO_DATE),
        (BEHIND, State.WORKING),
        (replace(BEHIND, pending=6), State.WAITING),
        (replace(IDLE, paused=True), State.PAUSED),
        (replace(IDLE, lag=None), State.UNKNOWN),
        (replace(IDLE, is_overdue=True), State.UNKNOWN),
        (having(BEHIND, new_records=1000, new_failed=20), State.FAILING),
        (having(BEHIND, new_records=1000, new_failed=19), State.WORKING),
        (having(IDLE, dead_at=NOW - HOUR / 2), State.FAILING),
        (having(IDLE, dead_at=NOW - HOUR), State.UP_TO_DATE),
        (having(replace(BEHIND, pending=1), floor_since=NOW - 2 * HOUR), State.STUCK),
        (having(replace(BEHIND, pending=1), floor_since=NOW - 1.9 * HOUR), State.WAITING),
        (having(IDLE, floor_since=NOW - 9 * HOUR), State.UP_TO_DATE),
        (having(replace(BEHIND, paused=True), floor_since=NOW - 9 * HOUR), State.PAUSED),
        (replace(IDLE, stands_still=True), State.STUCK),
        (replace(IDLE, undelivered=1, pending=1), State.STUCK),
        (replace(IDLE, open_transaction=3), State.WAITING),
        (replace(BEHIND, open_transaction=3), State.WORKING),
        (replace(IDLE, lag=None, open_transaction=3), State.UNKNOWN),
        (having(replace(IDLE, open_transaction=3), floor_since=NOW - 2 * HOUR), State.STUCK),
        (replace(BEHIND, log_start=11), State.LOSING),
        (replace(IDLE, expired=True), State.LOSING),
        (having(replace(BEHIND, paused=True), retention_at=NOW + 24 * HOUR), State.LOSING),
        (having(BEHIND, retention_at=NOW + 25 * HOUR), State.WORKING),
        (having(IDLE, retention_at=NOW), State.UP_TO_DATE),
    ],
)
def test_the_state_of_a_partition(facts: PartitionFacts, state: State) -> None:
    assert state_of(facts, NOW) is state


def test_the_worst_state_is_that_of_a_lane_and_without_a_partition_nothing_is_known() -> None:
    assert worst_state([State.UP_TO_DATE, State.LOSING, State.FAILING]) is State.LOSING
    assert worst_state([]) is State.UNKNOWN
    assert [state.value for state in State] == [
        "losing", "stuck", "failing", "unknown", "paused", "waiting", "working", "up to date",
    ]  # fmt: skip


def turn(
    before: dict[str, float] | None, hours: float, *outcomes: tuple[int, Outcome], **known: object
) -> dict[str, float]:
    """The signals after a turn with these attempts and outcomes, some hours after noon."""
    given = {"moved": False, "behind": True, "new_records": 0, "retention_at": None, "now": NOW + hours * HOUR} | known
    rows = [OutcomeRow(n, attempt, outcome, NOW) for n, (attempt, outcome) in enumerate(outcomes)]
    return signals_after(before, rows, **given)  # type: ignore[arg-type]


def after(before: dict[str, float] | None, hours: float, *outcomes: tuple[int, Outcome], **known: object) -> Signals:
    return Signals.of(turn(before, hours, *outcomes, **known))


def test_a_floor_is_still_from_the_first_turn_after_which_records_wait_above_it() -> None:
    assert after(turn(None, 0), 3).floor_since == NOW
    assert after(turn(None, 0), 3, moved=True).floor_since == NOW + 3 * HOUR
    assert after(turn(None, 0, behind=False), 3).floor_since == NOW + 3 * HOUR
    assert after(turn(None, 0), 3, behind=False).floor_since is None
    assert after(turn(None, 0), 3, behind=None).floor_since == NOW, "an action reads no log"


def test_new_failures_are_counted_apart_from_failed_retries() -> None:
    rows = [(1, Outcome.FAILED), (1, Outcome.DROPPED), (2, Outcome.FAILED), (2, Outcome.FAILED)]
    assert after(None, 0, *rows, new_records=8).failing_share == 0.25
    assert after(None, 0, *rows).failing_share is None


def test_the_share_of_the_last_new_records_stays_while_the_topic_is_silent() -> None:
    failing = turn(None, 0, (1, Outcome.FAILED), new_records=4)
    assert after(failing, 1).failing_share == 0.25 > FAILING_SHARE
    assert after(failing, 1, new_records=4).failing_share == 0
    assert after(turn(failing, 1), 2).failing_share == 0.25


def test_a_turn_without_new_records_counts_none_of_its_own() -> None:
    failing = turn(None, 0, (1, Outcome.FAILED), new_records=4)
    assert [failing.get(NEW_RECORDS), turn(failing, 1).get(NEW_RECORDS)] == [4.0, None]


def test_a_death_is_remembered_with_its_time() -> None:
    died = turn(None, 0, (0, Outcome.DEAD))
    assert after(died, 5).dead_at == NOW
    assert after(None, 5).dead_at is None
