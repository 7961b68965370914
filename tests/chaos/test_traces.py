"""Traces in which the state machine once found a lane stuck, a move of the group overwritten, or an invariant broken.

Each is in its shortest form.
"""

from datetime import timedelta
from typing import Any

import pytest

from ackline.errors import AcklineError, ConfigError, GroupBusy, GroupMoved, NewerCommit, TopicChanged, TransientError
from ackline.lane import claim, commit
from ackline.lane.claim import TRIES
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.outputs.publish import publish_settled
from ackline.steps import plan
from tests.chaos.account import rows_of
from tests.chaos.config import Config
from tests.chaos.machine import ChaosMachine
from tests.support.memory import HandlerCall
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_kafka import MemoryCluster
from tests.support.memory_lane import AT_LEAST_ONCE, AT_MOST_ONCE, GROUP, OK, PAYMENTS, TP, MemoryLane

READS_COMMITS = "committed"
"""The operation of reading the group's offsets."""


def two_topics(**settings: Any) -> MemoryLane:
    """A lane of two topics with six records each."""
    lane = MemoryLane(*[OK] * 6, topics=("orders", "payments"), **{"dead_letter": "none", **settings})
    lane.create("payments", records=6)
    return lane


def once(**settings: Any) -> MemoryLane:
    return two_topics(guarantee=AT_MOST_ONCE, **settings)


def committed(lane: MemoryLane, tp: TopicPartition) -> Committed:
    return lane.world.committed[GROUP, tp]


def all_calls(lane: MemoryLane) -> list[tuple[TopicPartition, int]]:
    return [(event.tp, event.offset) for event in lane.world.history if isinstance(event, HandlerCall)]


# ---- operator actions ---------------------------------------------------------------------------------------------


def test_a_skip_is_refused_in_a_topic_that_was_created_again() -> None:
    """Its offsets are not those that were read."""
    lane = two_topics().after_run()
    before = lane.newest()
    lane.create("orders", records=9)
    with pytest.raises(TopicChanged, match="created again"):
        lane.perform(TurnKind.SKIP, {TP: 1})
    assert lane.newest() == before


def test_a_reset_begins_although_retention_has_passed_the_floor_of_a_partition_that_it_leaves_alone() -> None:
    lane = two_topics(max_records_per_run=4).after_run()
    floor = lane.floor(PAYMENTS)
    lane.log(PAYMENTS).expire(5)
    lane.perform(TurnKind.RESET, {TP: 0}, whole=True)
    assert (lane.newest().turn.epoch, lane.floor(TP), lane.floor(PAYMENTS)) == (1, 0, floor)


def test_an_operator_moves_nothing_outside_its_log() -> None:
    lane = two_topics().after_run()
    for target in (-1, 7):
        with pytest.raises(ConfigError, match="outside the log"):
            lane.perform(TurnKind.SKIP, {TP: target})


def test_an_operator_action_that_names_no_partition_is_refused_and_takes_no_turn() -> None:
    lane = two_topics().after_run()
    with pytest.raises(ConfigError, match="no partition was named to pause"):
        lane.perform(TurnKind.PAUSE, {})
    assert lane.newest().turn.n == 1


@pytest.mark.parametrize("kind", [TurnKind.PAUSE, TurnKind.RESUME])
def test_s36_a_pause_acknowledges_no_move_of_the_group(kind: TurnKind) -> None:
    """It moves nothing itself, and is done; the next run still stops at the move."""
    lane = two_topics().after_run()
    lane.run()
    moved = lane.move_group(TP, 1)
    lane.perform(kind, {TP: lane.floor()})
    assert (lane.settled().paused, committed(lane, TP)) == (kind is TurnKind.PAUSE, moved)
    lane.run_fails(GroupMoved)
    lane.perform(TurnKind.SKIP, {TP: lane.floor()})
    assert lane.committed() == 6


def test_a_pause_by_another_ledger_leaves_the_group_where_its_own_ledger_has_moved_it() -> None:
    lane = two_topics().after_run()
    moved = lane.move_group(TP, 900, CommitMetadata("another", "lane", 0, 77).encode())
    paused = lane.perform(TurnKind.PAUSE, {TP: lane.floor()})
    assert "of ledger another" in str(paused.not_committed)
    assert (committed(lane, TP), lane.settled().paused) == (moved, True)


# ---- the group ----------------------------------------------------------------------------------------------------


def test_s36_a_group_that_was_moved_beyond_the_log_is_followed_to_its_end() -> None:
    lane = two_topics(on_external_reset="follow", max_records_per_run=4).after_run()
    lane.move_group(TP, 50)
    lane.run()
    assert (lane.floor(), lane.committed()) == (6, 6)


def test_s36_a_group_that_was_moved_back_is_followed_although_retention_was_quicker() -> None:
    lane = two_topics(on_external_reset="follow").after_run()
    lane.move_group(TP, 1)
    lane.log().expire(3)
    lane.run()
    assert (lane.newest().turn.epoch, dict(lane.settled().counts)) == (1, {"acked": 3, "expired": 2})


