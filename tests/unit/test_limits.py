"""Too far behind, too many failures, paused, parked and leaderless partitions, and what they do to one another (S45,
S46); in memory."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from ackline.cli.show import plan_json, run_json
from ackline.errors import TooFarBehind, TooManyFailures
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.offsets import OffsetRange, TopicPartition
from ackline.outcome import Outcome
from ackline.pipeline import Pipeline
from ackline.planning import CAUGHT_UP, NO_LEADER, PARKED, PAUSED
from ackline.steps import operator_actions, plan, run
from ackline.testing.memory import HandlerCall, MemoryLog, Posted, World
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from ackline.turns import PlannedPartition, Settlement, TurnKind
from tests.unit.strategies import NOON

ONE, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)
OK, FAILS = b"{}", b'{"fail": -1}'
SKIP = {"max_offset_behind": {"offsets": 5, "policy": "skip"}}
LATER = {"retry": {"initial_delay": "1h", "period": "1h"}}


@dataclass
class Lane:
    """A pipeline on the partitions of one topic."""

    settings: dict[str, Any] = field(default_factory=dict)
    partitions: int = 2
    world: World = field(default_factory=lambda: World(NOON))
    topics: list[str] = field(default_factory=lambda: ["orders"])

    def __post_init__(self) -> None:
        self.world.create_topic("orders", self.partitions)
        self.world.create_topic("dead")

    def parts(self, no_breaker: bool = False) -> MemoryParts:
        file = {
            "name": "lane", "handler": "handlers:any", "dead_letter": {"topic": "dead"}, "start": "earliest",
            "kafka": {"bootstrap_servers": "memory:1", "group_id": "group", "topics": self.topics}, **self.settings,
        }  # fmt: skip
        return replace(memory_parts(self.world, Pipeline.model_validate(file), "run"), no_breaker=no_breaker)

    def log(self, tp: TopicPartition = ONE) -> MemoryLog:
        found = self.world.log(tp)
        assert found is not None
        return found

    def produce(self, *values: bytes, tp: TopicPartition = ONE) -> None:
        for value in values:
            self.log(tp).append(value, self.world.now)

    def run(self, no_breaker: bool = False) -> run.Ran:
        return run.run(self.parts(no_breaker), no_session)

    def trips(self) -> str:
        with pytest.raises(TooManyFailures) as caught:
            self.run()
        return str(caught.value)

    def act(self, kind: TurnKind, *places: TopicPartition) -> None:
        operator_actions.perform_action(self.parts(), kind, lambda _: dict.fromkeys(places, 0), "a test's reason")

    def newest(self) -> Settlement:
        found = self.parts().store.newest()
        assert found is not None
        return found

    def calls(self, tp: TopicPartition = ONE) -> list[tuple[int, int]]:
        """(offset, attempt) of all handler calls."""
        return [(c.offset, c.attempt) for c in self.world.history if isinstance(c, HandlerCall) and c.tp == tp]

    def letters(self) -> list[str]:
        return [one.said["ackline.offset"] for one in self.world.history if isinstance(one, Posted)]

    def committed(self) -> dict[int, int]:
        return {tp.partition: committed.offset for (_, tp), committed in self.world.committed.items()}

    def skipped(self, tp: TopicPartition = ONE) -> list[OffsetRange]:
        """What effective rows say was skipped as a range."""
        void = {turn for turn, one in self.world.tables.settlements.items() if one.kind is TurnKind.VOID}
        return [
            OffsetRange(row.offset, row.end_offset)
            for turn, files in self.world.tables.outcomes.items()
            for file in files
            for row in file.rows.get(tp, ())
            if turn not in void and row.outcome is Outcome.SKIPPED and row.end_offset is not None
        ]


def whys(planned: dict[TopicPartition, PlannedPartition]) -> dict[int, str | None]:
    return {tp.partition: one.why for tp, one in planned.items()}


# ---- too far behind -----------------------------------------------------------------------------------------------


def test_s45_a_skip_takes_what_is_pending_along_though_the_window_is_full_and_the_run_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of the offsets below its target each has one end: what was acked there keeps it."""
    lane = Lane({**SKIP, **LATER, "max_uncommitted": 4})
    lane.produce(OK, FAILS, OK, b'{"dead": true}', OK)
    lane.world.faults.letters.append("lost")
    lane.run()
    assert (lane.committed()[0], lane.letters()) == (1, [])
    lane.produce(*[OK] * 10)
    ran = lane.run()
    assert lane.skipped() == [OffsetRange(1, 2), OffsetRange(3, 10)]
    assert ran.outcomes == {"skipped": 2, "acked": 4}, "effective rows of the run"
    assert lane.calls()[4:] == [(offset, 1) for offset in range(10, 14)]
    assert (lane.committed()[0], lane.letters()) == (14, [])
    assert "a skip of orders[0] to 10: more than max_offset_behind 5" in caplog.text


