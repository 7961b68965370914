"""What holds between the steps of a turn and beside the processes of others, each rule by itself; in memory."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ackline.commit_rule import CommitMetadata, Committed
from ackline.errors import ConfigError, FatalError, GroupMoved, TooFarBehind, TopicChanged
from ackline.ledger import PartitionState, PendingKind
from ackline.listener import Listener, ListenerThread
from ackline.offsets import OffsetRange, Run, TopicPartition
from ackline.outcome import Outcome
from ackline.pipeline import Pipeline
from ackline.steps import claim, operator_actions, plan, replay, run, settle
from ackline.testing.memory import GroupCommit, HandlerCall, MemoryLog, Posted, TableCommit, World
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from ackline.turns import Settlement, TurnKind
from tests.unit.strategies import NOON

AT = TopicPartition("orders", 0)


class Lane:
    """A pipeline of one partition; `strike` is done once, when a process comes to an operation."""

    def __init__(self, *scripts: dict[str, Any], **settings: Any) -> None:
        self.world = World(NOON)
        self.strike: tuple[str, str, Callable[[], object]] | None = None
        self.settings = {
            "name": "lane",
            "handler": "handlers:scripted",
            "dead_letter": {"topic": "dead"},
            "kafka": {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders"]},
            **settings,
        }
        self.world.create_topic("orders")
        self.world.create_topic("dead")
        self.produce(*scripts)

    def produce(self, *scripts: dict[str, Any]) -> None:
        for script in scripts:
            self.log.append(json.dumps(script).encode(), NOON)

    @property
    def log(self) -> MemoryLog:
        return self.world.topics["orders"].logs[0]

    def parts(self, listener: Listener | None = None) -> MemoryParts:
        parts = memory_parts(self.world, Pipeline.model_validate(self.settings), "run", self._hook)
        return replace(parts, listener=ListenerThread(lambda: listener) if listener else None)

    def _hook(self, operation: str, when: str) -> None:
        if self.strike is not None and self.strike[:2] == (operation, when):
            act, self.strike = self.strike[2], None
            act()

    def run(self) -> None:
        run.run(self.parts(), no_session)

    def newest(self) -> Settlement:
        found = self.parts().store.newest()
        assert found is not None
        return found

    def committed(self) -> int | None:
        found = self.world.committed.get(("g", AT))
        return found.offset if found else None

    def calls(self) -> list[tuple[int, int]]:
        return [(one.offset, one.attempt) for one in self.world.history if isinstance(one, HandlerCall)]


# ---- the group ----------------------------------------------------------------------------------------------------


def test_i1_the_end_of_a_plan_is_not_committed_before_the_plan_is_claimed() -> None:
    """A late settle of turn 1 commits beside a turn 2 that is planned only, and that may still be void."""
    lane = Lane({}, {}, guarantee="at_most_once")
    lane.run()
    lane.produce({}, {})
    open_plan = plan.plan(lane.parts()).plan
    assert open_plan is not None
    settle.settle(lane.parts(), lane.newest().turn)
    assert (lane.committed(), open_plan.partitions[AT].fresh) == (2, OffsetRange(2, 4))


def test_a_settle_of_one_turn_asks_no_proof_of_the_next() -> None:
    lane = Lane({})
    lane.run()
    done = lane.newest().turn
    lane.produce({})
    plan.plan(lane.parts())
    assert settle.settle(lane.parts(), done).stored is None
    assert lane.newest().turn == done


@pytest.mark.parametrize("policy", ["fail", "follow", "restore"])
def test_s36_a_group_moved_before_the_commit_is_refused_followed_or_restored(policy: str) -> None:
    lane = Lane({}, {}, {}, on_external_reset=policy)
    lane.run()
    lane.produce({})
    plan.plan(lane.parts())
    replay.replay(lane.parts(), no_session)
    lane.world.committed["g", AT] = Committed(1, "")
    if policy == "fail":
        with pytest.raises(GroupMoved):
            settle.settle(lane.parts())
    else:
        settle.settle(lane.parts())
    assert lane.newest().partitions[AT].state.floor == 4
    assert lane.committed() == (4 if policy == "restore" else 1)


# ---- what a plan is made of ---------------------------------------------------------------------------------------


def test_who_waits_longest_is_served_first_and_who_has_nothing_takes_no_share() -> None:
    lane = Lane(max_records_per_run=4)
    logs = lane.world.topics["orders"].logs
    logs[1], logs[2] = MemoryLog(), MemoryLog()
    for _ in range(9):
        lane.log.append(b"{}", NOON)
        logs[1].append(b"{}", NOON - timedelta(hours=1))
    made = plan.plan(lane.parts()).plan
    assert made is not None
    assert {tp.partition: len(one.fresh) for tp, one in made.partitions.items()} == {0: 1, 1: 3, 2: 0}


OURS = CommitMetadata("a ledger that was lost", "lane", 0, 9).encode()
THEIRS = CommitMetadata("a ledger", "another pipeline", 0, 9).encode()


@pytest.mark.parametrize(
    ("start", "alone", "foreign"),
    [
        ("earliest", 1, 1),
        ("latest", 6, 6),
        ("uncommitted_earliest", 1, 3),
        ("uncommitted_latest", 6, 3),
    ],
)
def test_s30_where_a_lane_starts_to_the_offset(start: str, alone: int, foreign: int) -> None:
    """Without a commit, with somebody else's, and with this pipeline's own, by whatever ledger."""
    for committed, wanted in ((None, alone), (Committed(3, THEIRS), foreign), (Committed(3, ""), foreign),
                         (Committed(2, OURS), 2)):  # fmt: skip
        lane = Lane(start=start)
        lane.produce(*[{}] * 6)
        lane.log.expire(1)
        if committed is not None:
            lane.world.committed["g", AT] = committed
        lane.run()
        assert lane.calls() == [(offset, 1) for offset in range(wanted, 6)], committed
        assert lane.committed() == 6


@pytest.mark.parametrize("change", [{"guarantee": "at_most_once"}, {"guarantee": "no_guarantee"}, "isolation"])
def test_guarantee_and_isolation_may_change_while_nothing_is_pending(change: Any) -> None:
    if change == "isolation":
        change = {"kafka": {**Lane().settings["kafka"], "isolation": "read_uncommitted"}}
    lane = Lane({})
    lane.run()
    lane.settings |= change
    lane.produce({})
    lane.run()
    assert (lane.committed(), lane.calls()) == (2, [(0, 1), (1, 1)])


@pytest.mark.parametrize("kind", ["run", "pause"])
def test_guarantee_does_not_change_while_records_are_pending(kind: str) -> None:
    """No turn is taken, an act's neither: its plan's settings would pass for those that the record was promised."""
    lane = Lane({"fail": 9})
    lane.run()
    lane.settings["guarantee"] = "at_most_once"
    asks: dict[str, Callable[[], object]] = {
        "run": lane.run,
        "pause": lambda: operator_actions.perform_action(lane.parts(), TurnKind.PAUSE, lambda _: {AT: 0}, "a test"),
    }
    with pytest.raises(ConfigError, match="while records are pending"):
        asks[kind]()
    assert (lane.newest().turn.n, lane.calls()) == (1, [(0, 1)])


@pytest.mark.parametrize("left", ["paused", "parked"])
def test_s45_what_runs_leave_alone_is_not_skipped_for_being_too_far_behind(left: str) -> None:
    lane = Lane({}, max_offset_behind={"offsets": 2, "policy": "skip"})
    lane.run()
    if left == "paused":
        operator_actions.perform_action(lane.parts(), TurnKind.PAUSE, lambda _: {AT: 1}, "a test")
    else:
        lane.settings["kafka"] = {**lane.settings["kafka"], "topics": ["payments"]}
        lane.world.create_topic("payments")
    lane.produce({}, {}, {}, {})
    lane.run()
    assert lane.newest().partitions[AT].state == PartitionState(1)


def test_s45_a_run_stops_only_where_it_is_too_far_behind() -> None:
    lane = Lane({}, {}, max_offset_behind={"offsets": 2, "policy": "fail"})
    lane.run()
    lane.produce({}, {}, {})
    with pytest.raises(TooFarBehind, match="3 offsets behind"):
        lane.run()
    assert (lane.committed(), lane.newest().turn.n) == (2, 1)


def test_a_replay_of_its_own_goes_on_over_gaps_to_the_turn_that_settle_is_to_find() -> None:
    lane = Lane(max_records_per_run=2)
    lane.log.gap(5)
    lane.produce({}, {}, {})
    plan.plan(lane.parts())
    done = run.replay_on(lane.parts(), no_session)
    settle.settle(lane.parts())
    assert (done.calls, lane.calls()) == (1, [(5, 1)])
    assert (lane.newest().turn.n, lane.committed()) == (3, 6)


def test_a_replay_of_its_own_leaves_the_turn_of_another_run_to_it() -> None:
    """The other has settled this one's turn, and planned the next, by the time it looks again."""
    lane = Lane({}, {})
    plan.plan(lane.parts())

    def goes_on() -> None:
        settle.settle(lane.parts())
        lane.produce({}, {})
        lane.settings["max_records_per_run"] = 1
        plan.plan(lane.parts())

    lane.strike = "outcomes", "after", goes_on
    assert run.replay_on(lane.parts(), no_session).calls == 2
    assert (lane.newest().turn.n, lane.calls()) == (1, [(0, 1), (1, 1)])


