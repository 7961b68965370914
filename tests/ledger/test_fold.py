"""Scenarios of the ledger, by their numbers, and what the fold refuses.

Each `poll` of a `PureLane` is one run: it plans, handles the records and folds their outcomes in memory.
"""

import tracemalloc
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from ackline.errors import LedgerError
from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind, fold
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRange
from ackline.ledger.outcomes import AnswerKind, Outcome, OutcomeColumns
from ackline.ledger.planning import Limits
from tests.ledger.pure_lane import AT_ONCE, FIRST, Call, PureLane, fails
from tests.ledger.strategies import NOON, after

MINUTE = RetryPolicy(initial_delay=timedelta(seconds=60), max_retries=100)
NEVER = RetryPolicy(max_retries=0)
DEAD_LETTER = ValuedRange(4, 5, Pending(PendingKind.DEAD_LETTER, 1, None, None))


def row(
    offset: int, outcome: Outcome, attempt: int = 1, error: str | None = None, end: int | None = None
) -> OutcomeRow:
    return OutcomeRow(offset, attempt, outcome, NOON, error, end)


def retry(start: int, end: int, attempts: int = 1, due: float = 0) -> ValuedRange[Pending]:
    return ValuedRange(start, end, Pending(PendingKind.RETRY, attempts, after(due), None))


def test_s1_a_proved_gap_does_not_hold_the_floor_a_failed_record_does() -> None:
    lane = PureLane.of(7)
    lane.gaps = {(FIRST, 3), (FIRST, 4)}
    assert (lane.poll(fails(5)).offsets, lane.floor, lane.poll().offsets) == ([0, 1, 2, 5, 6], 5, [5])
    assert lane.floor == 7


def test_s2_the_floor_of_a_log_that_starts_at_5() -> None:
    lane = PureLane({FIRST: LogBounds(5, 7)})
    lane.poll(fails(5))
    assert lane.floor == 5
    lane.poll()
    assert lane.floor == 7


@pytest.mark.parametrize("acked", [0, 1])
def test_s3_s4_the_floor_moves_over_the_acked_records_below_the_lowest_failure(acked: int) -> None:
    lane = PureLane.of(10)
    lane.poll(fails(*range(acked, 10)))
    assert lane.floor == acked


@pytest.mark.parametrize("gaps", [{1}, {1, 2}, {0, 1, 2}], ids=["inside", "and at the end", "nothing else"])
def test_s6_gaps_inside_and_at_the_end_of_a_range_are_settled_by_proof(gaps: set[int]) -> None:
    lane = PureLane.of(3)
    lane.gaps = {(FIRST, offset) for offset in gaps}
    lane.poll()
    assert lane.floor == 3


def test_s8_what_is_acked_above_a_pending_offset_does_not_lift_the_floor() -> None:
    state = fold(PartitionState(0), OffsetRange(0, 100), (), [row(3, Outcome.FAILED)], AT_ONCE)
    assert (state.floor, state.complete_to) == (3, 100)


def test_s10_a_second_failure_half_a_second_later_is_due_half_a_second_later() -> None:
    policy = RetryPolicy(timedelta(seconds=1), timedelta(seconds=1), 1, timedelta(seconds=1))
    first = fold(PartitionState(0), OffsetRange(0, 1), (), [row(0, Outcome.FAILED)], policy)
    again = OutcomeRow(0, 2, Outcome.FAILED, after(0.5))
    lane = PureLane.of(1, policy)
    lane.states[FIRST] = fold(first, OffsetRange(1, 1), (ValuedRange(0, 1, 2),), [again], policy)
    lane.now = after(1.0)
    assert lane.poll().calls == []
    lane.now = after(1.5)
    assert lane.poll().calls == [Call(FIRST, 0, 3)]
    lane.wait(1_000_000)
    assert lane.poll().calls == []


def test_s13_max_retries_3_ends_after_the_fourth_attempt_and_the_floor_passes() -> None:
    lane = PureLane.of(2, RetryPolicy(period=timedelta(0), max_retries=3))
    attempts = [call.attempt for _ in range(6) for call in lane.poll(fails(0)).calls if call.offset == 0]
    assert (attempts, lane.dead, lane.floor) == ([1, 2, 3, 4], [(FIRST, 0)], 2)


