"""A backfill lane whose log changes, whose processes die, and in any history (S71, S72), on the steps in memory."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.errors import TopicChanged, TransientError
from tests.support.memory import AFTER, BEFORE
from tests.support.memory_lane import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DEAD,
    FAILS,
    FAILS_ONCE,
    OK,
    TP1,
    MemoryBackfill,
    MemoryLane,
    settled_lane,
)

SPANS = st.tuples(st.integers(0, 11), st.integers(1, 4)).map(lambda span: (span[0], min(12, sum(span))))
RECORDS = st.lists(st.sampled_from([OK, FAILS_ONCE, FAILS, DEAD, None, "gap"]), min_size=12, max_size=12)


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
            lane.run(lane.adapters("victim", hook))
        except Killed:
            if lane.adapters().store.newest() is not None:
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
