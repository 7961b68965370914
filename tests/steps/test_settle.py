"""settle: which turn it settles, a group that was moved before the commit (S36), and the breaker (S46)."""

from contextlib import nullcontext
from typing import Any

import pytest

from ackline.errors import GroupMoved, NoProof, TooManyFailures
from ackline.handler import Record
from ackline.ledger.fold import PartitionState, fold
from ackline.ledger.metrics import TOTALS
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.outcomes import Outcome, OutcomeRow
from ackline.ledger.turns import TurnKind
from ackline.steps import decide, settle
from ackline.tables.turn_outcomes import TurnOutcomes
from tests.support.memory import handle_by_orders
from tests.support.memory_lane import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DEAD,
    FAILS,
    FAILS_ONCE,
    NO_GUARANTEE,
    OK,
    TP,
    TP1,
    MemoryLane,
)
from tests.support.memory_store import MemoryStore

LATER = {"initial_delay": "1h", "period": "1h"}


def test_i1_the_end_of_a_plan_is_not_committed_before_the_plan_is_claimed() -> None:
    """A late settle of turn 1 commits beside a turn 2 that is planned only, and that may still become void."""
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE).after_run()
    lane.produce(OK, OK)
    open_plan = lane.plan()
    settle.settle(lane.adapters(), lane.newest().turn)
    assert (lane.committed(), open_plan.partitions[TP].fresh) == (2, OffsetRange(2, 4))


def test_a_partition_for_which_another_process_has_decided_is_folded_with_its_decisions() -> None:
    """The state that this process has found before is without them."""
    lane = MemoryLane(FAILS, FAILS)
    plan = lane.plan()
    before, _ = lane.adapters().newest_and_open_plan()
    assert before is not None
    failed = [OutcomeRow(offset, 1, Outcome.FAILED, lane.world.now) for offset in (0, 1)]
    own, stored = (
        TurnOutcomes({TP: rows}, {}, {}, complete=False)
        for rows in (failed, [*failed, OutcomeRow(0, 0, Outcome.SKIPPED, lane.world.now)])
    )
    undecided = decide.states_after(plan, before, own)
    assert undecided[TP].floor == 0
    assert decide.states_after(plan, before, own, None, undecided) == undecided
    assert decide.states_after(plan, before, stored, None, undecided)[TP].floor == 1


def test_a_settle_of_one_turn_needs_no_proof_of_the_next() -> None:
    lane = MemoryLane(OK).after_run()
    done = lane.newest().turn
    lane.produce(OK)
    lane.plan()
    assert (settle.settle(lane.adapters(), done).stored, lane.newest().turn) == (None, done)


def test_a_settle_without_a_turn_of_its_own_leaves_one_alone_that_another_run_may_still_replay() -> None:
    """A task of Airflow whose plan has stored nothing, or whose XCom is gone."""
    lane = MemoryLane(OK)
    planned = lane.plan()
    assert settle.settle(lane.adapters("another")).stored is None
    with pytest.raises(NoProof):
        settle.settle(lane.adapters())
    lane.replay()
    stored = settle.settle(lane.adapters("another")).stored
    assert stored is not None
    assert stored.turn == planned.turn


@pytest.mark.parametrize("policy", ["fail", "follow", "restore"])
def test_s36_a_group_moved_before_the_commit_is_refused_followed_or_restored(policy: str) -> None:
    lane = MemoryLane(OK, OK, OK, on_external_reset=policy).after_run()
    lane.produce(OK)
    lane.plan_and_replay()
    lane.move_group(TP, 1)
    with pytest.raises(GroupMoved) if policy == "fail" else nullcontext():
        lane.settle()
    assert (lane.floor(), lane.committed()) == (4, 4 if policy == "restore" else 1)


@pytest.mark.parametrize("when", ["before the rows are read", "before the tables are read again"])
def test_i4_decisions_that_another_process_stores_meanwhile_are_folded(when: str) -> None:
    """The other process has its letter acknowledged, and stops before its settlement. What it decided counts."""
    lane = MemoryLane(FAILS, retry={"max_retries": 0}).after_replay()

    def other_process_decides() -> None:
        other = lane.adapters("other")
        plan = other.store.open_plan(lane.newest())
        assert plan is not None
        settle._decided_outcomes(other, plan, lane.newest(), None)

    if when == "before the rows are read":
        lane.strike("rows", other_process_decides)
    else:
        lane.strike("rows", lambda: lane.strike("outcomes", other_process_decides))
    lane.settle()
    assert (lane.settled().counts, lane.pending()) == ({"failed": 1, "dead": 1}, [])
    lane.run()
    assert (len(lane.letters()), lane.committed()) == (1, 1)


def test_a_partition_is_folded_again_only_if_a_decision_about_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = MemoryLane(DEAD, partitions=2)
    lane.produce(FAILS_ONCE, tp=TP1)
    folded = list[str]()

    def noting(*arguments: Any, **more: Any) -> PartitionState:
        folded.append(arguments[5])
        return fold(*arguments, **more)

    monkeypatch.setattr(decide, "fold", noting)
    lane.run()
    assert sorted(seed.rpartition("/")[2] for seed in folded) == ["0", "0", "1"]
    assert (lane.state(TP).pending.offsets, lane.state(TP1).pending.offsets) == (0, 1)


def trip(lane: MemoryLane) -> str:
    with pytest.raises(TooManyFailures) as caught:
        lane.run()
    return str(caught.value)