def test_s13_max_retries_0_is_four_dead_letters_and_floor_4() -> None:
    lane = PureLane.of(4, NEVER)
    lane.poll(fails(0, 1, 2, 3))
    assert (lane.dead, lane.floor, lane.poll().calls) == ([(FIRST, 0), (FIRST, 1), (FIRST, 2), (FIRST, 3)], 4, [])


def test_s13_a_dead_letter_that_is_not_confirmed_holds_the_floor_and_is_not_handled_again() -> None:
    lane = PureLane.of(4, NEVER)
    lane.confirms = False
    lane.poll(fails(1))
    assert lane.states[FIRST].pending_by_kind() == {
        PendingKind.RETRY: 0, PendingKind.DEAD_LETTER: 1, PendingKind.IN_FLIGHT: 0, PendingKind.HELD_BACK: 0,
    }  # fmt: skip
    assert (lane.poll().calls, lane.floor) == ([], 1)
    lane.confirms = True
    assert (lane.poll().calls, lane.floor, lane.dead) == ([], 4, [(FIRST, 1)])


def test_s14_only_the_failed_record_is_handled_again_and_then_nothing() -> None:
    lane = PureLane.of(20)
    assert (lane.poll(fails(0)).offsets, lane.poll().calls) == (list(range(20)), [Call(FIRST, 0, 2)])
    assert (lane.floor, lane.poll().calls) == (20, [])


def test_s15_runs_of_ten_handle_the_eleventh_record_exactly_once() -> None:
    lane = PureLane.of(11)
    lane.limits = Limits(10_000, 10)
    handled = lane.poll(fails(0)).offsets
    assert lane.floor == 0
    handled += lane.poll().offsets
    assert lane.floor >= 10
    handled += lane.poll().offsets
    assert (sorted(handled), lane.floor) == ([0, 0, *range(1, 11)], 11)


def test_s16_the_next_due_run_handles_exactly_what_failed() -> None:
    lane = PureLane.of(10, MINUTE)
    lane.poll(fails(5, 3, 2))
    lane.wait(59)
    assert lane.poll().calls == []
    lane.wait(1)
    assert (lane.poll().offsets, lane.floor) == ([2, 3, 5], 10)


def test_s17_a_failure_stops_the_commit_not_the_run() -> None:
    lane = PureLane.of(10)
    assert (lane.poll(fails(1)).offsets, lane.floor) == (list(range(10)), 1)
    lane.poll()
    assert lane.floor == 10


def test_s18_only_what_is_due_is_read() -> None:
    lane = PureLane.of(1, MINUTE)
    lane.poll(fails(0))
    lane.wait(10)
    lane.grow(2)
    lane.poll(fails(1))
    lane.now = after(60)
    assert lane.poll().offsets == [0]
    lane.now = after(70)
    assert (lane.poll().offsets, lane.floor) == ([1], 2)


def test_s19_retries_come_by_offset_within_a_partition_whatever_their_due_times() -> None:
    lane = PureLane.of(4)
    lane.states[FIRST] = PartitionState(4, (retry(0, 1, due=-1), retry(1, 2, due=-3), retry(3, 4, due=-2)))
    assert lane.poll().offsets == [0, 1, 3]


def test_s19_two_topics_do_not_disturb_one_another() -> None:
    other = TopicPartition("payments", 0)
    lane = PureLane({FIRST: LogBounds(0, 3), other: LogBounds(0, 3)})
    lane.poll(lambda call: Outcome.FAILED if call.tp == FIRST else Outcome.ACKED)
    assert (lane.floor, lane.states[other].floor) == (0, 3)
    assert lane.poll().calls == [Call(FIRST, n, 2) for n in range(3)]


def test_s40_compaction_of_a_pending_offset_leaves_its_neighbours_as_they_were() -> None:
    lane = PureLane.of(5, MINUTE)
    lane.poll(fails(1, 2, 3))
    lane.gaps = {(FIRST, 2)}
    lane.wait(60)
    assert lane.poll(fails(1, 3)).offsets == [1, 3]
    assert [(pending.start, pending.end) for pending in lane.states[FIRST].pending] == [(1, 2), (3, 4)]
    lane.gaps |= {(FIRST, 1), (FIRST, 3)}
    lane.wait(10_000)
    assert (lane.poll().calls, lane.floor) == ([], 5)