def test_s45_what_would_be_skipped_is_told_before(caplog: pytest.LogCaptureFixture) -> None:
    lane = Lane(SKIP)
    lane.produce(OK)
    lane.run()
    lane.produce(*[OK] * 9)
    found = plan.preview(lane.parts())
    assert found.plan is not None
    said = plan_json(found.plan, found.adopted)
    assert said["kind"] == "skip"
    assert [(one["partition"], one["end"], one["why"]) for one in said["partitions"]] == [
        (0, 5, "more than max_offset_behind 5")
    ]
    assert (lane.skipped(), caplog.text) == ([], "")


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_s45_a_partition_that_is_not_read_is_not_too_far_behind_until_it_is(policy: str) -> None:
    """Paused, parked or leaderless: nothing of it is skipped, and it stops no other."""
    lane = Lane({"max_offset_behind": {"offsets": 5, "policy": policy}, **LATER}, partitions=3)
    three = TopicPartition("orders", 2)
    lane.world.create_topic("payments")
    payment = TopicPartition("payments", 0)
    lane.topics.append("payments")
    for tp in (ONE, three, payment):
        lane.produce(FAILS, OK, tp=tp)
    lane.run()
    lane.act(TurnKind.PAUSE, ONE)
    lane.topics.remove("payments")
    lane.log(three).has_leader = False
    for tp in (ONE, three, payment):
        lane.produce(*[OK] * 10, tp=tp)
    lane.produce(OK, tp=TWO)
    lane.world.now += timedelta(hours=2)
    [planned] = lane.run().plans
    found = {tp: one.why for tp, one in planned.partitions.items()}
    assert found == {ONE: PAUSED, TWO: None, three: NO_LEADER, payment: PARKED}
    assert [lane.skipped(tp) for tp in found] == [[]] * 4
    lane.act(TurnKind.RESUME, ONE)
    lane.topics.append("payments")
    lane.log(three).has_leader = True
    if policy == "fail":
        with pytest.raises(TooFarBehind):
            lane.run()
        return
    lane.run()
    for tp in (ONE, three, payment):
        assert lane.skipped(tp) == [OffsetRange(0, 1), OffsetRange(2, 7)]
        assert lane.calls(tp) == [(0, 1), (1, 1), *((offset, 1) for offset in range(7, 12))]


def test_s45_s46_what_was_skipped_stays_so_though_the_breaker_voids_the_turn_after_it() -> None:
    lane = Lane({**SKIP, "breaker": {"failure_ratio": 0.5, "min_records": 2}})
    lane.produce(*[FAILS] * 20)
    lane.trips()
    lane.trips()
    assert lane.skipped() == [OffsetRange(0, 15)]
    assert (lane.newest().kind, lane.committed()) == (TurnKind.VOID, {})
    lane.run(no_breaker=True)
    assert lane.calls() == [(offset, 1) for _ in range(3) for offset in range(15, 20)]
    assert (lane.newest().partitions[ONE].totals or {})["skipped"] == 1


# ---- the breaker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "failing"), [(0, 0), (0.29, 29), (0.57, 57), (0.07, 7), (0.5, 50), (1, 100)])
def test_s46_as_many_failures_as_the_ratio_allows_do_not_trip_it_and_one_more_does(ratio: float, failing: int) -> None:
    """0.29 * 100 is less than 29 where it is a float."""
    lane = Lane({"breaker": {"failure_ratio": ratio, "min_records": 100}})
    lane.produce(*[FAILS] * failing, *[OK] * (100 - failing))
    assert lane.run().outcomes.get("failed", 0) == failing
    if failing < 100:
        lane.produce(*[FAILS] * (failing + 1), *[OK] * (99 - failing))
        assert f"{failing + 1} of 100 new records failed" in lane.trips()


