"""Where the machine once found a lane stuck, or a move of the group overwritten, each as the shortest way there."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ackline.commit_rule import CommitMetadata, Committed
from ackline.errors import (
    AcklineError,
    ConfigError,
    GroupBusy,
    GroupMoved,
    NewerCommit,
    TopicChanged,
    TransientError,
)
from ackline.offsets import TopicPartition
from ackline.pipeline import Pipeline
from ackline.steps import claim, commit, operator_actions, plan, replay, run, settle
from ackline.testing.memory import HandlerCall, Hook, World, no_hook
from ackline.testing.memory_kafka import MemoryCluster
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from ackline.turns import Settlement, TurnKind
from tests.unit.strategies import NOON

AT, OTHER = TopicPartition("orders", 0), TopicPartition("payments", 0)
TOPICS = (AT.topic, OTHER.topic)


class Lane:
    """A pipeline of two topics with six records each, and a group that anybody may move."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(NOON)
        self.settings = {"name": "lane", "handler": "a:b", "dead_letter": "none", **settings}
        self.topics = list(TOPICS)
        for name in TOPICS:
            log = self.world.create_topic(name).logs[0]
            for _ in range(6):
                log.append(b"{}", self.world.now)

    def parts(self, name: str = "one", hook: Hook = no_hook) -> MemoryParts:
        kafka = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": self.topics}
        return memory_parts(self.world, Pipeline.model_validate({**self.settings, "kafka": kafka}), name, hook)

    def run(self) -> None:
        run.run(self.parts(), no_session)

    def act(self, kind: TurnKind, tp: TopicPartition, to: int) -> None:
        def choose(newest: Settlement) -> dict[TopicPartition, int]:
            floors = {one: settled.state.floor for one, settled in newest.partitions.items()}
            return floors | {tp: to} if kind is TurnKind.RESET else {tp: to}

        operator_actions.perform_action(self.parts(), kind, choose, "a test")

    def move(self, tp: TopicPartition, offset: int) -> None:
        self.world.committed["g", tp] = Committed(offset, "")

    def newest(self) -> Settlement:
        found = self.parts().store.newest()
        assert found is not None
        return found

    def floor(self, tp: TopicPartition) -> int:
        return self.newest().partitions[tp].state.floor

    def calls(self) -> list[HandlerCall]:
        return [event for event in self.world.history if isinstance(event, HandlerCall)]

    def log(self, tp: TopicPartition) -> Any:
        return self.world.topics[tp.topic].logs[tp.partition]


# ---- acts ---------------------------------------------------------------------------------------------------------


def test_no_skip_takes_offsets_of_a_topic_that_was_created_again_for_those_that_were_read() -> None:
    lane = Lane()
    lane.run()
    before = lane.newest()
    for _ in range(9):
        lane.world.create_topic(AT.topic).logs[0].append(b"{}", lane.world.now)
    with pytest.raises(TopicChanged, match="created again"):
        lane.act(TurnKind.SKIP, AT, 1)
    assert lane.newest() == before


def test_a_reset_begins_although_retention_has_passed_the_floor_of_a_partition_that_it_leaves_alone() -> None:
    lane = Lane(max_records_per_run=4)
    lane.run()
    stays = lane.floor(OTHER)
    lane.log(OTHER).expire(5)
    lane.act(TurnKind.RESET, AT, 0)
    assert (lane.newest().turn.epoch, lane.floor(AT), lane.floor(OTHER)) == (1, 0, stays)


def test_an_operator_moves_nothing_outside_its_log() -> None:
    lane = Lane()
    lane.run()
    for to in (-1, 7):
        with pytest.raises(ConfigError, match="outside the log"):
            lane.act(TurnKind.SKIP, AT, to)


def test_s36_a_group_that_was_moved_beyond_the_log_is_followed_to_its_end() -> None:
    lane = Lane(on_external_reset="follow", max_records_per_run=4)
    lane.run()
    lane.move(AT, 50)
    lane.run()
    assert lane.floor(AT) == 6
    assert lane.world.committed["g", AT].offset == 6


def test_s36_a_group_that_was_moved_back_is_followed_although_retention_was_quicker() -> None:
    lane = Lane(on_external_reset="follow")
    lane.run()
    lane.move(AT, 1)
    lane.log(AT).expire(3)
    lane.run()
    settled = lane.newest()
    assert settled.turn.epoch == 1
    assert dict(settled.partitions[AT].counts) == {"acked": 3, "expired": 1}  # [1, 3) as one range


