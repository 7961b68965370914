"""The rights that a pipeline needs on its topics and its group, and which of them the connection's login lacks.

A run checks them before it plans: without this check a missing right is found after the handlers have run. The least
rights are, on a topic that is read, Read; on the dead-letter topic and on output topics, Write; on the rescue topic,
both; on the group, Read, by which Kafka lets offsets be committed, or Describe in a pipeline that commits none. Read
and Write include Describe.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ackline.errors import SETTINGS_PAGE, GroupTaken, MissingRights
from ackline.kafka.config import brokers, login_name, login_text
from ackline.lane.adapters import Adapters
from ackline.ledger.turns import Settlement


class Right(NamedTuple):
    """An operation on a topic or on the group."""

    operation: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.operation.capitalize()} on {self.kind} {self.name}"


def needed_rights(adapters: Adapters, topics: Iterable[str]) -> list[Right]:
    """Returns the least rights for a run that reads `topics`."""
    pipeline = adapters.pipeline
    reads = filter(None, [*topics, pipeline.ack_topic, pipeline.rescue_topic])
    outputs = pipeline.outputs or () if pipeline.shadow is None else ()  # a shadow produces nothing
    of_outputs = (output.topic for output in outputs)
    writes = filter(None, [pipeline.dead_letter_topic, *of_outputs, pipeline.rescue_topic])
    return [
        *(Right("READ", "topic", topic) for topic in dict.fromkeys(reads)),
        *(Right("WRITE", "topic", topic) for topic in dict.fromkeys(writes)),
        Right("READ" if adapters.commits else "DESCRIBE", "group", pipeline.kafka.group_id),
    ]


def missing_rights(adapters: Adapters, topics: Collection[str]) -> list[Right]:
    """Returns the rights that the login lacks to read `topics`, of those that the broker tells about: a topic that does
    not exist has none, unless the login may not even ask for it.

    Raises GroupTaken if the id of a group to which the lane commits is that of a group of another type.
    """
    needed = needed_rights(adapters, topics)
    of_topics = adapters.cluster.operations({right.name for right in needed if right.kind == "topic"})
    known = [name for name, operations in of_topics.items() if operations]
    of_group = _operations_on_group(adapters, known[:1])
    allowed = [(right, of_group if right.kind == "group" else of_topics.get(right.name)) for right in needed]
    return [right for right, operations in allowed if operations is not None and right.operation not in operations]


def _operations_on_group(adapters: Adapters, probe: Iterable[str]) -> frozenset[str] | None:
    """Returns what the login may do with the group; None if not known."""
    try:
        return adapters.group.operations(*probe)
    except GroupTaken:
        if adapters.commits:
            raise
        return None  # a backfill only reads, and readers join no group, of whatever type


def check_rights(adapters: Adapters, newest: Settlement | None) -> None:
    """Raises MissingRights, with each right that the login lacks for a run."""
    check_rights_to_read(adapters, topics_of_run(adapters, newest))


def topics_of_run(adapters: Adapters, newest: Settlement | None) -> list[str]:
    """Returns the topics that a run reads: those that the file names; of a pattern those of the lane, and those that
    the login may describe, because the broker lists no others. Of a topic whose partitions are all paused, a run reads
    nothing."""
    block = adapters.pipeline.kafka
    lane = newest.partitions if newest is not None else {}
    of_lane = dict.fromkeys(tp.topic for tp in lane)
    paused = of_lane.keys() - {tp.topic for tp, row in lane.items() if not row.paused}
    named = block.named_topics or filter(block.subscribes_to_topic, [*of_lane, *adapters.cluster.names()])
    return [topic for topic in dict.fromkeys(named) if topic not in paused]


def check_rights_to_read(adapters: Adapters, topics: Collection[str]) -> None:
    """Raises MissingRights, with each right that the login lacks for a run that reads these topics."""
    if missing := missing_rights(adapters, topics):
        raise MissingRights(rights_text(adapters, missing, "Nothing was planned"))


def rights_text(adapters: Adapters, missing: Iterable[Right], consequence: str = "No run plans anything") -> str:
    """Returns the sentences that name missing rights, what follows, and how they are granted."""
    user = login_name(adapters.kafka)
    first, *_ = missing
    grant = f"kafka-acls --add --allow-principal User:{user or 'NAME'} --operation {first.operation.capitalize()}"
    return (
        f"{login_text(adapters.kafka)} lacks at {brokers(adapters.kafka)}: {', '.join(map(str, missing))}. "
        f"{consequence}. Grant each, as with `{grant} --{first.kind} {first.name}`, or correct the login; "
        f"{SETTINGS_PAGE} lists the least rights"
    )
