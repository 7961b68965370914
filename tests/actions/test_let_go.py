"""An operator lets go of partitions that their topic does not have any more: `ackline skip --topic T --gone`."""

from dataclasses import replace
from typing import Any

import pytest

from ackline.actions.actions import Choose, PreparedAction, perform_action, prepare_action
from ackline.actions.form import ActionRequest, check_request
from ackline.actions.perform import choose_targets
from ackline.actions.report import changes_of
from ackline.answers.standstill import what_stands_still
from ackline.answers.status import LET_GO, status_and_missing
from ackline.errors import ConfigError, GroupMoved, TopicChanged
from ackline.forms.arguments import PartitionChoice
from ackline.ledger.fold import PendingKind
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.steps.plan import preview
from ackline.verify.check import judge
from tests.chaos.config import Config
from tests.chaos.evidence import evidence_of
from tests.support.actor import Killed
from tests.support.memory import AFTER, BEFORE
from tests.support.memory_lane import DEAD, FAILS, GROUP, OK, PAYMENTS, TP, TP1, WAITS, AnsweredLane, MemoryLane

LATER = {"initial_delay": "1h", "period": "1h"}
PATTERN = {"topics": None, "pattern": "orders|payments"}
GONE = r"`ackline skip lane --topic {} --partition {} --gone --reason …`"


def let_go(lane: MemoryLane, topic: str, *partitions: int, done: bool = True) -> Any:
    """Lets go of what is gone of a topic, as the command does; or only prepares it."""
    action = ActionRequest(TurnKind.SKIP, PartitionChoice((topic,), partitions), gone=True)
    check_request(action)
    if done:
        return perform(lane, action)
    return prepare_action(lane.adapters(), action.kind, chosen(lane, action), "a test")


def perform(lane: MemoryLane, action: ActionRequest) -> PreparedAction:
    return perform_action(lane.adapters(), action.kind, chosen(lane, action), "a test")


def chosen(lane: MemoryLane, action: ActionRequest) -> Choose:
    return lambda newest: choose_targets(lane.adapters(), action, newest)


def lane_of_a_pattern(*payments: bytes, kind: type[MemoryLane] = MemoryLane, **settings: Any) -> Any:
    """A lane of a pattern, after a run over two records of `orders` and some of `payments`."""
    lane = kind(OK, OK, **{"kafka": PATTERN, "retry": LATER, **settings})
    lane.create("payments")
    lane.produce(*payments, tp=PAYMENTS)
    return lane.after_run()


def judged(lane: MemoryLane) -> list[Any]:
    rules = replace(Config().rules(), group=GROUP, dead_letter_topic="dead")
    return list(judge(evidence_of(lane.world, rules)).violations)


def test_s76_a_deleted_topic_of_a_pattern_is_let_go_and_the_others_go_on() -> None:
    """What was pending there and what a plan had seen there is `skipped`; the dry run shows it and stores nothing."""
    lane = lane_of_a_pattern(OK, FAILS, OK, OK, OK, max_uncommitted=4)
    lane.world.delete_topic("payments")
    lane.produce(OK)
    lane.run_fails(TopicChanged, GONE.format("payments", 0))
    written = len(lane.world.history)
    shown = let_go(lane, "payments", done=False)
    assert len(lane.world.history) == written
    done: PreparedAction = let_go(lane, "payments")
    assert changes_of(done.plan, done.before) == changes_of(shown.plan, shown.before)
    assert lane.ranges(Outcome.SKIPPED, PAYMENTS) == [(1, 2), (4, 5)]
    assert (lane.floor(PAYMENTS), lane.pending(PAYMENTS)) == (5, [])
    lane.run()
    assert (lane.floor(), lane.committed(), lane.newest().turn.epoch) == (3, 3, 0)
    assert {status.topic: status.why for status in status_and_missing(lane.adapters())[0]} == {
        "orders": None,
        "payments": LET_GO,
    }
    assert judged(lane) == []