def test_a_reset_leaves_a_partition_whose_topic_is_gone_where_it_stands() -> None:
    lane = Lane({}, {}, kafka={"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders", "payments"]})
    lane.world.create_topic("payments")
    lane.run()
    lane.world.delete_topic("payments")
    operator_actions.perform_action(
        lane.parts(), TurnKind.RESET, lambda _: {AT: 1, TopicPartition("payments", 0): 0}, "a test"
    )
    floors = {tp.topic: one.state.floor for tp, one in lane.newest().partitions.items()}
    assert (lane.newest().turn.epoch, floors, lane.committed()) == (1, {"orders": 1, "payments": 0}, 1)


# ---- dead letters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost", "unanswered", "refused"])
def test_i6_only_those_are_dead_whose_letters_were_acknowledged(fault: str) -> None:
    lane = Lane({"dead": True}, {}, {"dead": True})
    lane.world.faults.letters.append(fault)
    lane.run()
    state = lane.newest().partitions[AT].state
    assert [(one.start, one.end, one.value.kind) for one in state.pending] == [(0, 1, PendingKind.DEAD_LETTER)]
    assert lane.committed() == 0
    lane.run()
    assert (lane.newest().partitions[AT].state.pending, lane.committed()) == ((), 3)


def test_i6_letters_are_acknowledged_before_decisions_are_stored() -> None:
    lane = Lane({"dead": True})
    lane.run()
    order = [
        one.application.rsplit("/", 1)[-1] if isinstance(one, TableCommit) else type(one)
        for one in lane.world.history
        if not isinstance(one, HandlerCall)
    ]
    written = [one for one in order if one in ("outcomes", Posted, "decisions", GroupCommit)]
    assert written == ["outcomes", Posted, "decisions", GroupCommit]
    assert order[-2:] == ["settlement", GroupCommit]


