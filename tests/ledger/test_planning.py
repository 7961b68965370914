"""What a turn reads: due retries, the window, the limits, and why it reads nothing of a partition."""

import pickle
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.errors import TopicChanged
from ackline.ledger import planning
from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import PartitionState, Pending, PendingKind
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRange, count
from ackline.ledger.pending import PendingRuns, PendingState, RetryRuns
from ackline.ledger.planning import Limits, PartitionView, plan_partitions
from ackline.ledger.turns import PlannedPartition
from tests.ledger.pure_lane import AT_ONCE, FIRST, Call, PureLane, acks, fails
from tests.ledger.strategies import NOON, REPEATABLE, after, by_offset

SECOND, THIRD = TopicPartition("orders", 1), TopicPartition("payments", 0)
MINUTE = RetryPolicy(initial_delay=timedelta(seconds=60), max_retries=100)


def failed(start: int, end: int, due: float = 0, attempts: int = 1) -> ValuedRange[Pending]:
    return ValuedRange(start, end, Pending(PendingKind.RETRY, attempts, after(due), None))


def view(complete_to: int, end: int, *pending: ValuedRange[Pending], start: int = 0) -> PartitionView:
    return PartitionView("id", PartitionState(complete_to, pending), LogBounds(start, end))


def plan(
    views: Mapping[TopicPartition, PartitionView], window: int = 1_000, total: int = 1_000, now: datetime = NOON
) -> dict[TopicPartition, PlannedPartition]:
    return plan_partitions(views, Limits(window, total), now)


def test_s20_never_more_than_the_window_above_the_floor() -> None:
    lane = PureLane.of(100, limits=Limits(10, 1_000))
    for start in range(0, 100, 10):
        assert lane.poll().offsets == list(range(start, start + 10))
    assert lane.floor == 100


def test_s21_a_full_window_reads_nothing_new_before_its_retries() -> None:
    lane = PureLane.of(100, MINUTE, Limits(10, 1_000))
    lane.poll(fails(*range(9)))
    for _ in range(3):
        poll = lane.poll()
        assert (poll.calls, poll.planned[FIRST].why) == ([], planning.WINDOW_FULL)
        lane.wait(19)
    lane.now = after(60)
    assert lane.poll().offsets == list(range(9))


def test_s22_what_the_floor_lets_in_is_new_and_retries_come_though_the_window_is_full() -> None:
    lane = PureLane.of(100, MINUTE, Limits(10, 1_000))
    lane.poll(fails(*range(1, 10)))
    assert (lane.floor, lane.poll().offsets, lane.poll().calls) == (1, [10], [])
    lane.wait(60)
    assert lane.poll().offsets == list(range(1, 10))


def test_s23_a_partition_with_room_reads_on_beside_one_with_a_full_window() -> None:
    lane = PureLane({FIRST: LogBounds(0, 1_000), SECOND: LogBounds(0, 1_000)}, MINUTE, Limits(250, 5_000))
    lane.poll(lambda call: fails(0)(call) if call.tp == FIRST else acks(call))
    poll = lane.poll()
    assert poll.calls == [Call(SECOND, offset, 1) for offset in range(250, 500)]
    assert poll.planned[FIRST].why == planning.WINDOW_FULL


@pytest.mark.parametrize(("records", "limit", "runs"), [(100, 10, 39), (5, 1, 10)])
def test_s24_a_full_window_never_stops_its_own_retries(records: int, limit: int, runs: int) -> None:
    lane = PureLane.of(records, AT_ONCE, Limits(10, limit))
    for _ in range(runs):
        assert len(lane.poll(lambda call: fails(call.offset, times=1)(call)).calls) <= limit
    assert lane.states[FIRST] == PartitionState(records)


@pytest.mark.parametrize(("end", "retries", "fresh"), [(900, 90, 10), (503, 97, 3)])
def test_due_retries_come_first_and_fresh_offsets_get_at_least_a_tenth_if_there_are_so_many(
    end: int, retries: int, fresh: int
) -> None:
    planned = plan({FIRST: view(500, end, failed(0, 500))}, total=100)[FIRST]
    assert (count(planned.retries), len(planned.fresh)) == (retries, fresh)


def test_the_retries_that_have_been_due_longest_come_first_across_partitions() -> None:
    due = {FIRST: view(50, 50, failed(0, 50, due=-1)), SECOND: view(50, 50, failed(0, 50, due=-2))}
    assert {tp: count(planned.retries) for tp, planned in plan(due, total=60).items()} == {FIRST: 10, SECOND: 50}


