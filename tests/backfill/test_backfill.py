"""How a backfill lane begins, reads, counts, goes on under its id, and is cancelled (S70, S71). In memory."""

from datetime import timedelta

import pytest

from ackline.actions.actions import perform_action
from ackline.actions.form import ActionRequest
from ackline.actions.perform import choose_targets
from ackline.backfill import run
from ackline.backfill.perform import backfill_pipeline
from ackline.backfill.run import plan_backfill
from ackline.errors import ConfigError, FatalError, GroupTaken
from ackline.forms.arguments import BackfillArguments, PartitionChoice
from ackline.ledger.turns import TurnKind
from ackline.pipeline.pipeline import Pipeline
from ackline.steps import replay
from tests.support.memory import BEFORE, READ, GroupCommit
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DEAD,
    FAILS,
    FAILS_ONCE,
    MINUTE,
    NO_GUARANTEE,
    OK,
    TP,
    TP1,
    MemoryBackfill,
    MemoryLane,
    settled_lane,
    writes_of,
)


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
        plan_backfill(MemoryBackfill(settled_lane(OK), "b").adapters())
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
    live.strike("plan", lambda: lane.run(lane.adapters("rival")), BEFORE)
    assert lane.run().settled
    assert live.calls()[2:] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_cancelled_lane_has_skipped_what_was_left_and_stays_settled() -> None:
    live = settled_lane(*[OK, FAILS] * 4, retry=MINUTE)
    lane = MemoryBackfill(live, "b", "orders:0:0-3", "orders:0:5-8")
    lane.run(max_records=3)
    done = lane.cancel("wrong range")
    assert done.settled
    assert lane.ended() == {0: "acked", 1: "skipped", 2: "acked", 5: "skipped", 6: "skipped", 7: "skipped"}
    assert (lane.cancel(), lane.run()) == (done, done)


def test_a_cancelled_lane_has_skipped_the_rest_of_each_partition_and_all_single_offsets() -> None:
    live = settled_lane(OK, DEAD, partitions=2)
    live.produce(OK, OK, OK, tp=TP1)
    live.run()
    lane, single = MemoryBackfill(live, "b", "orders"), MemoryBackfill(live, "c", outcome="dead")
    for each, offsets in ((lane, 5), (single, 1)):
        each.begin()
        assert (each.cancel().outcomes, each.account().settled) == ({"skipped": offsets}, True)
    assert (set(lane.ended()), set(lane.ended(TP1)), set(single.ended())) == ({0, 1}, {0, 1, 2}, {1})


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE])
def test_a_cancellation_closes_an_open_turn(guarantee: str) -> None:
    live = settled_lane(OK, OK, guarantee=guarantee)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    plan_backfill(lane.adapters())
    assert lane.cancel().outcomes == {"skipped": 2}
    kinds = [s.kind for turn, s in live.world.tables.settlements.items() if turn.lane == lane.lane]
    assert kinds == [TurnKind.GENESIS, TurnKind.VOID, TurnKind.SKIP]


def test_of_two_cancellations_at_once_the_later_one_finds_the_lane_settled() -> None:
    live = settled_lane(OK, OK)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    plan_backfill(lane.adapters())
    live.strike("outcomes", lane.cancel, READ)
    assert lane.cancel().outcomes == {"skipped": 2}
    assert not any(settled.paused for settled in lane.newest().partitions.values())


def test_a_cancellation_settles_a_turn_whose_outcomes_are_stored() -> None:
    live = settled_lane(OK, OK, OK)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    plan_backfill(lane.adapters(), max_records=2)
    replay.replay(lane.adapters(), no_session)
    assert lane.cancel().outcomes == {"acked": 2, "skipped": 1}


def test_a_run_goes_on_after_a_turn_that_has_read_gaps_alone() -> None:
    live = settled_lane(OK, OK, max_records_per_run=2)
    live.log().add_gap(4)
    live.produce(OK)
    assert MemoryBackfill(live, "b", "orders").run().outcomes == {"acked": 3}