def test_s41_retention_of_pending_offsets_is_expired_and_the_floor_goes_on() -> None:
    lane = PureLane.of(5, MINUTE)
    lane.poll(fails(*range(5)))
    lane.expire(5)
    lane.grow(6)
    lane.wait(60)
    poll = lane.poll()
    assert [r.offset for r in poll.rows[FIRST] if r.outcome is Outcome.EXPIRED] == [0, 1, 2, 3, 4]
    assert (poll.offsets, lane.floor) == ([5], 6)


def test_s41_retention_past_complete_to_is_recorded_as_a_range() -> None:
    lane = PureLane.of(5)
    lane.poll()
    lane.grow(20)
    lane.expire(12)
    poll = lane.poll()
    assert [(r.offset, r.end) for r in poll.rows[FIRST] if r.outcome is Outcome.EXPIRED] == [(5, 12)]
    assert (poll.offsets, lane.floor) == (list(range(12, 20)), 20)


def test_a_decision_of_a_range_settles_the_pending_and_fresh_offsets_in_it_and_no_others() -> None:
    before = PartitionState(10, (retry(2, 8),))
    whole = [row(2, Outcome.EXPIRED, 0, end=8)]
    assert fold(before, OffsetRange(10, 10), (ValuedRange(2, 8, 2),), whole, AT_ONCE) == PartitionState(10)
    rows = [row(12, Outcome.FAILED), row(15, Outcome.FAILED), row(5, Outcome.SKIPPED, 0, end=14)]
    state = fold(before, OffsetRange(10, 20), (), rows, AT_ONCE)
    assert state == PartitionState(20, (retry(2, 5), ValuedRange(15, 16, Pending(PendingKind.RETRY, 1, NOON, None))))


@pytest.mark.parametrize(("rows", "reason"), [
    ([], "no outcome for the retry at offset 4"),
    ([row(4, Outcome.ACKED, 1)], "offset 4 is of attempt 1, planned was 2"),
    ([row(4, Outcome.ACKED, 3)], "offset 4 is of attempt 3, planned was 2"),
    ([row(4, Outcome.ACKED, 2), row(10, Outcome.FAILED, 2)], "offset 10 is of attempt 2, planned was 1"),
    ([row(4, Outcome.ACKED, 2), row(20, Outcome.ACKED)], "planned was None"),
    ([row(4, Outcome.ACKED, 2), row(9, Outcome.FAILED)], "planned was None"),
    ([row(4, Outcome.ACKED, 2), row(4, Outcome.FAILED, 2)], "two attempts at offset 4"),
    ([row(4, Outcome.ACKED, 2), row(5, Outcome.FAILED, 0)], "the decision at offset 5 is failed"),
], ids=["no row", "older", "newer", "not fresh", "beyond", "below", "twice", "undecided"])  # fmt: skip
def test_s8_outcomes_that_do_not_fit_the_plan_are_an_error_of_the_turn(rows: list[OutcomeRow], reason: str) -> None:
    before = PartitionState(10, (retry(4, 5),))
    with pytest.raises(LedgerError, match=reason) as caught:
        fold(before, OffsetRange(10, 20), (ValuedRange(4, 5, 2),), rows, AT_ONCE)
    assert caught.value.offset is not None


def test_i4_offsets_between_complete_to_and_the_fresh_range_must_be_decided() -> None:
    decisions = [row(10, Outcome.EXPIRED, 0, end=12), row(13, Outcome.EXPIRED, 0, end=15)]
    with pytest.raises(LedgerError, match=r"\[12, 13\) would be skipped over") as caught:
        fold(PartitionState(10), OffsetRange(15, 20), (), decisions, AT_ONCE)
    assert caught.value.offset == 12


@pytest.mark.parametrize("start", [9, 11])
def test_a_fresh_range_begins_exactly_where_the_last_one_ended(start: int) -> None:
    """One offset below would be handled again, one above would pass a record over."""
    with pytest.raises(LedgerError) as caught:
        fold(PartitionState(10), OffsetRange(start, 20), (), [], AT_ONCE)
    assert caught.value.offset == min(start, 10)


