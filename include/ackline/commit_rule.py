"""Whether the newest floor may be committed over what Kafka holds for the group. Pure.

Kafka has no compare-and-set for committed offsets, so commit metadata marks the commits of this ledger.
"""

import json
from dataclasses import dataclass
from typing import NamedTuple

from ackline.errors import GroupMoved, NewerCommit
from ackline.offsets import TopicPartition


class Committed(NamedTuple):
    """What Kafka holds for a group and partition."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The metadata of our commits, by which they are known again: JSON {ledger, pipeline, epoch, n}."""

    ledger: str
    pipeline: str
    epoch: int
    n: int

    def encode(self) -> str:
        """The text stored with the committed offset."""
        return json.dumps({"ledger": self.ledger, "pipeline": self.pipeline, "epoch": self.epoch, "n": self.n})

    @classmethod
    def decode(cls, metadata: str) -> "CommitMetadata | None":
        """The mark in `metadata`, or None for anything that is not exactly one: garbage never raises (S31)."""
        try:
            found = json.loads(metadata)
            ledger, pipeline, epoch, n = (found[key] for key in ("ledger", "pipeline", "epoch", "n"))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        texts = isinstance(ledger, str) and isinstance(pipeline, str)
        if not texts or not all(type(number) is int and number >= 0 for number in (epoch, n)):
            return None
        return cls(ledger, pipeline, epoch, n)


def is_ours(committed: Committed | None, pipeline: str) -> bool:
    """Whether a commit was made by this pipeline, be it from this ledger or another."""
    mark = CommitMetadata.decode(committed.metadata) if committed else None
    return mark is not None and mark.pipeline == pipeline


def check_commit_allowed(
    tp: TopicPartition, committed: Committed | None, newest: CommitMetadata, acknowledged_foreign_offset: int | None
) -> None:
    """Whether the newest floor may be committed over what Kafka holds; returns if so.

    Kafka has no compare-and-set, so the rule is the design's: over nothing, over ours that is not newer, and over the
    one foreign value that a genesis or act has seen and answered. Raises NewerCommit or GroupMoved.
    """
    mark = CommitMetadata.decode(committed.metadata) if committed else None
    if committed is None or (
        committed.offset == acknowledged_foreign_offset and not is_of_ledger(committed, newest.pipeline, newest.ledger)
    ):
        return
    where = f"{tp}: the group holds offset {committed.offset}"
    if mark is None or mark.pipeline != newest.pipeline:
        raise GroupMoved(
            f"{where}, which is neither this pipeline's commit nor known to it: somebody moved the group. Nothing was "
            f"committed. Say in the file what to do about it: `on_external_reset: follow` to go on from there, or "
            f"`restore` to put the group back to the floor",
            topic=tp.topic,
            partition=tp.partition,
            offset=committed.offset,
        )
    if mark.ledger != newest.ledger or (mark.epoch, mark.n) > (newest.epoch, newest.n):
        raise NewerCommit(
            f"{where}, committed by turn {mark.n} of epoch {mark.epoch} of ledger {mark.ledger}; this ledger is "
            f"{newest.ledger} at turn {newest.n} of epoch {newest.epoch}. Is ACKLINE_AUDIT the right folder, or "
            f"an old copy?",
            topic=tp.topic,
            partition=tp.partition,
            offset=committed.offset,
        )


def still_acknowledged(
    committed: Committed | None, acknowledged_foreign_offset: int | None, newest: CommitMetadata
) -> int | None:
    """The foreign value that may still be overwritten after a plan found `committed`: none once it was a commit of this
    ledger. A commit of a ledger that was lost is foreign: a genesis starts from it and answers it."""
    return None if is_of_ledger(committed, newest.pipeline, newest.ledger) else acknowledged_foreign_offset


def is_of_ledger(committed: Committed | None, pipeline: str, ledger: str) -> bool:
    """Whether a commit was made by this pipeline from this ledger."""
    mark = CommitMetadata.decode(committed.metadata) if committed else None
    return mark is not None and (mark.pipeline, mark.ledger) == (pipeline, ledger)