def test_s46_below_min_records_it_does_not_judge() -> None:
    lane = Lane({"breaker": {"failure_ratio": 0.1, "min_records": 4}, **LATER})
    lane.produce(FAILS, FAILS)
    lane.produce(FAILS, tp=TWO)
    assert lane.run().outcomes == {"failed": 3}
    lane.produce(*[FAILS] * 2)
    lane.produce(*[FAILS] * 2, tp=TWO)
    lane.trips()


def test_s46_a_void_turn_with_retries_is_made_again_with_the_same_attempts_and_buries_nothing_twice() -> None:
    lane = Lane(
        {"breaker": {"failure_ratio": 0.5, "min_records": 2}, "retry": {"initial_delay": "0s", "max_retries": 1}}
    )
    lane.produce(FAILS, OK, OK)
    lane.run()
    lane.produce(FAILS, FAILS, OK)
    before = lane.newest().partitions
    lane.trips()
    lane.trips()
    assert {tp: one.state for tp, one in lane.newest().partitions.items()} == {tp: p.state for tp, p in before.items()}
    assert lane.letters() == []
    lane.run(no_breaker=True)
    assert lane.letters() == ["0"]
    again = [(0, 2), (3, 1), (4, 1), (5, 1)]
    assert sorted(lane.calls()[3:]) == sorted(again * 3)
    lane.run()
    assert (lane.letters(), lane.committed()[0]) == (["0", "3", "4"], 6)
    assert lane.newest().partitions[ONE].totals == {
        "acked": 3, "failed": 6, "skipped": 0, "dropped": 0, "dead": 3, "expired": 0, "compacted": 0, "lost": 0,
        "retries": 3,
    }  # fmt: skip


# ---- who gets nothing, and why ------------------------------------------------------------------------------------


def test_a_partition_that_has_no_leader_when_the_lane_begins_is_named_and_joins_when_it_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lane = Lane()
    lane.produce(OK, OK)
    lane.produce(OK, tp=TWO)
    lane.log(TWO).has_leader = False
    assert plan.preview(lane.parts()).leaderless == (TWO,)
    ran = lane.run()
    said = {one["partition"]: one["why"] for one in run_json(ran, lane.parts().store)["partitions"]}
    assert said == {0: None, 1: NO_LEADER}
    assert "orders[1] has no leader" in caplog.text
    lane.log(TWO).has_leader = True
    assert lane.run().leaderless == ()
    assert (lane.calls(), lane.calls(TWO)) == ([(0, 1), (1, 1)], [(0, 1)])


def test_where_nothing_has_a_leader_nothing_begins_and_all_are_named() -> None:
    lane = Lane()
    for tp in (ONE, TWO):
        lane.log(tp).has_leader = False
    ran = lane.run()
    assert (ran.plans, ran.leaderless) == ([], (ONE, TWO))


def test_a_partition_that_has_lost_all_that_was_unread_is_not_called_full() -> None:
    lane = Lane(partitions=1)
    lane.produce(OK)
    lane.run()
    lane.produce(OK, OK)
    lane.log().expire(3)
    [planned] = lane.run().plans
    assert whys(dict(planned.partitions)) == {0: CAUGHT_UP}
    assert lane.committed() == {0: 3}


def test_the_partition_furthest_behind_is_first_also_where_retries_leave_too_little_room() -> None:
    lane = Lane({"max_records_per_run": 20, "retry": {"initial_delay": "0s"}})
    lane.produce(*[b'{"fail": 1}'] * 10)
    lane.run()
    lane.produce(*[OK] * 10, tp=TWO)
    lane.world.now += timedelta(hours=1)
    lane.produce(*[OK] * 10)
    [planned] = lane.run().plans
    assert [len(planned.partitions[tp].fresh) for tp in (ONE, TWO)] == [3, 7]


def test_kafkas_own_topics_match_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    class Admin:
        class Listed:
            topics = dict.fromkeys(
                ["orders", "__consumer_offsets", "__transaction_state", "__share_group_state", "__orders"]
            )

        def list_topics(self, timeout: float) -> Listed:
            return self.Listed()

    cluster = Cluster(client_config({"bootstrap.servers": "127.0.0.1:1"}), "read_committed")
    monkeypatch.setattr(cluster, "_admin", Admin())
    assert cluster.names() == ["__orders", "orders"]