def test_at_the_limit_each_partition_gets_its_due_retries_in_turn_and_none_starves() -> None:
    """All 30 records fail always, and a run reads seven. A retry that fails again is due after those that wait; of
    those that failed together, the one with the fewest attempts comes first."""
    always = fails(*range(10))
    lane = PureLane({tp: LogBounds(0, 10) for tp in (FIRST, SECOND, THIRD)})
    attempts = Counter((call.tp, call.offset) for call in lane.poll(always).calls)
    lane.limits = Limits(1_000, 7)
    for run in range(1, 31):
        lane.wait(1)
        attempts.update((call.tp, call.offset) for call in lane.poll(always).calls)
        assert (len(attempts), attempts.total()) == (30, 30 + 7 * run)
        assert max(attempts.values()) - min(attempts.values()) <= 1
    by_partition = [sum(n for (tp, _), n in attempts.items() if tp == of) for of in (FIRST, SECOND, THIRD)]
    assert by_partition == [80, 80, 80]


def test_what_one_partition_leaves_over_the_others_get() -> None:
    planned = plan({FIRST: view(0, 10), SECOND: view(0, 1_000), THIRD: view(0, 1_000)}, total=100)
    assert {tp: len(planned[tp].fresh) for tp in planned} == {FIRST: 10, SECOND: 45, THIRD: 45}


def test_a_retry_carries_the_number_of_the_attempt_to_be_made() -> None:
    planned = plan({FIRST: view(9, 9, failed(1, 3, attempts=1), failed(3, 4, attempts=4))})[FIRST]
    assert planned.retries == (ValuedRange(1, 3, 2), ValuedRange(3, 4, 5))


def test_neither_a_dead_letter_nor_a_record_in_flight_reaches_the_handler() -> None:
    kinds = [PendingKind.RETRY, PendingKind.DEAD_LETTER, PendingKind.IN_FLIGHT]
    pending = [ValuedRange(n, n + 1, Pending(kind, 1, NOON, None)) for n, kind in enumerate(kinds)]
    assert plan({FIRST: view(9, 9, *pending)})[FIRST].retries == (ValuedRange(0, 1, 2),)


@pytest.mark.parametrize(("partition", "why"), [
    (view(5, 5), planning.CAUGHT_UP),
    (PartitionView("id", PartitionState(5), LogBounds(0, 5, None, 3)), planning.OPEN_TRANSACTION),
    (view(5, 5, failed(3, 4, due=1)), planning.WAITING),
    (view(5, 9, failed(3, 4, due=1)), planning.WINDOW_FULL),
    (PartitionView("id", PartitionState(5), None), planning.NO_LEADER),
    (PartitionView("id", PartitionState(5, (failed(1, 2),)), None), planning.NO_LEADER),
    (PartitionView("id", PartitionState(5), LogBounds(0, 9), subscribed=False), planning.PARKED),
    (PartitionView("id", PartitionState(5), LogBounds(0, 2), subscribed=False), planning.PARKED),
])  # fmt: skip
def test_a_plan_has_the_reason_why_it_reads_nothing_of_a_partition(partition: PartitionView, why: str) -> None:
    planned = plan({FIRST: partition, SECOND: view(0, 2)}, window=2)
    assert (planned[FIRST].empty, planned[FIRST].why, planned[FIRST].fresh) == (True, why, OffsetRange(5, 5))
    assert (planned[SECOND].empty, planned[SECOND].why) == (False, None)


@pytest.mark.parametrize(("views", "total", "reasons"), [
    ({FIRST: view(50, 50, failed(0, 50, due=-2)), SECOND: view(50, 50, failed(0, 50, due=-1))}, 10,
     {planning.RUN_FULL, None}),
    ({FIRST: view(0, 5), SECOND: view(0, 5)}, 1, {planning.RUN_FULL, None}),
], ids=["due retries", "fresh offsets"])  # fmt: skip
def test_a_partition_whose_offsets_do_not_fit_into_the_run_has_that_as_its_reason(
    views: Mapping[TopicPartition, PartitionView], total: int, reasons: set[str | None]
) -> None:
    assert {planned.why for planned in plan(views, total=total).values()} == reasons


def test_s42_a_ledger_ahead_of_the_log_is_not_caught_up() -> None:
    with pytest.raises(TopicChanged, match="truncated or recreated") as caught:
        plan({SECOND: view(7, 5)})
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 1, 5)


def test_s41_a_log_start_beyond_the_window_still_moves_the_lane() -> None:
    planned = plan({FIRST: view(5, 2_000, start=1_500)}, window=10)[FIRST]
    assert (planned.fresh.start, planned.complete_to) == (1_500, 5)
    lane = PureLane({FIRST: LogBounds(1_500, 2_000)}, AT_ONCE, Limits(10, 10), states={FIRST: PartitionState(5)})
    lane.poll()
    lane.poll()
    assert lane.floor >= 1_510