# ---- the group ----------------------------------------------------------------------------------------------------


def test_s36_at_most_once_a_move_beside_an_open_turn_is_followed() -> None:
    """What was planned before the move is claimed and lost: an act can't run beside an open turn."""
    lane = Lane(guarantee="at_most_once", on_external_reset="follow", max_records_per_run=4)
    lane.run()
    plan.plan(lane.parts())
    lane.move(AT, 0)
    with pytest.raises(GroupMoved):
        lane.run()
    lane.run()
    assert lane.newest().turn.epoch == 1
    lane.run()
    lane.run()
    assert (lane.floor(AT), lane.floor(OTHER)) == (6, 6)


def test_s36_at_most_once_a_claim_does_not_overwrite_a_move_back_to_where_the_lane_once_began() -> None:
    lane = Lane(guarantee="at_most_once", max_records_per_run=4, start="uncommitted_earliest")
    lane.move(AT, 1)
    lane.run()
    plan.plan(lane.parts())  # meets a commit of ours: the value that the lane began at is answered no more
    lane.move(AT, 1)
    with pytest.raises(GroupMoved):
        replay.replay(lane.parts(), no_session)
    assert lane.world.committed["g", AT] == Committed(1, "")


@pytest.mark.parametrize("policy", ["fail", "follow", "restore"])
def test_what_somebody_else_commits_of_a_parked_partition_is_left_alone_and_stops_nobody(policy: str) -> None:
    """A topic may have gone to another pipeline of the same group."""
    lane = Lane(on_external_reset=policy, max_records_per_run=4)
    lane.run()
    lane.topics = [AT.topic]
    lane.move(OTHER, 1)
    lane.run()
    assert lane.world.committed["g", AT].offset == lane.floor(AT) == 6
    assert lane.world.committed["g", OTHER] == Committed(1, "")


@pytest.mark.parametrize("kind", [TurnKind.PAUSE, TurnKind.RESUME])
def test_s36_a_pause_answers_no_move_of_the_group(kind: TurnKind) -> None:
    """It moves nothing itself, and is done; what the group was moved for is still to be said, by the next run."""
    lane = Lane()
    lane.run()
    lane.run()
    lane.move(AT, 1)
    lane.act(kind, AT, lane.floor(AT))
    assert lane.newest().partitions[AT].paused == (kind is TurnKind.PAUSE)
    assert lane.world.committed["g", AT] == Committed(1, "")
    with pytest.raises(GroupMoved):
        lane.run()
    lane.act(TurnKind.SKIP, AT, lane.floor(AT))
    assert lane.world.committed["g", AT].offset == 6


def test_a_pause_by_another_ledger_leaves_the_group_where_its_own_has_moved_it() -> None:
    lane = Lane()
    lane.run()
    lane.world.committed["g", AT] = committed = Committed(900, CommitMetadata("another", "lane", 0, 77).encode())
    with pytest.raises(NewerCommit):
        lane.act(TurnKind.PAUSE, AT, lane.floor(AT))
    assert lane.world.committed["g", AT] == committed


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("step", ["run", "commit"])
def test_s53_a_commit_that_another_run_has_just_made_is_not_taken_for_another_ledger_s(step: str, times: int) -> None:
    """It is stored before it is committed, and looks newer to whoever has read the ledger before that."""
    lane = Lane()
    lane.run()
    left = [None] * times

    def rival(what: str, _: str) -> None:
        if what == "held" and left:
            left.pop()
            lane.log(AT).append(b"{}", NOON)
            lane.run()

    slow = lane.parts("slow", rival)
    if step == "run":
        run.run(slow, no_session)
    else:
        commit.commit_newest(slow)
    assert not left
    assert len(lane.calls()) == len({(call.tp, call.offset) for call in lane.calls()}) == 12 + times
    assert lane.world.committed["g", AT].offset == lane.floor(AT) == 6 + times