def test_a_retry_that_an_operator_makes_due_is_made_by_the_next_run_of_the_lane() -> None:
    live = settled_lane(OK, FAILS_ONCE, retry=MINUTE)
    lane = MemoryBackfill(live, "b", "orders")
    assert lane.run().pending["retry"] == 1
    retry = ActionRequest(TurnKind.RETRY, PartitionChoice())
    perform_action(
        lane.adapters(), TurnKind.RETRY, lambda newest: choose_targets(lane.adapters(), retry, newest), "now"
    )
    assert lane.run().settled


def test_a_backfill_lane_is_never_reset() -> None:
    lane = MemoryBackfill(settled_lane(OK), "b", "orders")
    lane.begin()
    with pytest.raises(ConfigError, match="begin another backfill"):
        perform_action(lane.adapters(), TurnKind.RESET, lambda _: {TP: 0}, "again")


def test_s70_a_lane_stores_in_tables_of_its_own_and_commits_nothing() -> None:
    live = settled_lane(OK, OK)
    before, committed = len(writes_of(live, "live")), sum(isinstance(e, GroupCommit) for e in live.world.history)
    lane = MemoryBackfill(live, "b", "orders")
    lane.run()
    assert len(writes_of(live, "live")) == before
    assert sum(isinstance(event, GroupCommit) for event in live.world.history) == committed
    assert [commit.application.rsplit("/", 1)[-1] for commit in writes_of(live, lane.lane)] == [
        "settlement", "plan", "try-1", "outcomes", "decisions", "settlement",
    ]  # fmt: skip


def test_s70_a_lane_runs_while_the_group_has_members_or_was_moved_or_its_id_is_that_of_another_type() -> None:
    live = settled_lane(OK, OK)
    live.world.members.append("console")
    live.move_group(TP, 0)
    assert MemoryBackfill(live, "b", "orders").run().settled
    live.world.taken = "a share group"
    lane = MemoryBackfill(live, "c", since="1h ago")
    lane.begin()
    assert lane.run().settled
    with pytest.raises(GroupTaken):
        live.run()


def test_s70_overlapping_lanes_and_live_turns_do_not_notice_each_other() -> None:
    live = settled_lane(*[OK, FAILS_ONCE, DEAD] * 4, retry=MINUTE)
    lanes = [MemoryBackfill(live, "a", "orders:0:0-8"), MemoryBackfill(live, "b", "orders:0:4-12")]
    lanes.append(MemoryBackfill(live, "c", "orders:0:2-3", "orders:0:7-11"))
    for lane in lanes:
        lane.begin()
    for _ in range(20):  # interleaved: each process takes one step, and the others go on before its next one
        for lane in lanes:
            adapters = lane.adapters()
            if plan_backfill(adapters).plan:
                live.produce(OK)
                live.run()
                replay.replay(lane.adapters(), no_session)
                run.run_backfill(lane.adapters(), no_session, max_records=1)
        live.world.now += timedelta(minutes=1)
    asked = [set(range(8)), set(range(4, 12)), {2, 7, 8, 9, 10}]
    assert [set(lane.ended()) for lane in lanes] == asked
    assert all(lane.account().settled for lane in lanes)


def test_records_that_fail_are_retried_when_due_and_then_dead_lettered_under_the_name_of_the_lane() -> None:
    live = MemoryLane(OK, FAILS, retry={"initial_delay": "1m", "max_retries": 1})
    lane = MemoryBackfill(live, "b", "orders")
    first = lane.run()
    assert (dict(first.pending), first.next_due) == (
        {"retry": 1, "dead_letter": 0, "in_flight": 0, "held_back": 0, "unread": 0},
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
    assert (lane.run().pending["dead_letter"], lane.run().outcomes) == (1, {"dead": 1})


def test_the_window_counts_nothing_that_is_no_part_of_the_lane() -> None:
    live = MemoryLane(*[FAILS], *[OK] * 200, retry=MINUTE, max_uncommitted=4)
    lane = MemoryBackfill(live, "b", "orders:0:0-1", "orders:0:100-103")
    assert lane.run().outcomes == {"acked": 3}  # the pending record at 0 holds the floor of the lane


def test_max_records_bounds_a_run_and_the_next_one_goes_on() -> None:
    live = settled_lane(*[OK] * 10)
    lane = MemoryBackfill(live, "b", "orders:0:0-4", "orders:0:5-10")
    assert (lane.run(max_records=6).pending["unread"], sorted(lane.ended())) == (3, [0, 1, 2, 3, 5, 6])
    assert lane.run().settled


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE, NO_GUARANTEE])
def test_every_guarantee_reads_ranges_and_single_offsets_once(guarantee: str) -> None:
    live = settled_lane(OK, OK, DEAD, OK, DEAD, OK)
    live.settings["guarantee"] = guarantee
    ranges, single = MemoryBackfill(live, "a", "orders:0:1-4"), MemoryBackfill(live, "b", outcome="dead")
    for lane in (ranges, single):
        assert lane.run().settled
    died = "dead" if guarantee == AT_LEAST_ONCE else "dropped"
    assert (ranges.ended(), single.ended()) == ({1: "acked", 2: died, 3: "acked"}, {2: died, 4: died})


