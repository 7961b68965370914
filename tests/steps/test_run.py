"""When a run, or the replay step of a DAG, takes another turn; and a run that is requested to read less."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ackline.errors import ConfigError, RangeGone, TurnVoided
from ackline.forms.form import SETTING, RunRequest
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.planning import NOT_REQUESTED, ONLY_RETRIES
from ackline.ledger.turns import TurnKind
from ackline.steps import plan, run
from ackline.steps.run import replay_until_records
from tests.support.memory import AFTER, BEFORE
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import FAILS, FAILS_ONCE, OK, TP, TP1, MemoryLane, void

ROOT = Path(__file__).parents[2]


def test_the_replay_step_goes_on_over_gaps_to_the_turn_that_settle_is_to_find() -> None:
    lane = MemoryLane(max_records_per_run=2)
    lane.log().add_gap(5)
    lane.produce(OK, OK, OK)
    lane.plan()
    done = run.replay_until_records(lane.adapters(), no_session)
    lane.settle()
    assert (done.calls, lane.calls(), lane.newest().turn.n, lane.committed()) == (1, [(5, 1)], 3, 6)


def test_the_example_of_the_concepts_has_the_calls_and_floors_that_the_page_shows() -> None:
    lane = MemoryLane(OK, OK, FAILS_ONCE, OK, None, retry={"initial_delay": "0s", "period": "0s", "max_retries": 2})
    lane.log().add_gap(1)
    lane.produce(FAILS, OK)
    floors = [lane.after_run().committed() for _ in range(3)]
    shown = re.findall(r"^\| turn \d.* (\d+) \|$", (ROOT / "docs/concepts.md").read_text(), re.MULTILINE)
    assert floors == [2, 6, 8] == [int(floor) for floor in shown]
    assert lane.calls() == [(0, 1), (1, 1), (2, 1), (3, 1), (6, 1), (7, 1), (2, 2), (6, 2), (6, 3)]
    assert [letter.value for letter in lane.letters()] == [FAILS]


def test_the_replay_step_leaves_the_turn_of_another_run_to_that_run() -> None:
    """The other run has settled this one's turn and planned the next, by the time this one looks again."""
    lane = MemoryLane(OK, OK).after_plan()

    def other_run_goes_on() -> None:
        lane.settle()
        lane.produce(OK, OK)
        lane.settings["max_records_per_run"] = 1
        lane.plan()

    lane.strike("outcomes", other_run_goes_on, AFTER)
    assert run.replay_until_records(lane.adapters(), no_session).calls == 2
    assert (lane.newest().turn.n, lane.calls()) == (1, [(0, 1), (1, 1)])


def other_run(lane: MemoryLane, ends_turn: Callable[[], object]) -> Callable[[], None]:
    """Returns another run, which ends the turn that this one has just planned, and plans the next one."""

    def goes_on() -> None:
        ends_turn()
        lane.plan()

    return goes_on


@pytest.mark.parametrize(
    ("then_gap", "turns"), [(False, [1, 3]), (True, [1, 3, 4])], ids=["with records", "without records"]
)
def test_a_run_that_lost_its_turn_reports_and_settles_the_turn_that_it_has_replayed(
    then_gap: bool, turns: list[int]
) -> None:
    """The other run settles turn 2 and plans turn 3, so the replay of this one carries out turn 3."""
    lane = MemoryLane(max_records_per_run=2)
    lane.log().add_gap(2)
    lane.produce(OK, OK)
    if then_gap:
        lane.log().add_gap(2)
    lane.produce(OK, OK)
    lane.plan()

    def ends_turn() -> None:
        lane.replay()
        lane.settle()

    lane.strike("settlement", lambda: lane.strike("plan", other_run(lane, ends_turn), AFTER), AFTER)
    done = run.replay_until_records(lane.adapters(), no_session)
    assert ([plan.turn.n for plan in done.plans], done.calls, lane.newest().turn.n) == (turns, 2, turns[-1] - 1)


def test_a_run_whose_turn_an_operator_voids_ends_even_if_it_has_replayed_the_next_one() -> None:
    lane = MemoryLane(OK, OK)
    lane.strike("plan", other_run(lane, lambda: void(lane)), AFTER)
    lane.run_fails(TurnVoided, r"turn 1 .* was closed as void")
    assert (lane.newest().kind, lane.calls()) == (TurnKind.VOID, [(0, 1), (1, 1)])


def test_what_retention_took_leaves_the_window_to_the_records_behind_it() -> None:
    lane = MemoryLane(OK, OK, max_uncommitted=2).after_run()
    lane.produce(OK, OK, OK, OK)
    lane.log().expire(5)
    lane.run()
    assert (lane.newest().turn.n, lane.committed(), lane.calls()[2:]) == (2, 6, [(5, 1)])


def test_a_run_goes_on_over_a_gap_longer_than_the_window_beside_a_pending_record() -> None:
    """The gap fills no window: behind it, as many records are read as the window allows beside the pending one."""
    lane = MemoryLane(FAILS, max_uncommitted=4, retry={"initial_delay": "1h"}).after_run()
    lane.log().add_gap(20)
    lane.produce(*[OK] * 10)
    lane.run()
    assert (lane.offsets(), lane.state().uncommitted) == ([0, 21], 2)
    for _ in range(3):
        lane.run()
    assert (lane.offsets(), lane.state().uncommitted) == ([0, 21, 22, 23], 4)
    assert [planned.why for planned in lane.plan().partitions.values()] == ["window full"]
    assert sum(settlement.partitions[TP].gaps or 0 for settlement in lane.world.tables.settlements.values()) == 20


