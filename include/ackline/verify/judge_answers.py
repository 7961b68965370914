"""Rules on records in flight: an attempt is ended once, and only if it was in flight."""

import numpy as np

from ackline.verify.arrays import Ints
from ackline.verify.findings import Findings
from ackline.verify.lane_history import PartitionHistory
from ackline.verify.outcome_rows import ACKED, IN_FLIGHT, OutcomeRows

_ATTEMPT_BITS = 16


def _keys(rows: OutcomeRows) -> Ints:
    """Return offset and attempt of each row as one number."""
    return (rows.offset << _ATTEMPT_BITS) + rows.attempt


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
    found.add_offsets("I9", "one attempt has two ends", partition.tp, keys[times > 1] >> _ATTEMPT_BITS)
