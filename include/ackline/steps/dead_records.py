"""The records of a lane that are dead, by error class. Reads the tables only."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from ackline.audit.store import LedgerStore
from ackline.lane_diff import NO_RUNS, ResultRuns
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.range_arrays import index_of_range
from ackline.steps.diff_lanes import begun_lane, newest_results_of, topic_ids_of


@dataclass(frozen=True, slots=True)
class DeadClass:
    """The dead records of one error class: how many, and when the first and the last of them was given up."""

    error_class: str | None
    count: int
    first: datetime
    last: datetime


def dead_classes(store: LedgerStore) -> list[DeadClass]:
    """Returns the dead records of a lane by error class, the most frequent first.

    A record counts if its newest terminal outcome in the lane is `dead`: not if a later epoch has settled it otherwise.
    Raises ConfigError for a lane that has not begun.
    """
    newest = begun_lane(store)
    results = newest_results_of(store, newest)
    dead: dict[tuple[TopicPartition, int], tuple[str | None, datetime]] = {}
    for epoch in range(newest.turn.epoch, -1, -1):
        for tp, offset, error_class, at in store.dead_rows(epoch, topic_ids_of([newest])):
            if _is_dead(results.get(tp, NO_RUNS), offset):
                dead.setdefault((tp, offset), (error_class, at))  # the newest epoch comes first
    return _by_class(dead.values())


def _is_dead(runs: ResultRuns, offset: int) -> bool:
    found = int(index_of_range(np.array([offset], dtype=np.int64), (runs.starts, runs.ends))[0])
    return found >= 0 and runs.results[int(runs.codes[found])].outcome == Outcome.DEAD


def _by_class(dead: Iterable[tuple[str | None, datetime]]) -> list[DeadClass]:
    classes: dict[str | None, DeadClass] = {}
    for error_class, at in dead:
        known = classes.get(error_class, DeadClass(error_class, 0, at, at))
        classes[error_class] = DeadClass(error_class, known.count + 1, min(known.first, at), max(known.last, at))
    return sorted(classes.values(), key=lambda found: (-found.count, found.error_class or ""))
