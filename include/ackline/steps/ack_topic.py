"""The ack topic of a pipeline: where a turn begins to read answers from outside, and reading them.

The position is fenced like everything else of a turn. Plan n holds where the turn begins: where settlement n - 1 has
ended, or the end of the topic if the lane has not read it before. The latter is decided before the first token of the
turn can exist, so no answer to it is passed over, however early it comes (S64). The end of the range is stored with
decisions n, and settlement n takes it from there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from ackline.answers import AckPosition
from ackline.errors import AcklineError, ConfigError
from ackline.kafka.cluster import TopicInfo
from ackline.kafka.exact import Found
from ackline.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.steps.parts import Parts
from ackline.turns import Settlement

_NAMED = 5
"""How many partitions a warning names."""


@dataclass(frozen=True, slots=True)
class AnswerRange:
    """The answers that a turn reads, and the position after them. `warnings` say what the topic has lost or hides.

    `at` is the time of the run right before the end was determined: an answer that was there by then is in the range,
    unless it `hides_answers` behind an open transaction.
    """

    ranges: dict[TopicPartition, OffsetRange]
    after: AckPosition
    warnings: tuple[str, ...]
    at: datetime
    hides_answers: bool


def start_position(parts: Parts, newest: Settlement) -> AckPosition | None:
    """Returns from where the turn after `newest` reads answers; None if the pipeline has no ack topic.

    Raises ConfigError if the topic does not exist or is compacted.
    """
    topic = parts.pipeline.ack_topic
    if topic is None:
        return None
    info = checked_topic(parts, topic)
    if newest.answers is not None and newest.answers.position.topic == topic:
        return newest.answers.position  # also if the topic was created again: settle reports that
    ends = parts.cluster.bounds([TopicPartition(topic, number) for number in info.partitions])
    return AckPosition(topic, info.topic_id, {tp.partition: log.end for tp, log in ends.items()})


def checked_topic(parts: Parts, topic: str) -> TopicInfo:
    """Returns the ack topic. Raises ConfigError if it does not exist, or is compacted."""
    info = parts.cluster.topics([topic]).get(topic)
    if info is None:
        raise ConfigError(
            f"the ack topic {topic} of pipeline {parts.pipeline.name} does not exist: create it, or correct its name. "
            f"Nothing was planned",
            key="ack_topic",
        )
    try:
        policy = parts.cluster.policies([topic]).get(topic)
    except AcklineError:
        # This user may not describe topics. That is no reason to stop: only a compacted topic loses answers.
        return info
    if policy is not None and policy.compacted:
        raise ConfigError(
            f"the ack topic {topic} of pipeline {parts.pipeline.name} is compacted, so it may lose an answer before it "
            f"is read: set its cleanup.policy to delete. Nothing was planned",
            key="ack_topic",
        )
    return info


def unread_answers(parts: Parts, newest: Settlement) -> AnswerRange | None:
    """Returns the answers that the lane has not read; None if the pipeline has no ack topic.

    Raises ConfigError if the topic does not exist or is compacted, TransientError if a partition has no leader.
    """
    position = start_position(parts, newest)
    return range_to_read(parts, position) if position is not None else None


def range_to_read(parts: Parts, position: AckPosition) -> AnswerRange:
    """Returns the answers from `position` to the present end of the topic.

    Raises ConfigError if the topic does not exist, TransientError if a partition has no leader: an answer there may be
    for a record whose deadline has passed, so the turn waits for it.
    """
    topic = position.topic
    # The id before the bounds. If the topic is created again in between, the next turn finds the new id, and reads the
    # new topic from its start.
    info = parts.cluster.topics([topic]).get(topic)
    if info is None:
        raise ConfigError(
            f"the ack topic {topic} of pipeline {parts.pipeline.name} does not exist any more: create it again. The "
            f"turn stays open until then",
            key="ack_topic",
        )
    tps, at = [TopicPartition(topic, number) for number in info.partitions], parts.now()
    # Before the bounds: what is written by now and not readable then is in or behind an open transaction.
    written = parts.cluster.written_ends(tps) if parts.pipeline.kafka.isolation == "read_committed" else {}
    logs = parts.cluster.bounds(tps)
    is_same_topic = info.topic_id == position.topic_id
    known = position.next if is_same_topic else {}
    starts = {tp: known.get(tp.partition, 0) for tp in logs}
    ranges = {tp: _readable_range(log, starts[tp], written.get(tp)) for tp, log in logs.items()}
    # A truncation may have taken what was written a moment ago. Then, too, nothing times out before the next turn.
    hidden = [tp for tp, end in written.items() if end > max(logs[tp].end, starts[tp])]
    warnings = []
    if not is_same_topic:
        warnings.append(f"the ack topic {topic} was created again: answers that were not read before that are lost")
    for tp, log in logs.items():
        warnings += _losses(tp, log, starts[tp] if tp.partition in known else None, ranges[tp].end)
    if hidden:
        warnings.append(_hidden_text({tp: ranges[tp].end for tp in hidden}))
    after = AckPosition(topic, info.topic_id, {tp.partition: part.end for tp, part in ranges.items()})
    return AnswerRange(ranges, after, tuple(warnings), at, bool(hidden))


def _readable_range(log: LogBounds, start: int, written: int | None) -> OffsetRange:
    """Returns the offsets of a partition from `start` to its readable end, as far as the log has them.

    `written` is the end of the log with open transactions; None under read_uncommitted.
    """
    # An open transaction may hold the readable end below what was read before. Nothing is lost then, and nothing read.
    is_behind = written is not None and log.end < start <= written
    end = start if is_behind else log.end
    return OffsetRange(min(max(start, log.start), end), end)


def _losses(tp: TopicPartition, log: LogBounds, start: int | None, end: int) -> Iterator[str]:
    """Yields what the log of a partition has lost of the answers from `start` on; `end` is the end of what is read.

    A partition that was not read before has the `start` None, and has lost nothing.
    """
    if start is None:
        return
    if log.start > start:
        yield f"answers [{start}, {log.start}) of the ack topic {tp} are lost: retention took them"
    if end < start:
        yield f"answers of the ack topic {tp} from {end} on are lost: its log was truncated from {start}"


def _hidden_text(ends: Mapping[TopicPartition, int]) -> str:
    """Returns the warning about open transactions, given the end of what is readable in each such partition."""
    names = ", ".join(f"{tp} from {end} on" for tp, end in list(ends.items())[:_NAMED])
    more = f" and {len(ends) - _NAMED} more partitions" if len(ends) > _NAMED else ""
    return f"an open transaction hides answers of the ack topic {names}{more}: nothing times out in this turn"


def read_answers(parts: Parts, wanted: AnswerRange) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yields key and value of each answer, in their order within a partition. Raises what an exact read raises."""
    offsets = {tp: range(part.start, part.end) for tp, part in wanted.ranges.items() if part}
    if not offsets:
        return
    with parts.reader() as reader:
        for answer in reader.read(offsets):
            if isinstance(answer, Found):  # the other offsets hold no record
                yield answer.message.key(), answer.message.value()
