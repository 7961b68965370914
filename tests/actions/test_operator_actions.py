"""Operator actions: what each changes, what refuses it before it is stored, and what a dry run shows."""

import re
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from ackline.actions.actions import perform_action, prepare_action
from ackline.actions.form import ActionRequest, check_request
from ackline.actions.perform import choose_targets
from ackline.actions.report import changes_of
from ackline.errors import ConfigError, FatalError, GroupBusy, GroupMoved, GroupTaken, NewerCommit
from ackline.forms.arguments import PartitionChoice
from ackline.lane.plans import action_plan
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.pending import NEVER, PendingKind, PendingRuns, PendingState
from ackline.ledger.turns import TurnKind
from ackline.steps.decide import skipped_by
from ackline.verify.check import judge
from tests.chaos.config import Config
from tests.chaos.evidence import evidence_of
from tests.support.actor import Killed
from tests.support.memory import AFTER, BEFORE
from tests.support.memory_lane import (
    DEAD,
    FAILS,
    FAILS_ONCE,
    GROUP,
    NOON,
    OK,
    PAYMENTS,
    TP,
    TP1,
    WAITS,
    AnsweredLane,
    MemoryLane,
)

LATER = {"initial_delay": "1h", "period": "1h"}


def test_a_reset_leaves_a_partition_whose_topic_is_gone_at_its_floor() -> None:
    lane = MemoryLane(OK, OK, topics=("orders", "payments"))
    lane.create("payments")
    lane.run()
    lane.world.delete_topic("payments")
    lane.perform(TurnKind.RESET, {TP: 1, PAYMENTS: 0})
    assert (lane.newest().turn.epoch, lane.floor(), lane.floor(PAYMENTS), lane.committed()) == (1, 1, 0, 1)


def test_a_reset_of_one_partition_leaves_the_others_at_their_floor() -> None:
    lane = MemoryLane(OK, partitions=2, retry={"initial_delay": "1h", "period": "1h"})
    lane.produce(OK, FAILS_ONCE, OK, tp=TP1)
    lane.run()
    lane.perform(TurnKind.RESET, {TP: 0})
    assert (lane.newest().turn.epoch, lane.floor(), lane.floor(TP1), lane.pending(TP1)) == (1, 0, 1, [])
    lane.run()
    assert lane.offsets(TP1) == [0, 1, 2, 1, 2]


def test_i15_a_reset_that_goes_forward_records_what_the_new_epoch_does_not_read_as_skipped() -> None:
    """Pending offsets below its target, and what was not read; what is pending above it, the new epoch reads."""
    lane = MemoryLane(OK, FAILS, OK, FAILS, retry=LATER, max_records_per_run=4).after_run()
    lane.produce(OK, OK, OK)
    lane.perform(TurnKind.RESET, {TP: 3})
    ended = list(lane.world.tables.settlements.values())[-1]
    assert lane.ranges(Outcome.SKIPPED) == [(1, 2)]
    assert (ended.turn.epoch, ended.partitions[TP].state.floor, dict(ended.partitions[TP].counts)) == (
        0, 3, {"skipped": 1})  # fmt: skip
    assert (lane.newest().turn.epoch, lane.floor(), lane.pending(), lane.committed()) == (1, 3, [], 3)
    lane.perform(TurnKind.RESET, {TP: 6})
    assert lane.ranges(Outcome.SKIPPED) == [(1, 2), (3, 6)]
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1, 2, 3, 6], 7)


def test_i15_a_reset_that_goes_back_skips_nothing() -> None:
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    lane.perform(TurnKind.RESET, {TP: 1})
    ended = list(lane.world.tables.settlements.values())[-1]
    assert (lane.ranges(Outcome.SKIPPED), ended.partitions[TP].state.floor) == ([], 1)
    lane.perform(TurnKind.RESET, {TP: 0})
    lane.run()
    assert (lane.ranges(Outcome.SKIPPED), lane.offsets()) == ([], [0, 1, 2, 0, 1, 2])


def test_i15_a_reset_into_a_topic_that_was_created_again_skips_all_that_is_pending_of_the_old_one() -> None:
    lane = MemoryLane(OK, FAILS, OK, FAILS, retry=LATER).after_run()
    lane.create("orders", records=2)
    lane.perform(TurnKind.RESET, {TP: 0})
    assert lane.ranges(Outcome.SKIPPED) == [(1, 2), (3, 4)]
    lane.run()
    assert (lane.floor(), lane.committed()) == (2, 2)


