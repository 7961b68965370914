"""Send dead letters, and decide that their records are `dead`.

A record is `dead` only once all replicas have acknowledged its letter (I6), or if the pipeline file sets
`dead_letter: none`. A letter without an acknowledgement may still have arrived; its record stays pending and the next
turn sends it again. So the dead-letter topic may hold a letter twice, and never misses one.
"""

import logging
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, repeat
from typing import Self

import numpy as np

from ackline.errors import MissingRights
from ackline.kafka.dead_letters import Letter
from ackline.kafka.exact import Found, Gone
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import unchanged_logs
from ackline.lane.rights import Right, rights_text
from ackline.ledger.copies import Rescued
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.ledger.offsets import Int64s, TopicPartition, union
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import PendingRuns
from ackline.ledger.turns import Plan
from ackline.tables.turn_outcomes import LastFailure

log = logging.getLogger(__name__)

_PORTION = 10_000

WaitingLetters = Mapping[TopicPartition, PendingRuns]
"""By partition: the records that wait for their dead letters."""
Portion = dict[TopicPartition, dict[int, Pending]]
"""By partition and offset: the pending state of each of a few waiting records."""


@dataclass(frozen=True, slots=True)
class Letters:
    """Where the letters of some records are, as columns that are sorted by the offset of the record."""

    topic: str
    offsets: Int64s
    """The offsets of the records, each once."""
    partitions: Int64s
    places: Int64s
    """The offsets of the letters in these partitions."""

    @classmethod
    def of(cls, topic: str, confirmed: "tuple[array[int], array[int], array[int]]") -> Self:
        """Returns the letters whose columns come in any order. Of two letters of a record it keeps one."""
        offsets, partitions, places = (np.array(column, dtype=np.int64) for column in confirmed)
        each, first = np.unique(offsets, return_index=True)
        return cls(topic, each, partitions[first], places[first])

    def __iter__(self) -> Iterator[str]:
        """Yields the place of each letter as TOPIC[PARTITION] OFFSET."""
        for partition, place in zip(self.partitions, self.places, strict=True):
            yield f"{TopicPartition(self.topic, int(partition))} {place}"


@dataclass(frozen=True, slots=True)
class DeadRows:
    """The rows of records that are decided, by offset. They are made while they are iterated, more than once if need
    be, and only columns are held: a turn may have millions of dead letters.

    The attempt of a row is 0, so the message of a dead record names how many attempts it had.
    """

    dead: PendingRuns
    gone: Mapping[Outcome, "array[int]"]
    """The offsets that are no longer in the log, by outcome."""
    now: datetime
    letters: Letters | None = None
    """The letter of each dead record; None without dead letters."""

    def __len__(self) -> int:
        return self.dead.offsets + sum(map(len, self.gone.values()))

    def __iter__(self) -> Iterator[OutcomeRow]:
        letters = repeat(None) if self.letters is None else iter(self.letters)
        for run in self.dead:
            pending = run.value
            attempts = f"after {pending.attempts} attempt{'s' if pending.attempts != 1 else ''}"
            for offset in range(run.start, run.end):
                letter = next(letters)
                yield OutcomeRow(offset, 0, Outcome.DEAD, self.now, pending.error_class, reason=attempts, letter=letter)
        for outcome, offsets in self.gone.items():
            for offset in offsets:
                yield OutcomeRow(offset, 0, outcome, self.now)


def send_dead_letters(
    adapters: Adapters, plan: Plan, states: Mapping[TopicPartition, PartitionState]
) -> dict[TopicPartition, DeadRows]:
    """Sends the pending dead letters, and returns by partition the decisions for the records that can be settled now.

    The other records stay pending. A record that is no longer in its log is decided as `expired` or `compacted`. Raises
    MissingRights if the login may not write to the topic: no later turn could send the letters either.
    """
    letters = {tp: state.pending.of_kind(PendingKind.DEAD_LETTER) for tp, state in states.items()}
    waiting: WaitingLetters = {tp: runs for tp, runs in letters.items() if runs}
    unchanged = unchanged_logs(adapters, plan, waiting, states)
    waiting = {tp: waiting[tp] for tp in unchanged}
    topic = adapters.pipeline.dead_letter_topic
    if topic is None:
        return {tp: DeadRows(runs, {}, adapters.now()) for tp, runs in waiting.items()}
    if not waiting:
        return {}
    decided = _send(adapters, plan, topic, waiting, states)
    # Checked again after reading: a topic that was created again between the first check and the read, or a log that
    # was truncated, has given other records. Their letters are sent, but they settle nothing of the old log.
    still_unchanged = set(unchanged_logs(adapters, plan, waiting, states))
    return {tp: rows for tp, rows in decided.items() if rows and tp in still_unchanged}