@pytest.mark.parametrize("ends", [(12, 12, 15), (12, 11, 15), (14, 11, 13)], ids=["touching", "overlapping", "inside"])
def test_overlapping_decisions_settle_exactly_the_offsets_that_they_cover(ends: tuple[int, int, int]) -> None:
    """In any order of the rows. A pending offset right after them stays pending."""
    first, second, last = ends
    end = max(first, last)
    decisions = [row(second, Outcome.EXPIRED, 0, end=last), row(10, Outcome.EXPIRED, 0, end=first)]
    assert fold(PartitionState(10), OffsetRange(end, 20), (), decisions, AT_ONCE) == PartitionState(20)
    before = PartitionState(20, (retry(10, end + 1),))
    assert fold(before, OffsetRange(20, 20), (), decisions, AT_ONCE) == PartitionState(20, (retry(end, end + 1),))


@pytest.mark.parametrize(("before", "fresh", "retries"), [
    (PartitionState(10), OffsetRange(10, 12), (ValuedRange(4, 5, 2),)),
    (PartitionState(10, (retry(4, 5, attempts=2),)), OffsetRange(10, 12), (ValuedRange(4, 5, 2),)),
    (PartitionState(10, (DEAD_LETTER,)), OffsetRange(10, 12), (ValuedRange(4, 5, 2),)),
    (PartitionState(10), OffsetRange(8, 12), ()),
], ids=["of a settled offset", "of an attempt made", "of a dead letter", "fresh below complete_to"])  # fmt: skip
def test_s7_a_turn_that_does_not_start_from_this_state_un_acks_nothing(
    before: PartitionState, fresh: OffsetRange, retries: tuple[ValuedRange[int], ...]
) -> None:
    rows = [row(o, Outcome.FAILED, retry.value) for retry in retries for o in range(retry.start, retry.end)]
    rows += [row(8, Outcome.FAILED)] if fresh.start == 8 else []
    with pytest.raises(LedgerError):
        fold(before, fresh, retries, rows, AT_ONCE)


def test_only_failed_in_flight_and_held_back_are_not_terminal() -> None:
    unsettled = {Outcome.FAILED, Outcome.IN_FLIGHT, Outcome.HELD_BACK}
    assert {outcome for outcome in Outcome if not outcome.terminal} == unsettled


def test_the_next_due_time_is_that_of_the_earliest_retry() -> None:
    state = PartitionState(9, (retry(1, 2, due=30), retry(4, 5, due=10), retry(6, 7, due=20)))
    assert state.next_due == after(10)
    assert PartitionState(9).next_due is None


def test_a_turn_that_failed_as_a_whole_costs_tens_of_bytes_a_record() -> None:
    """Each record has a due time of its own, so that no two are one run; no row becomes an object that stays."""
    count = 50_000
    offsets = np.arange(count, dtype=np.int64)
    rows = OutcomeColumns(
        offsets,
        np.full(count, -1),
        np.ones(count, dtype=np.int32),
        offsets * 1000,
        np.zeros(count, dtype=np.int32),
        [(Outcome.FAILED, "ValueError")],
    )
    tracemalloc.start()
    state = fold(PartitionState(0), OffsetRange(0, count), (), rows, RetryPolicy(jitter=0.5), "live/0/t/0")
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(state.pending), state.floor) == (count, 0)
    assert kept < 40 * count
    assert peak < 200 * count


def in_flight(offset: int, due: float | None = 10, attempt: int = 1) -> OutcomeRow:
    deadline = None if due is None else after(due)
    return OutcomeRow(offset, attempt, Outcome.IN_FLIGHT, NOON, due=deadline)


def answered(offset: int, outcome: Outcome, answer: AnswerKind, attempt: int = 1, **more: Any) -> OutcomeRow:
    return OutcomeRow(offset, attempt, outcome, after(5), answer=answer, **more)