def test_s36_at_most_once_a_move_beside_an_open_turn_is_followed() -> None:
    """What was planned before the move is claimed and lost: an action can't run beside an open turn."""
    lane = once(on_external_reset="follow", max_records_per_run=4).after_run()
    lane.plan()
    lane.move_group(TP, 0)
    lane.run_fails(GroupMoved)
    lane.run()
    assert lane.newest().turn.epoch == 1
    lane.run()
    lane.run()
    assert (lane.floor(TP), lane.floor(PAYMENTS)) == (6, 6)


def test_s36_at_most_once_a_claim_does_not_overwrite_a_move_back_to_where_the_lane_once_began() -> None:
    lane = once(max_records_per_run=4, start="uncommitted_earliest")
    lane.move_group(TP, 1)
    lane.run()
    lane.plan()  # meets a commit of ours: the foreign offset of the start is no longer acknowledged
    moved = lane.move_group(TP, 1)
    with pytest.raises(GroupMoved):
        lane.replay()
    assert committed(lane, TP) == moved


@pytest.mark.parametrize("policy", ["fail", "follow", "restore"])
def test_a_foreign_commit_of_a_parked_partition_is_left_alone_and_stops_no_run(policy: str) -> None:
    """A topic may have gone to another pipeline of the same group."""
    lane = two_topics(on_external_reset=policy, max_records_per_run=4).after_run()
    lane.topics = ["orders"]
    moved = lane.move_group(PAYMENTS, 1)
    lane.run()
    assert lane.committed() == lane.floor() == 6
    assert committed(lane, PAYMENTS) == moved


