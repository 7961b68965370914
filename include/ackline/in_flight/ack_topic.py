"""The ack topic of a pipeline: sending answers for records in flight, and where a turn begins and ends to read them.

The position is fenced like everything else of a turn. Plan n holds where the turn begins: where settlement n - 1 has
ended, or the end of the topic if the lane has not read it before. The latter is decided before the first token of the
turn can exist, so no answer to it is passed over, however early it comes (S64). The end of the range is stored with
decisions n, and settlement n takes it from there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ackline.errors import AcklineError, ConfigError
from ackline.kafka.cluster import TopicInfo
from ackline.kafka.exact import Found, Gone
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import truncated_partitions
from ackline.lane.ways_out import start_over
from ackline.ledger.answers import Token
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import AckPosition, Settlement

_NAMED = 5
"""How many partitions a warning names."""
_WITHHELD = "nothing times out in this turn"


@dataclass(frozen=True, slots=True)
class AnswerRange:
    """The answers that a turn reads, and the position after them. `warnings` name what the topic has lost or hides.

    `at` is the time of the run right before the end was determined: an answer that was there by then is in the range,
    unless the topic `hides_answers` behind an open transaction or in a partition without a leader.
    """

    ranges: dict[TopicPartition, OffsetRange]
    after: AckPosition
    warnings: tuple[str, ...]
    at: datetime
    hides_answers: bool


def start_position(adapters: Adapters, newest: Settlement) -> AckPosition | None:
    """Returns from where the turn after `newest` reads answers; None if the pipeline has no ack topic.

    Raises ConfigError if the topic does not exist or is compacted.
    """
    topic = adapters.pipeline.ack_topic
    if topic is None:
        return None
    info = checked_topic(adapters, topic)
    if newest.answers is not None and newest.answers.position.topic == topic:
        return newest.answers.position  # also if the topic was created again: settle reports that
    # A partition without a leader is read from its start later: what it holds by now is for no token of this lane.
    logs = adapters.cluster.bounds(_by_leader(topic, info)[0])
    ranges = {tp: OffsetRange(log.end, log.end) for tp, log in logs.items()}
    return _after(AckPosition(topic, info.topic_id), ranges, logs)


def checked_topic(adapters: Adapters, topic: str) -> TopicInfo:
    """Returns the ack topic. Raises ConfigError if it does not exist, or is compacted."""
    info = adapters.cluster.topics([topic]).get(topic)
    if info is None:
        raise ConfigError(
            f"the ack topic {topic} of pipeline {adapters.pipeline.name} does not exist: create it, or correct its "
            f"name. Nothing was planned or sent. {_way_out(adapters)}",
            key="ack_topic",
        )
    try:
        policy = adapters.cluster.policies([topic]).get(topic)
    except AcklineError:
        # This user may not describe topics. That is no reason to stop: only a compacted topic loses answers.
        return info
    if policy is not None and policy.compacted:
        raise ConfigError(
            f"the ack topic {topic} of pipeline {adapters.pipeline.name} is compacted, so it may lose an answer "
            f"before it is read: set its cleanup.policy to delete. Nothing was planned",
            key="ack_topic",
        )
    return info


def _way_out(adapters: Adapters) -> str:
    """Returns what an operator does who gives the ack topic up while records are in flight."""
    way_out = start_over(adapters.store)
    if not adapters.commits:
        return f"Or {way_out}"
    return f"To go on without it, take `ack_topic` out of the file and {way_out}, which reads again what is in flight"


def unread_answers(adapters: Adapters, newest: Settlement) -> AnswerRange | None:
    """Returns the answers that the lane has not read; None if the pipeline has no ack topic.

    Raises ConfigError if the topic does not exist or is compacted, TransientError if a leader does not answer.
    """
    position = start_position(adapters, newest)
    return range_to_read(adapters, position) if position is not None else None


def range_to_read(adapters: Adapters, position: AckPosition) -> AnswerRange:
    """Returns the answers from `position` to the present end of the topic, without partitions that have no leader.

    Raises ConfigError if the topic does not exist, TransientError if a leader does not answer: an answer there may be
    for a record whose deadline has passed, so the turn waits for it.
    """
    topic = position.topic
    # The id before the bounds. If the topic is created again in between, the next turn finds the new id, and reads the
    # new topic from its start.
    info = adapters.cluster.topics([topic]).get(topic)
    if info is None:
        raise ConfigError(
            f"the ack topic {topic} of pipeline {adapters.pipeline.name} does not exist any more: create it again, "
            f"empty or not. The turn stays open until then",
            key="ack_topic",
        )
    tps, leaderless = _by_leader(topic, info)
    at = adapters.now()  # before the bounds: they show whether an open transaction hides what is written by now
    logs = adapters.cluster.bounds(tps)
    warnings = []
    if info.topic_id != position.topic_id:
        position = AckPosition(topic, info.topic_id)
        warnings.append(f"the ack topic {topic} was created again: answers that were not read before that are lost")
    starts = _starts(adapters, position, logs, warnings)
    # Under read_committed an open transaction may hold the readable end below what was read before; nothing is lost.
    ends = {tp: max(log.end, starts[tp]) for tp, log in logs.items()}
    ranges = {tp: OffsetRange(min(max(starts[tp], log.start), ends[tp]), ends[tp]) for tp, log in logs.items()}
    for tp, part in ranges.items():
        if logs[tp].start > starts[tp] and tp.partition in position.next:
            warnings.append(_lost_to_retention(tp, starts[tp], part.start))
    # Nothing of these partitions is known: their answers may be for any record. The position stays where it was, so a
    # later turn reads them.
    if leaderless:
        names = _names([str(tp) for tp in leaderless])
        warnings.append(f"the ack topic {names} has no leader, so its answers can't be read yet: {_WITHHELD}")
    hidden = [f"{tp} from {ranges[tp].end} on" for tp, log in logs.items() if log.high_watermark > ranges[tp].end]
    if hidden:
        warnings.append(f"an open transaction hides answers of the ack topic {_names(hidden)}: {_WITHHELD}")
    return AnswerRange(ranges, _after(position, ranges, logs), tuple(warnings), at, bool(hidden or leaderless))


def _by_leader(topic: str, info: TopicInfo) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Returns the partitions of the topic with a leader, and those without one."""
    tps = {TopicPartition(topic, number): has_leader for number, has_leader in info.partitions.items()}
    return [tp for tp, has_leader in tps.items() if has_leader], [tp for tp, has in tps.items() if not has]


