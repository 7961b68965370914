"""What a turn reads: due retries, the window, the limits, and why a partition gets nothing."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline import planning
from ackline.backoff import RetryPolicy
from ackline.errors import TopicChanged
from ackline.ledger import PartitionState, Pending, PendingKind
from ackline.offsets import LogBounds, OffsetRange, Run, TopicPartition, count, join
from ackline.planning import Limits, PartitionView, plan_partitions
from ackline.turns import PlannedPartition
from tests.unit.lane import AT_ONCE, ONE, WIDE, Call, Lane, acks, fails
from tests.unit.strategies import NOON, REPEATABLE, after

TWO = TopicPartition("orders", 1)
MINUTE = RetryPolicy(initial_delay=timedelta(seconds=60), max_retries=100)


def failed(start: int, end: int, due: float = 0, attempts: int = 1) -> Run[Pending]:
    return Run(start, end, Pending(PendingKind.RETRY, attempts, after(due), None))


def view(complete_to: int, end: int, *pending: Run[Pending], start: int = 0) -> PartitionView:
    return PartitionView("id", PartitionState(complete_to, pending), LogBounds(start, end))


def plan(
    views: Mapping[TopicPartition, PartitionView], window: int = 1_000, total: int = 1_000, now: datetime = NOON
) -> dict[TopicPartition, PlannedPartition]:
    return plan_partitions(views, Limits(window, total), now)


# ---- the window ---------------------------------------------------------------------------------------------------


def test_s20_never_more_than_the_window_above_the_floor() -> None:
    lane = Lane.of(100, limits=Limits(10, 1_000))
    for start in range(0, 100, 10):
        assert lane.poll().offsets == list(range(start, start + 10))
    assert lane.floor == 100


def test_s21_a_full_window_reads_nothing_new_before_its_retries() -> None:
    lane = Lane.of(100, MINUTE, Limits(10, 1_000))
    lane.poll(fails(*range(9)))
    for _ in range(3):
        poll = lane.poll()
        assert (poll.calls, poll.planned[ONE].why) == ([], planning.WINDOW_FULL)
        lane.wait(19)
    lane.now = after(60)
    assert lane.poll().offsets == list(range(9))


def test_s22_what_the_floor_lets_in_is_new_and_retries_come_though_the_window_is_full() -> None:
    lane = Lane.of(100, MINUTE, Limits(10, 1_000))
    lane.poll(fails(*range(1, 10)))
    assert lane.floor == 1
    assert lane.poll().offsets == [10]
    assert lane.poll().calls == []
    lane.wait(60)
    assert lane.poll().offsets == list(range(1, 10))


def test_s23_the_partition_with_room_goes_on() -> None:
    lane = Lane({ONE: LogBounds(0, 1_000), TWO: LogBounds(0, 1_000)}, MINUTE, Limits(250, 5_000))
    lane.poll(lambda call: fails(0)(call) if call.tp == ONE else acks(call))

    poll = lane.poll()
    assert poll.calls == [Call(TWO, offset, 1) for offset in range(250, 500)]
    assert poll.planned[ONE].why == planning.WINDOW_FULL


def test_s24_a_full_window_never_stops_its_own_retries() -> None:
    lane = Lane.of(100, AT_ONCE, Limits(10, 10))
    runs = 0
    while lane.floor < 100:
        lane.poll(lambda call: fails(call.offset, times=1)(call))
        runs += 1
        assert runs < 40
    assert lane.states[ONE].pending == ()


# ---- limits -------------------------------------------------------------------------------------------------------


def test_due_retries_come_first_and_fresh_offsets_get_at_least_a_tenth() -> None:
    found = plan({ONE: view(500, 900, failed(0, 500))}, total=100)[ONE]
    assert (count(found.retries), len(found.fresh)) == (90, 10)


def test_fresh_offsets_leave_retries_what_they_do_not_need_themselves() -> None:
    found = plan({ONE: view(500, 503, failed(0, 500))}, total=100)[ONE]
    assert (count(found.retries), len(found.fresh)) == (97, 3)


def test_the_longest_due_go_first_across_partitions() -> None:
    found = plan({ONE: view(50, 50, failed(0, 50, due=-1)), TWO: view(50, 50, failed(0, 50, due=-2))}, total=60)
    assert {tp: count(one.retries) for tp, one in found.items()} == {ONE: 10, TWO: 50}


def test_a_run_of_one_record_still_gets_to_the_end() -> None:
    lane = Lane.of(5, AT_ONCE, Limits(10, 1))
    for _ in range(10):
        assert len(lane.poll(lambda call: fails(call.offset, times=1)(call)).calls) <= 1
    assert lane.floor == 5


def test_what_one_partition_does_not_want_the_others_get() -> None:
    third = TopicPartition("payments", 0)
    found = plan({ONE: view(0, 10), TWO: view(0, 1_000), third: view(0, 1_000)}, total=100)
    assert {tp: len(one.fresh) for tp, one in found.items()} == {ONE: 10, TWO: 45, third: 45}


def test_a_retry_carries_the_number_of_the_attempt_to_be_made() -> None:
    found = plan({ONE: view(9, 9, failed(1, 3, attempts=1), failed(3, 4, attempts=4))})[ONE]
    assert found.retries == (Run(1, 3, 2), Run(3, 4, 5))


def test_neither_a_dead_letter_nor_a_record_in_flight_reaches_the_handler() -> None:
    runs = [Run(n, n + 1, Pending(kind, 1, NOON, None)) for n, kind in enumerate(PendingKind)]
    assert plan({ONE: view(9, 9, *runs)})[ONE].retries == (Run(0, 1, 2),)


# ---- why nothing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (view(5, 5), planning.CAUGHT_UP),
        (view(5, 5, failed(3, 4, due=1)), planning.WAITING),
        (view(5, 9, failed(3, 4, due=1)), planning.WINDOW_FULL),
        (PartitionView("id", PartitionState(5), None), planning.NO_LEADER),
        (PartitionView("id", PartitionState(5, (failed(1, 2),)), None), planning.NO_LEADER),
        (PartitionView("id", PartitionState(5), LogBounds(0, 9), subscribed=False), planning.PARKED),
        (PartitionView("id", PartitionState(5), LogBounds(0, 2), subscribed=False), planning.PARKED),
    ],
)
def test_a_partition_that_gets_nothing_says_why(seen: PartitionView, why: str) -> None:
    found = plan({ONE: seen}, window=2)[ONE]
    assert (found.empty, found.why, found.fresh) == (True, why, OffsetRange(5, 5))


def test_a_partition_whose_due_retries_do_not_fit_into_the_run_says_so() -> None:
    found = plan({ONE: view(50, 50, failed(0, 50, due=-2)), TWO: view(50, 50, failed(0, 50, due=-1))}, total=10)
    assert (found[TWO].empty, found[TWO].why) == (True, planning.RUN_FULL)


def test_a_partition_whose_fresh_offsets_do_not_fit_into_the_run_says_so() -> None:
    found = plan({ONE: view(0, 5), TWO: view(0, 5)}, total=1)
    assert sorted(str(one.why) for one in found.values()) == sorted([planning.RUN_FULL, "None"])


def test_a_plan_is_empty_only_where_all_its_partitions_are() -> None:
    found = plan({ONE: view(5, 5), TWO: view(0, 5)})
    assert [found[tp].empty for tp in (ONE, TWO)] == [True, False]
    assert found[TWO].why is None


# ---- what the log may do ------------------------------------------------------------------------------------------


def test_s42_a_ledger_ahead_of_the_log_is_not_caught_up() -> None:
    with pytest.raises(TopicChanged, match="truncated or recreated") as caught:
        plan({TWO: view(7, 5)})
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 1, 5)


def test_s41_a_log_that_starts_above_the_lane_is_read_from_its_start() -> None:
    found = plan({ONE: view(5, 20, start=12)})[ONE]
    assert (found.fresh, found.complete_to) == (OffsetRange(12, 20), 5)


def test_s41_a_log_start_beyond_the_window_still_moves_the_lane() -> None:
    found = plan({ONE: view(5, 2_000, start=1_500)}, window=10)[ONE]
    assert found.fresh.start == 1_500
    lane = Lane({ONE: LogBounds(1_500, 2_000)}, AT_ONCE, Limits(10, 10), states={ONE: PartitionState(5)})
    lane.poll()
    lane.poll()
    assert lane.floor >= 1_510


def test_an_expired_range_is_passed_also_where_the_run_is_full() -> None:
    found = plan({ONE: view(5, 20, failed(0, 3), start=12), TWO: view(0, 9)}, total=1)[ONE]
    assert found.fresh == OffsetRange(12, 12)


# ---- for any states -----------------------------------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> PartitionView:
    complete_to = draw(st.integers(0, 15))
    kinds = st.sampled_from([*PendingKind, PendingKind.RETRY, PendingKind.RETRY])
    pending = [
        Run(o, o + 1, Pending(kind, draw(st.integers(1, 2)), after(draw(st.integers(-3, 2))), None))
        for o in range(complete_to)
        if draw(st.booleans())
        for kind in [draw(kinds)]
    ]
    log = LogBounds(draw(st.integers(0, 20)), complete_to + draw(st.integers(0, 25)))
    log = LogBounds(min(log.start, log.end), log.end)
    seen = None if draw(st.integers(0, 9)) == 0 else log
    return PartitionView("id", PartitionState(complete_to, join(pending)), seen, subscribed=draw(st.integers(0, 9)) > 0)


@REPEATABLE
@given(
    st.dictionaries(st.sampled_from([ONE, TWO, TopicPartition("a", 3)]), views()),
    st.builds(Limits, st.integers(1, 20), st.integers(1, 40)),
)
def test_any_plan_keeps_the_limits_and_reads_only_what_is_due(
    states: dict[TopicPartition, PartitionView], limits: Limits
) -> None:
    found = plan_partitions(states, limits, NOON)
    fresh = sum(len(one.fresh) for one in found.values())
    due = [naive_due(tp, one) for tp, one in states.items()]
    everything = sorted(each for one in due for each in one)
    taken = sorted((*time_of(states[tp], o), tp, o) for tp, one in found.items() for o in offsets(one))

    assert found.keys() == states.keys()
    assert fresh + len(taken) <= limits.max_records_per_run
    assert taken == everything[: len(taken)], "the longest due first"
    wanted = sum(len(naive_room(one, limits)) for one in states.values())
    if len(taken) < len(everything):  # some must wait: then the run is full, and fresh ones have a tenth of it
        assert fresh + len(taken) == limits.max_records_per_run
    assert fresh >= min(wanted, limits.max_records_per_run // 10)
    assert fresh == min(wanted, limits.max_records_per_run - len(taken))


@REPEATABLE
@given(
    st.dictionaries(st.sampled_from([ONE, TWO, TopicPartition("a", 3)]), views()),
    st.builds(Limits, st.integers(1, 20), st.integers(1, 40)),
)
def test_any_partition_gets_fresh_offsets_of_its_window_and_a_fair_share(
    states: dict[TopicPartition, PartitionView], limits: Limits
) -> None:
    found = plan_partitions(states, limits, NOON)
    most = max((len(one.fresh) for one in found.values()), default=0)
    for tp, one in found.items():
        room = naive_room(states[tp], limits)
        assert one.fresh.start == room.start
        assert len(one.fresh) <= len(room)
        assert len(one.fresh) == len(room) or len(one.fresh) >= most - 1, "less than a fair share"
        assert (one.why is None) == (not one.empty)


def offsets(planned: PlannedPartition) -> list[int]:
    return [offset for run in planned.retries for offset in range(run.start, run.end)]


def time_of(seen: PartitionView, offset: int) -> tuple[datetime]:
    due = [run.value.due for run in seen.state.pending if run.start <= offset < run.end]
    assert due[0] is not None
    return (due[0],)


def naive_due(tp: TopicPartition, seen: PartitionView) -> list[tuple[datetime, TopicPartition, int]]:
    return [
        (run.value.due, tp, offset)
        for run in seen.state.pending
        for offset in range(run.start, run.end)
        if seen.log and seen.subscribed and run.value.kind is PendingKind.RETRY and run.value.due
        if run.value.due <= NOON
    ]


def naive_room(seen: PartitionView, limits: Limits) -> range:
    if seen.log is None or not seen.subscribed:
        return range(seen.state.complete_to, seen.state.complete_to)
    start = max(seen.state.complete_to, seen.log.start)
    return range(start, max(start, min(seen.log.end, seen.state.floor + limits.max_uncommitted)))


def test_the_limits_of_the_defaults_do_not_bind_a_small_topic() -> None:
    assert plan_partitions({ONE: view(0, 1_000)}, WIDE, NOON)[ONE].fresh == OffsetRange(0, 1_000)


def test_the_partition_furthest_behind_in_time_is_served_first_and_none_starves() -> None:
    views = {
        TopicPartition("t", number): PartitionView(
            "id", PartitionState(0), LogBounds(0, 1000), waits_since=NOON - timedelta(hours=hours)
        )
        for number, hours in enumerate((1, 9, 5))
    }
    planned = plan_partitions(views, Limits(10_000, 120), NOON)
    assert [len(planned[TopicPartition("t", number)].fresh) for number in range(3)] == [20, 80, 20]


def turns_of_fresh(total: int, turns: int, stamped: list[datetime | None]) -> list[int]:
    """How often each partition got fresh offsets, when each grows quicker than a run reads, and the time of its first
    unread record stays as it is."""
    served = [0] * len(stamped)
    done = [0] * len(stamped)
    for n in range(1, turns + 1):
        views = {
            TopicPartition("t", number): PartitionView(
                "id", PartitionState(done[number]), LogBounds(0, 1_000 + 100 * n * (number + 1)), waits_since=time
            )
            for number, time in enumerate(stamped)
        }
        planned = plan_partitions(views, Limits(10**9, total), NOON, n)
        got = [len(planned[TopicPartition("t", number)].fresh) for number in range(len(stamped))]
        assert sum(got) == total
        done = [before + more for before, more in zip(done, got, strict=True)]
        served = [before + (more > 0) for before, more in zip(served, got, strict=True)]
    return served


@pytest.mark.parametrize("total", [1, 2, 7, 20])
@pytest.mark.parametrize("known", [True, False])
def test_none_starves_where_a_run_takes_fewer_offsets_than_there_are_partitions(total: int, known: bool) -> None:
    """Neither beside one whose records were all stamped long ago, nor where others are always behind by less."""
    long_ago = NOON - timedelta(days=1_000)
    stamped: list[datetime | None] = [long_ago, *[NOON] * 24, *[None] * 25] if known else [None] * 50
    served = turns_of_fresh(total, 3_000, stamped)
    assert min(served) > 0
    if known:
        assert served[0] == max(served), "the one furthest behind is served first"


def test_a_run_of_one_offset_goes_to_the_partition_furthest_behind_in_nine_turns_of_ten() -> None:
    served = turns_of_fresh(1, 1_000, [NOON, NOON - timedelta(hours=1), NOON - timedelta(minutes=1)])
    assert 880 < served[1] < 970


def test_a_run_of_one_offset_reads_something_new_although_a_retry_is_always_due() -> None:
    """A tenth of one offset is one turn of ten."""
    waits = view(10, 1_000, failed(3, 4))
    planned = [plan_partitions({ONE: waits}, Limits(10**9, 1), NOON, n)[ONE] for n in range(1, 1_001)]
    fresh = sum(len(one.fresh) for one in planned)
    assert 60 < fresh < 140
    assert sum(count(one.retries) for one in planned) == 1_000 - fresh