def test_a_foreign_commit_of_a_filtered_partition_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parked by its filter, as by its topic. At most once, each turn would be lost to that commit."""
    lane = once(on_external_reset="follow").after_run()
    monkeypatch.setattr(MemoryAdapters, "is_subscribed", lambda _, tp: tp != PAYMENTS)
    lane.move_group(PAYMENTS, 3)
    lane.produce(OK)
    lane.run()
    assert (lane.offsets(), lane.committed(PAYMENTS)) == (list(range(7)), 3)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("step", ["run", "commit"])
def test_s53_a_commit_that_another_run_has_just_made_is_not_taken_for_another_ledger_s(step: str, times: int) -> None:
    """It is stored before it is committed, and looks newer to a process that has read the ledger before that."""
    lane = two_topics().after_run()

    left = [None] * times

    def rival(operation: str, _: str) -> None:
        if operation == READS_COMMITS and left:
            left.pop()
            lane.produce(OK)
            lane.run()

    slow = lane.adapters("slow", rival)
    if step == "run":
        lane.run(slow)
    else:
        commit.commit_newest(slow, publish_settled)
    assert not left
    assert len(all_calls(lane)) == len(set(all_calls(lane))) == 12 + times
    assert lane.committed() == lane.floor() == 6 + times


def test_s53_at_most_once_a_claim_that_another_run_has_just_committed_is_not_taken_for_another_ledger_s() -> None:
    lane = once()
    planned = lane.plan()

    def rival(operation: str, _: str) -> None:
        if operation == READS_COMMITS and not lane.adapters().store.has_claim(planned.turn):
            claim.claim(lane.adapters("quick"), planned, lane.newest(), publish_settled)

    lane.replay(lane.adapters("slow", rival))
    lane.settle()
    assert (len(all_calls(lane)), lane.settled().counts) == (12, {"acked": 6})


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE])
@pytest.mark.parametrize(("ledger", "n"), [("another", 0), ("", 9)])
def test_a_commit_of_another_ledger_or_a_newer_turn_still_stops_every_step(guarantee: str, ledger: str, n: int) -> None:
    lane = two_topics(guarantee=guarantee).after_run()
    metadata = CommitMetadata(ledger or lane.adapters().store.ledger_id(), "lane", 0, n)
    moved = lane.move_group(TP, 2, metadata.encode())
    lane.produce(OK)
    for step in (
        lane.run,
        lambda: commit.commit_newest(lane.adapters(), publish_settled),
        lambda: plan.preview(lane.adapters()),
    ):
        with pytest.raises(NewerCommit):
            step()
    assert (committed(lane, TP), lane.newest().turn.n) == (moved, 1)


# ---- at most once -------------------------------------------------------------------------------------------------


def test_s50_what_was_handed_out_at_most_once_is_not_handed_out_again_under_another_guarantee() -> None:
    """I7: the turn keeps the guarantee that it was planned under, until it is settled."""
    lane = once().after_plan()
    # Claim and start marker are stored, outcomes are not, however often they are tried.
    lane.world.faults.tables.extend(["", "", *["refused"] * TRIES])
    with pytest.raises(AcklineError, match="can't be used"):
        lane.replay()
    events = len(lane.world.history)
    assert all_calls(lane)
    lane.settings["guarantee"] = AT_LEAST_ONCE
    lane.run_fails(ConfigError, "guarantee was changed from at_most_once to at_least_once while turn")
    assert len(lane.world.history) == events


def test_s41_at_most_once_a_plan_that_was_not_claimed_is_planned_again_and_not_lost() -> None:
    lane = once().after_plan()
    lane.log().expire(2)
    lane.run()
    assert (lane.offsets(), lane.floor(PAYMENTS)) == ([2, 3, 4, 5], 6)


def test_s50_the_grace_period_begins_when_records_are_handed_out_and_not_when_they_were_planned() -> None:
    """A plan may wait in a queue for longer than `lost_after`; the process that takes it then may still report."""
    lane = once(lost_after="10m").after_plan()
    lane.world.now += timedelta(hours=2)
    lane.world.faults.jobs.append("failed")  # it has started, and never reports
    lane.run_fails(TransientError)
    lane.world.now += timedelta(minutes=9)
    lane.run_fails(TransientError, "which may still report")
    lane.world.now += timedelta(minutes=1)
    lane.run()
    assert lane.settled().counts == {"lost": 6}


@pytest.mark.parametrize("group", ["has a live member", "was moved"])
def test_s53_a_second_driver_does_not_record_a_turn_as_lost_that_the_first_is_handling(group: str) -> None:
    """Whatever keeps the second from committing the claim again: the first has handed the records out."""
    lane = once()
    run_job, interrupted = lane.adapters("first").run_job, []

    def interrupted_job(*arguments: Any) -> Any:
        result = run_job(*arguments)
        if group == "was moved":
            lane.move_group(TP, 1)
        else:
            lane.world.members = ["intruder"]
        with pytest.raises(TransientError, match="which may still report"):
            lane.replay(lane.adapters("second"))
        interrupted.append(True)
        return result

    lane.plan()
    lane.replay(lane.adapters("first", run_job=interrupted_job))
    assert interrupted
    with pytest.raises((GroupMoved, GroupBusy)):
        lane.settle()
    assert lane.settled().counts == {"acked": 6}


def test_s50_what_a_dead_process_has_started_is_lost_in_time_although_the_group_was_moved_meanwhile() -> None:
    lane = once(on_external_reset="follow", lost_after="10m")
    lane.world.faults.jobs.append("failed")
    lane.run_fails(TransientError)
    lane.move_group(TP, 2)
    lane.run_fails(TransientError, "which may still report")
    lane.world.now += timedelta(minutes=10)
    lane.run()
    assert lane.settled().counts == {"lost": 6}
    lane.run()
    assert (lane.newest().turn.epoch, lane.floor()) == (1, 6)


def test_s36_what_was_parked_and_taken_by_others_since_it_was_planned_is_lost_and_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I7: the handler is called once the group has moved over its records, and this group may not be moved."""
    lane = once().after_plan()
    monkeypatch.setattr(MemoryAdapters, "is_subscribed", lambda _, tp: tp != PAYMENTS)
    lane.move_group(PAYMENTS, 3)
    lane.run_fails(GroupMoved, "no longer subscribed")
    lane.run()
    assert (all_calls(lane), lane.committed(PAYMENTS)) == ([], 3)


# ---- too far behind -----------------------------------------------------------------------------------------------


def test_s45_a_log_that_grows_while_it_is_skipped_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is too far behind again at each look: a run skips once, and then reads."""
    lane = two_topics(max_offset_behind={"offsets": 2, "policy": "skip"})
    reachable = MemoryCluster.reachable

    def growing(cluster: MemoryCluster) -> str:
        lane.produce(OK)
        return reachable(cluster)

    monkeypatch.setattr(MemoryCluster, "reachable", growing)
    lane.run()
    assert {tp for tp, _ in all_calls(lane)} == {TP, PAYMENTS}


def test_a_void_turn_remembers_that_its_plan_met_a_commit_of_ours() -> None:
    """Otherwise a commit overwrites a group that was moved back to where the lane once started (S36)."""
    lane = MemoryLane(*[OK] * 4, dead_letter="none", max_records_per_run=1)
    lane.move_group(TP, 1)
    lane.run()
    lane.plan()
    lane.log().expire(3)
    assert lane.replay().void
    lane.move_group(TP, 1)
    lane.run_fails(GroupMoved)


def test_a_topic_created_again_while_settle_reads_its_dead_letters_makes_none_of_its_own_dead() -> None:
    machine = ChaosMachine()
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
    turns = machine.oracle.epochs[-1].turns.values()
    rows = [(tp, row) for turn in turns for tp, row in rows_of(turn.decisions)]
    dead = [tp.topic for tp, row in rows if row.outcome is Outcome.DEAD]
    assert dead == ["orders"], "the record of the other topic, which was created again, is not dead"