@pytest.mark.parametrize(("ratio", "failing"), [(0, 0), (0.29, 29), (0.57, 57), (0.07, 7), (0.5, 50), (1, 100)])
def test_s46_as_many_failures_as_the_ratio_allows_do_not_trip_it_and_one_more_does(ratio: float, failing: int) -> None:
    """0.29 * 100 is less than 29 in floating point."""
    lane = MemoryLane(breaker={"failure_ratio": ratio, "min_records": 100})
    lane.produce(*[FAILS] * failing, *[OK] * (100 - failing))
    assert lane.run().outcomes.get("failed", 0) == failing
    if failing < 100:
        lane.produce(*[FAILS] * (failing + 1), *[OK] * (99 - failing))
        assert f"{failing + 1} of 100 new records failed" in trip(lane)


def test_s46_it_judges_by_counts_before_any_row_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a turn in which millions of records failed would be read only to be closed as void."""
    lane = MemoryLane(*[FAILS] * 10, breaker={"failure_ratio": 0.5, "min_records": 2})
    monkeypatch.setattr(MemoryStore, "outcomes_of", lambda *_: pytest.fail("rows were read"))
    assert "10 of 10 new records failed" in trip(lane)


class Unacked(Exception):
    """Has the name of the class that the acker stores for a tree with a tuple that no step has acked."""


def holds_some(record: Record) -> None:
    """Fails with the error class Unacked where the record orders `{"hold": true}`."""
    if record.value == HELD:
        raise Unacked
    handle_by_orders(record)


HELD = b'{"hold": true}'
STEPS = [{"name": "join", "handler": "a:b", "input": "source", "group_by": "key", "join": True}]


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE, NO_GUARANTEE])
@pytest.mark.parametrize("record_outcomes", [True, False])
def test_s46_records_of_tuples_that_a_join_holds_do_not_count_under_any_guarantee(
    monkeypatch: pytest.MonkeyPatch, guarantee: str, record_outcomes: bool
) -> None:
    # A world has no acker. So its handler raises an error of the name, which no handler can store otherwise.
    monkeypatch.setattr("tests.support.memory_adapters.error_class_of", lambda error: type(error).__name__)
    settings: dict[str, Any] = {"dead_letter": "none"} if guarantee != AT_LEAST_ONCE else {}
    if guarantee != AT_LEAST_ONCE:
        settings["record_outcomes"] = record_outcomes
    breaker = {"failure_ratio": 0.25, "min_records": 4}
    lane = MemoryLane(HELD, HELD, HELD, FAILS, steps=STEPS, guarantee=guarantee, breaker=breaker, **settings)
    lane.world.handle = holds_some
    outcome = "failed" if guarantee == AT_LEAST_ONCE else "dropped"
    assert lane.run().outcomes == {outcome: 4}
    lane.produce(HELD, HELD, FAILS, FAILS)
    if guarantee == AT_MOST_ONCE:  # its turns are claimed, and a claimed turn is never void
        assert lane.run().outcomes["dropped"] == 4
    else:
        assert "2 of 4 new records failed" in trip(lane)


def test_s46_below_min_records_it_does_not_trip() -> None:
    lane = MemoryLane(FAILS, FAILS, partitions=2, breaker={"failure_ratio": 0.1, "min_records": 4}, retry=LATER)
    lane.produce(FAILS, tp=TP1)
    assert lane.run().outcomes == {"failed": 3}
    lane.produce(FAILS, FAILS)
    lane.produce(FAILS, FAILS, tp=TP1)
    trip(lane)


def test_s46_twenty_failing_retries_never_trip_it() -> None:
    retry = {"initial_delay": "0s", "max_retries": 1}
    lane = MemoryLane(*[FAILS] * 20, *[OK] * 40, breaker={"failure_ratio": 0.5, "min_records": 4}, retry=retry)
    lane.run()
    assert (lane.run().outcomes, lane.committed()) == ({"failed": 20, "dead": 20}, 60)


def test_s46_a_void_turn_with_retries_is_made_again_with_the_same_attempts_and_one_letter_a_record() -> None:
    breaker = {"failure_ratio": 0.5, "min_records": 2}
    lane = MemoryLane(FAILS, OK, OK, breaker=breaker, retry={"initial_delay": "0s", "max_retries": 1}).after_run()
    lane.produce(FAILS, FAILS, OK)
    before = lane.state()
    trip(lane)
    trip(lane)
    assert (lane.state(), lane.letters()) == (before, [])
    lane.run(lane.adapters(no_breaker=True))
    assert [letter.headers["ackline.offset"] for letter in lane.letters()] == ["0"]
    assert sorted(lane.calls()[3:]) == sorted([(0, 2), (3, 1), (4, 1), (5, 1)] * 3)
    lane.run()
    assert [letter.headers["ackline.offset"] for letter in lane.letters()] == ["0", "3", "4"]
    assert lane.committed() == 6
    assert lane.settled().totals == dict.fromkeys(TOTALS, 0) | {"acked": 3, "failed": 6, "dead": 3, "retries": 3}


def test_s45_s46_what_was_skipped_stays_so_though_the_breaker_voids_the_turn_after_it() -> None:
    breaker, behind = {"failure_ratio": 0.5, "min_records": 2}, {"offsets": 5, "policy": "skip"}
    lane = MemoryLane(*[FAILS] * 20, breaker=breaker, max_offset_behind=behind)
    trip(lane)
    trip(lane)
    assert (lane.ranges(Outcome.SKIPPED), lane.newest().kind, lane.committed()) == ([(0, 15)], TurnKind.VOID, None)
    lane.run(lane.adapters(no_breaker=True))
    assert lane.calls() == [(offset, 1) for _ in range(3) for offset in range(15, 20)]
    assert (lane.settled().totals or {})["skipped"] == 15
