"""Whether the log is still the one that was read: the same topic, and nothing cut away of what was settled (S42).

A topic created again has another id. A log that was cut, and has perhaps grown again, has another leader epoch: only
then is the leader asked where the epoch that is known ends (`ackline.kafka.truncation`).
"""

from collections.abc import Mapping
from typing import Protocol

from ackline.errors import TopicChanged
from ackline.offsets import TopicPartition
from ackline.steps.parts import Parts
from ackline.turns import SettledPartition


class Led(Protocol):
    """Bounds of a log, and the epoch of the leader that gave them."""

    @property
    def leader_epoch(self) -> int | None: ...


def cut(
    parts: Parts, known: Mapping[TopicPartition, tuple[int, int | None]], logs: Mapping[TopicPartition, Led | None]
) -> dict[TopicPartition, int | None]:
    """Those partitions whose log lost something below an offset since the leader epoch that goes with it, and where.

    What has no epoch, from an earlier version or a broker that gives none, is taken as it is.
    """
    changed = {}
    for tp, (offset, epoch) in known.items():
        log = logs.get(tp)
        if epoch is not None and log is not None and log.leader_epoch not in (None, epoch):
            changed[tp] = offset, epoch
    return parts.cluster.cut(changed) if changed else {}


def check_logs(
    parts: Parts, lane: Mapping[TopicPartition, SettledPartition], logs: Mapping[TopicPartition, Led | None]
) -> None:
    """Raise TopicChanged where a log no longer holds what was read below `complete_to`: this is no "caught up"."""
    for tp, end in cut(
        parts, {tp: (one.state.complete_to, one.leader_epoch) for tp, one in lane.items()}, logs
    ).items():
        state, log, epoch = lane[tp].state, logs[tp], lane[tp].leader_epoch
        now = log.leader_epoch if log is not None else None
        left = "nothing is known to be left" if end is None else f"only what is below {end} is left"
        to = "earliest" if end is None else str(min(end, state.floor))
        raise TopicChanged(
            f"{tp} was truncated: all below {state.complete_to} was read under leader epoch {epoch}, and {left} of it "
            f"under epoch {now}; other records may lie there by now. Nothing was read. Go on with "
            f"`ackline reset {parts.pipeline.name} --topic {tp.topic} --partition {tp.partition} --to {to}`: a new "
            f"epoch, in which everything from there on is handled, again or for the first time",
            topic=tp.topic,
            partition=tp.partition,
            offset=end,
        )


def check_topic(parts: Parts, tp: TopicPartition, known_id: str, found_id: str | None, exists: bool) -> None:
    """Raise TopicChanged where a partition is gone, or is another topic's that has taken the name."""
    if found_id == known_id and exists:
        return
    if found_id is None or not exists:
        said = "is gone. Nothing was read. Create it again, or take it out of the file"
    else:
        said = (
            f"was deleted and created again (its topic id is another). Nothing was read; offsets of the old topic mean "
            f"nothing in a new one. Go on with `ackline reset {parts.pipeline.name} --topic {tp.topic} --to earliest`: "
            f"a new epoch on the new topic, in which nothing of the old one is pending. Or take it out of the file"
        )
    raise TopicChanged(f"{tp} {said}", topic=tp.topic, partition=tp.partition)
