"""Whether a log is still the one that was read: the same topic, with nothing truncated of what was settled (S42).

A topic that was created again has another topic id. A log that was truncated, and has perhaps grown again, has another
leader epoch. Its end proves nothing: new records take the offsets of those that are gone. If the leader epoch has
changed, and only then, the leader is queried for the end of the known epoch (`ackline.kafka.truncation`).
"""

from collections.abc import Mapping

from ackline.errors import RangeGone, TopicChanged
from ackline.offsets import LogBounds, TopicPartition
from ackline.steps.parts import Parts
from ackline.turns import Plan, PlannedPartition, SettledPartition

Known = Mapping[TopicPartition, tuple[int, int | None]]
"""By partition: an offset, and the leader epoch under which everything below it was read."""
Logs = Mapping[TopicPartition, LogBounds | None]
"""Bounds of the logs as they are now; None for a partition without a leader."""


def truncated_partitions(parts: Parts, known: Known, logs: Logs) -> dict[TopicPartition, int | None]:
    """Returns the partitions whose log no longer holds all records below the known offset under the known leader epoch.

    The value is the offset below which the log is unchanged; None if that is unknown. If no leader epoch is known (rows
    of an earlier version, or a broker that gives none), the log is taken as unchanged.
    """
    changed = {}
    for tp, (offset, leader_epoch) in known.items():
        log = logs.get(tp)
        if leader_epoch is not None and log is not None and log.leader_epoch not in (None, leader_epoch):
            changed[tp] = offset, leader_epoch
    return parts.cluster.truncated_at(changed) if changed else {}


def check_not_truncated(parts: Parts, lane: Mapping[TopicPartition, SettledPartition], logs: Logs) -> None:
    """Raises TopicChanged if a log no longer holds what was read below `complete_to`.

    Without this check, the lane would count as caught up.
    """
    known = {tp: (settled.state.complete_to, settled.leader_epoch) for tp, settled in lane.items()}
    for tp, end in truncated_partitions(parts, known, logs).items():
        state, log = lane[tp].state, logs[tp]
        now = log.leader_epoch if log is not None else None
        target = "earliest" if end is None else str(min(end, state.floor))
        raise TopicChanged(
            f"{tp} was truncated: all below {state.complete_to} was read under leader epoch {lane[tp].leader_epoch}, "
            f"and {_what_is_left(end)} of it under epoch {now}; other records may have taken those offsets. Nothing "
            f"was read. Go on with `ackline reset {parts.pipeline.name} --topic {tp.topic} --partition {tp.partition} "
            f"--to {target} --reason …`: a new epoch, in which everything from there on is handled, again or for the "
            f"first time",
            topic=tp.topic,
            partition=tp.partition,
            offset=end,
        )


def _what_is_left(end: int | None) -> str:
    return "nothing is known to be left" if end is None else f"only what is below {end} is left"


def check_topic_not_recreated(
    parts: Parts, tp: TopicPartition, known_id: str, topic_id: str | None, exists: bool
) -> None:
    """Raises TopicChanged if a partition is gone, or belongs to a new topic of the same name.

    `topic_id` is the present id of the topic, None if there is no topic; `exists`: whether it has this partition.
    """
    if topic_id == known_id and exists:
        return
    if topic_id is None or not exists:
        what = "is gone. Nothing was read. Create it again, or take it out of the file"
    else:
        what = (
            f"was deleted and created again (its topic id is another). Nothing was read; offsets of the old topic mean "
            f"nothing in a new one. Go on with `ackline reset {parts.pipeline.name} --topic {tp.topic} --to earliest "
            f"--reason …`: a new epoch on the new topic, in which nothing of the old one is pending. Or take it out "
            f"of the file"
        )
    raise TopicChanged(f"{tp} {what}", topic=tp.topic, partition=tp.partition)


def check_planned_ranges(parts: Parts, plan: Plan, after: bool = False) -> None:
    """Checks that every planned range is in the log that the plan was made for. Raises RangeGone and TopicChanged.

    The check comes before reading, because Spark waits for two minutes for offsets that never come. With `after`, it
    comes after reading and compares topic ids and leader epochs alone. Leader epochs only grow: if the planned epoch is
    the leader's before and after reading, it was so in between. If the epoch has changed, the new leader must have the
    log of the planned one up to the end of the plan, retries included. A later turn plans again what was truncated
    above the settled state. If the log was truncated below it, the next plan stops the run.
    """
    wanted = {tp: planned for tp, planned in plan.partitions.items() if not planned.empty}
    _check_topic_ids(parts, plan, wanted)
    logs = parts.cluster.bounds(wanted)
    if not after:
        _check_bounds(wanted, logs)
    known = {tp: (planned.fresh.end, planned.log.leader_epoch) for tp, planned in wanted.items()}
    for tp, end in truncated_partitions(parts, known, logs).items():
        raise RangeGone(
            f"{tp} was truncated below the planned end {wanted[tp].fresh.end} while {plan.turn} was under way "
            f"({_what_is_left(end)}); the turn is void",
            topic=tp.topic,
            partition=tp.partition,
            offset=end,
        )


def _check_topic_ids(parts: Parts, plan: Plan, wanted: Mapping[TopicPartition, PlannedPartition]) -> None:
    topics = parts.cluster.topics(sorted({tp.topic for tp in wanted}))
    for tp, planned in wanted.items():
        topic = topics.get(tp.topic)
        if topic is None or topic.topic_id != planned.topic_id or tp.partition not in topic.partitions:
            raise TopicChanged(
                f"{tp} was deleted or created again while {plan.turn} was under way; the turn is void, nothing "
                f"of it counts",
                topic=tp.topic,
                partition=tp.partition,
            )


def _check_bounds(wanted: Mapping[TopicPartition, PlannedPartition], logs: Mapping[TopicPartition, LogBounds]) -> None:
    """Raises RangeGone or TopicChanged if a part of a fresh range is not in the log.

    Retries are not checked: each retry that retention has taken gets an `expired` outcome of its own.
    """
    for tp, log in logs.items():
        fresh = wanted[tp].fresh
        if fresh and log.end < fresh.end:
            raise TopicChanged(
                f"{tp} ends at {log.end}, below the planned end {fresh.end}: it was truncated or recreated; "
                f"the turn is void",
                topic=tp.topic,
                partition=tp.partition,
                offset=log.end,
            )
        if fresh and log.start > fresh.start:
            raise RangeGone(
                f"{tp}: the log starts at {log.start}, above the planned start {fresh.start}; the turn is void",
                topic=tp.topic,
                partition=tp.partition,
                offset=fresh.start,
            )
