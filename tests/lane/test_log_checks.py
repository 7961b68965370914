"""A log that was truncated, and has perhaps grown again, is not "caught up" (S42), whichever step meets it."""

from dataclasses import replace
from typing import Any

import pytest

from ackline.errors import ConfigError, TopicChanged
from ackline.lane import claim
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.outputs.publish import publish_settled
from tests.support.memory_lane import AT_MOST_ONCE, FAILS, FAILS_ONCE, OK, TP, TP1, MemoryLane


def two_partitions(*values: bytes, max_retries: int = 1, **settings: Any) -> MemoryLane:
    """A lane on two partitions, with `values` in the first."""
    retry = {"max_retries": max_retries, "initial_delay": "0s"}
    return MemoryLane(*values, partitions=2, retry=retry, **settings)


def test_s42_a_log_that_was_truncated_and_grew_to_the_same_end_is_not_caught_up() -> None:
    lane = two_partitions(*[OK] * 5).after_run()
    lane.truncate(3, OK, OK)
    message = r"orders\[0\].*below 5.*epoch 0.*below 3 is left.*epoch 1.*--to 3"
    with pytest.raises(TopicChanged, match=message) as caught:
        lane.run()
    assert (caught.value.partition, caught.value.offset, lane.offsets()) == (0, 3, [0, 1, 2, 3, 4])
    lane.perform(TurnKind.RESET, {TP: 3})
    lane.run()
    assert (lane.offsets(), lane.settled().leader_epoch, lane.run().calls) == ([0, 1, 2, 3, 4, 3, 4], 1, 0)


@pytest.mark.parametrize(
    ("values", "end", "produced"),
    [([OK] * 5, 3, []), ([OK, FAILS_ONCE, OK], 1, [OK, OK])],
    ids=["the log is still shorter", "a retry is pending"],
)
def test_s42_a_truncated_log_stops_the_run_before_anything_is_read(
    values: list[bytes], end: int, produced: list[bytes]
) -> None:
    """Also while the log is shorter than what was read; and no retry is looked for in it."""
    lane = two_partitions(*values).after_run()
    lane.truncate(end, *produced)
    lane.run_fails(TopicChanged, f"--to {end}")
    assert lane.offsets() == list(range(len(values)))


def test_s42_a_log_that_ends_below_what_was_read_stops_the_run_although_its_leader_epoch_is_the_known_one() -> None:
    """As a broker does that was restored from a backup, and has had as many leaders since as before."""
    lane = two_partitions(*[OK] * 5).after_run()
    lane.truncate(3)
    lane.log().leader_epochs = [0]
    lane.run_fails(TopicChanged, "`ackline reset lane --topic orders --partition 0 --to 3 --reason …`")
    lane.perform(TurnKind.RESET, {TP: 3})
    lane.produce(OK)
    lane.run()
    assert lane.offsets() == [0, 1, 2, 3, 4, 3]


def test_s42_a_reset_to_the_floor_does_not_take_over_a_log_that_was_cut_below_it() -> None:
    """No turn would read the other records that have taken the offsets below the floor."""
    lane = two_partitions(*[OK] * 5).after_run()
    lane.truncate(3, OK, OK, OK)
    before = lane.newest()
    with pytest.raises(TopicChanged, match="--topic orders --partition 0 --to 3"):
        lane.perform(TurnKind.RESET)
    assert lane.newest() == before
    lane.perform(TurnKind.RESET, {TP: 3})
    lane.run()
    assert lane.offsets() == [0, 1, 2, 3, 4, 3, 4, 5]


def test_s42_a_reset_to_the_floor_takes_over_a_log_that_was_cut_above_it() -> None:
    lane = two_partitions(OK, FAILS, OK, OK, OK, max_retries=3).after_run()
    lane.truncate(3, OK)
    lane.perform(TurnKind.RESET)
    lane.run()
    assert lane.offsets()[5:] == [1, 2, 3]


def test_a_leader_elected_without_truncation_changes_nothing_and_is_asked_once() -> None:
    lane = two_partitions(*[OK] * 3).after_run()
    lane.run()
    assert "epochs" not in lane.operations
    lane.log().elect()
    lane.produce(OK)
    lane.run()
    assert (lane.offsets(), lane.operations.count("epochs")) == ([0, 1, 2, 3], 1)
    assert [lane.settled(tp).leader_epoch for tp in (TP, TP1)] == [1, 0]
    lane.run()
    assert lane.operations.count("epochs") == 1