@pytest.mark.parametrize("settings", [{}, {"missing_topics": "wait"}, {"kafka": PATTERN}], ids=str)
def test_s76_where_all_is_let_go_a_run_stores_nothing_and_goes_on_once_a_topic_is_there_again(
    settings: dict[str, Any],
) -> None:
    """A plan without a row could not be read again, so the lane would stand still for good."""
    lane = MemoryLane(OK, OK, **settings).after_run()
    lane.world.delete_topic("orders")
    let_go(lane, "orders")
    before = lane.newest()
    for _ in range(2):
        assert (lane.run().plans, preview(lane.adapters()).plan, what_stands_still(lane.adapters())) == ([], None, None)
    assert (lane.newest(), lane.adapters().store.open_plan(before)) == (before, None)
    lane.create("orders", records=3)
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1, 0, 1, 2], 3)


def test_s76_a_topic_made_again_with_fewer_partitions_goes_on_with_those_that_it_has() -> None:
    lane = MemoryLane(OK, OK, partitions=3, retry=LATER)
    lane.produce(OK, FAILS, OK, tp=TP1)
    lane.run()
    lane.create("orders", records=2)
    lane.run_fails(TopicChanged, "`ackline reset lane --topic orders --to earliest")
    lane.perform(TurnKind.RESET, {TP: 0})
    lane.run_fails(TopicChanged, GONE.format("orders", 1))
    let_go(lane, "orders")
    assert lane.ranges(Outcome.SKIPPED, TP1) == [(1, 3)]
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1, 0, 1], 2)


def test_s76_one_partition_may_be_let_go_alone() -> None:
    lane = MemoryLane(OK, partitions=3).after_run()
    lane.create("orders", records=1)
    lane.perform(TurnKind.RESET, {TP: 0})
    let_go(lane, "orders", 1)
    lane.run_fails(TopicChanged, GONE.format("orders", 2))
    let_go(lane, "orders", 2)
    lane.run()
    assert lane.committed() == 1


def test_s76_dead_letters_that_are_not_confirmed_are_skipped_with_the_partition() -> None:
    lane = MemoryLane(OK, kafka=PATTERN, retry=LATER)
    lane.create("payments")
    lane.produce(DEAD, OK, tp=PAYMENTS)
    lane.world.faults.letters.append("refused")
    lane.run()
    assert lane.state(PAYMENTS).pending_by_kind()[PendingKind.DEAD_LETTER] == 1
    lane.world.delete_topic("payments")
    let_go(lane, "payments")
    lane.run()
    assert (lane.ranges(Outcome.SKIPPED, PAYMENTS), lane.pending(PAYMENTS)) == ([(0, 1)], [])
    assert judged(lane) == []


def test_s76_an_answer_for_a_record_of_a_partition_that_was_let_go_is_ignored() -> None:
    lane = AnsweredLane(OK, kafka=PATTERN)
    lane.create("payments")
    lane.produce(WAITS, tp=PAYMENTS)
    lane.run()
    lane.world.delete_topic("payments")
    let_go(lane, "payments")
    lane.answer(0)
    lane.run()
    assert (lane.outcomes(PAYMENTS), lane.pending(PAYMENTS)) == ([(0, 0, "skipped"), (0, 1, "in_flight")], [])
    assert lane.answered() == {"unsigned": 1}


@pytest.mark.parametrize("write", ["plan", "decisions", "settlement", "commit"])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_s76_a_killed_command_is_finished_by_the_next_run_or_has_done_nothing(write: str, when: str) -> None:
    lane = lane_of_a_pattern(FAILS)
    lane.world.delete_topic("payments")
    lane.die(write, when)
    with pytest.raises(Killed):
        let_go(lane, "payments")
    if (write, when) == ("plan", BEFORE):
        lane.run_fails(TopicChanged, GONE.format("payments", 0))
        let_go(lane, "payments")
    lane.run()
    assert lane.ranges(Outcome.SKIPPED, PAYMENTS) == [(0, 1)]
    assert [kind for kind in lane.kinds() if kind is TurnKind.SKIP] == [TurnKind.SKIP]
    assert judged(lane) == []


