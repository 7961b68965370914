"""A log that was cut, and has perhaps grown again, is not "caught up" (S42), whichever step meets it; in memory."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ackline.errors import ConfigError, TopicChanged
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.pipeline import Pipeline
from ackline.steps import claim, operator_actions, plan, replay, run, settle
from ackline.testing.memory import HandlerCall, MemoryLog, Posted, World
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from ackline.turns import Settlement, TurnKind
from tests.unit.strategies import NOON

AT, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)


@dataclass
class Lane:
    """A pipeline of a world on two partitions, and a hook to strike it at something that it reads or writes."""

    world: World = field(default_factory=lambda: World(NOON))
    settings: dict[str, Any] = field(default_factory=dict)
    strike: Any = None
    asked: int = 0
    """How often leaders were asked where an epoch ends."""

    def __post_init__(self) -> None:
        self.world.create_topic("orders", 2)
        self.world.create_topic("dead")

    def parts(self) -> MemoryParts:
        file = {
            "name": "lane", "handler": "handlers:any", "dead_letter": {"topic": "dead"},
            "retry": {"max_retries": 1, "initial_delay": "0s"},
            "kafka": {"bootstrap_servers": "memory:1", "group_id": "group", "topics": ["orders"]}, **self.settings,
        }  # fmt: skip
        return memory_parts(self.world, Pipeline.model_validate(file), "run", self._hook)

    def _hook(self, what: str, when: str) -> None:
        self.asked += what == "epochs"
        if self.strike is not None and self.strike[0] == what:
            act, self.strike = self.strike[1], None
            act()

    @property
    def log(self) -> MemoryLog:
        found = self.world.log(AT)
        assert found is not None
        return found

    def produce(self, *values: bytes, log: MemoryLog | None = None) -> None:
        for value in values:
            (log or self.log).append(value, NOON)

    def cut(self, end: int, *values: bytes) -> None:
        """A replica that lagged at `end` is elected, and others come."""
        self.log.elect(end)
        self.produce(*values)

    def run(self) -> run.Ran:
        return run.run(self.parts(), no_session)

    def act(self, kind: TurnKind, targets: dict[TopicPartition, int]) -> None:
        operator_actions.perform_action(self.parts(), kind, lambda _: targets, "a test's reason")

    def newest(self) -> Settlement:
        found = self.parts().store.newest()
        assert found is not None
        return found

    def calls(self, tp: TopicPartition = AT) -> list[int]:
        return [one.offset for one in self.world.history if isinstance(one, HandlerCall) and one.tp == tp]

    def letters(self) -> list[bytes | None]:
        return [one.value for one in self.world.history if isinstance(one, Posted)]


OK, FAILS, ALWAYS = b"{}", b'{"fail": 1}', b'{"fail": -1}'


def test_s42_a_log_that_was_cut_and_grew_to_the_same_end_is_not_caught_up() -> None:
    lane = Lane()
    lane.produce(*[OK] * 5)
    lane.run()
    lane.cut(3, OK, OK)
    with pytest.raises(TopicChanged, match=r"orders\[0\].*below 5.*epoch 0.*below 3 is left.*epoch 1.*--to 3") as said:
        lane.run()
    assert (said.value.partition, said.value.offset) == (0, 3)
    assert lane.calls() == [0, 1, 2, 3, 4]
    lane.act(TurnKind.RESET, {AT: 3})
    lane.run()
    assert lane.calls() == [0, 1, 2, 3, 4, 3, 4]
    assert lane.newest().partitions[AT].leader_epoch == 1
    assert lane.run().calls == 0


def test_s42_it_is_said_also_while_the_log_is_shorter_than_what_was_read() -> None:
    lane = Lane()
    lane.produce(*[OK] * 5)
    lane.run()
    lane.cut(3)
    with pytest.raises(TopicChanged, match="--to 3"):
        lane.run()


def test_a_leader_that_changes_in_good_order_changes_nothing_and_is_asked_once() -> None:
    lane = Lane()
    lane.produce(*[OK] * 3)
    lane.run()
    lane.run()
    assert lane.asked == 0
    lane.log.elect()
    lane.produce(OK)
    lane.run()
    assert (lane.calls(), lane.asked) == ([0, 1, 2, 3], 1)
    assert [lane.newest().partitions[tp].leader_epoch for tp in (AT, TWO)] == [1, 0]
    lane.run()
    assert lane.asked == 1


def test_a_lane_of_an_earlier_version_takes_the_present_epoch_without_judgement() -> None:
    lane = Lane()
    lane.produce(*[OK] * 3)
    lane.run()
    tables = lane.world.tables
    for turn, one in list(tables.settlements.items()):
        rows = {tp: replace(row, leader_epoch=None) for tp, row in one.partitions.items()}
        tables.settlements[turn] = replace(one, partitions=rows)
    lane.cut(1, OK, OK, OK)
    lane.run()
    assert lane.newest().partitions[AT].leader_epoch == 1
    lane.cut(1, OK, OK, OK)
    with pytest.raises(TopicChanged):
        lane.run()


def test_a_retry_is_not_looked_for_in_a_log_that_was_cut() -> None:
    lane = Lane()
    lane.produce(OK, FAILS, OK)
    lane.run()
    lane.cut(1, OK, OK)
    with pytest.raises(TopicChanged, match="--to 1"):
        lane.run()
    assert lane.calls() == [0, 1, 2]


@pytest.mark.parametrize("when", ["planned", "read"])
def test_what_is_cut_above_the_settled_state_is_planned_and_read_again(when: str) -> None:
    """The log ends where it ended: nothing but the epoch tells that other records were read, or will be."""
    lane = Lane()
    lane.produce(OK)
    lane.run()
    lane.produce(OK, OK, OK)
    plan.plan(lane.parts())
    if when == "planned":
        lane.cut(2, OK, OK)
    else:
        lane.log.append(b"{}", NOON)
        lane.strike = ("poll", lambda: lane.cut(2, OK, OK))
    lane.run()
    kinds = [one.kind for one in lane.world.tables.settlements.values()]
    assert kinds.count(TurnKind.VOID) == 1
    assert lane.calls()[-3:] == [1, 2, 3]
    assert lane.newest().partitions[AT].state.complete_to == 4
    assert lane.run().calls == 0


def test_a_plan_of_retries_alone_is_void_where_the_log_was_cut_under_it() -> None:
    lane = Lane()
    lane.produce(OK, FAILS)
    lane.run()
    plan.plan(lane.parts())
    lane.cut(1, OK)
    with pytest.raises(TopicChanged):
        lane.run()
    assert lane.calls() == [0, 1]


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_a_stranger_at_the_offset_of_a_dead_letter_is_not_called_dead(when: str) -> None:
    lane = Lane(settings={"retry": {"max_retries": 0}})
    lane.produce(OK, ALWAYS)
    plan.plan(lane.parts())
    replay.replay(lane.parts(), no_session)
    if when == "before it is read":
        lane.cut(1, b'{"a": "stranger"}')
    else:
        lane.strike = ("fetch", lambda: lane.cut(1, b'{"a": "stranger"}'))
    settle.settle(lane.parts())
    found = lane.newest().partitions[AT]
    assert Outcome.DEAD not in found.counts
    assert [(run.start, run.end) for run in found.state.pending] == [(1, 2)]
    if when == "before it is read":
        assert lane.letters() == []
    with pytest.raises(TopicChanged, match="--to 1"):
        lane.run()


def test_dead_letters_of_a_partition_without_leader_stay_pending_and_the_others_go_on() -> None:
    lane = Lane(settings={"retry": {"max_retries": 0}})
    two = lane.world.log(TWO)
    assert two is not None
    lane.produce(ALWAYS)
    lane.produce(ALWAYS, log=two)
    plan.plan(lane.parts())
    replay.replay(lane.parts(), no_session)
    two.has_leader = False
    settle.settle(lane.parts())
    assert [len(lane.newest().partitions[tp].state.pending) for tp in (AT, TWO)] == [0, 1]
    two.has_leader = True
    lane.run()
    assert lane.letters() == [ALWAYS, ALWAYS]


def test_at_most_once_a_plan_that_was_not_claimed_is_made_again_over_the_log_as_it_is() -> None:
    lane = Lane(settings={"guarantee": "at_most_once"})
    lane.produce(OK, OK, OK)
    plan.plan(lane.parts())
    lane.cut(1, OK, OK)
    lane.run()
    assert lane.newest().partitions[AT].counts == {"acked": 3}


def test_at_most_once_records_a_claimed_range_as_lost_and_then_stops() -> None:
    lane = Lane(settings={"guarantee": "at_most_once"})
    lane.produce(OK, OK, OK)
    before = lane.parts()
    planned = plan.plan(before).plan
    newest = before.store.newest()
    assert planned is not None
    assert newest is not None
    claim.claim(before, planned, newest)
    lane.cut(1, OK, OK)
    lane.run()
    assert lane.newest().partitions[AT].counts == {"lost": 1}
    assert lane.calls() == []
    with pytest.raises(TopicChanged, match="--to 1"):
        lane.run()


def test_a_paused_partition_is_judged_when_it_is_read_again() -> None:
    lane = Lane()
    lane.produce(OK, OK)
    lane.run()
    lane.act(TurnKind.PAUSE, {AT: 0})
    lane.cut(1, OK, OK)
    lane.run()
    assert lane.newest().partitions[AT].leader_epoch == 0
    lane.act(TurnKind.RESUME, {AT: 0})
    with pytest.raises(TopicChanged):
        lane.run()


def test_a_skip_is_refused_in_a_log_that_was_cut_and_a_reset_is_not() -> None:
    lane = Lane()
    lane.produce(*[OK] * 4)
    lane.produce(*[OK] * 2, log=lane.world.log(TWO))
    lane.run()
    lane.cut(2, OK, OK, OK)
    with pytest.raises(TopicChanged):
        lane.act(TurnKind.SKIP, {AT: 5})
    lane.act(TurnKind.RESET, {AT: 2})
    lane.run()
    assert lane.calls()[4:] == [2, 3, 4]
    assert lane.calls(TWO) == [0, 1]


def test_s42_a_reset_takes_over_a_topic_that_was_created_again() -> None:
    """Fault 20. Only where it is named, and not to where the lane stood in the old one."""
    lane = Lane()
    lane.produce(OK, FAILS, OK)
    lane.produce(OK, log=lane.world.log(TWO))
    lane.run()
    lane.world.create_topic("orders", 2)
    lane.produce(OK, OK)
    with pytest.raises(TopicChanged, match="ackline reset lane --topic orders --to earliest"):
        lane.run()
    with pytest.raises(ConfigError, match="deleted and created again"):
        lane.act(TurnKind.RESET, {AT: 1})
    lane.act(TurnKind.RESET, {AT: 0})
    with pytest.raises(TopicChanged, match=r"orders\[1\]"):
        lane.run()
    lane.act(TurnKind.RESET, {TWO: 0})
    lane.run()
    assert lane.calls()[3:] == [0, 1]
    committed = lane.world.committed["group", AT]
    assert committed.offset == 2


def test_a_reset_of_one_partition_leaves_the_others_where_they_stand() -> None:
    lane = Lane(settings={"retry": {"initial_delay": "1h", "period": "1h"}})
    lane.produce(OK)
    lane.produce(OK, FAILS, OK, log=lane.world.log(TWO))
    lane.run()
    lane.act(TurnKind.RESET, {AT: 0})
    newest = lane.newest()
    assert newest.turn.epoch == 1
    assert [newest.partitions[tp].state.floor for tp in (AT, TWO)] == [0, 1]
    assert not newest.partitions[TWO].state.pending
    lane.run()
    assert lane.calls(TWO) == [0, 1, 2, 1, 2]