def _starts(
    adapters: Adapters,
    position: AckPosition,
    logs: Mapping[TopicPartition, LogBounds],
    warnings: list[str],
) -> dict[TopicPartition, int]:
    """Returns from where each partition is read: the position, or below it what a truncation has left.

    After a truncation new answers take the offsets of those that were read. So reading goes on where the logs part, and
    an answer that is read a second time is stale.
    """
    starts = {tp: position.next.get(tp.partition, 0) for tp in logs}
    known = {tp: (start, position.leader_epochs.get(tp.partition)) for tp, start in starts.items() if start}
    truncated = truncated_partitions(adapters, known, logs)
    for tp, log in logs.items():
        # Without a known leader epoch, only the end of the log shows a truncation.
        if tp not in truncated and log.high_watermark < starts[tp]:
            truncated[tp] = log.end
    for tp, end in truncated.items():
        left = logs[tp].start if end is None else min(end, starts[tp])
        warnings.append(
            f"answers of the ack topic {tp} from {left} on are lost: its log was truncated from {starts[tp]}"
        )
        starts[tp] = left
    return starts


def _after(
    position: AckPosition, ranges: Mapping[TopicPartition, OffsetRange], logs: Mapping[TopicPartition, LogBounds]
) -> AckPosition:
    """Returns the position after the ranges. A partition without a range keeps its own."""
    ends = {tp.partition: part.end for tp, part in ranges.items()}
    epochs = {tp.partition: log.leader_epoch for tp, log in logs.items() if log.leader_epoch is not None}
    others = {number: epoch for number, epoch in position.leader_epochs.items() if number not in ends}
    return AckPosition(position.topic, position.topic_id, {**position.next, **ends}, {**others, **epochs})


def _names(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more partitions" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more


def _lost_to_retention(tp: TopicPartition, start: int, end: int) -> str:
    return f"answers [{start}, {end}) of the ack topic {tp} are lost: retention took them"


def read_answers(adapters: Adapters, wanted: AnswerRange) -> Iterator[Found | Gone]:
    """Yields what is at each offset of the ranges, in order within a partition. Raises what an exact read raises."""
    offsets = {tp: range(part.start, part.end) for tp, part in wanted.ranges.items() if part}
    if offsets:
        with adapters.reader() as reader:
            yield from reader.read(offsets)


def expired_warnings(wanted: AnswerRange, gone: Iterable[Gone]) -> list[str]:
    """Returns a warning for each partition of which retention took answers after the range was determined.

    `gone` are the offsets of the range that held no record when it was read.
    """
    ends: dict[TopicPartition, int] = {}
    for answer in gone:
        if answer.outcome is Outcome.EXPIRED:
            ends[answer.topic_partition] = max(answer.offset + 1, ends.get(answer.topic_partition, 0))
    return [_lost_to_retention(tp, wanted.ranges[tp].start, end) for tp, end in sorted(ends.items())]


def send_answer(adapters: Adapters, tokens: Sequence[Token], value: str) -> str:
    """Sends the same answer for each token, as `ackline ack`, `fail` and `renew` do. Returns the ack topic.

    The next run applies them. Whether an attempt is still in flight is not checked: a token may come before its outcome
    is stored. Raises ConfigError if the pipeline has no ack topic, if that does not exist or is not the one that the
    lane reads, or if no key of the connection has signed a token; and what sending raises.
    """
    topic = adapters.pipeline.ack_topic
    if topic is None:
        raise ConfigError(
            f"{adapters.pipeline.name} has no `ack_topic` in its file any more, so no answer would be read; add the "
            "key",
            key="ack_topic",
        )
    for token in tokens:
        _check_signed(adapters, token)
    _check_read(adapters, topic)
    checked_topic(adapters, topic)
    adapters.send_answers(topic, [(token.text, value) for token in tokens])
    return topic


def _check_read(adapters: Adapters, topic: str) -> None:
    newest, plan = adapters.newest_and_open_plan()
    position = newest.answers.position if newest is not None and newest.answers is not None else None
    if plan is not None and plan.ack_position is not None:
        position = plan.ack_position  # the newest settlement may be of the topic before
    if position is not None and position.topic != topic:
        raise ConfigError(
            f"{adapters.pipeline.name} reads its answers in {position.topic}, but `ack_topic` in its file is {topic} "
            f"now: put {position.topic} back until nothing is in flight, and answer again. Nothing was sent",
            key="ack_topic",
        )


def _check_signed(adapters: Adapters, token: Token) -> None:
    newest = adapters.store.newest()
    settled = newest.partitions.get(token.tp) if newest is not None else None
    if settled is None or not token.is_signed(adapters.token_keys or (), adapters.store.ledger_id(), settled.topic_id):
        raise ConfigError(
            f"the token is not one of {adapters.pipeline.name} as it is here: its key was removed from the connection, "
            f"its topic was created again, or it is of another ledger (ACKLINE_AUDIT). Nothing was sent; `ackline "
            f"status {adapters.pipeline.name}` shows what is in flight",
            key="TOKEN",
        )