@pytest.mark.parametrize("step", [run.run, run.replay_until_records])
def test_a_run_stops_after_five_void_turns_in_a_row(step: object) -> None:
    """Retention takes a record between each plan and its read; the next record comes in time for the next plan."""
    lane = MemoryLane(OK)

    def retention_is_quicker() -> None:
        lane.produce(OK)
        lane.log().expire(lane.log().end - 1)
        lane.strike("plan", retention_is_quicker, AFTER)

    lane.strike("plan", retention_is_quicker, AFTER)
    if step is run.replay_until_records:
        lane.plan()
    with pytest.raises(RangeGone, match="5 turns in a row"):
        step(lane.adapters(), no_session)  # type: ignore[operator]
    assert lane.kinds() == [TurnKind.GENESIS, *[TurnKind.VOID] * 5]


def test_s45_a_run_that_has_skipped_skips_again_after_another_run_has_read() -> None:
    """The other run finishes the skip that this one has planned, and goes on; then the log grows."""
    lane = MemoryLane(max_offset_behind={"offsets": 4, "policy": "skip"}).after_run()
    lane.produce(*[OK] * 9)

    def another_run() -> None:
        lane.run()
        lane.produce(*[OK] * 9)

    lane.strike("settlement", another_run, BEFORE)
    lane.run()
    assert lane.offsets() == [5, 6, 7, 8, 14, 15, 16, 17]


NOW = {"initial_delay": "0s"}


def asked(lane: MemoryLane, **request: object) -> None:
    lane.run(lane.adapters(request=RunRequest(**request)))  # type: ignore[arg-type]


def test_max_records_limits_a_run_and_never_exceeds_the_file() -> None:
    lane = MemoryLane(*[OK] * 10, max_records_per_run=6)
    asked(lane, max_records=2)
    assert len(lane.calls()) == 2
    asked(lane, max_records=100)
    assert len(lane.calls()) == 8
    lane.run()
    assert lane.floor() == 10


def test_only_retries_reads_what_is_due_and_no_new_record() -> None:
    lane = MemoryLane(FAILS_ONCE, OK, retry=NOW).after_run()
    lane.produce(OK, OK)
    asked(lane, only_retries=True)
    assert lane.calls() == [(0, 1), (1, 1), (0, 2)]
    asked(lane, only_retries=True)
    stored = lane.adapters().store.plan(lane.newest().turn)
    assert stored.partitions[TP].why == ONLY_RETRIES
    lane.run()
    assert lane.floor() == 4


def test_only_retries_leaves_it_to_a_later_run_to_record_what_retention_took() -> None:
    lane = MemoryLane(*[OK] * 2).after_run()
    lane.produce(OK, OK, OK)
    lane.log().expire(4)
    asked(lane, only_retries=True)
    assert lane.floor() == 2
    lane.run()
    assert (lane.floor(), lane.ranges(Outcome.EXPIRED)) == (5, [(2, 4)])


def test_partitions_that_are_not_requested_are_not_read_and_move_no_floor() -> None:
    lane = MemoryLane(partitions=2)
    for tp in (TP, TP1):
        lane.produce(OK, tp=tp)
    asked(lane, partitions=frozenset({TP1}))
    assert (lane.calls(TP), lane.calls(TP1)) == ([], [(0, 1)])
    stored = lane.adapters().store.plan(lane.newest().turn)
    assert (stored.partitions[TP].why, stored.settings[SETTING]) == (NOT_REQUESTED, {"partitions": ["orders[1]"]})
    lane.run()
    assert lane.calls(TP) == [(0, 1)]


def test_a_partition_that_the_lane_does_not_have_is_refused_before_anything_is_planned() -> None:
    lane = MemoryLane(OK).after_run()
    lane.produce(OK)
    before = lane.newest().turn
    with pytest.raises(ConfigError, match=r"partitions: orders\[7\] is no partition that lane reads"):
        asked(lane, partitions=frozenset({TopicPartition("orders", 7)}))
    assert lane.newest().turn == before


def test_the_next_turn_of_a_run_in_airflow_keeps_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn reads a gap alone, so the driver plans the next one itself."""
    lane = MemoryLane(partitions=2)
    lane.log().add_gap(3)
    lane.produce(OK, OK)
    lane.produce(OK, tp=TP1)
    adapters = lane.adapters(request=RunRequest(max_records=3, partitions=frozenset({TP})))
    plan.plan(adapters)
    replay_until_records(lane.adapters(), no_session)
    lane.settle()
    assert (lane.calls(TP), lane.calls(TP1)) == ([(3, 1), (4, 1)], [])


def test_a_plan_that_is_open_stays_as_it_is() -> None:
    lane = MemoryLane(OK, OK).after_plan()
    asked(lane, only_retries=True)
    assert len(lane.calls()) == 2