def _send(
    adapters: Adapters, plan: Plan, topic: str, waiting: WaitingLetters, states: Mapping[TopicPartition, PartitionState]
) -> dict[TopicPartition, DeadRows]:
    """Sends a letter for each waiting record. Returns decisions for acknowledged letters and for gone records."""
    gone: dict[TopicPartition, dict[Outcome, array[int]]] = {tp: {} for tp in waiting}
    confirmed = {tp: (array("q"), array("q"), array("q")) for tp in waiting}
    refused: Counter[str] = Counter()
    with adapters.dead_letter_sender(topic) as sender:
        for delivery in sender.send(_letters(adapters, plan, waiting, states, gone)):
            source = delivery.letter.source
            if delivery.confirmed and isinstance(source, Found):
                values = (source.offset, delivery.partition, delivery.offset)
                for column, value in zip(confirmed[source.topic_partition], values, strict=True):
                    column.append(value)
            elif delivery.denied:
                right = Right("WRITE", "topic", topic)
                raise MissingRights(rights_text(adapters, [right], f"{plan.turn} stays open until it is granted"))
            elif not delivery.confirmed:
                refused[delivery.error or "no answer"] += 1
    for error, number in refused.items():
        log.warning("%s: %d dead letters to %s stay pending: %s", plan.turn, number, topic, error)
    now = adapters.now()
    letters = {tp: Letters.of(topic, columns) for tp, columns in confirmed.items()}
    return {tp: DeadRows(_runs_at(waiting[tp], of.offsets), gone[tp], now, of) for tp, of in letters.items()}


def _runs_at(runs: PendingRuns, offsets: Int64s) -> PendingRuns:
    """Returns what is pending at these offsets, which ascend."""
    return runs.within(union((offsets, offsets + 1)))


def _letters(
    adapters: Adapters,
    plan: Plan,
    waiting: WaitingLetters,
    states: Mapping[TopicPartition, PartitionState],
    gone: Mapping[TopicPartition, dict[Outcome, "array[int]"]],
) -> Iterator[Letter]:
    """Yields a letter for each waiting record, read again from its topic or from its copy; adds the offsets of records
    that are gone to `gone`."""
    rescued = {tp: Rescued(plan.partitions[tp].topic_id, states[tp].copies) for tp in waiting}
    with adapters.copy_reader(rescued) as reader:
        for portion in _portions(waiting):
            attempts = {tp: {offset: of.attempts for offset, of in part.items()} for tp, part in portion.items()}
            failures = adapters.store.last_failures(plan.turn, attempts)
            for found in reader.read({tp: list(part) for tp, part in portion.items()}):
                tp, offset = found.topic_partition, found.offset
                if isinstance(found, Gone):
                    gone[tp].setdefault(found.outcome, array("q")).append(offset)
                    continue
                yield _letter(plan, found, portion[tp][offset], failures.get((tp, offset)))


def _portions(waiting: WaitingLetters) -> Iterator[Portion]:
    """Yields the waiting records in portions of at most _PORTION, so that few of them are held as objects at a time."""
    remaining = (
        (tp, offset, run.value) for tp, runs in waiting.items() for run in runs for offset in range(run.start, run.end)
    )
    while some := list(islice(remaining, _PORTION)):
        portion: Portion = {}
        for tp, offset, pending in some:
            portion.setdefault(tp, {})[offset] = pending
        yield portion


def _letter(plan: Plan, found: Found, pending: Pending, failure: LastFailure | None) -> Letter:
    """Returns the record with headers that name its source and why it is dead.

    All but `turn` are the same however often the letter is sent. The header of the message, and that of its time, are
    missing if maintenance has removed the row of the attempt; the one of the message also if the failure had none.
    """
    tp = found.topic_partition
    _, timestamp = found.message.timestamp()
    headers: dict[str, object] = {
        "pipeline": plan.turn.pipeline,
        "lane": plan.turn.lane,
        "epoch": plan.turn.epoch,
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": found.offset,
        "timestamp": timestamp,
        "attempts": pending.attempts,
        "error_class": pending.error_class or "",
        "turn": plan.turn.n,
    }
    if failure is not None and failure.message is not None:
        headers["error_message"] = failure.message
    if failure is not None:
        headers["failed_at"] = failure.failed_at.isoformat(timespec="milliseconds")
    return Letter(found, [(f"ackline.{name}", str(value).encode()) for name, value in headers.items()])
