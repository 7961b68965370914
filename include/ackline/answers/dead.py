"""The dead records of a lane and their letters, and the outcomes of two lanes compared over what both have settled.

Only `dead_record` reads Kafka: the letter in the dead-letter topic. All else reads the tables alone.
"""

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from pydantic import Field

from ackline.actions.objects import JsonObject, PartitionObject, RangeObject, Time
from ackline.answers.explain import explain_record
from ackline.errors import ConfigError
from ackline.kafka.dead_letters import FoundLetter, LetterId
from ackline.lane.adapters import Adapters
from ackline.ledger.account import NO_RUNS, ChangedRun, LaneDiff, ResultRuns, compare, newest_results
from ackline.ledger.explain import Event, OffsetExplanation
from ackline.ledger.offsets import TopicPartition, index_of_range
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Settlement, TurnId
from ackline.pipeline.pipeline import TurnSettings
from ackline.tables.chosen import DeadRow
from ackline.tables.store import LedgerStore

MOST_BYTES = 64 * 1024
"""Bytes of a value that are shown at most."""


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


def topic_ids_of(settlements: Iterable[Settlement]) -> dict[str, str]:
    """Returns the ids of the topics of some lanes; where they differ, that of the last lane."""
    # A partition that was let go says nothing of the id that the others of its topic have.
    rows = [item for lane in settlements for item in lane.partitions.items()]
    return {tp.topic: row.known_topic_id for tp, row in sorted(rows, key=lambda item: not item[1].let_go)}


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


class ResultObject(JsonObject):
    """A terminal outcome, and the error class of its row."""

    outcome: str
    error_class: str | None


class ChangedObject(JsonObject):
    """How many offsets have one result in the first lane, and another one in the second."""

    before: ResultObject = Field(serialization_alias="from")
    after: ResultObject = Field(serialization_alias="to")
    count: int


class ChangedRunObject(RangeObject):
    """Offsets whose result differs between the two lanes."""

    before: ResultObject = Field(serialization_alias="from")
    after: ResultObject = Field(serialization_alias="to")


class DiffObject(JsonObject):
    """Two lanes compared, the most frequent change first. `records` are listed where they are wanted."""

    left_out = frozenset({"records"})
    same: int
    changed: tuple[ChangedObject, ...]
    only: dict[str, int]
    records: tuple[ChangedRunObject, ...] | None = None


def diff_object(found: LaneDiff, before: str, after: str, changed: Iterable[ChangedRun] | None = None) -> DiffObject:
    """Returns the comparison of two lanes as an object; with `changed` it lists these runs."""
    changes = [{"before": old, "after": new, "count": number} for (old, new), number in found.changed.most_common()]
    runs = None if changed is None else [{**run._asdict(), **run.tp._asdict()} for run in changed]
    for run in runs or ():
        del run["tp"]
    only = dict(zip((before, after), found.only, strict=True))
    return DiffObject.model_validate({"same": found.same, "changed": changes, "only": only, "records": runs})


class DeadGroup(JsonObject):
    """The dead records of one error class and one place: how many, when the first and the last of them was given up,
    and how many in which epoch. The place is that of the last failed attempt, None if it is not known."""

    error_class: str | None
    error_place: str | None
    count: int
    first: Time
    last: Time
    epochs: dict[str, int]


class DeadObject(JsonObject):
    """The dead records of a lane by error class and place."""

    pipeline: str
    lane: str
    dead: tuple[DeadGroup, ...]
    total: int


DeadOffsets = dict[tuple[TopicPartition, int], tuple[DeadRow, int]]
"""The row and the epoch of each dead record."""


def dead_offsets(store: LedgerStore) -> DeadOffsets:
    """Returns the dead records of a lane.

    A record counts if its newest terminal outcome in the lane is `dead`: not if a later epoch has settled it otherwise.
    Raises ConfigError for a lane that has not begun.
    """
    newest = begun_lane(store)
    topic_ids = topic_ids_of([newest])
    results = _results(store, newest, topic_ids)
    dead: DeadOffsets = {}
    for epoch in range(newest.turn.epoch, -1, -1):
        for row in store.dead_rows(epoch, topic_ids):
            runs = results.get(row.tp, NO_RUNS)
            found = int(index_of_range(np.array([row.offset], dtype=np.int64), runs.ranges)[0])
            if found >= 0 and runs.results[int(runs.codes[found])].outcome == Outcome.DEAD:
                dead.setdefault((row.tp, row.offset), (row, epoch))  # the newest epoch comes first
    return dead


def dead_groups(store: LedgerStore) -> list[DeadGroup]:
    """Returns the dead records of a lane, as `dead_offsets` finds them, by error class and place, the most frequent
    first."""
    times: dict[tuple[str | None, str | None], list[datetime]] = {}
    epochs: dict[tuple[str | None, str | None], Counter[int]] = {}
    for row, epoch in dead_offsets(store).values():
        group = row.error_class, row.error_place
        times.setdefault(group, []).append(row.at)
        epochs.setdefault(group, Counter())[epoch] += 1
    groups = [
        DeadGroup(
            error_class=group[0], error_place=group[1], count=len(of_group), first=min(of_group), last=max(of_group),
            epochs={str(epoch): number for epoch, number in sorted(epochs[group].items(), reverse=True)},
        )
        for group, of_group in times.items()
    ]  # fmt: skip
    return sorted(groups, key=_most_first)


