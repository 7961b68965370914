"""Rules on dead letters: a record is dead exactly if its dead letter is on the topic, and dead for a reason."""

from collections.abc import Mapping

import numpy as np

from ackline.verify.arrays import EMPTY, Ints
from ackline.verify.evidence import DeadLetter, Evidence
from ackline.verify.findings import Findings
from ackline.verify.lane_history import LaneHistory, PartitionHistory
from ackline.verify.outcome_rows import DEAD
from ackline.verify.turn_rows import EpochPartition


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
        digest = _digest_of_record(lane.evidence, letter)
        if digest is not None and letter.digest not in (None, digest):
            what = "its dead letter does not have the key and value of the record"
            found.add_offsets("I6", what, letter.tp, [letter.offset])


def _digest_of_record(evidence: Evidence, letter: DeadLetter) -> str | None:
    """Return the digest of the dead record; None if the log does not have it any more."""
    log = evidence.logs.get(letter.tp)
    return log.digests.get(letter.offset) if log else None


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