def test_a_policy_without_a_limit_and_without_a_delay_ends_the_run() -> None:
    live = MemoryLane(OK, FAILS, retry={"initial_delay": "0s", "period": "0s", "max_retries": "forever"})
    lane = MemoryBackfill(live, "b", "orders")
    assert lane.run().pending["retry"] == 1


def pipeline(**settings: object) -> Pipeline:
    kafka = {"bootstrap_servers": "b:1", "group_id": "g", "topics": ["orders"]}
    return Pipeline.model_validate(
        {"name": "p", "handler": "a:b", "kafka": kafka, "dead_letter": {"topic": "dead"}, **settings}
    )


def test_without_arguments_the_lane_runs_the_file_and_keeps_each_outcome_as_a_row() -> None:
    once = pipeline(guarantee="at_most_once", record_outcomes=False, on_expired="fail")
    lane = backfill_pipeline(once, "backfill-b", BackfillArguments())
    assert (lane.handler, lane.dead_letter_topic, lane.guarantee) == ("a:b", "dead", "at_most_once")
    assert (lane.record_outcomes, lane.on_expired) == (True, "record")


def test_another_handler_must_be_allowed_and_replaces_handler_and_streams() -> None:
    streams = [{"name": "s", "handler": "a:s", "topics": ["orders"]}]
    file = pipeline(streams=streams, backfill={"handlers": ["v2:handle"]})
    lane = backfill_pipeline(file, "backfill-b", BackfillArguments(handler="v2:handle"))
    assert (lane.handler, lane.streams) == ("v2:handle", None)
    assert backfill_pipeline(file, "backfill-b", BackfillArguments(handler="a:b")).handler == "a:b"
    with pytest.raises(ConfigError, match=r"--handler os:system is not allowed: .*allowed are a:s, a:b, v2:handle"):
        backfill_pipeline(file, "backfill-b", BackfillArguments(handler="os:system"))


def test_dead_letters_go_to_another_topic_or_to_none_and_never_to_one_that_is_read() -> None:
    file = pipeline(backfill={"dead_letters": ["other", "orders"]})
    for topic in ("dead", "other"):
        assert backfill_pipeline(file, "backfill-b", BackfillArguments(dead_letter=topic)).dead_letter_topic == topic
    assert backfill_pipeline(file, "backfill-b", BackfillArguments(dead_letter="none")).dead_letter_topic is None
    with pytest.raises(ConfigError, match="the pipeline reads this topic"):
        backfill_pipeline(file, "backfill-b", BackfillArguments(dead_letter="orders"))


def test_dead_letters_go_to_no_topic_that_the_file_does_not_list() -> None:
    with pytest.raises(ConfigError, match=(
        r"--dead-letter mine is not allowed: add it to `backfill\.dead_letters` of pipeline p; allowed are dead, none"
    )):  # fmt: skip
        backfill_pipeline(pipeline(), "backfill-b", BackfillArguments(dead_letter="mine"))


def test_max_rate_is_that_of_the_run_where_it_is_given() -> None:
    assert backfill_pipeline(pipeline(max_rate=5), "backfill-b", BackfillArguments(), 7).max_rate == 7
    assert backfill_pipeline(pipeline(max_rate=5), "backfill-b", BackfillArguments()).max_rate == 5
