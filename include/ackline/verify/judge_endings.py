"""Rules on handler calls, and on how records end: by a dead letter, by an answer, or in a backfill.

Outcomes come from calls of the journal, and at most once a record has one call. A record is dead exactly if its dead
letter is on the topic, and dead for a reason. An attempt in flight is ended once. A backfill lane reads what was chosen
and nothing else, and accounts for each chosen offset.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.verify.evidence import (
    EMPTY,
    Evidence,
    Findings,
    Ints,
    TopicPartition,
    count_covering,
    to_ints,
    to_ranges,
)
from ackline.verify.lane_history import LaneHistory, PartitionHistory
from ackline.verify.rows import (
    ACKED,
    DEAD,
    IN_FLIGHT,
    LOST,
    OF_GONE,
    EpochPartition,
    OutcomeRows,
    PlannedRange,
)

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


def letter_offsets(evidence: Evidence) -> Mapping[EpochPartition, Ints]:
    """Return the offsets that have dead letters, sorted, by epoch and topic-partition of the dead record.

    A letter of a void turn does not count: settle sends letters before it stores decisions, and a turn that an operator
    closes then is made again.
    """
    rows = evidence.settlements.select(["epoch", "turn", "kind"]).to_pylist()
    void = {(row["epoch"], row["turn"]) for row in rows if row["kind"] == "void"}
    offsets: dict[EpochPartition, set[int]] = {}
    for letter in evidence.lane_letters:
        if (letter.epoch, letter.turn) in void:
            continue
        offsets.setdefault((letter.epoch, letter.tp), set()).add(letter.offset)
    return {key: np.array(sorted(found), dtype=np.int64) for key, found in offsets.items()}


def check_letters_have_the_record(lane: LaneHistory, found: Findings) -> None:
    """I6: a dead letter has the key and value of its record, so the record can be handled from it later."""
    for letter in lane.evidence.lane_letters:
        log = lane.evidence.logs.get(letter.tp)
        digest = log.digests.get(letter.offset) if log else None  # None: the log does not have the record any more
        if digest is not None and letter.digest not in (None, digest):
            what = "its dead letter does not have the key and value of the record"
            found.add_offsets("I6", what, letter.tp, [letter.offset])


def check_dead_records_have_letters(partition: PartitionHistory, letters: Ints, found: Findings) -> None:
    """I6: each dead record has a dead letter on the topic. `letters` are the offsets with one; they may repeat."""
    missing = np.setdiff1d(dead_offsets(partition), letters)
    found.add_offsets("I6", "is dead, but has no dead letter", partition.tp, missing)


def check_letters_are_of_dead_records(partition: PartitionHistory, letters: Ints, found: Findings) -> None:
    """I6: each dead letter is of a dead record, except those of a turn that is not settled yet.

    An open turn sends its dead letters before its settlement. Such a record is pending, or not below complete_to yet.
    """
    extra = np.setdiff1d(letters, dead_offsets(partition))
    if partition.last is not None:
        extra = extra[extra < partition.last.complete_to]
        extra = extra[partition.last.pending.count_covering(extra) == 0]
    found.add_offsets("I6", "has a dead letter, but is not dead", partition.tp, extra)


def check_dead_records_have_failed(partition: PartitionHistory, found: Findings) -> None:
    """I6: each dead record has a failed attempt."""
    failed = partition.outcomes.failures
    never_failed = np.setdiff1d(dead_offsets(partition), failed.offset)
    found.add_offsets("I6", "is dead, but never failed", partition.tp, never_failed)


def check_dead_records_have_no_retries_left(partition: PartitionHistory, max_retries: int, found: Findings) -> None:
    """I6: a record is dead only if its attempts are used up, or if its handler raised Dead."""
    failed = partition.outcomes.failures
    exhausted = failed.offset[failed.raised_dead | (failed.attempt > max_retries)]
    early = np.setdiff1d(np.intersect1d(dead_offsets(partition), failed.offset), exhausted)
    what = "is dead, but has retries left, and its handler did not raise Dead"
    found.add_offsets("I6", what, partition.tp, early)


def dead_offsets(partition: PartitionHistory) -> Ints:
    """Return the offsets of dead records."""
    dead = partition.outcomes.outcome == DEAD
    return partition.outcomes.where(dead).offset


def judge_dead_letters(lane: LaneHistory, max_retries: int | None, found: Findings) -> None:
    """Apply all rules on dead letters; `max_retries` None: the number of attempts that a record may have is unknown."""
    letters = letter_offsets(lane.evidence)
    check_letters_have_the_record(lane, found)
    for epoch, tp in sorted(lane.outcomes.keys() | letters.keys()):
        partition, with_letter = lane.partition(epoch, tp), letters.get((epoch, tp), EMPTY)
        if lane.evidence.letters is not None:
            check_dead_records_have_letters(partition, with_letter, found)
        check_dead_records_have_failed(partition, found)
        if max_retries is not None:
            check_dead_records_have_no_retries_left(partition, max_retries, found)
        check_letters_are_of_dead_records(partition, with_letter, found)


def _keys(rows: OutcomeRows) -> Ints:
    return (rows.offset << ATTEMPT_BITS) + rows.attempt


def check_answers_end_attempts_in_flight(partition: PartitionHistory, found: Findings) -> None:
    """I4: an answer or a deadline ends an attempt that was in flight, in the turn of that attempt or a later one."""
    rows = partition.outcomes
    answers, attempts = rows.where(rows.answered), rows.attempts
    waiting = attempts.where(attempts.outcome == IN_FLIGHT)
    if not len(answers.offset):
        return
    keys = _keys(waiting)
    order = np.argsort(keys)
    index = np.minimum(np.searchsorted(keys[order], _keys(answers)), max(len(keys) - 1, 0))
    known = np.zeros(len(answers.offset), np.bool_)
    if len(keys):
        match = order[index]
        known = (keys[match] == _keys(answers)) & (waiting.turn[match] <= answers.turn)
    found.add_offsets("I4", "was answered, but was not in flight", partition.tp, answers.offset[~known])


def check_no_ack_acks_a_skipped_tree(partition: PartitionHistory, found: Findings) -> None:
    """I10: an answer does not ack a record in flight if a step has skipped a tuple of its tree."""
    rows = partition.outcomes
    skipped = rows.where((rows.outcome == IN_FLIGHT) & rows.raised_skip)
    acked = rows.where(rows.answered & (rows.outcome == ACKED))
    wrong = np.isin(_keys(acked), _keys(skipped))
    what = "was acked from outside, although its own tree was skipped"
    found.add_offsets("I10", what, partition.tp, acked.offset[wrong])


def check_an_attempt_is_ended_once(partition: PartitionHistory, found: Findings) -> None:
    """I9: an attempt in flight is ended once: eight answers for one token are one outcome."""
    rows = partition.outcomes
    ended = rows.where((rows.attempt >= 1) & (rows.outcome != IN_FLIGHT))
    keys, times = np.unique(_keys(ended), return_counts=True)
    found.add_offsets("I9", "one attempt has two ends", partition.tp, keys[times > 1] >> ATTEMPT_BITS)


def check_no_rescued_record_is_gone(partition: PartitionHistory, found: Findings) -> None:
    """S88: a record that has a copy in the rescue topic before a turn is not settled as gone in it."""
    rows, rescued = partition.outcomes, tuple[tuple[int, int], ...]()
    gone = rows.where(np.isin(rows.outcome, OF_GONE))
    for settlement in partition.settlements if len(gone.offset) else ():
        of_turn = gone.where(gone.turn == settlement.turn)
        for start, end in rescued:
            with_copy = np.maximum(of_turn.offset, start)[(of_turn.offset < end) & (of_turn.end > start)]
            what = f"was settled as gone in turn {settlement.turn}, but had a copy in the rescue topic"
            found.add_offsets("S88", what, partition.tp, with_copy)
        rescued = settlement.rescued


def check_only_pending_records_have_copies(partition: PartitionHistory, found: Findings) -> None:
    """S88: after each turn, only pending records have copies: no settled record is read again."""
    for settlement in partition.settlements:
        offsets = _concatenate(np.arange(start, end) for start, end in settlement.rescued)
        extra = offsets[settlement.pending.count_covering(offsets) == 0]
        what = f"has a copy in the rescue topic after turn {settlement.turn}, but is not pending"
        found.add_offsets("S88", what, partition.tp, extra)


def check_only_copied_records_are_released(partition: PartitionHistory, found: Findings) -> None:
    """S89: a turn releases pending records whose copies it stores, and they stay released until they are settled."""
    before = EMPTY
    for settlement in partition.settlements:
        turn, released = settlement.turn, _concatenate(np.arange(start, end) for start, end in settlement.released)
        pending = settlement.pending.count_covering(released) > 0
        what = f"is released after turn {turn}, but is not pending"
        found.add_offsets("S89", what, partition.tp, released[~pending])
        new = np.setdiff1d(released, before)
        what = f"was released in turn {turn}, which has stored no copy of it"
        found.add_offsets("S89", what, partition.tp, new[~settlement.is_rescued(new)])
        left = np.setdiff1d(before, released)
        what = f"was released, and holds the floor again after turn {turn}"
        found.add_offsets("S89", what, partition.tp, left[settlement.pending.count_covering(left) > 0])
        before = released


def check_outcomes_are_of_chosen_offsets(partition: PartitionHistory, found: Findings) -> None:
    """S70: each row is of offsets that were chosen, so overlapping backfills do not touch what is not theirs."""
    chosen, rows = partition.chosen, partition.outcomes
    if chosen is None:
        return
    inside = np.maximum(np.searchsorted(chosen.start, rows.offset, "right") - 1, 0)
    if len(chosen.start):
        outside = (rows.offset < chosen.start[inside]) | (rows.end > chosen.end[inside])
    else:
        outside = rows.offset >= 0
    found.add_offsets("S70", "has an outcome, but is no part of the lane", partition.tp, rows.offset[outside])


def check_each_chosen_offset_is_counted_once(partition: PartitionHistory, found: Findings) -> None:
    """S72: after each turn, each chosen offset has a terminal outcome, is a gap, is pending, or is unread."""
    chosen, terminal = partition.chosen, partition.outcomes.terminal
    if chosen is None:
        return
    gaps = 0
    for settlement in partition.settlements:
        gaps += settlement.gaps
        ended = terminal.turn <= settlement.turn
        settled = int((terminal.end - terminal.offset)[ended].sum())
        left = chosen.end - np.maximum(chosen.start, settlement.complete_to)
        unread = int(np.maximum(left, 0).sum())
        counted = settled + gaps + settlement.pending.size + unread
        if counted != chosen.size:
            what = (
                f"{chosen.size} offsets were chosen, but after turn {settlement.turn} {settled} are settled, "
                f"{gaps} are gaps, {settlement.pending.size} are pending and {unread} are unread"
            )
            found.add("S72", what, partition.tp)


def check_an_older_epoch_is_settled(partition: PartitionHistory, found: Findings) -> None:
    """I15: a new epoch of a backfill lane begins only after the one before it has settled each chosen offset."""
    chosen, last = partition.chosen, partition.last
    if chosen is None or partition.newest or last is None:
        return
    what = f"is still pending in epoch {partition.epoch}, but a later epoch of the lane has begun"
    found.add_offsets("I15", what, partition.tp, last.pending.start)
    end = int(max(chosen.end, default=0))
    if last.complete_to < end:
        what = f"is unread in epoch {partition.epoch}, but a later epoch of the lane has begun"
        found.add_offsets("I15", what, partition.tp, [last.complete_to])