def test_s53_at_most_once_a_claim_that_another_run_has_just_committed_is_not_taken_for_another_ledger_s() -> None:
    lane = Lane(guarantee="at_most_once")
    planned = plan.plan(lane.parts()).plan
    assert planned is not None

    def rival(what: str, _: str) -> None:
        if what == "held" and not lane.parts().store.has_claim(planned.turn):
            claim.claim(lane.parts("quick"), planned, lane.newest())

    replay.replay(lane.parts("slow", rival), no_session)
    settle.settle(lane.parts())
    assert len(lane.calls()) == 12
    assert lane.newest().partitions[AT].counts == {"acked": 6}


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize(("ledger", "n"), [("another", 0), ("", 9)])
def test_a_commit_of_another_ledger_or_a_newer_turn_still_stops_every_step(guarantee: str, ledger: str, n: int) -> None:
    lane = Lane(guarantee=guarantee)
    lane.run()
    mark = CommitMetadata(ledger or lane.parts().store.ledger_id(), "lane", 0, n)
    lane.world.committed["g", AT] = committed = Committed(2, mark.encode())
    lane.log(AT).append(b"{}", NOON)
    for step in (lane.run, lambda: commit.commit_newest(lane.parts()), lambda: plan.preview(lane.parts())):
        with pytest.raises(NewerCommit):
            step()
    assert lane.world.committed["g", AT] == committed
    assert lane.newest().turn.n == 1


# ---- a file that is edited ----------------------------------------------------------------------------------------


def test_s50_what_was_handed_out_at_most_once_is_not_handed_out_again_under_another_guarantee() -> None:
    """I7: the turn keeps the guarantee that it was planned under, until it is settled."""
    lane = Lane(guarantee="at_most_once")
    plan.plan(lane.parts())
    lane.world.faults.tables.extend(["", "", "refused"])  # claim and start marker are stored, outcomes are not
    with pytest.raises(AcklineError, match="can't be used"):
        replay.replay(lane.parts(), no_session)
    calls = len(lane.world.history)
    assert any(isinstance(event, HandlerCall) for event in lane.world.history)
    lane.settings["guarantee"] = "at_least_once"
    with pytest.raises(ConfigError, match="guarantee was changed from at_most_once to at_least_once while turn"):
        lane.run()
    assert len(lane.world.history) == calls


def test_an_act_does_not_carry_what_is_pending_over_to_another_guarantee() -> None:
    lane = Lane(retry={"period": "1h", "initial_delay": "1h"})
    lane.log(AT).append(b'{"fail": 1}', NOON)
    lane.run()
    lane.settings["guarantee"] = "at_most_once"
    with pytest.raises(ConfigError, match="guarantee was changed"):
        lane.act(TurnKind.PAUSE, AT, lane.floor(AT))
    lane.act(TurnKind.RESET, AT, lane.floor(AT))
    lane.run()
    assert lane.floor(AT) == 7


def test_an_act_that_names_no_partition_is_refused_and_takes_no_turn() -> None:
    lane = Lane()
    lane.run()
    with pytest.raises(ConfigError, match="no partition was named to pause"):
        operator_actions.perform_action(lane.parts(), TurnKind.PAUSE, lambda _: {}, "a test")
    assert lane.newest().turn.n == 1


def test_s45_a_log_that_grows_while_it_is_skipped_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is too far behind again at each look: a run skips once, and then reads."""
    lane = Lane(max_offset_behind={"offsets": 2, "policy": "skip"})
    reachable = MemoryCluster.reachable

    def growing(cluster: MemoryCluster) -> str:
        lane.log(AT).append(b"{}", lane.world.now)
        return reachable(cluster)

    monkeypatch.setattr(MemoryCluster, "reachable", growing)
    lane.run()
    assert {call.tp for call in lane.calls()} == {AT, OTHER}


def test_a_filtered_partition_that_somebody_else_commits_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parked by its filter, as by its topic: at most once, each turn would be lost to it."""
    lane = Lane(guarantee="at_most_once", on_external_reset="follow")
    lane.run()
    monkeypatch.setattr(MemoryParts, "wants", lambda _, tp: tp != OTHER)
    lane.move(OTHER, 3)
    lane.log(AT).append(b"{}", lane.world.now)
    lane.run()
    assert [call.offset for call in lane.calls() if call.tp == AT] == list(range(7))
    assert lane.world.committed["g", OTHER].offset == 3


