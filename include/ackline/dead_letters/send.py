"""Send dead letters, and decide that their records are `dead`.

A record is `dead` only once all replicas have acknowledged its letter (I6), or if the pipeline file sets
`dead_letter: none`. A letter without an acknowledgement may still have arrived; its record stays pending and the next
turn sends it again. So the dead-letter topic may hold a letter twice, and never misses one.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from ackline.kafka.dead_letters import Letter
from ackline.kafka.exact import Found, Gone
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import truncated_partitions
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Plan
from ackline.tables.turn_outcomes import LastFailure

log = logging.getLogger(__name__)

_PORTION = 10_000

Decision = tuple[TopicPartition, OutcomeRow]
WaitingLetters = Mapping[TopicPartition, Mapping[int, Pending]]
"""By partition and offset: the pending state of each record that waits for its dead letter."""


def send_dead_letters(
    adapters: Adapters, plan: Plan, states: Mapping[TopicPartition, PartitionState]
) -> Iterator[Decision]:
    """Sends the pending dead letters, and yields a decision for each record that can be settled now.

    The other records stay pending. A record that is no longer in its log is decided as `expired` or `compacted`.
    """
    letters = {tp: state.pending.of_kind(PendingKind.DEAD_LETTER) for tp, state in states.items()}
    waiting: WaitingLetters = {
        tp: {offset: run.value for run in runs for offset in range(run.start, run.end)}
        for tp, runs in letters.items()
        if runs
    }
    unchanged = _unchanged_logs(adapters, plan, waiting, states)
    waiting = {tp: waiting[tp] for tp in unchanged}
    topic = adapters.pipeline.dead_letter_topic
    if topic is None:
        for tp, offsets in waiting.items():
            for offset, pending in offsets.items():
                yield tp, _decision(adapters, offset, Outcome.DEAD, pending)
    elif waiting:
        decisions = _send(adapters, plan, topic, waiting)
        # Checked again after reading: a topic that was created again between the first check and the read, or a log
        # that was truncated, has given other records. Their letters are sent, but they settle nothing of the old log.
        still_unchanged = set(_unchanged_logs(adapters, plan, waiting, states))
        yield from ((tp, row) for tp, row in decisions if tp in still_unchanged)


def _send(adapters: Adapters, plan: Plan, topic: str, waiting: WaitingLetters) -> list[Decision]:
    """Sends a letter for each waiting record. Returns decisions for acknowledged letters and for gone records."""
    gone: list[Gone] = []
    decisions: list[Decision] = []
    refused: Counter[str] = Counter()
    with adapters.dead_letter_sender(topic) as sender:
        for delivery in sender.send(_letters(adapters, plan, waiting, gone)):
            source = delivery.letter.source
            if delivery.confirmed and isinstance(source, Found):
                tp, offset = source.topic_partition, source.offset
                decisions.append((tp, _decision(adapters, offset, Outcome.DEAD, waiting[tp][offset])))
            elif not delivery.confirmed:
                refused[delivery.error or "no answer"] += 1
    for error, number in refused.items():
        log.warning("%s: %d dead letters to %s stay pending: %s", plan.turn, number, topic, error)
    decisions += [
        (record.topic_partition, OutcomeRow(record.offset, 0, record.outcome, adapters.now())) for record in gone
    ]
    return decisions


def _decision(adapters: Adapters, offset: int, outcome: Outcome, pending: Pending) -> OutcomeRow:
    """Returns the row that ends a record. Its attempt is 0, so its message names how many attempts the record had."""
    attempts = f"after {pending.attempts} attempt{'s' if pending.attempts != 1 else ''}"
    return OutcomeRow(offset, 0, outcome, adapters.now(), pending.error_class, reason=attempts)


def _unchanged_logs(
    adapters: Adapters, plan: Plan, waiting: Iterable[TopicPartition], states: Mapping[TopicPartition, PartitionState]
) -> list[TopicPartition]:
    """Returns the partitions of `waiting` whose log is unchanged since the plan, up to `complete_to`.

    If the topic was created again, or the log was truncated and has grown again, the record at the offset is a
    different one: a letter of it would settle a record that was never read. Dead letters of such partitions stay
    pending, and so do those of partitions without a leader, whose log can't be checked.
    """
    topics = adapters.cluster.topics({tp.topic for tp in waiting})
    with_leader = [
        tp
        for tp in waiting
        if (topic := topics.get(tp.topic))
        and topic.topic_id == plan.partitions[tp].topic_id
        and topic.partitions.get(tp.partition)
    ]
    known = {tp: (states[tp].complete_to, plan.partitions[tp].log.leader_epoch) for tp in with_leader}
    truncated = truncated_partitions(adapters, known, adapters.cluster.bounds(with_leader))
    return [tp for tp in with_leader if tp not in truncated]


def _letters(adapters: Adapters, plan: Plan, waiting: WaitingLetters, gone: list[Gone]) -> Iterator[Letter]:
    """Yields a letter for each waiting record, read again from its topic; adds records that are gone to `gone`."""
    with adapters.reader() as reader:
        for portion in _portions(waiting):
            attempts = {tp: {offset: waiting[tp][offset].attempts for offset in part} for tp, part in portion.items()}
            failures = adapters.store.last_failures(plan.turn, attempts)
            for found in reader.read(portion):
                if isinstance(found, Gone):
                    gone.append(found)
                    continue
                tp, offset = found.topic_partition, found.offset
                yield _letter(plan, found, waiting[tp][offset], failures.get((tp, offset)))


def _portions(waiting: WaitingLetters) -> Iterator[dict[TopicPartition, list[int]]]:
    """Yields the waiting offsets in portions of at most _PORTION, so that few error messages are held at a time."""
    remaining = iter([(tp, offset) for tp, offsets in waiting.items() for offset in offsets])
    while portion := list(islice(remaining, _PORTION)):
        by_partition: dict[TopicPartition, list[int]] = {}
        for tp, offset in portion:
            by_partition.setdefault(tp, []).append(offset)
        yield by_partition


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