def request(lane: MemoryLane, kind: TurnKind, *, perform: bool = True, **options: Any) -> Any:
    """Carries an operator's request out, or prepares it only."""
    action, adapters = ActionRequest(kind, **options), lane.adapters()
    check_request(action)
    work = perform_action if perform else prepare_action
    return work(adapters, kind, lambda newest: choose_targets(adapters, action, newest), "a test")


def test_a_skip_by_an_empty_error_class_leaves_records_in_flight_alone() -> None:
    """They have no error yet. A variable that is not set makes the class empty."""
    lane = AnsweredLane(WAITS, OK).after_run()
    with pytest.raises(ConfigError, match="pending"):
        request(lane, TurnKind.SKIP, error_class="")


def test_s74_a_retry_makes_pending_retries_due_now_and_counts_as_no_attempt() -> None:
    lane = MemoryLane(OK, FAILS_ONCE, OK, FAILS_ONCE, retry=LATER).after_run()
    before = lane.state()
    request(lane, TurnKind.RETRY, offsets=OffsetRange(0, 2))
    after = lane.state()
    assert (after.floor, after.complete_to) == (before.floor, before.complete_to)
    assert [(run.start, run.value.attempts, run.value.due) for run in after.pending] == [
        (1, 1, lane.world.now), (3, 1, before.pending[1].value.due)]  # fmt: skip
    lane.run()
    assert (lane.calls()[-1], lane.pending(), lane.floor()) == ((1, 2), [(3, 4)], 3)


def test_a_retry_by_error_class_leaves_other_classes_and_dead_letters_alone() -> None:
    lane = MemoryLane(FAILS, DEAD, retry=LATER)
    lane.world.faults.letters.append("refused")
    lane.run()
    assert [run.value.kind.value for run in lane.state().pending] == ["retry", "dead_letter"]
    with pytest.raises(ConfigError, match="no retry that was selected is pending"):
        request(lane, TurnKind.RETRY, error_class="KeyError")
    with pytest.raises(ConfigError, match="no retry that was selected is pending"):
        request(lane, TurnKind.RETRY, offsets=OffsetRange(1, 2))
    request(lane, TurnKind.RETRY, error_class="ValueError")
    assert [run.value.due for run in lane.state().pending] == [lane.world.now, None]


SCATTERED = 50_000


@pytest.mark.parametrize("kind", [TurnKind.SKIP, TurnKind.RESET, "single"])
def test_a_skip_of_many_scattered_records_holds_them_as_columns(kind: Any) -> None:
    lane = MemoryLane(OK).after_run()
    before = lane.newest()
    starts = np.arange(SCATTERED, dtype=np.int64) * 2
    retry = PendingState(PendingKind.RETRY, 1, "Late")
    runs = PendingRuns(starts, starts + 1, np.zeros(SCATTERED, np.int32), np.full(SCATTERED, NEVER), [retry])
    settled = before.partitions[TP]
    before = replace(before, partitions={TP: replace(settled, state=PartitionState(2 * SCATTERED, runs))})
    lane.log().add_gap(2 * SCATTERED)
    target: Any = runs if kind == "single" else 2 * SCATTERED
    plan = action_plan(lane.adapters(), before, TurnKind.SKIP if kind == "single" else kind, {TP: target}, "a test")
    tracemalloc.start()
    try:
        rows = skipped_by(plan, before, NOON)[TP]
        assert sum(1 for _ in rows) == len(rows) == rows.offsets == SCATTERED
        assert len(OutcomeColumns.of(rows)) == SCATTERED
        assert tracemalloc.get_traced_memory()[1] / SCATTERED < 200
    finally:
        tracemalloc.stop()


def test_i4_a_skip_of_pending_records_settles_these_and_moves_nothing_else() -> None:
    lane = MemoryLane(OK, FAILS, FAILS, OK, FAILS, retry=LATER).after_run()
    lane.produce(OK)
    request(lane, TurnKind.SKIP, offsets=OffsetRange(1, 3))
    assert (lane.ranges(Outcome.SKIPPED), lane.pending(), lane.floor(), lane.committed()) == (
        [(1, 3)], [(4, 5)], 4, 4)  # fmt: skip
    assert (lane.state().complete_to, dict(lane.settled().counts)) == (5, {"skipped": 2})
    with pytest.raises(ConfigError, match="no record that was selected is pending"):
        request(lane, TurnKind.SKIP, offsets=OffsetRange(4, 4))  # an empty range selects nothing
    request(lane, TurnKind.SKIP, error_class="ValueError")
    assert (lane.pending(), lane.floor()) == ([], 5)
    with pytest.raises(ConfigError, match="no record that was selected is pending"):
        request(lane, TurnKind.SKIP, offsets=OffsetRange(0, 9))
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1, 2, 3, 4, 5], 6)


