"""A backfill lane whose log changes and whose processes die, in any history and over epochs (S71, S72). In memory."""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.actions.actions import perform_action
from ackline.answers.dead import diff_lanes
from ackline.backfill import run
from ackline.backfill.perform import backfill_object
from ackline.backfill.run import plan_backfill
from ackline.errors import FatalError, TopicChanged, TransientError
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.turns import LIVE, Settlement, TurnKind
from tests.support.actor import Killed
from tests.support.memory import AFTER, BEFORE
from tests.support.memory_adapters import MemoryAdapters, no_session
from tests.support.memory_lane import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DEAD,
    FAILS,
    FAILS_ONCE,
    NO_GUARANTEE,
    OK,
    PAYMENTS,
    TP,
    TP1,
    MemoryBackfill,
    MemoryLane,
    settled_lane,
    writes_of,
)

SPANS = st.tuples(st.integers(0, 11), st.integers(1, 4)).map(lambda span: (span[0], min(12, sum(span))))
RECORDS = st.lists(st.sampled_from([OK, FAILS_ONCE, FAILS, DEAD, None, "gap"]), min_size=12, max_size=12)


def test_a_log_that_was_cut_below_what_was_chosen_stops_the_lane_also_when_it_has_grown_again() -> None:
    live = settled_lane(*[OK] * 5)
    lane = MemoryBackfill(live, "b", "orders:0:1-4")
    lane.begin()
    live.truncate(2, OK, OK, OK)
    with pytest.raises(TopicChanged, match=r"truncated below 4: only what is below 2 is left"):
        lane.run()


def test_a_partition_without_leader_waits_and_the_others_are_read() -> None:
    live = settled_lane(OK, partitions=2)
    live.produce(OK, tp=TP1)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    live.log(TP1).has_leader = False
    assert lane.run().pending["unread"] == 1
    live.log(TP1).has_leader = True
    assert lane.run().settled


@pytest.mark.parametrize("fault", ["paused", "no leader"])
def test_a_dead_letter_of_a_partition_that_is_left_alone_takes_no_turn(fault: str) -> None:
    """Airflow would start a Spark driver for it every two minutes, for ever."""
    live = settled_lane(DEAD, OK)
    lane = MemoryBackfill(live, "b", "orders")
    live.world.faults.letters.append("unanswered")
    assert lane.run().pending["dead_letter"] == 1

    def leave_alone(kind: TurnKind) -> None:
        if fault == "paused":
            perform_action(lane.adapters(), kind, lambda newest: dict.fromkeys(newest.partitions, 0), "a test")
        live.log().has_leader = fault == "paused" or kind is TurnKind.RESUME

    leave_alone(TurnKind.PAUSE)
    before = lane.newest().turn
    assert not run.can_take_turn(lane.adapters())
    lane.run()
    assert lane.newest().turn == before
    leave_alone(TurnKind.RESUME)
    assert run.can_take_turn(lane.adapters())
    assert lane.run().settled


Begun = Callable[[str], tuple[MemoryBackfill, Callable[[MemoryAdapters], object]]]
"""Returns a backfill under a guarantee that has not begun, and what begins and runs it."""


def by_range(guarantee: str) -> tuple[MemoryBackfill, Callable[[MemoryAdapters], object]]:
    return _first_epoch(guarantee, "orders:0:0-2", "orders:0:3-6")


def by_outcome(guarantee: str) -> tuple[MemoryBackfill, Callable[[MemoryAdapters], object]]:
    return _first_epoch(guarantee, outcome="dead")


def _first_epoch(
    guarantee: str, *ranges: str, **filters: str
) -> tuple[MemoryBackfill, Callable[[MemoryAdapters], object]]:
    live = settled_lane(OK, DEAD, FAILS, OK, DEAD, FAILS, OK)
    live.settings |= {"guarantee": guarantee, "retry": RETRY}
    lane = MemoryBackfill(live, "b", *ranges, **filters)
    return lane, lane.run