def test_letters_of_a_paused_partition_wait() -> None:
    lane = Lane({"dead": True})
    lane.world.faults.letters.append("lost")
    lane.run()
    operator_actions.perform_action(lane.parts(), TurnKind.PAUSE, lambda _: {AT: 0}, "a test")
    lane.run()
    assert not any(isinstance(one, Posted) for one in lane.world.history)
    operator_actions.perform_action(lane.parts(), TurnKind.RESUME, lambda _: {AT: 0}, "a test")
    lane.run()
    assert (lane.newest().partitions[AT].state.pending, lane.committed()) == ((), 1)


# ---- what happens to the log while it is read ---------------------------------------------------------------------


def test_retention_that_passes_what_was_read_already_takes_no_outcome_away() -> None:
    """What was handled stays acked; it is not read again, and does not become `expired`."""
    lane = Lane({}, {}, {})
    parts = lane.parts()

    def run_job(*asked: Any) -> Any:
        result = parts.run_job(*asked)
        lane.log.expire(2)
        return result

    run.run(replace(parts, run_job=run_job), no_session)
    assert dict(lane.newest().partitions[AT].counts) == {"acked": 3}
    assert lane.calls() == [(0, 1), (1, 1), (2, 1)]


def test_s42_a_topic_created_again_while_it_was_read_proves_nothing() -> None:
    """The stranger has as many records: neither bounds nor leader epoch tell."""
    lane = Lane({}, {})
    parts = lane.parts()

    def run_job(*asked: Any) -> Any:
        result = parts.run_job(*asked)
        lane.world.delete_topic("orders")
        lane.world.create_topic("orders")
        lane.produce({}, {})
        return result

    with pytest.raises(TopicChanged, match="created again"):
        run.run(replace(parts, run_job=run_job), no_session)
    assert lane.newest().kind is TurnKind.VOID
    assert (lane.newest().partitions[AT].state.complete_to, lane.committed()) == (0, None)