def _most_first(found: "DeadGroup | DeadEverywhere") -> tuple[int, str, str]:
    return -found.count, found.error_class or "", found.error_place or ""


class DeadEverywhere(JsonObject):
    """The dead records of one error class and one place in several pipelines: how many, and when the first and the last
    of them was given up."""

    error_class: str | None
    error_place: str | None
    pipelines: tuple[str, ...]
    count: int
    first: Time
    last: Time


class UnreadablePipeline(JsonObject):
    """A pipeline whose file or tables can't be read."""

    pipeline: str
    error: str


class DeadOfAllObject(JsonObject):
    """The dead records of the live lanes of all pipelines, by error class and place."""

    dead: tuple[DeadEverywhere, ...]
    total: int
    unreadable: tuple[UnreadablePipeline, ...]


def joined_groups(of_pipelines: Mapping[str, Sequence[DeadGroup]]) -> list[DeadEverywhere]:
    """Returns the groups of several pipelines, those of the same class and place joined, the most frequent first."""
    same: dict[tuple[str | None, str | None], list[tuple[str, DeadGroup]]] = {}
    for pipeline, groups in of_pipelines.items():
        for group in groups:
            same.setdefault((group.error_class, group.error_place), []).append((pipeline, group))
    joined = [
        DeadEverywhere(
            error_class=error_class, error_place=place, pipelines=tuple(sorted({name for name, _ in found})),
            count=sum(group.count for _, group in found), first=min(group.first for _, group in found),
            last=max(group.last for _, group in found),
        )
        for (error_class, place), found in same.items()
    ]  # fmt: skip
    return sorted(joined, key=_most_first)


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


class LetterObject(PartitionObject):
    """A dead letter. Of the record it has the names of the headers and the sizes of key and value; null for a null."""

    offset: int
    sent_at: Time | None
    headers: dict[str, str]
    source_headers: tuple[str | tuple[str, str | None], ...]
    """The headers of the record, which may repeat a name: their names, or pairs of a name and its value."""
    key_bytes: int | None
    value_bytes: int | None


class LetterWithPayloadObject(LetterObject):
    """A dead letter with the payload of its record."""

    key: str | None
    value: str | None


class DeadRecordObject(JsonObject):
    """A dead record, with its last failed attempt and its letter."""

    pipeline: str
    lane: str
    topic: str
    partition: int
    offset: int
    epoch: int
    turn: int
    run_id: str
    error_class: str | None
    error_message: str | None
    error_place: str | None
    attempts: int
    failed_at: Time | None
    dead_at: Time | None
    letter_topic: str | None
    letter: LetterWithPayloadObject | LetterObject | None


def dead_record_object(pipeline: str, lane: str, record: DeadRecord, show_value: bool) -> DeadRecordObject:
    """Returns a dead record as an object; only with `show_value` it holds key, value and headers of the record."""
    given_up, failure, letter = record.given_up, record.failure, record.letter
    shown: LetterObject | None = None
    if letter is not None:
        sizes = (None if content is None else len(content) for content in (letter.key, letter.value))
        source = [(name, text_of(value)) if show_value else name for name, value in letter.source_headers]
        values = {**letter.tp._asdict(), "offset": letter.offset, "sent_at": letter.sent_at, "headers": letter.headers}
        values |= {"source_headers": source, **dict(zip(("key_bytes", "value_bytes"), sizes, strict=True))}
        if show_value:
            payload = {"key": text_of(letter.key), "value": text_of(letter.value)}
            shown = LetterWithPayloadObject.model_validate({**values, **payload})
        else:
            shown = LetterObject.model_validate(values)
    return DeadRecordObject(
        pipeline=pipeline, lane=lane, topic=record.tp.topic, partition=record.tp.partition, offset=record.offset,
        epoch=given_up.epoch, turn=given_up.turn, run_id=given_up.run_id, error_class=given_up.error_class,
        error_message=failure.error_message if failure else None,
        error_place=failure.error_place if failure else None, attempts=record.explanation.attempts,
        failed_at=failure.at if failure else None, dead_at=given_up.at, letter_topic=record.letter_topic, letter=shown,
    )  # fmt: skip


def text_of(content: bytes | None) -> str | None:
    """Returns UTF-8 text, or the hexadecimal form of other bytes, of the first MOST_BYTES; None for a null."""
    if content is None:
        return None
    more = len(content) - MOST_BYTES
    try:
        # A character may be cut at the limit: then the decoder leaves it out.
        text = codecs.getincrementaldecoder("utf-8")().decode(content[:MOST_BYTES], final=more <= 0)
    except UnicodeDecodeError:
        text = f"0x{content[:MOST_BYTES].hex()}"
    return text + (f" … and {more:,} more bytes" if more > 0 else "")