def test_s37_at_most_once_live_members_cost_no_turn() -> None:
    lane = Lane(guarantee="at_most_once")
    lane.world.members = ["a console consumer"]
    with pytest.raises(GroupBusy, match="a console consumer"):
        lane.run()
    lane.world.members = []
    lane.run()
    assert len(lane.calls()) == 12


def test_s41_at_most_once_a_plan_that_was_not_claimed_is_planned_again_and_not_lost() -> None:
    lane = Lane(guarantee="at_most_once")
    plan.plan(lane.parts())
    lane.log(AT).expire(2)
    lane.run()
    assert [call.offset for call in lane.calls() if call.tp == AT] == [2, 3, 4, 5]
    assert lane.floor(OTHER) == 6


def test_s50_the_grace_period_begins_when_records_are_handed_out_and_not_when_they_were_planned() -> None:
    """A plan may wait in a queue for longer than `lost_after`; who takes it then may still report."""
    lane = Lane(guarantee="at_most_once", lost_after="10m")
    plan.plan(lane.parts())
    lane.world.now += timedelta(hours=2)
    lane.world.faults.jobs.append("failed")  # it has started, and is not heard of any more
    with pytest.raises(TransientError):
        lane.run()
    lane.world.now += timedelta(minutes=9)
    with pytest.raises(TransientError, match="which may still report"):
        lane.run()
    lane.world.now += timedelta(minutes=1)
    lane.run()
    assert lane.newest().partitions[AT].counts == {"lost": 1}


@pytest.mark.parametrize("group", ["has a live member", "was moved"])
def test_s53_a_second_driver_does_not_take_a_turn_for_lost_that_the_first_is_handling(group: str) -> None:
    """Whatever keeps the second one from committing the claim again: the first has handed the records out."""
    lane = Lane(guarantee="at_most_once")
    first, interrupted = lane.parts("first"), []
    run_job = first.run_job

    def handles(*given: Any) -> Any:
        done = run_job(*given)
        if group == "was moved":
            lane.move(AT, 1)
        else:
            lane.world.members = ["intruder"]
        with pytest.raises(TransientError, match="which may still report"):
            replay.replay(lane.parts("second"), no_session)
        interrupted.append(True)
        return done

    plan.plan(first)
    replay.replay(replace(first, run_job=handles), no_session)
    assert interrupted
    with pytest.raises((GroupMoved, GroupBusy)):
        settle.settle(first)
    assert lane.newest().partitions[AT].counts == {"acked": 6}


def test_s50_what_a_dead_process_has_started_is_lost_in_time_although_the_group_was_moved_meanwhile() -> None:
    lane = Lane(guarantee="at_most_once", on_external_reset="follow", lost_after="10m")
    lane.world.faults.jobs.append("failed")
    with pytest.raises(TransientError):
        lane.run()
    lane.move(AT, 2)
    with pytest.raises(TransientError, match="which may still report"):
        lane.run()
    lane.world.now += timedelta(minutes=10)
    lane.run()
    assert lane.newest().partitions[AT].counts == {"lost": 1}
    lane.run()
    assert (lane.newest().turn.epoch, lane.floor(AT)) == (1, 6)


def test_s50_a_handler_or_a_spark_that_cannot_be_started_costs_no_turn() -> None:
    """It is asked before the claim, so that the same turn is handled once it can."""
    lane = Lane(guarantee="at_most_once")

    def refuses(*_: Any) -> None:
        raise ConfigError("handler a:b does not import")

    with pytest.raises(ConfigError, match="does not import"):
        run.run(replace(lane.parts(), check_job=refuses), no_session)
    assert lane.world.committed == {}
    lane.run()
    assert len(lane.calls()) == 12
    assert lane.newest().turn.n == 1


def test_s36_what_was_parked_and_taken_by_others_since_it_was_planned_is_lost_and_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I7: the handler is called once the group has moved over what it is given, and there it may not be moved."""
    lane = Lane(guarantee="at_most_once")
    plan.plan(lane.parts())
    monkeypatch.setattr(MemoryParts, "wants", lambda _, tp: tp != OTHER)
    lane.move(OTHER, 3)
    with pytest.raises(GroupMoved, match="no longer subscribed"):
        lane.run()
    lane.run()
    assert lane.calls() == []
    assert lane.world.committed["g", OTHER].offset == 3
