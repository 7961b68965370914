"""Backfill lanes on the steps in memory: what they read, what they leave alone, and what a kill costs (S70 to S72)."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.arguments import PartitionChoice
from ackline.errors import ConfigError, FatalError, TopicChanged, TransientError
from ackline.offsets import OffsetRange
from ackline.outcome import Outcome
from ackline.steps import backfill, replay
from ackline.steps.action_targets import ActionRequest, choose_targets
from ackline.steps.backfill_plan import plan_backfill
from ackline.steps.choose_offsets import BEYOND_END, BY_RETENTION, IN_OLDER_TOPIC, GoneRange
from ackline.steps.operator_actions import perform_action
from ackline.testing.memory import AFTER, BEFORE, GroupCommit
from ackline.testing.memory_parts import no_session
from ackline.turns import TurnKind
from tests.memory_backfill import MemoryBackfill, writes_of
from tests.memory_lane import (
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
    MemoryLane,
)

NO_RETRY = {"max_retries": 0}
MINUTE = {"initial_delay": "1m", "max_retries": 3}


def settled_lane(*values: bytes | None, **settings: Any) -> MemoryLane:
    """A live lane that has handled its records; those that fail are dead."""
    return MemoryLane(*values, **{"retry": NO_RETRY, **settings}).after_run()


def run_to_end(lane: MemoryBackfill) -> None:
    for _ in range(20):
        if lane.run().settled:
            return
        lane.live.world.now += timedelta(hours=2)
    raise AssertionError(f"never settled: {lane.account()}")


# ---- what a lane reads ----------------------------------------------------------------------------------------------


def test_a_lane_reads_its_ranges_and_nothing_between_them() -> None:
    live = settled_lane(*[OK] * 10)
    lane = MemoryBackfill(live, "b", "orders:0:1-3", "orders:0:6-8")
    done = lane.run()
    assert lane.ended() == dict.fromkeys([1, 2, 6, 7], "acked")
    assert (done.offsets, done.settled, done.outcomes, done.gaps) == (4, True, {"acked": 4}, 0)


def test_s70_the_live_lane_and_the_group_are_what_they_were() -> None:
    live = settled_lane(OK, FAILS, OK, retry=MINUTE)
    before, state, committed = live.newest(), live.state(), live.committed()
    MemoryBackfill(live, "b", "orders").run()
    assert (live.newest(), live.state(), live.committed()) == (before, state, committed)
    commits = [event for event in live.world.history if isinstance(event, GroupCommit)]
    assert {commit.run_id for commit in commits} == {"run"}


def test_s70_a_lane_runs_while_the_group_has_members_or_was_moved() -> None:
    live = settled_lane(OK, OK)
    live.world.members.append("console")
    live.move_group(TP, 0)
    assert MemoryBackfill(live, "b", "orders").run().settled


def test_s70_overlapping_lanes_and_live_turns_do_not_notice_each_other() -> None:
    live = settled_lane(*[OK, FAILS_ONCE, DEAD] * 4, retry=MINUTE)
    lanes = [MemoryBackfill(live, "a", "orders:0:0-8"), MemoryBackfill(live, "b", "orders:0:4-12")]
    lanes.append(MemoryBackfill(live, "c", "orders:0:2-3", "orders:0:7-11"))
    for lane in lanes:
        lane.begin()
    for _ in range(20):  # interleaved: each process takes one step, and the others go on before its next one
        for lane in lanes:
            parts = lane.parts()
            if plan_backfill(parts):
                live.produce(OK)
                live.run()
                replay.replay(lane.parts(), no_session)
                backfill.run_backfill(lane.parts(), no_session, max_records=1)
        live.world.now += timedelta(minutes=1)
    asked = [set(range(8)), set(range(4, 12)), {2, 7, 8, 9, 10}]
    assert [set(lane.ended()) for lane in lanes] == asked
    assert all(lane.account().settled for lane in lanes)


def test_what_was_handled_before_is_handled_again_as_attempt_1() -> None:
    live = settled_lane(OK, OK)
    MemoryBackfill(live, "b", "orders").run()
    assert live.calls() == [(0, 1), (1, 1), (0, 1), (1, 1)]


def test_records_that_fail_are_retried_when_due_and_then_dead_lettered_under_the_name_of_the_lane() -> None:
    live = MemoryLane(OK, FAILS, retry={"initial_delay": "1m", "max_retries": 1})
    lane = MemoryBackfill(live, "b", "orders")
    first = lane.run()
    assert (dict(first.pending), first.next_due) == (
        {"retry": 1, "dead_letter": 0, "in_flight": 0, "unread": 0},
        live.world.now + timedelta(minutes=1),
    )
    assert not first.settled
    live.world.now += timedelta(minutes=1)
    assert lane.run().outcomes == {"acked": 1, "dead": 1}
    assert [letter.headers["ackline.lane"] for letter in live.letters()] == ["backfill-b"]


def test_a_dead_letter_without_acknowledgement_is_sent_again_by_the_next_run() -> None:
    live = MemoryLane(DEAD)
    lane = MemoryBackfill(live, "b", "orders")
    live.world.faults.letters.append("unanswered")
    assert lane.run().pending["dead_letter"] == 1
    assert lane.run().outcomes == {"dead": 1}


def test_gaps_inside_a_range_are_counted_as_gaps() -> None:
    live = MemoryLane(OK)
    live.log().add_gap(3)
    live.produce(OK)
    done = MemoryBackfill(live, "b", "orders:0:0-5").run()
    assert (done.outcomes, done.gaps, done.offsets) == ({"acked": 2}, 3, 5)


def test_the_window_counts_nothing_that_is_no_part_of_the_lane() -> None:
    live = MemoryLane(*[FAILS], *[OK] * 200, retry=MINUTE, max_uncommitted=4)
    lane = MemoryBackfill(live, "b", "orders:0:0-1", "orders:0:100-103")
    assert lane.run().outcomes == {"acked": 3}  # the pending record at 0 holds the floor of the lane


def test_max_records_bounds_a_run_and_the_next_one_goes_on() -> None:
    live = settled_lane(*[OK] * 10)
    lane = MemoryBackfill(live, "b", "orders:0:0-4", "orders:0:5-10")
    assert lane.run(max_records=6).pending["unread"] == 3
    assert sorted(lane.ended()) == [0, 1, 2, 3, 5, 6]
    assert lane.run().settled


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE, NO_GUARANTEE])
def test_every_guarantee_reads_ranges_and_single_offsets_once(guarantee: str) -> None:
    live = settled_lane(OK, OK, DEAD, OK, DEAD, OK)
    live.settings["guarantee"] = guarantee
    ranges, single = MemoryBackfill(live, "a", "orders:0:1-4"), MemoryBackfill(live, "b", outcome="dead")
    for lane in (ranges, single):
        assert lane.run().settled
    died = "dead" if guarantee == AT_LEAST_ONCE else "dropped"
    assert ranges.ended() == {1: "acked", 2: died, 3: "acked"}
    assert single.ended() == {2: died, 4: died}


def test_a_policy_without_a_limit_and_without_a_delay_ends_the_run() -> None:
    live = MemoryLane(OK, FAILS, retry={"initial_delay": "0s", "period": "0s", "max_retries": "forever"})
    lane = MemoryBackfill(live, "b", "orders")
    assert lane.run().pending["retry"] == 1


# ---- begin, resume, cancel ------------------------------------------------------------------------------------------


def test_s71_the_choice_is_stored_once_and_a_resume_does_not_choose_anew() -> None:
    live = settled_lane(OK, OK)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    live.produce(OK, OK)
    assert lane.run().offsets == 2


def test_s71_other_arguments_are_refused_and_nothing_is_stored() -> None:
    live = settled_lane(OK, OK)
    MemoryBackfill(live, "b", "orders:0:0-1").begin()
    before = len(live.world.history)
    with pytest.raises(ConfigError, match="RANGE: backfill b began with orders:0:0-1, not orders"):
        MemoryBackfill(live, "b", "orders").run()
    assert len(live.world.history) == before


def test_a_lane_that_has_not_begun_has_no_turn() -> None:
    with pytest.raises(ConfigError, match="has no lane backfill-b"):
        plan_backfill(MemoryBackfill(settled_lane(OK), "b").parts())
    with pytest.raises(FatalError, match="has no lane backfill-b"):
        MemoryBackfill(settled_lane(OK), "b").cancel()


def test_of_two_processes_that_begin_the_same_id_one_stores_the_choice() -> None:
    live = settled_lane(OK, OK, OK)
    first, second = MemoryBackfill(live, "b", "orders:0:0-1"), MemoryBackfill(live, "b", "orders:0:1-3")
    live.strike("settlement", first.begin, BEFORE)
    with pytest.raises(ConfigError, match="began with orders:0:0-1"):
        second.begin()
    assert first.run().offsets == 1


def test_of_two_runs_of_a_lane_one_stores_each_turn() -> None:
    live = settled_lane(*[OK] * 4, max_records_per_run=2)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    live.strike("plan", lambda: lane.run(lane.parts("rival")), BEFORE)
    assert lane.run().settled
    assert live.calls()[2:] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_cancelled_lane_has_skipped_what_was_left_and_stays_settled() -> None:
    live = settled_lane(*[OK, FAILS] * 4, retry=MINUTE)
    lane = MemoryBackfill(live, "b", "orders:0:0-3", "orders:0:5-8")
    lane.run(max_records=3)
    done = lane.cancel("wrong range")
    assert done.settled
    assert lane.ended() == {0: "acked", 1: "skipped", 2: "acked", 5: "skipped", 6: "skipped", 7: "skipped"}
    assert lane.cancel() == done
    assert lane.run() == done


def test_a_cancelled_lane_of_single_offsets_has_skipped_them() -> None:
    live = settled_lane(OK, DEAD, OK, DEAD)
    lane = MemoryBackfill(live, "b", outcome="dead")
    lane.begin()
    assert lane.cancel().outcomes == {"skipped": 2}


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE])
def test_a_cancellation_closes_an_open_turn(guarantee: str) -> None:
    live = settled_lane(OK, OK, guarantee=guarantee)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    plan_backfill(lane.parts())
    assert lane.cancel().outcomes == {"skipped": 2}
    kinds = [s.kind for turn, s in live.world.tables.settlements.items() if turn.lane == lane.lane]
    assert kinds == [TurnKind.GENESIS, TurnKind.VOID, TurnKind.SKIP]


def test_a_cancellation_settles_a_turn_whose_outcomes_are_stored() -> None:
    live = settled_lane(OK, OK, OK)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    plan_backfill(lane.parts(), max_records=2)
    replay.replay(lane.parts(), no_session)
    assert lane.cancel().outcomes == {"acked": 2, "skipped": 1}


def test_a_retry_that_an_operator_makes_due_is_made_by_the_next_run_of_the_lane() -> None:
    live = settled_lane(OK, FAILS_ONCE, retry=MINUTE)
    lane = MemoryBackfill(live, "b", "orders")
    assert lane.run().pending["retry"] == 1
    retry = ActionRequest(TurnKind.RETRY, PartitionChoice())
    perform_action(lane.parts(), TurnKind.RETRY, lambda newest: choose_targets(lane.parts(), retry, newest), "now")
    assert lane.run().settled


def test_a_backfill_lane_is_never_reset() -> None:
    lane = MemoryBackfill(settled_lane(OK), "b", "orders")
    lane.begin()
    with pytest.raises(ConfigError, match="begin another backfill"):
        perform_action(lane.parts(), TurnKind.RESET, lambda _: {TP: 0}, "again")


# ---- what it chooses ------------------------------------------------------------------------------------------------


def test_s72_exactly_the_dead_ones_of_an_error_class_are_read() -> None:
    live = settled_lane(OK, FAILS, DEAD, FAILS, OK)
    assert live.ranges(Outcome.DEAD) == [(1, 2), (2, 3), (3, 4)]
    lane = MemoryBackfill(live, "b", outcome="dead", error_class="ValueError")
    live.world.handle = lambda record: None
    assert lane.run().outcomes == {"acked": 2}
    assert sorted(lane.ended()) == [1, 3]
    assert live.calls()[5:] == [(1, 1), (3, 1)]


def test_s72_what_retention_or_compaction_took_is_expired_or_compacted() -> None:
    live = settled_lane(*[DEAD] * 5)
    live.log().expire(2)
    live.log().compacted.add(3)
    live.world.handle = lambda record: None
    lane = MemoryBackfill(live, "b", outcome="dead")
    assert list(lane.choose().gone) == [GoneRange(TP, OffsetRange(0, 2), BY_RETENTION)]
    lane.run()
    assert lane.ended() == {0: "expired", 1: "expired", 2: "acked", 3: "compacted", 4: "acked"}


def test_s72_ranges_narrow_what_an_outcome_chooses() -> None:
    live = settled_lane(*[DEAD] * 6)
    lane = MemoryBackfill(live, "b", "orders:0:1-3", "orders:0:4-5", outcome="dead")
    assert lane.choose().partitions[TP].offsets == (OffsetRange(1, 3), OffsetRange(4, 5))


def test_s72_the_outcome_in_the_newest_epoch_counts() -> None:
    live = settled_lane(DEAD, DEAD, DEAD)
    live.perform(TurnKind.RESET, {TP: 1})
    live.world.handle = lambda record: None
    live.run()
    assert MemoryBackfill(live, "b", outcome="dead").choose().partitions[TP].offsets == (OffsetRange(0, 1),)
    assert MemoryBackfill(live, "b", outcome="acked").choose().partitions[TP].offsets == (OffsetRange(1, 3),)


def test_s72_an_outcome_of_a_topic_that_was_created_again_is_gone() -> None:
    live = settled_lane(DEAD, DEAD)
    live.create("orders", records=5)
    choice = MemoryBackfill(live, "b", outcome="dead").choose()
    assert not choice.partitions
    assert list(choice.gone) == [GoneRange(TP, OffsetRange(0, 2), IN_OLDER_TOPIC)]


def test_s72_an_outcome_beyond_the_log_end_is_gone() -> None:
    live = settled_lane(DEAD, DEAD, DEAD)
    live.truncate(1)
    choice = MemoryBackfill(live, "b", outcome="dead").choose()
    assert choice.partitions[TP].offsets == (OffsetRange(0, 1),)
    assert list(choice.gone) == [GoneRange(TP, OffsetRange(1, 3), BEYOND_END)]


def test_outcomes_of_another_backfill_are_chosen_with_of() -> None:
    live = settled_lane(OK, DEAD, OK)
    live.world.handle = lambda record: None
    assert MemoryBackfill(live, "a", "orders").run().outcomes == {"acked": 3}
    choice = MemoryBackfill(live, "b", outcome="acked", of="backfill-a").choose()
    assert (choice.offsets, choice.acked_before) == (3, 3)
    with pytest.raises(ConfigError, match="--of backfill-x: lane has no such lane yet"):
        MemoryBackfill(live, "c", outcome="acked", of="backfill-x").choose()


def test_a_time_chooses_offsets_and_an_open_end_is_named() -> None:
    live = MemoryLane()
    start = live.world.now
    for minute in range(5):
        live.produce(OK, time=start + timedelta(minutes=minute))
    live.world.now += timedelta(hours=2)
    two = MemoryBackfill(live, "b", since="2026-03-01T12:01:00Z", until="2026-03-01T12:03:00Z").choose()
    assert (two.partitions[TP].ranges, two.open_ends) == ((OffsetRange(1, 3),), {})
    rest = MemoryBackfill(live, "b", since="2026-03-01T12:03:30Z", until="1h ago").choose()
    assert (rest.partitions[TP].ranges, rest.open_ends) == ((OffsetRange(4, 5),), {TP: 5})


def test_ranges_that_retention_has_eaten_are_named_and_become_expired() -> None:
    live = settled_lane(*[OK] * 6)
    live.log().expire(3)
    lane = MemoryBackfill(live, "b", "orders:0:1-2", "orders:0:2-5")
    choice = lane.choose()
    assert (choice.offsets, list(choice.gone)) == (4, [GoneRange(TP, OffsetRange(1, 3), BY_RETENTION)])
    assert lane.run().outcomes == {"expired": 2, "acked": 2}


def test_retention_that_takes_the_rest_of_a_lane_settles_it() -> None:
    live = settled_lane(*[OK] * 6, on_expired="fail")
    lane = MemoryBackfill(live, "b", "orders:0:0-1", "orders:0:2-4")
    lane.begin()
    live.log().expire(5)
    assert lane.run().outcomes == {"expired": 3}
    assert lane.ended() == dict.fromkeys([0, 2, 3], "expired")


def test_only_partitions_of_the_subscription_can_be_chosen() -> None:
    live = settled_lane(OK, partitions=2)
    live.create("payments", records=1)
    assert set(MemoryBackfill(live, "b", everything=True).choose().partitions) == {TP}
    with pytest.raises(ConfigError, match="range payments: the pipeline reads no such partition"):
        MemoryBackfill(live, "b", PAYMENTS.topic).choose()
    live.produce(OK, tp=TP1)
    assert set(MemoryBackfill(live, "b", everything=True).choose().partitions) == {TP, TP1}


# ---- another log ----------------------------------------------------------------------------------------------------


def test_a_topic_that_was_created_again_stops_the_lane_and_names_the_way_out() -> None:
    live = settled_lane(OK, OK)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    live.create("orders", records=3)
    with pytest.raises(TopicChanged, match=r"created again.*ackline backfill lane --cancel b --yes"):
        lane.run()
    assert lane.cancel().outcomes == {"skipped": 2}


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


# ---- kills ----------------------------------------------------------------------------------------------------------


class Killed(Exception):
    """The process has died."""


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE])
@pytest.mark.parametrize("by", ["range", "outcome"])
def test_s71_killed_between_every_two_writes_and_resumed_the_lane_ends_the_same(guarantee: str, by: str) -> None:
    """At least once, the result is that of the undisturbed twin. At most once, what was handed out may be lost, and no
    handler is called twice. The account balances after every kill."""
    arguments = {"outcome": "dead"} if by == "outcome" else {}
    ranges = () if by == "outcome" else ("orders:0:0-2", "orders:0:3-6")
    expected, point = None, 0
    while True:
        live = settled_lane(OK, DEAD, FAILS, OK, DEAD, FAILS, OK, retry={"max_retries": 0})
        calls_before = len(live.calls())
        live.settings |= {"guarantee": guarantee, "retry": {"initial_delay": "1m", "max_retries": 1}}
        lane = MemoryBackfill(live, "b", *ranges, **arguments)
        reached: list[str] = []

        def hook(operation: str, when: str, at: int = point, seen: list[str] = reached) -> None:
            if when in (BEFORE, AFTER):
                seen.append(f"{operation} {when}")
                if len(seen) == at:
                    raise Killed(seen[-1])

        try:
            lane.run(lane.parts("victim", hook))
        except Killed:
            if lane.parts().store.newest() is not None:
                lane.account()
        for _ in range(10):
            try:
                if lane.run().settled:
                    break
            except TransientError:  # at most once, another process may still report
                pass
            live.world.now += timedelta(hours=2)
        assert lane.account().settled
        expected = expected or lane.ended()
        calls = live.calls()[calls_before:]
        if guarantee == AT_MOST_ONCE:
            assert len(set(calls)) == len(calls)
            assert all(lane.ended()[offset] in (expected[offset], "lost") for offset in expected)
        else:
            assert lane.ended() == expected
        assert set(lane.ended()) == set(expected)
        if point > len(reached):
            break
        point += 1
    assert point > 10


def test_s70_a_lane_stores_in_tables_of_its_own() -> None:
    live = settled_lane(OK, OK)
    before = len(writes_of(live, "live"))
    lane = MemoryBackfill(live, "b", "orders")
    lane.run()
    assert len(writes_of(live, "live")) == before
    assert [commit.application.rsplit("/", 1)[-1] for commit in writes_of(live, lane.lane)] == [
        "settlement", "plan", "try-1", "outcomes", "decisions", "settlement",
    ]  # fmt: skip


# ---- any history ----------------------------------------------------------------------------------------------------

SPANS = st.tuples(st.integers(0, 11), st.integers(1, 4)).map(lambda span: (span[0], min(12, sum(span))))
RECORDS = st.lists(st.sampled_from([OK, FAILS_ONCE, FAILS, DEAD, None, "gap"]), min_size=12, max_size=12)


@given(RECORDS, st.lists(SPANS, min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 12), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
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