def test_s41_a_plan_of_retries_alone_goes_on_where_retention_has_passed_all_that_was_read() -> None:
    """They are expired, one by one; their turn is not void, for the next would meet the same."""
    lane = Lane({"fail": 9}, {"fail": 9}, retry={"max_retries": 3}, max_uncommitted=2)
    lane.run()
    lane.produce({}, {}, {})
    plan.plan(lane.parts())
    lane.log.expire(4)
    replay.replay(lane.parts(), no_session)
    settle.settle(lane.parts())
    found = lane.newest()
    assert (found.kind, found.partitions[AT].state.pending) == (TurnKind.RUN, ())
    assert dict(found.partitions[AT].counts) == {"expired": 2}


def test_a_run_goes_on_after_a_turn_that_only_found_what_retention_took() -> None:
    """The window, counted from the floor, may end before the log starts: such a turn moves on and reads nothing."""
    lane = Lane({}, {}, max_uncommitted=2)
    lane.run()
    lane.produce({}, {}, {}, {})
    lane.log.expire(5)
    lane.run()
    assert (lane.newest().turn.n, lane.committed()) == (3, 6)
    assert lane.calls()[2:] == [(5, 1)]


def test_a_partition_without_leader_holds_no_other_up() -> None:
    lane = Lane({})
    other = lane.world.topics["orders"].logs[1] = MemoryLog(has_leader=False)
    lane.run()
    other.append(b"{}", NOON)
    other.has_leader = True
    lane.run()
    other.has_leader = False
    lane.produce({})
    lane.run()
    assert (lane.committed(), lane.newest().partitions[TopicPartition("orders", 1)].state.floor) == (2, 1)


def test_a_leader_elected_in_good_order_while_a_turn_is_open_makes_it_no_void() -> None:
    lane = Lane({}, {})
    plan.plan(lane.parts())
    lane.log.elect()
    lane.run()
    assert (lane.newest().kind, lane.newest().turn.n, lane.committed()) == (TurnKind.RUN, 1, 2)


# ---- at most once -------------------------------------------------------------------------------------------------


def test_i7_a_plan_with_a_retry_is_not_handed_out_at_most_once() -> None:
    """No plan of this guarantee has one; a table that somebody has mended by hand may."""
    lane = Lane({}, {}, guarantee="at_most_once")
    made = plan.plan(lane.parts()).plan
    assert made is not None
    claim.refuse_retries(made)
    other = replace(made.partitions[AT], retries=(Run(0, 1, 2),))
    with pytest.raises(FatalError, match="at most once makes none"):
        claim.refuse_retries(replace(made, partitions={AT: other, TopicPartition("orders", 1): made.partitions[AT]}))
    lane.world.tables.plans[made.turn] = replace(made, partitions={AT: other})
    with pytest.raises(FatalError, match="at most once makes none"):
        replay.replay(lane.parts(), no_session)
    assert (lane.calls(), lane.parts().store.has_claim(made.turn)) == ([], False)


def test_s36_at_most_once_a_moved_group_costs_no_turn() -> None:
    """It is asked before the plan is claimed; a claim whose commit is refused would be lost."""
    lane = Lane({}, guarantee="at_most_once")
    lane.run()
    lane.produce({})
    made = plan.plan(lane.parts()).plan
    assert made is not None
    ours = lane.world.committed.pop(("g", AT))
    lane.world.committed["g", AT] = Committed(0, "")
    with pytest.raises(GroupMoved):
        replay.replay(lane.parts(), no_session)
    assert not lane.parts().store.has_claim(made.turn)
    lane.world.committed["g", AT] = ours
    lane.run()
    assert lane.calls() == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("guarantee", "once", "failed"),
    [
        ("at_least_once", False, Outcome.FAILED),
        ("at_most_once", True, Outcome.DROPPED),
        ("no_guarantee", False, Outcome.DROPPED),
    ],
)
@pytest.mark.parametrize("tombstones", ["skip", "deliver"])
def test_the_tasks_are_told_what_the_guarantee_is(guarantee: str, once: bool, failed: Outcome, tombstones: str) -> None:
    lane = Lane({}, guarantee=guarantee, tombstones=tombstones)
    made = plan.plan(lane.parts()).plan
    assert made is not None
    job = replay.job_of(lane.parts(), made)
    assert (job.once, job.on_failure, job.deliver_tombstones) == (once, failed, tombstones == "deliver")