def test_a_record_in_flight_holds_the_floor_and_is_due_at_its_deadline() -> None:
    rows = [row(0, Outcome.ACKED), in_flight(1), in_flight(3, due=None)]
    state = fold(PartitionState(0), OffsetRange(0, 5), (), rows, MINUTE)
    assert (state.floor, state.next_due) == (1, after(10))
    assert [(run.start, run.value.kind, run.value.due) for run in state.pending] == [
        (1, PendingKind.IN_FLIGHT, after(10)), (3, PendingKind.IN_FLIGHT, None),
    ]  # fmt: skip


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("backwards", [False, True])
def test_an_answer_ends_the_attempt_of_its_turn_or_of_an_earlier_one_in_any_order(turns: int, backwards: bool) -> None:
    attempts = [in_flight(offset) for offset in range(4)]
    answers = [
        answered(0, Outcome.ACKED, AnswerKind.ACK),
        answered(1, Outcome.FAILED, AnswerKind.FAIL, error_class="AckFailed"),
        answered(2, Outcome.IN_FLIGHT, AnswerKind.RENEW, due=after(60)),
    ]
    state, fresh = PartitionState(0), OffsetRange(0, 4)
    if turns == 2:
        state, fresh, attempts = fold(state, fresh, (), attempts, MINUTE), OffsetRange(4, 4), []
    rows = [*answers, *attempts] if backwards else [*attempts, *answers]
    state = fold(state, fresh, (), rows, MINUTE)
    assert [(run.start, run.value.kind, run.value.attempts, run.value.due) for run in state.pending] == [
        (1, PendingKind.RETRY, 1, after(65)), (2, PendingKind.IN_FLIGHT, 1, after(60)),
        (3, PendingKind.IN_FLIGHT, 1, after(10)),
    ]  # fmt: skip


def test_the_state_of_a_record_in_flight_keeps_the_class_of_a_skip_in_its_tree() -> None:
    attempts = [in_flight(0), in_flight(1)._replace(error_class="Skip"), in_flight(2, due=20)]
    state = fold(PartitionState(0), OffsetRange(0, 3), (), attempts, MINUTE)
    assert [(run.start, run.value.error_class) for run in state.pending] == [(0, None), (1, "Skip"), (2, None)]
    renewed = answered(1, Outcome.IN_FLIGHT, AnswerKind.RENEW, error_class="Skip", due=after(60))
    state = fold(state, OffsetRange(3, 3), (), [renewed], MINUTE)
    assert [(run.value.due, run.value.error_class) for run in state.pending][1] == (after(60), "Skip")


def test_a_retry_may_be_in_flight_and_its_failure_uses_up_the_attempts() -> None:
    state = PartitionState(5, (retry(3, 4, 2),))
    state = fold(state, OffsetRange(5, 5), (ValuedRange(3, 4, 3),), [in_flight(3, attempt=3)], MINUTE)
    failed = answered(3, Outcome.FAILED, AnswerKind.TIMEOUT, 3)
    ended = fold(state, OffsetRange(5, 5), (), [failed], RetryPolicy(max_retries=2))
    assert [(run.value.kind, run.value.attempts) for run in ended.pending] == [(PendingKind.DEAD_LETTER, 3)]


def test_a_skip_ends_an_attempt_in_flight_and_beats_an_answer_of_the_same_turn() -> None:
    state = fold(PartitionState(0), OffsetRange(0, 2), (), [in_flight(0), in_flight(1)], MINUTE)
    rows = [OutcomeRow(0, 0, Outcome.SKIPPED, NOON, None, 2), answered(1, Outcome.FAILED, AnswerKind.FAIL)]
    assert fold(state, OffsetRange(2, 2), (), rows, MINUTE) == PartitionState(2)


@pytest.mark.parametrize(("rows", "reason"), [
    ([answered(3, Outcome.ACKED, AnswerKind.ACK)], "attempt 1 was answered at offset 3, but is not in flight"),
    ([answered(1, Outcome.ACKED, AnswerKind.ACK, 2)], "attempt 2 was answered at offset 1, but is not in flight"),
    ([answered(0, Outcome.ACKED, AnswerKind.ACK)] * 2, "two answers at offset 0"),
    ([answered(2, Outcome.ACKED, AnswerKind.ACK)], "attempt 1 was answered at offset 2, but is not in flight"),
])  # fmt: skip
def test_i4_an_answer_that_ends_nothing_is_an_error_of_the_turn(rows: list[OutcomeRow], reason: str) -> None:
    pending = (ValuedRange(0, 2, Pending(PendingKind.IN_FLIGHT, 1, None, None)), retry(2, 3))
    with pytest.raises(LedgerError, match=reason):
        fold(PartitionState(5, pending), OffsetRange(5, 5), (), rows, MINUTE)