def by_epoch(guarantee: str) -> tuple[MemoryBackfill, Callable[[MemoryAdapters], object]]:
    """A lane whose first epoch is settled."""
    live, lane = handled_lane(OK, DEAD, OK, FAILS_ONCE, guarantee=guarantee)
    live.settings["retry"] = RETRY

    def begin(adapters: MemoryAdapters) -> None:
        lane.begin_epoch(1, adapters)
        run.run_backfill(adapters, no_session)

    return lane, begin


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE])
@pytest.mark.parametrize("begun", [by_range, by_outcome, by_epoch])
def test_s71_killed_between_every_two_writes_and_resumed_the_lane_ends_the_same(guarantee: str, begun: Begun) -> None:
    """At least once, the result is that of the undisturbed twin. At most once, what was handed out may be lost, and no
    handler is called twice. The account balances after every kill. An epoch before is never touched, and the resume
    begins no further epoch."""
    expected, epoch = None, int(begun is by_epoch)
    for point in count():
        lane, begin = begun(guarantee)
        before, calls_before, reached = lane.rows(epoch=0), len(lane.live.calls()), list[str]()
        try:
            begin(lane.adapters("victim", _killer(point, reached)))
        except Killed:
            if lane.adapters().store.newest() is not None:
                lane.account()
        _resume(lane, epoch)
        assert (lane.newest().turn.epoch, not epoch or lane.rows(epoch=0) == before) == (epoch, True)
        ended, calls = lane.ended(epoch=epoch), lane.live.calls()[calls_before:]
        expected = expected or ended
        if guarantee == AT_MOST_ONCE:
            assert len(set(calls)) == len(calls)
            assert all(ended[offset] in (expected[offset], "lost") for offset in expected)
        assert set(ended) == set(expected)
        assert guarantee == AT_MOST_ONCE or ended == expected
        if point > len(reached):
            assert point > 10
            return


@given(RECORDS, st.lists(SPANS, min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 12), st.integers(0, 6))
@settings(max_examples=60)
def test_s72_in_any_history_each_offset_that_was_asked_for_is_counted_once(
    records: list[Any], spans: list[tuple[int, int]], portion: int, expired: int, at: int
) -> None:
    """The naive model is a set of offsets: what is a record ends once, by its own rule or by retention."""
    live = MemoryLane(retry={"initial_delay": "1m", "max_retries": 1})
    for record in records:
        if record == "gap":
            live.log().add_gap(1)
        else:
            live.produce(record)
    lane = MemoryBackfill(live, "b", *(f"orders:0:{start}-{end}" for start, end in spans))
    lane.begin()
    account = lane.account()
    for number in range(30):
        if number == at:
            live.log().expire(expired)
        account = lane.run(max_records=portion)
        if account.settled and number >= at:
            break
        live.world.now += timedelta(seconds=30)
    asked = {offset for start, end in spans for offset in range(start, end)}
    assert (account.settled, account.offsets) == (True, len(asked))
    own = {OK: "acked", FAILS_ONCE: "acked", FAILS: "dead", DEAD: "dead", None: "skipped"}
    for offset, outcome in lane.ended().items():
        assert offset in asked
        assert outcome in (own.get(records[offset]), "expired")
    gaps = {offset for offset in asked if records[offset] == "gap"}
    assert asked - gaps <= set(lane.ended())
    assert account.gaps == len(asked - set(lane.ended()))


RETRY = {"initial_delay": "1m", "max_retries": 1}


