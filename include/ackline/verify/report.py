"""The report: the violations, and what became of how many records in the newest epoch."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ackline.verify.judge_calls import calls_by_partition
from ackline.verify.judge_outputs import not_judged
from ackline.verify.lane_history import LaneHistory, PartitionHistory
from ackline.verify.outcome_rows import TERMINAL


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict: a sentence for each violation, and counts of the newest epoch, in total and by topic.

    `records` counts the records that a consumer receives, `attempts` and the outcome words the offsets with these
    outcomes, `pending` the pending offsets. `letters` and `calls` count dead letters and handler calls; `letters_again`
    and `calls_again` count the repetitions, which are allowed. There are no calls without a journal. `not_judged` has a
    sentence for each part of the evidence that the checker did not judge.
    """

    violations: list[str]
    totals: dict[str, int]
    topics: dict[str, dict[str, int]]
    not_judged: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no violation."""
        return not self.violations


def make_report(lane: LaneHistory, violations: list[str]) -> Report:
    """Return the report on a lane with these violations."""
    topics = {topic: count_topic(lane, topic) for topic in sorted({tp.topic for tp in lane.evidence.logs})}
    totals: Counter[str] = Counter()
    for counts in topics.values():
        totals.update(counts)
    return Report(violations, dict(totals), topics, not_judged(lane))


def count_topic(lane: LaneHistory, topic: str) -> dict[str, int]:
    """Return the counts of one topic."""
    counts = Counter(dict.fromkeys(("records", *TERMINAL, "pending", "attempts", "failed"), 0))
    for tp, log in lane.evidence.logs.items():
        if tp.topic == topic:
            counts["records"] += len(log.offsets)
            counts.update(_count_partition(lane.partition(lane.newest_epoch, tp)))
    letters = [
        (letter.partition, letter.offset)
        for letter in lane.evidence.lane_letters
        if letter.topic == topic and letter.epoch == lane.newest_epoch
    ]
    counts["letters"] = len(set(letters))
    counts["letters_again"] = len(letters) - counts["letters"]
    if lane.evidence.calls is not None:
        calls = [calls for tp, calls in calls_by_partition(lane.evidence.calls).items() if tp.topic == topic]
        counts["calls"] = sum(len(of_tp) for of_tp in calls)
        counts["calls_again"] = counts["calls"] - sum(len(np.unique(of_tp)) for of_tp in calls)
    return dict(counts)


def _count_partition(partition: PartitionHistory) -> dict[str, int]:
    """Return pending offsets, attempts and outcomes; those of turns that kept no rows are taken from settlements."""
    rows, settlements = partition.outcomes, partition.settlements
    counts = {
        "pending": settlements[-1].pending.size if settlements else 0,
        "attempts": int((rows.attempt >= 1).sum()),
    }
    for code, word in enumerate((*TERMINAL, "failed")):
        counts[word] = int((rows.end - rows.offset)[rows.outcome == code].sum())
    without_rows = set(partition.counted.turn.tolist())
    for settlement in settlements:
        if settlement.turn in without_rows:
            for word in ("acked", "skipped", "dropped"):
                counts[word] += (settlement.counts or {}).get(word, 0)
    return counts