@pytest.mark.parametrize(
    ("kind", "which"),
    [
        (TurnKind.RETRY, {"offsets": OffsetRange(1, 2)}),
        (TurnKind.SKIP, {"offsets": OffsetRange(1, 2)}),
        (TurnKind.SKIP, {"to": 2}),
    ],
)
@pytest.mark.parametrize("write", ["plan", "decisions", "settlement", "commit"])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_i9_s53_an_action_is_finished_by_the_next_run_wherever_its_process_dies(
    kind: TurnKind, which: dict[str, Any], write: str, when: str
) -> None:
    lane = MemoryLane(OK, FAILS_ONCE, OK, retry=LATER).after_run()

    lane.die(write, when)
    with pytest.raises(Killed):
        request(lane, kind, **which)
    lane.world.now += timedelta(minutes=1)
    stored = (write, when) != ("plan", BEFORE)
    lane.run()
    assert lane.committed() == (3 if stored else 1)
    assert lane.calls()[3:] == ([(1, 2)] if stored and kind is TurnKind.RETRY else [])
    assert lane.ranges(Outcome.SKIPPED) == ([(1, 2)] if stored and kind is TurnKind.SKIP else [])


def test_s36_an_action_on_single_records_acknowledges_no_move_of_the_group() -> None:
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    lane.move_group(TP, 0)
    done = request(lane, TurnKind.SKIP, offsets=OffsetRange(1, 2))
    assert "another client moved the group" in done.not_committed
    assert (lane.floor(), lane.committed()) == (3, 0)
    lane.run_fails(GroupMoved)


MOVING: list[dict[str, Any]] = [{"kind": TurnKind.SKIP, "to": 3}, {"kind": TurnKind.RESET, "to": 0},
                                {"kind": TurnKind.SKIP, "offsets": OffsetRange(1, 2)}]  # fmt: skip


@pytest.mark.parametrize("options", MOVING, ids=["skip", "reset", "single"])
@pytest.mark.parametrize("perform", [True, False], ids=["performed", "dry run"])
def test_s37_an_action_that_the_group_would_refuse_stores_nothing(options: dict[str, Any], perform: bool) -> None:
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    before = lane.newest()
    lane.world.members = ["consumer-1 (10.0.0.1)"]
    with pytest.raises(GroupBusy, match="consumer-1"):
        request(lane, **options, perform=perform)
    lane.world.members, lane.world.taken = [], "a share group"
    with pytest.raises(GroupTaken, match="that of a share group"):
        request(lane, **options, perform=perform)
    lane.world.taken = None
    lane.move_group(TP, 1, CommitMetadata("another", "lane", 0, 77).encode())
    with pytest.raises(NewerCommit, match="of ledger another"):
        request(lane, **options, perform=perform)
    assert (lane.newest(), lane.kinds()) == (before, ["genesis", "run"])
    assert lane.adapters().store.open_plan(before) is None


@pytest.mark.parametrize("options", [*MOVING, {"kind": TurnKind.RETRY}, {"kind": TurnKind.PAUSE}])
def test_s37_an_action_whose_commit_alone_is_refused_is_stored_and_names_why(options: dict[str, Any]) -> None:
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    committed = lane.committed()
    lane.strike("settlement", lambda: lane.world.members.append("consumer-1 (10.0.0.1)"), AFTER)
    done = request(lane, **options)
    assert "the group is committed when its members are gone: " in done.not_committed
    assert lane.kinds()[-1] is options["kind"]
    assert lane.committed() == committed
    lane.world.members = []
    lane.run()
    assert lane.committed() == lane.floor()


def test_a_commit_that_fails_after_the_action_gives_no_advice_to_repeat_it() -> None:
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    lane.world.faults.commits.append("refused")
    done = request(lane, TurnKind.SKIP, to=3)
    assert "the group was not committed, and the next run does it: " in done.not_committed
    assert "again" not in done.not_committed
    assert lane.kinds()[-1] == "skip"


