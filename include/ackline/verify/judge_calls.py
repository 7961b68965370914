"""Rules on the journal of handler calls: outcomes come from calls, and at most once a record has one call."""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.verify.evidence import EMPTY, Findings, Ints, TopicPartition, count_covering, to_ints, to_ranges
from ackline.verify.lane_history import LaneHistory
from ackline.verify.rows import LOST, OutcomeRows, PlannedRange

ATTEMPT_BITS = 16
"""A call is one number: its offset, shifted by this many bits, plus its attempt. Higher attempts than fit there are
judged as one attempt; with `max_retries: forever` a record may have them."""
ATTEMPT_MASK = (1 << ATTEMPT_BITS) - 1


def calls_by_partition(calls: pa.Table) -> Mapping[TopicPartition, Ints]:
    """Return the handler calls of each topic-partition, each as one number, in the order of the journal."""
    found: dict[TopicPartition, Ints] = {}
    for topic in pc.unique(calls["topic"]).to_pylist():
        of_topic = calls.filter(pc.equal(calls["topic"], topic))
        partitions = to_ints(of_topic["partition"])
        numbers = _call_numbers(to_ints(of_topic["offset"]), to_ints(of_topic["attempt"]))
        for partition in np.unique(partitions):
            found[TopicPartition(topic, int(partition))] = numbers[partitions == partition]
    return found


def _call_numbers(offset: Ints, attempt: Ints) -> Ints:
    return (offset << ATTEMPT_BITS) + np.minimum(attempt, ATTEMPT_MASK)


def _offsets(calls: Ints) -> Ints:
    return calls >> ATTEMPT_BITS


def _outcomes_of_all_epochs(lane: LaneHistory, tp: TopicPartition) -> list[OutcomeRows]:
    """Return the outcomes of each epoch: the journal does not have the epoch of a call."""
    return [rows for (_, of_tp), rows in lane.outcomes.items() if of_tp == tp]


def _concatenate(arrays: Iterable[Ints]) -> Ints:
    return np.concatenate([EMPTY, *arrays])


def check_attempts_were_called(lane: LaneHistory, tp: TopicPartition, calls: Ints, found: Findings) -> None:
    """I2: each attempt has a handler call in the journal, so no outcome is made up. Some attempts need no call."""
    attempts = [rows.attempts for rows in _outcomes_of_all_epochs(lane, tp)]
    attempts = [rows.where(~rows.uncalled) for rows in attempts]
    needed = _concatenate(_call_numbers(rows.offset, rows.attempt) for rows in attempts)
    what = "has the outcome of an attempt for which no handler was called"
    found.add_offsets("I2", what, tp, _offsets(np.setdiff1d(needed, calls)))


def check_calls_have_outcomes(lane: LaneHistory, tp: TopicPartition, calls: Ints, found: Findings) -> None:
    """I4: once all is settled, each handler call has an outcome that counts, so no call was forgotten.

    No row is needed in the ranges of turns that kept no rows, and in ranges that are lost: their calls were reported
    too late or never.
    """
    outcomes = _outcomes_of_all_epochs(lane, tp)
    known = _concatenate(_call_numbers(rows.offset, rows.attempt) for rows in (rows.attempts for rows in outcomes))
    offsets = _offsets(np.setdiff1d(calls, known))
    for (_, of_tp), counted in lane.counted.items():
        if of_tp == tp:
            offsets = offsets[counted.count_covering(offsets) == 0]
    for rows in outcomes:
        lost = rows.where(rows.outcome == LOST)
        offsets = offsets[count_covering(offsets, lost.offset, lost.end) == 0]
    what = "has a handler call, but no outcome of that attempt counts"
    found.add_offsets("I4", what, tp, offsets)


def check_at_most_one_call(lane: LaneHistory, tp: TopicPartition, calls: Ints, found: Findings) -> None:
    """I7: at most once, an offset has at most one handler call in each epoch that planned it.

    An offset that any epoch planned under another guarantee is left out: the journal does not have the epoch of a call.
    """
    offsets, times = np.unique(_offsets(calls), return_counts=True)
    planned_once, planned_otherwise = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.int64)
    for (_, of_tp), plans in lane.plans.items():
        if of_tp == tp:
            runs = [plan for plan in plans if plan.kind == "run"]
            planned_once += _is_planned(offsets, (plan for plan in runs if plan.at_most_once))
            planned_otherwise += _is_planned(offsets, (plan for plan in runs if not plan.at_most_once))
    again = offsets[(planned_once > 0) & (planned_otherwise == 0) & (times > planned_once)]
    found.add_offsets("I7", "has more than one handler call, but was planned at most once", tp, again)


def _is_planned(offsets: Ints, plans: Iterable[PlannedRange]) -> Ints:
    """Return 1 for each of `offsets` that a plan contains, otherwise 0."""
    start, end = to_ranges(handed_out for plan in plans for handed_out in plan.handed_out)
    return np.asarray(count_covering(offsets, start, end) > 0, dtype=np.int64)


def check_calls_within_limit(tp: TopicPartition, calls: Ints, max_retries: int, found: Findings) -> None:
    """I5: no handler is called with an attempt above `max_retries` + 1."""
    over = _offsets(calls[(calls & ATTEMPT_MASK) > max_retries + 1])
    what = f"has a handler call of an attempt above the limit of {max_retries + 1} attempts"
    found.add_offsets("I5", what, tp, over)


def judge_calls(lane: LaneHistory, max_retries: int | None, settled: bool, found: Findings) -> None:
    """Apply all rules on the journal, if there is one."""
    if lane.evidence.calls is None:
        return
    calls_by_tp = calls_by_partition(lane.evidence.calls)
    for tp in sorted(calls_by_tp.keys() | {tp for _, tp in lane.outcomes}):
        calls = calls_by_tp.get(tp, EMPTY)
        check_attempts_were_called(lane, tp, calls, found)
        if settled:
            check_calls_have_outcomes(lane, tp, calls, found)
        check_at_most_one_call(lane, tp, calls, found)
        if max_retries is not None:
            check_calls_within_limit(tp, calls, max_retries, found)