def test_s76_a_topic_that_is_there_again_is_read_whole_in_a_new_epoch_that_handles_nothing_else_again() -> None:
    lane = lane_of_a_pattern(OK, OK)
    lane.world.delete_topic("payments")
    let_go(lane, "payments")
    lane.create("payments", records=3)
    lane.produce(OK)
    lane.run()
    assert (lane.newest().turn.epoch, lane.offsets(), lane.offsets(PAYMENTS)) == (1, [0, 1, 2], [0, 1, 0, 1, 2])
    assert (lane.committed(), lane.committed(PAYMENTS)) == (3, 3)
    lane.run()
    assert lane.newest().turn.epoch == 1


def test_s76_a_topic_that_is_there_again_waits_while_records_of_other_partitions_are_pending(caplog: Any) -> None:
    """A new epoch would handle again what was acked above their floors. An operator may want that, and resets."""
    lane = lane_of_a_pattern(OK)
    lane.world.delete_topic("payments")
    let_go(lane, "payments")
    lane.produce(FAILS, OK)
    lane.run()
    lane.create("payments", records=1)
    lane.run()
    assert (lane.newest().turn.epoch, lane.offsets(PAYMENTS)) == (0, [0])
    assert "payments[0]: let go, and there again" in caplog.text
    assert "`ackline reset lane --topic payments --to earliest" in caplog.text
    perform(lane, ActionRequest(TurnKind.RESET, PartitionChoice(("payments",)), to="earliest"))
    lane.run()
    assert (lane.offsets(PAYMENTS), lane.committed(PAYMENTS)) == ([0, 0], 1)


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_s76_a_topic_that_the_broker_has_only_hidden_goes_on_where_it_was(guarantee: str) -> None:
    """Its id is the old one. From the log start, records would be handed out twice."""
    lane = lane_of_a_pattern(OK, OK, guarantee=guarantee)
    hidden = lane.world.topics.pop("payments")
    let_go(lane, "payments")
    lane.world.topics["payments"] = hidden
    lane.produce(OK, tp=PAYMENTS)
    lane.run()
    assert (lane.offsets(PAYMENTS), lane.committed(PAYMENTS)) == ([0, 1, 2], 3)


def test_s76_what_exists_is_never_let_go() -> None:
    lane = lane_of_a_pattern(OK)
    with pytest.raises(ConfigError, match="each chosen partition exists"):
        let_go(lane, "orders")
    lane.world.delete_topic("payments")
    let_go(lane, "payments")
    with pytest.raises(ConfigError, match="or was let go before"):
        let_go(lane, "payments")
    assert lane.kinds().count(TurnKind.SKIP) == 1
    orders = ActionRequest(TurnKind.SKIP, PartitionChoice(("orders",)), gone=True)
    for wrong in (replace(orders, to=1), replace(orders, error_class="X"), replace(orders, all_partitions=True)):
        with pytest.raises(ConfigError, match="--gone takes no other choice"):
            check_request(wrong)
    with pytest.raises(ConfigError, match="--gone needs --topic"):
        check_request(ActionRequest(TurnKind.SKIP, gone=True))


def test_s76_other_actions_pass_over_a_partition_that_was_let_go() -> None:
    lane = lane_of_a_pattern(OK)
    lane.world.delete_topic("payments")
    let_go(lane, "payments")
    lane.produce(OK)
    for action in (
        ActionRequest(TurnKind.SKIP, to="latest"),
        ActionRequest(TurnKind.RESET, to="floor"),
        ActionRequest(TurnKind.PAUSE),
        ActionRequest(TurnKind.RESUME),
    ):
        perform(lane, action)
    lane.produce(OK)
    lane.run()
    assert (lane.committed(), lane.newest().partitions[PAYMENTS].let_go) == (4, True)
    assert lane.newest().partitions.keys() == {TP, TopicPartition("payments", 0)}


def test_s76_what_stops_the_lane_stops_it_before_a_new_epoch_for_what_is_there_again() -> None:
    lane = lane_of_a_pattern(OK)
    lane.world.delete_topic("payments")
    let_go(lane, "payments")
    lane.create("payments", records=1)
    lane.move_group(TP, 1)
    lane.run_fails(GroupMoved)
    assert lane.newest().turn.epoch == 0
