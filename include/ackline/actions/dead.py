"""The dead records of a lane and their letters, and the outcomes of two lanes compared over what both have settled.

Only `dead_record` reads Kafka: the letter in the dead-letter topic. All else reads the tables alone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from ackline.actions.explain import explain_record
from ackline.errors import ConfigError
from ackline.kafka.dead_letters import FoundLetter, LetterId
from ackline.lane.adapters import Adapters
from ackline.ledger.account import NO_RUNS, ChangedRun, LaneDiff, ResultRuns, compare, newest_results
from ackline.ledger.explain_offset import Event, OffsetExplanation
from ackline.ledger.offsets import TopicPartition, index_of_range
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Settlement, TurnId
from ackline.pipeline.pipeline import TurnSettings
from ackline.tables.store import LedgerStore


def diff_lanes(store: LedgerStore, before: str, after: str) -> tuple[LaneDiff, Iterator[ChangedRun]]:
    """Returns how the newest terminal outcomes of two lanes compare, and the runs of offsets that differ.

    If a topic was created again, only outcomes of the topic that the lane `after` has read are compared. Raises
    ConfigError for a lane that has not begun.
    """
    stores = [store.other_lane(lane) for lane in (before, after)]
    newest = [begun_lane(lane) for lane in stores]
    topic_ids = topic_ids_of(newest)
    old, new = (_results(lane, last, topic_ids) for lane, last in zip(stores, newest, strict=True))
    return compare(old, new)


def newest_results_of(store: LedgerStore, newest: Settlement) -> dict[TopicPartition, ResultRuns]:
    """Returns the newest terminal outcome of each offset of a lane, in the topics that it reads now."""
    return _results(store, newest, topic_ids_of([newest]))


def topic_ids_of(settlements: Iterable[Settlement]) -> dict[str, str]:
    """Returns the ids of the topics of some lanes; where they differ, that of the last lane."""
    return {tp.topic: settled.topic_id for lane in settlements for tp, settled in lane.partitions.items()}


def begun_lane(store: LedgerStore) -> Settlement:
    """Returns the newest settlement of a lane. Raises ConfigError if it has not begun."""
    newest = store.newest()
    if newest is None:
        raise ConfigError(
            f"{store.pipeline} has no lane {store.lane}: write live, or backfill-ID with an id that "
            f"`ackline backfill {store.pipeline} --list` shows",
            key="LANE",
        )
    return newest


def _results(store: LedgerStore, newest: Settlement, topic_ids: dict[str, str]) -> dict[TopicPartition, ResultRuns]:
    epochs = [store.terminal_results(epoch, topic_ids) for epoch in range(newest.turn.epoch, -1, -1)]
    tps = {tp for results in epochs for tp in results}
    return {tp: newest_results(results[tp] for results in epochs if tp in results) for tp in tps}


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
            runs = results.get(tp, NO_RUNS)
            found = int(index_of_range(np.array([offset], dtype=np.int64), runs.ranges)[0])
            if found >= 0 and runs.results[int(runs.codes[found])].outcome == Outcome.DEAD:
                dead.setdefault((tp, offset), (error_class, at))  # the newest epoch comes first
    classes: dict[str | None, DeadClass] = {}
    for error_class, at in dead.values():
        known = classes.get(error_class, DeadClass(error_class, 0, at, at))
        classes[error_class] = DeadClass(error_class, known.count + 1, min(known.first, at), max(known.last, at))
    return sorted(classes.values(), key=lambda found: (-found.count, found.error_class or ""))


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A dead record. `letter_topic` is None if its turn was planned under `dead_letter: none`, and `letter` is None
    then, too, and if the topic does not hold the letter any more."""

    tp: TopicPartition
    offset: int
    given_up: Event
    """The decision that the record is dead."""
    explanation: OffsetExplanation
    letter_topic: str | None
    letter: FoundLetter | None

    @property
    def failure(self) -> Event | None:
        """The last failed attempt of the epoch; None if maintenance has removed its row."""
        failed = [event for event in self.explanation.events if event.outcome is Outcome.FAILED]
        return next((event for event in reversed(failed) if event.epoch == self.given_up.epoch), None)


def dead_record(adapters: Adapters, tp: TopicPartition, offset: int) -> DeadRecord:
    """Returns a dead record of the lane with its letter.

    Raises ConfigError if the record is not dead in the lane, and what `find_letter` raises.
    """
    explanation = explain_record(adapters, tp, offset)
    name, store = adapters.pipeline.name, adapters.store
    lane = store.lane
    decisions = [event for event in explanation.events if event.outcome is Outcome.DEAD]
    if explanation.state != Outcome.DEAD.value or not decisions:
        raise ConfigError(
            f"{tp}: offset {offset} is not dead in the lane {lane}: {explanation.sentence} `ackline dead {name}` lists "
            f"dead records by error class",
            key="OFFSET",
        )
    given_up = decisions[-1]
    # The topic of the turn's plan, whatever the file names by now.
    plan, letter = store.plan(TurnId(name, lane, given_up.epoch, given_up.turn)), None
    topic = TurnSettings(plan.settings).dead_letter_topic
    if topic is not None and given_up.at is not None:
        letter = adapters.find_letter(topic, LetterId(name, lane, given_up.epoch, tp, offset), given_up.at)
    return DeadRecord(tp, offset, given_up, explanation, topic, letter)