def handled_lane(*values: bytes, **settings: Any) -> tuple[MemoryLane, MemoryBackfill]:
    """A live lane that has handled its records, and a settled backfill of all of them."""
    live = MemoryLane(*values, retry={"max_retries": 0}, **settings).after_run()
    lane = MemoryBackfill(live, "b", "orders")
    assert lane.run().settled
    return live, lane


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE, NO_GUARANTEE])
def test_i15_each_epoch_gives_each_offset_one_terminal_outcome(guarantee: str) -> None:
    live, lane = handled_lane(OK, DEAD, OK, guarantee=guarantee)
    died = "dead" if guarantee == AT_LEAST_ONCE else "dropped"
    assert lane.ended(epoch=0) == {0: "acked", 1: died, 2: "acked"}
    live.world.handle = lambda record: None
    lane.begin_epoch(1)
    assert lane.run().settled
    assert lane.ended(epoch=1) == dict.fromkeys(range(3), "acked")
    assert lane.ended(epoch=0) == {0: "acked", 1: died, 2: "acked"}
    assert live.calls()[-3:] == [(0, 1), (1, 1), (2, 1)], "each record begins again with attempt 1"
    assert live.committed() == 3


def test_the_account_the_list_the_diff_and_of_take_the_newest_epoch() -> None:
    live, lane = handled_lane(OK, DEAD, OK)
    lane.begin_epoch(1)
    assert (lane.account().outcomes, lane.account().pending["unread"]) == ({}, 3)
    live.world.handle = lambda record: None
    lane.run()
    store = live.adapters().store
    [listed] = [backfill_object(each).dump() for each in run.backfills(store)]
    assert (listed["epoch"], listed["settled"], listed["outcomes"]) == (1, True, {"acked": 3})
    diff, _ = diff_lanes(store, LIVE, lane.lane)
    assert [(old.outcome, new.outcome, number) for (old, new), number in diff.changed.items()] == [("dead", "acked", 1)]
    assert MemoryBackfill(live, "c", outcome="dead", of=lane.lane).choose().offsets == 0


def test_a_new_epoch_chooses_anew_by_the_same_arguments() -> None:
    live = MemoryLane(*[OK] * 4)
    lane = MemoryBackfill(live, "b", since="2026-03-01T12:00:00Z")
    lane.run()
    live.produce(OK, OK)
    live.log().expire(3)
    genesis = lane.begin_epoch(1)
    assert (genesis.partitions[TP].ranges, lane.run().outcomes) == ((OffsetRange(3, 6),), {"acked": 3})


@pytest.mark.parametrize("chosen", ["range", "outcome"])
def test_s41_a_lane_ends_where_its_choice_ends_also_if_retention_has_passed_that(chosen: str) -> None:
    """Its last retry is expired. Offsets above the choice are no part of the lane, so the floor does not pass them."""
    live = MemoryLane(OK, FAILS, OK, OK, OK, OK, retry={**RETRY, "max_retries": 0})
    live.run()
    live.settings["retry"] = {"initial_delay": "1h", "max_retries": 1}
    how: dict[str, Any] = {"outcome": "dead"} if chosen == "outcome" else {}
    lane = MemoryBackfill(live, "b", *([] if how else ["orders:0:0-3"]), **how)
    lane.run()
    live.log().expire(5)
    live.world.now += timedelta(hours=2)
    assert lane.run().settled
    newest = lane.adapters().store.newest()
    assert newest is not None
    assert newest.partitions[TP].state.complete_to == (2 if how else 3)


def test_a_new_epoch_counts_what_other_backfills_have_acked_and_not_the_epoch_before() -> None:
    live, lane = handled_lane(OK, OK, OK)
    assert lane.choose().acked_before() == 0
    MemoryBackfill(live, "c", "orders:0:0-1").run()
    assert lane.choose().acked_before() == 1


def test_a_new_epoch_reads_a_topic_that_was_created_again() -> None:
    live, lane = handled_lane(OK, OK)
    live.create("orders", records=3)
    lane.begin_epoch(1)
    assert (lane.run().outcomes, lane.account().settled) == ({"acked": 3}, True)


def test_a_new_epoch_may_hold_other_partitions() -> None:
    live, lane = handled_lane(OK, OK)
    live.topics.append(PAYMENTS.topic)
    live.create(PAYMENTS.topic, records=1)
    lane.arguments = type(lane.arguments)(everything=True)
    assert (set(lane.begin_epoch(1).partitions), lane.run().offsets) == ({TP, PAYMENTS}, 3)