def test_a_lane_of_an_earlier_version_takes_over_the_present_leader_epoch() -> None:
    lane = two_partitions(*[OK] * 3).after_run()
    tables = lane.world.tables
    for turn, settlement in list(tables.settlements.items()):
        rows = {tp: replace(row, leader_epoch=None) for tp, row in settlement.partitions.items()}
        tables.settlements[turn] = replace(settlement, partitions=rows)
    lane.truncate(1, OK, OK, OK)
    lane.run()
    assert lane.settled().leader_epoch == 1
    lane.truncate(1, OK, OK, OK)
    lane.run_fails(TopicChanged)


@pytest.mark.parametrize("when", ["planned", "read"])
def test_what_is_truncated_above_the_settled_state_is_planned_and_read_again(when: str) -> None:
    """The log ends where it ended: only the leader epoch shows that other records were read, or will be."""
    lane = two_partitions(OK).after_run()
    lane.produce(OK, OK, OK)
    lane.plan()
    if when == "planned":
        lane.truncate(2, OK, OK)
    else:
        lane.produce(OK)
        lane.strike("poll", lambda: lane.truncate(2, OK, OK))
    lane.run()
    assert (lane.kinds().count(TurnKind.VOID), lane.offsets()[-3:]) == (1, [1, 2, 3])
    assert (lane.state().complete_to, lane.run().calls) == (4, 0)


def test_a_plan_of_retries_alone_is_void_where_the_log_was_truncated_under_it() -> None:
    lane = two_partitions(OK, FAILS_ONCE).after_run()
    lane.plan()
    lane.truncate(1, OK)
    lane.run_fails(TopicChanged)
    assert lane.offsets() == [0, 1]


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_i6_another_record_at_the_offset_of_a_dead_letter_does_not_become_dead(when: str) -> None:
    lane = two_partitions(OK, FAILS, max_retries=0).after_replay()
    if when == "before it is read":
        lane.truncate(1, b'{"another": "record"}')
    else:
        lane.strike("fetch", lambda: lane.truncate(1, b'{"another": "record"}'))
    lane.settle()
    assert Outcome.DEAD not in lane.settled().counts
    assert lane.pending() == [(1, 2)]
    if when == "before it is read":
        assert lane.letters() == []
    lane.run_fails(TopicChanged, "--to 1")


def test_at_most_once_a_plan_that_was_not_claimed_is_made_again_over_the_truncated_log() -> None:
    lane = two_partitions(OK, OK, OK, guarantee=AT_MOST_ONCE).after_plan()
    lane.truncate(1, OK, OK)
    lane.run()
    assert lane.settled().counts == {"acked": 3}


def test_at_most_once_records_a_claimed_range_of_a_truncated_log_as_lost_and_then_stops() -> None:
    lane = two_partitions(OK, OK, OK, guarantee=AT_MOST_ONCE)
    planned = lane.plan()
    claim.claim(lane.adapters(), planned, lane.newest(), publish_settled)
    lane.truncate(1, OK, OK)
    lane.run()
    assert (lane.settled().counts, lane.offsets()) == ({"lost": 3}, [])
    lane.run_fails(TopicChanged, "--to 1")


def test_a_paused_partition_is_checked_once_it_is_read_again() -> None:
    lane = two_partitions(OK, OK).after_run()
    lane.perform(TurnKind.PAUSE, {TP: 0})
    lane.truncate(1, OK, OK)
    lane.run()
    assert lane.settled().leader_epoch == 0
    lane.perform(TurnKind.RESUME, {TP: 0})
    lane.run_fails(TopicChanged)


def test_a_skip_is_refused_in_a_truncated_log_and_a_reset_is_not() -> None:
    lane = two_partitions(*[OK] * 4)
    lane.produce(OK, OK, tp=TP1)
    lane.run()
    lane.truncate(2, OK, OK, OK)
    with pytest.raises(TopicChanged):
        lane.perform(TurnKind.SKIP, {TP: 5})
    lane.perform(TurnKind.RESET, {TP: 2})
    lane.run()
    assert (lane.offsets()[4:], lane.offsets(TP1)) == ([2, 3, 4], [0, 1])


def test_s42_a_reset_takes_over_a_topic_that_was_created_again() -> None:
    """Fault 20. Only for the partitions that it names, and not to where the lane stood in the old topic."""
    lane = two_partitions(OK, FAILS_ONCE, OK)
    lane.produce(OK, tp=TP1)
    lane.run()
    lane.create("orders", 2)
    lane.produce(OK, OK)
    lane.run_fails(TopicChanged, "ackline reset lane --topic orders --to earliest")
    with pytest.raises(ConfigError, match="deleted and created again"):
        lane.perform(TurnKind.RESET, {TP: 1})
    lane.perform(TurnKind.RESET, {TP: 0})
    lane.run_fails(TopicChanged, r"orders\[1\]")
    lane.perform(TurnKind.RESET, {TP1: 0})
    lane.run()
    assert (lane.offsets()[3:], lane.committed()) == ([0, 1], 2)