def test_i7_what_spark_can_not_be_given_is_refused_before_the_plan_is_claimed() -> None:
    """Later it would be lost: a claimed plan is handed out once, or never."""
    lane = Lane({}, guarantee="at_most_once")
    made = plan.plan(lane.parts()).plan
    assert made is not None
    with pytest.raises(ConfigError, match="callback"):
        replay.replay(replace(lane.parts(), kafka={"oauth_cb": print}), no_session)
    assert not lane.parts().store.has_claim(made.turn)
    lane.run()
    assert dict(lane.newest().partitions[AT].counts) == {"acked": 1}


def test_s50_of_a_claimed_turn_that_is_lost_idle_partitions_have_lost_nothing() -> None:
    lane = Lane(guarantee="at_most_once", lost_after="0s")
    other = lane.world.topics["orders"].logs[1] = MemoryLog()
    lane.run()
    other.append(b"{}", NOON)
    made = plan.plan(lane.parts()).plan
    assert made is not None
    claim.claim(lane.parts(), made, lane.newest())
    assert claim.start(lane.parts(), made)
    lane.run()
    lost = {
        tp: [(row.offset, row.end) for row in rows]
        for tp, rows in lane.parts().store.outcomes_of(made.turn).rows.items()
    }
    assert lost == {TopicPartition("orders", 1): [(0, 1)]}


# ---- the listener -------------------------------------------------------------------------------------------------

TOLD = ["planned", "handled", "acked", "retry", "dead", "expired", "partitions_changed", "committed"]


def test_a_listener_is_told_when_it_is_durable() -> None:
    """At each event the write that it speaks of is the last one that was made."""
    lane = Lane({}, {"fail": 1}, {"dead": True})
    told: list[tuple[str, str]] = []

    def hears(event: str) -> Callable[..., None]:
        def heard(*_: object) -> None:
            last = next(one for one in reversed(lane.world.history) if isinstance(one, TableCommit | GroupCommit))
            of = last.application.rsplit("/", 1)[-1] if isinstance(last, TableCommit) else "commit"
            told.append((event, of))

        return heard

    listener = Listener()
    for event in TOLD:
        setattr(listener, f"on_{event}", hears(event))
    run.run(lane.parts(listener), no_session)
    assert told == [
        ("partitions_changed", "settlement"),
        ("planned", "plan"),
        ("handled", "outcomes"),
        ("acked", "settlement"),
        ("retry", "settlement"),
        ("dead", "settlement"),
        ("committed", "commit"),
    ]


def test_who_loses_a_settlement_to_another_tells_nothing_of_it() -> None:
    lane = Lane({})
    told: list[str] = []
    listener = Listener()
    for event in TOLD:
        setattr(listener, f"on_{event}", lambda *_, event=event: told.append(event))
    plan.plan(lane.parts())
    replay.replay(lane.parts(), no_session)
    lane.strike = "settlement", "before", lambda: settle.settle(lane.parts())
    settle.settle(lane.parts(listener))
    assert (told, lane.committed()) == (["committed"], 1)


def test_s45_a_run_that_has_skipped_skips_again_after_another_run_has_read() -> None:
    """The other one finishes the skip that this one has planned, and goes on; then the log grows."""
    lane = Lane(max_offset_behind={"offsets": 4, "policy": "skip"})
    lane.run()
    lane.produce(*[{}] * 9)

    def another_run() -> None:
        lane.run()
        lane.produce(*[{}] * 9)

    lane.strike = "settlement", "before", another_run
    lane.run()
    assert [offset for offset, _ in lane.calls()] == [5, 6, 7, 8, 14, 15, 16, 17]