def test_no_epoch_begins_before_the_one_before_it_is_settled() -> None:
    live, lane = handled_lane(FAILS_ONCE, OK)
    live.settings["retry"] = RETRY
    lane.begin_epoch(1)
    written = len(live.world.history)
    with pytest.raises(FatalError, match=r"epoch 1 of backfill-b of lane is not settled.*--cancel b"):
        lane.begin_epoch(2)
    with pytest.raises(FatalError, match="has no epoch 2, so epoch 3 can't begin"):
        lane.begin_epoch(3)
    with pytest.raises(FatalError, match="has no epoch 0, so epoch 1 can't begin"):
        MemoryBackfill(live, "new", "orders").begin_epoch(1)
    assert len(live.world.history) == written
    lane.cancel()
    lane.begin_epoch(2)
    assert lane.run().offsets == 2


def test_an_open_turn_of_the_epoch_before_refuses_a_new_one() -> None:
    """An action on a settled lane that was killed between its plan and its settlement leaves such a turn."""
    live, lane = handled_lane(OK)
    live.die("plan", AFTER)
    with pytest.raises(Killed):
        perform_action(lane.adapters(), TurnKind.PAUSE, lambda newest: dict.fromkeys(newest.partitions, 0), "no")
    with pytest.raises(FatalError, match="is not settled"):
        lane.begin_epoch(1)
    lane.run()  # finishes the action
    lane.begin_epoch(1)


def test_of_two_processes_that_begin_an_epoch_one_stores_the_choice() -> None:
    live, lane = handled_lane(OK, OK)
    first: list[Settlement] = []
    live.strike("settlement", lambda: first.append(lane.begin_epoch(1, lane.adapters("first"))), BEFORE)
    second = lane.begin_epoch(1, lane.adapters("second"))
    assert (second.run_id, second, lane.run().outcomes) == ("first", first[0], {"acked": 2})
    assert (live.calls()[-2:], len(live.calls())) == ([(0, 1), (1, 1)], 6)


def test_a_late_process_of_an_older_epoch_writes_nothing_that_counts() -> None:
    """It has planned a turn, which an operator has closed as void, and reports when the lane is in its next epoch."""
    _, lane = handled_lane(OK, OK, DEAD)
    lane.begin_epoch(1)
    late = plan_backfill(lane.adapters("late")).plan
    assert late is not None
    lane.cancel("too slow")
    lane.begin_epoch(2)
    lane.run()
    before = lane.rows(), lane.newest(), lane.account()
    adapters = lane.adapters("late")
    adapters.store.store_outcomes(late.turn, [])
    assert (lane.rows(), lane.newest(), lane.account()) == before


def _killer(point: int, reached: list[str]) -> Callable[[str, str], None]:
    """Returns a hook that kills its process at the write with this number; from 1."""

    def hook(operation: str, when: str) -> None:
        if when in (BEFORE, AFTER):
            reached.append(f"{operation} {when}")
            if len(reached) == point:
                raise Killed

    return hook


def _resume(lane: MemoryBackfill, epoch: int) -> None:
    """What a cleared task does: begins the epoch if it has not begun, and runs the lane until it is settled."""
    if epoch:
        lane.begin_epoch(epoch)
    for _ in range(10):
        try:
            if lane.run().settled:
                return
        except TransientError:  # at most once, another process may still report
            pass
        lane.live.world.now += timedelta(hours=2)
    raise AssertionError(f"never settled: {lane.account()}")


def test_an_epoch_begins_with_one_write() -> None:
    live, lane = handled_lane(OK)
    before = len(writes_of(live, lane.lane))
    lane.begin_epoch(1)
    [write] = writes_of(live, lane.lane)[before:]
    assert (write.application, write.number) == ("ackline/lane/backfill-b/1/settlement", 0)