@st.composite
def views(draw: st.DrawFn) -> PartitionView:
    complete_to = draw(st.integers(0, 15))
    kinds = st.sampled_from([*PendingKind, PendingKind.RETRY, PendingKind.RETRY])
    pending = [
        ValuedRange(o, o + 1, Pending(kind, draw(st.integers(1, 2)), after(draw(st.integers(-3, 2))), None))
        for o in range(complete_to)
        if draw(st.booleans())
        for kind in [draw(kinds)]
    ]
    floor = pending[0].start if pending else complete_to
    gaps = draw(st.integers(0, complete_to - floor))
    above_floor = (ValuedRange(floor, complete_to, gaps),) if gaps else ()
    end = complete_to + draw(st.integers(0, 25))
    log = None if draw(st.integers(0, 9)) == 0 else LogBounds(min(draw(st.integers(0, 20)), end), end)
    return PartitionView(
        "id", PartitionState(complete_to, pending, above_floor), log, subscribed=draw(st.integers(0, 9)) > 0
    )


@REPEATABLE
@given(
    st.dictionaries(st.sampled_from([FIRST, SECOND, THIRD]), views()),
    st.builds(Limits, st.integers(1, 20), st.integers(1, 40)),
)
def test_any_plan_keeps_the_limits_reads_only_due_retries_and_shares_the_fresh_offsets_fairly(
    states: dict[TopicPartition, PartitionView], limits: Limits
) -> None:
    planned = plan_partitions(states, limits, NOON)
    fresh = sum(len(partition.fresh) for partition in planned.values())
    due = sorted(retry for tp, state in states.items() for retry in naive_due(tp, state))
    taken = sorted(
        retry
        for tp, partition in planned.items()
        for retry in naive_due(tp, states[tp])
        if retry[-1] in by_offset(partition.retries)
    )
    assert len(taken) == sum(count(partition.retries) for partition in planned.values())

    assert planned.keys() == states.keys()
    assert fresh + len(taken) <= limits.max_records_per_run
    assert taken == due[: len(taken)], "the longest due first, then those with the fewest attempts"
    wanted = sum(len(naive_room(state, limits)) for state in states.values())
    if len(taken) < len(due):  # some must wait: then the run is full, and a tenth of it is for fresh offsets
        assert fresh + len(taken) == limits.max_records_per_run
    assert fresh >= min(wanted, limits.max_records_per_run // 10)
    assert fresh == min(wanted, limits.max_records_per_run - len(taken))
    most = max((len(partition.fresh) for partition in planned.values()), default=0)
    for tp, partition in planned.items():
        room = naive_room(states[tp], limits)
        assert partition.fresh.start == room.start
        assert len(partition.fresh) <= len(room)
        assert len(partition.fresh) == len(room) or len(partition.fresh) >= most - 1, "less than a fair share"
        assert (partition.why is None) == (not partition.empty)


def naive_due(tp: TopicPartition, view: PartitionView) -> list[tuple[datetime | None, int, TopicPartition, int]]:
    return [
        (state.due, state.attempts, tp, offset)
        for offset, state in by_offset(view.state.pending).items()
        if view.log and view.subscribed
        if (state.kind is PendingKind.RETRY and state.due and state.due <= NOON) or state.kind is PendingKind.HELD_BACK
    ]


def naive_room(view: PartitionView, limits: Limits) -> range:
    if view.log is None or not view.subscribed:
        return range(view.state.complete_to, view.state.complete_to)
    start = max(view.state.complete_to, view.log.start)
    read = view.state.complete_to - view.state.floor - sum(gaps.value for gaps in view.state.gaps_above_floor)
    return range(start, min(view.log.end, start + max(0, limits.max_uncommitted - read)))


def test_the_partition_furthest_behind_in_time_is_served_first_and_none_starves() -> None:
    views = {
        TopicPartition("t", number): replace(view(0, 1000), waits_since=NOON - timedelta(hours=hours))
        for number, hours in enumerate((1, 9, 5))
    }
    planned = plan_partitions(views, Limits(10_000, 120), NOON)
    assert [len(planned[TopicPartition("t", number)].fresh) for number in range(3)] == [20, 80, 20]


def turns_with_fresh_offsets(total: int, turns: int, waits_since: list[datetime | None]) -> list[int]:
    """In how many turns each partition gets fresh offsets, if each grows faster than a run reads and the time of its
    first unread record stays the same."""
    served = [0] * len(waits_since)
    complete_to = [0] * len(waits_since)
    for n in range(1, turns + 1):
        views = {
            TopicPartition("t", number): replace(
                view(complete_to[number], 1_000 + 100 * n * (number + 1)), waits_since=time
            )
            for number, time in enumerate(waits_since)
        }
        planned = plan_partitions(views, Limits(10**9, total), NOON, n)
        fresh = [len(planned[TopicPartition("t", number)].fresh) for number in range(len(waits_since))]
        assert sum(fresh) == total
        complete_to = [before + more for before, more in zip(complete_to, fresh, strict=True)]
        served = [before + (more > 0) for before, more in zip(served, fresh, strict=True)]
    return served


@pytest.mark.parametrize("total", [1, 2, 7])
@pytest.mark.parametrize("known", [True, False])
def test_no_partition_starves_although_a_run_reads_fewer_offsets_than_there_are_partitions(
    total: int, known: bool
) -> None:
    """Not even beside one whose records were all stamped long ago, or others that are always less far behind."""
    long_ago = NOON - timedelta(days=1_000)
    waits_since: list[datetime | None] = [long_ago, *[NOON] * 9, *[None] * 10] if known else [None] * 20
    # One offset a turn goes to a partition that is not the furthest behind in one turn of ten.
    served = turns_with_fresh_offsets(total, 1_000 if total == 1 else 300, waits_since)
    assert min(served) > 0
    if known:
        assert served[0] == max(served), "the partition furthest behind is served first"


def test_a_run_of_one_offset_goes_to_the_partition_furthest_behind_in_nine_turns_of_ten() -> None:
    served = turns_with_fresh_offsets(1, 1_000, [NOON, NOON - timedelta(hours=1), NOON - timedelta(minutes=1)])
    assert 880 < served[1] < 970


def test_a_run_of_one_offset_reads_fresh_offsets_although_a_retry_is_always_due() -> None:
    """A tenth of one offset is one turn of ten."""
    with_retry = view(10, 1_000, failed(3, 4))
    turns = [plan_partitions({FIRST: with_retry}, Limits(10**9, 1), NOON, n)[FIRST] for n in range(1, 1_001)]
    fresh = sum(len(planned.fresh) for planned in turns)
    assert 60 < fresh < 140
    assert sum(count(planned.retries) for planned in turns) == 1_000 - fresh


@pytest.mark.parametrize(("most", "reads", "why"), [(None, 5, None), (9, 5, None), (3, 1, None), (2, 0, "full")])
def test_fresh_reads_leave_room_for_what_is_in_flight(most: int | None, reads: int, why: str | None) -> None:
    waiting = ValuedRange(3, 5, Pending(PendingKind.IN_FLIGHT, 1, None, None))
    partition = view(5, 10, waiting)
    planned = planning.plan_partitions({FIRST: partition}, Limits(100, 100, max_in_flight=most), NOON)[FIRST]
    assert (len(planned.fresh), planned.why) == (reads, planning.IN_FLIGHT_FULL if why else None)


def test_a_partition_that_waits_for_answers_alone_names_them() -> None:
    waiting = ValuedRange(3, 5, Pending(PendingKind.IN_FLIGHT, 1, NOON, None))
    assert plan({FIRST: view(5, 5, waiting)})[FIRST].why == planning.IN_FLIGHT


SCATTERED = 200_000
MOST_BYTES = 60


def test_scattered_retries_are_planned_and_checked_in_a_few_bytes_each() -> None:
    starts = np.arange(SCATTERED, dtype=np.int64) * 2
    codes, dues = np.zeros(SCATTERED, dtype=np.int32), np.zeros(SCATTERED, dtype=np.int64)
    pending = PendingRuns(starts, starts + 1, codes, dues, [PendingState(PendingKind.RETRY, 1, "Late")])
    state = PartitionState(2 * SCATTERED, pending)
    views = {FIRST: PartitionView("id", state, LogBounds(0, 2 * SCATTERED))}
    tracemalloc.start()
    try:
        planned = plan(views, window=10 * SCATTERED, total=10 * SCATTERED)[FIRST]
        held, _ = tracemalloc.get_traced_memory()
        assert count(planned.retries) == len(planned.retries) == SCATTERED
        assert held / SCATTERED < MOST_BYTES, "the plan"
    finally:
        tracemalloc.stop()
    assert planned.retries[-1] == ValuedRange(2 * SCATTERED - 2, 2 * SCATTERED - 1, 2)


def test_planned_retries_equal_a_tuple_of_the_same_ranges_wherever_they_were() -> None:
    ranges = (ValuedRange(0, 2, 1), ValuedRange(5, 6, 3))
    runs = RetryRuns.of(ranges)
    assert runs == ranges
    assert ranges == runs
    assert pickle.loads(pickle.dumps(runs)) == runs
    assert (hash(runs), tuple(runs[1:]), runs[-1]) == (hash(ranges), ranges[1:], ranges[-1])
    assert runs != ranges[:1]