@pytest.mark.parametrize("fault", ["killed", "unanswered"])
def test_an_action_whose_process_dies_or_gets_no_answer_is_not_told_to_be_done_twice(fault: str) -> None:
    lane = MemoryLane(OK, OK, OK, OK).after_run()
    if fault == "killed":
        lane.die("plan", AFTER)
    else:
        lane.world.faults.tables.append("unanswered")  # stored, and nothing answers when the log is looked at
    with pytest.raises((Killed, FatalError)):
        request(lane, TurnKind.RESET, by=-1)
    with pytest.raises(FatalError) as caught:
        request(lane, TurnKind.RESET, by=-1)
    told = str(caught.value)
    assert "turn 2 (lane live, epoch 0) of lane, a reset of test (a test), is open: let it end (`ackline run" in told
    assert "look at the lane before you reset again: that turn may be what you have asked for" in told
    lane.run()
    assert lane.offsets() == [0, 1, 2, 3, 3]


def test_a_pause_and_a_retry_need_no_group() -> None:
    """They move no floor, and an operator needs a pause most where a stray consumer has joined."""
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    lane.world.members = ["consumer-1 (10.0.0.1)"]
    for kind in (TurnKind.PAUSE, TurnKind.RETRY, TurnKind.RESUME):
        assert "members are gone" in request(lane, kind).not_committed
    assert lane.kinds()[2:] == ["pause", "retry", "resume"]


def test_an_action_that_was_confirmed_for_a_turn_takes_no_other() -> None:
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    shown = request(lane, TurnKind.SKIP, to=3, perform=False)
    lane.run()
    with pytest.raises(FatalError, match=r"the lane has moved since\. Nothing was stored"):
        perform_action(lane.adapters(), TurnKind.SKIP, lambda _: {TP: 3}, "a test", shown.plan.turn)
    assert lane.pending() == [(1, 2)]


@pytest.mark.parametrize(("options", "message"), [
    ({"kind": TurnKind.SKIP, "to": 1}, "offset 1 is below the floor 2, and a skip goes forward only"),
    ({"kind": TurnKind.SKIP, "to": "earliest"}, "is below the floor"),
    ({"kind": TurnKind.SKIP}, "a skip needs either --to, or --offsets or --error-class"),
    ({"kind": TurnKind.SKIP, "to": 3, "error_class": "X"}, "a skip needs either"),
    ({"kind": TurnKind.RESET}, "a reset needs either --to or --by"),
    ({"kind": TurnKind.RESET, "to": 1, "by": 1}, "a reset needs either --to or --by"),
    ({"kind": TurnKind.RESET, "by": -3}, "offset -1 is below 0; the floor is 2"),
    ({"kind": TurnKind.RESET, "by": 99}, "offset 101 is outside the log"),
    ({"kind": TurnKind.RESET, "to": "committed", "partitions": PartitionChoice((), (1,))}, "no committed offset"),
])  # fmt: skip
def test_what_an_action_may_not_ask_for(options: dict[str, Any], message: str) -> None:
    lane = MemoryLane(OK, OK, FAILS, OK, partitions=2, retry=LATER).after_run()
    lane.world.committed.pop((GROUP, TP1))
    if "partitions" not in options:
        options = {**options, "partitions": PartitionChoice((), (0,))}
    with pytest.raises(ConfigError, match=re.escape(message)):
        request(lane, **options)
    assert lane.kinds() == ["genesis", "run"]


def test_one_offset_for_several_partitions_wants_a_confirmation() -> None:
    lane = MemoryLane(OK, OK, partitions=2)
    lane.produce(OK, OK, tp=TP1)
    lane.run()
    with pytest.raises(ConfigError, match=re.escape("--to 1 is one offset, and 2 partitions are chosen")):
        request(lane, TurnKind.RESET, to=1)
    request(lane, TurnKind.RESET, to=1, partitions=PartitionChoice((), (1,)))
    assert (lane.floor(), lane.floor(TP1)) == (2, 1)
    request(lane, TurnKind.RESET, to=0, all_partitions=True)
    assert (lane.floor(), lane.floor(TP1)) == (0, 0)


@pytest.mark.parametrize(
    ("options", "floors"),
    [({"to": "earliest"}, (1, 0)), ({"to": "latest"}, (6, 3)), ({"to": "floor"}, (3, 3)), ({"by": -1}, (2, 2)),
     ({"to": "committed"}, (2, 3)), ({"to": NOON + timedelta(minutes=5)}, (5, 3)),
     ({"to": NOON + timedelta(hours=9)}, (6, 3))],
)  # fmt: skip
def test_a_reset_goes_to_a_word_a_time_or_a_distance_in_each_partition(
    options: dict[str, Any], floors: tuple[int, int]
) -> None:
    lane = MemoryLane(OK, OK, OK, FAILS, OK, partitions=2, retry=LATER)
    lane.log().expire(1)
    lane.produce(OK, OK, OK, tp=TP1)
    lane.run()
    lane.world.now += timedelta(minutes=5)
    lane.produce(OK)
    lane.move_group(TP, 2)
    request(lane, TurnKind.RESET, **options)
    assert (lane.floor(), lane.floor(TP1)) == floors


@pytest.mark.parametrize(("to", "target"), [(NOON + timedelta(minutes=5), 2), ("earliest", 1)])
def test_a_skip_to_a_time_or_to_the_log_start_leaves_partitions_alone_that_are_past_it(to: Any, target: int) -> None:
    lane = MemoryLane(OK, OK, partitions=2)
    late = NOON + timedelta(minutes=5)
    lane.produce(OK, time=late)
    lane.run()
    lane.produce(OK, OK, tp=TP1)
    lane.produce(OK, time=late, tp=TP1)
    if to == "earliest":
        lane.log(TP1).expire(1)
    request(lane, TurnKind.SKIP, to=to)
    assert (lane.floor(), lane.floor(TP1), lane.ranges(Outcome.SKIPPED, TP1)) == (3, target, [(0, target)])
    assert list(lane.adapters().store.plan(lane.newest().turn).partitions) == [TP1]


def test_an_action_to_the_time_of_a_record_that_is_not_readable_yet_goes_to_the_readable_end() -> None:
    """A transaction is open: the first record at or after the time is above the last stable offset."""
    lane = MemoryLane(OK, OK).after_run()
    for minutes in (1, 5):
        lane.log().append(OK, NOON + timedelta(minutes=minutes), open_=True)
    request(lane, TurnKind.RESET, to=NOON + timedelta(minutes=5))
    assert lane.floor() == 2


@pytest.mark.parametrize(
    "options",
    [*MOVING, {"kind": TurnKind.RETRY}, {"kind": TurnKind.PAUSE}, {"kind": TurnKind.RESET, "to": "latest"}],
    ids=str,
)
def test_s73_a_dry_run_shows_what_the_action_then_changes_and_stores_nothing(options: dict[str, Any]) -> None:
    lane = MemoryLane(OK, FAILS, OK, FAILS, retry=LATER).after_run()
    lane.produce(OK, OK)
    written = len(lane.world.history)
    prepared = request(lane, **options, perform=False)
    assert len(lane.world.history) == written
    shown = changes_of(prepared.plan, prepared.before)
    performed = request(lane, **options)
    assert changes_of(performed.plan, performed.before) == shown
    for tp, change in shown.items():
        now = lane.newest().partitions[tp]
        assert (now.state.floor, now.state.complete_to, now.state.pending.offsets, now.paused) == (
            change.floor.after, change.complete_to.after, change.pending.after, change.paused.after)  # fmt: skip


def test_s75_a_reset_in_both_directions_at_once_gives_each_offset_an_outcome() -> None:
    """At most one terminal outcome in an epoch, at least one over the epochs; the independent checker judges it."""
    lane = MemoryLane(OK, FAILS, OK, OK, FAILS, partitions=2, retry=LATER)
    lane.produce(OK, FAILS, OK, FAILS, tp=TP1)
    lane.run()
    lane.produce(OK, OK, OK)
    done = perform_action(lane.adapters(), TurnKind.RESET, lambda _: {TP: 7, TP1: 0}, "both ways")
    changes = changes_of(done.plan, done.before)
    assert (changes[TP].skipped, changes[TP].handled_again) == (4, 0)
    assert (changes[TP1].skipped, changes[TP1].handled_again) == (0, 4)
    assert (lane.ranges(Outcome.SKIPPED), lane.ranges(Outcome.SKIPPED, TP1)) == ([(1, 2), (4, 7)], [])
    lane.run()
    assert (lane.offsets()[5:], lane.offsets(TP1)[4:]) == ([7], [0, 1, 2, 3])
    rules = replace(Config().rules(), group=GROUP, dead_letter_topic="dead")
    assert judge(evidence_of(lane.world, rules)).violations == []
