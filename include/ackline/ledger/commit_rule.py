"""When the newest floor may be committed over the offset that Kafka holds for the group. Pure.

Kafka has no compare-and-set for committed offsets, and any client may move a group. So each commit of Ackline carries
`CommitMetadata`, and the steps read what Kafka holds before they plan and before they commit:

| Kafka holds for the partition | the rule |
|---|---|
| no committed offset | commit |
| a commit of this ledger, of the newest turn or an older one | commit |
| a commit of this ledger, of a newer turn | stop: NewerCommit |
| a commit of this ledger, of a turn that another copy of it has stored | stop: NewerCommit |
| a foreign commit at the acknowledged offset | commit |
| any other commit of this pipeline, from another ledger | stop: NewerCommit |
| any other foreign commit | stop: GroupMoved; `on_external_reset` can allow it: `follow` or `restore` |

Foreign is every commit that this ledger did not make: of another client, or of a ledger of this pipeline that was lost.
A genesis or an operator action acknowledges the foreign offset that it met, and stores it with the partition
(`acknowledged_foreign_offset` of `ackline.ledger.turns.SettledPartition`). This lets the first commit of a lane pass
even if the run is killed before it, and ends as soon as a plan finds a commit of this ledger.

A ledger that is set back to an older copy has the id of the newer one, and its next turns take the same numbers. So the
metadata also has a stamp of what stands behind the number: the settlement, or the plan of a claim. Without it, an older
copy would take a commit of the newer one for its own as soon as it had as many turns, and at most once hand out again
what was handed out (I7).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

from ackline.errors import GroupMoved, NewerCommit
from ackline.ledger.offsets import TopicPartition
from ackline.stored import Stored


class Committed(NamedTuple):
    """The committed offset that Kafka holds for a group and topic-partition, with its metadata."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class CommitMetadata(Stored):
    """The metadata of a commit of Ackline: which pipeline, from which ledger, at which turn. Kafka stores it as JSON
    with the offset, and other clients may store anything with theirs (S31)."""

    ledger: str
    """The id of the ledger: of its settlements table."""
    pipeline: str
    epoch: int
    n: int
    stamp: str = ""
    """What `stamp_of` returns for the settlement, or for the plan of a claim; "" in a commit of an earlier version."""

    def __post_init__(self) -> None:
        if not (0 <= self.epoch < 2**31 and 0 <= self.n < 2**63):  # as the tables hold them
            raise ValueError("no turn has such a number")


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def stamp_of(what: str, run_id: str, at: datetime) -> str:
    """Returns eight digits that stand for a `settlement` or a `plan`: for the run that has stored it, and when."""
    return sha256(f"{what} {run_id} {(at - _EPOCH) // timedelta(microseconds=1)}".encode()).hexdigest()[:8]


def is_of_pipeline(committed: Committed | None, pipeline: str) -> bool:
    """Whether this pipeline made the commit, from this ledger or another one."""
    metadata = CommitMetadata.decode_or_none(committed.metadata if committed else None)
    return metadata is not None and metadata.pipeline == pipeline


def is_of_ledger(committed: Committed | None, pipeline: str, ledger: str) -> bool:
    """Whether this pipeline made the commit from this ledger."""
    metadata = CommitMetadata.decode_or_none(committed.metadata if committed else None)
    return metadata is not None and (metadata.pipeline, metadata.ledger) == (pipeline, ledger)


def check_commit_allowed(
    tp: TopicPartition,
    committed: Committed | None,
    newest: CommitMetadata,
    acknowledged_foreign_offset: int | None,
    is_stored: Callable[[CommitMetadata], bool] = lambda _: True,
) -> None:
    """Return if the newest floor may be committed over `committed`, by the table of this module.

    `newest` is the metadata that the commit would carry. `is_stored` tells whether this ledger holds the settlement or
    the claim that the metadata of a commit names; it is called for commits of this ledger alone, of no newer turn.
    Raises NewerCommit or GroupMoved if it may not.
    """
    if committed is None:
        return  # nothing was ever committed, or the commit has expired: the ledger decides (S35)
    foreign = not is_of_ledger(committed, newest.pipeline, newest.ledger)
    if foreign and committed.offset == acknowledged_foreign_offset:
        return
    metadata = CommitMetadata.decode_or_none(committed.metadata)
    where = f"{tp}: the group holds offset {committed.offset}"
    if metadata is None or metadata.pipeline != newest.pipeline:
        raise GroupMoved(
            f"{where}, which this pipeline did not commit: another client moved the group. Nothing was committed. Set "
            f"`on_external_reset: follow` in the pipeline file to go on from that offset, or `restore` to commit the "
            f"floor over it",
            tp=tp,
            offset=committed.offset,
        )
    # An older commit of this ledger is overwritten: a late process made it, and the floor only rises (I3).
    if foreign or (metadata.epoch, metadata.n) > (newest.epoch, newest.n):
        raise NewerCommit(
            f"{where}, committed by turn {metadata.n} of epoch {metadata.epoch} of ledger {metadata.ledger}; this "
            f"ledger is {newest.ledger} at turn {newest.n} of epoch {newest.epoch}. Nothing was committed",
            tp=tp,
            offset=committed.offset,
        )
    if not is_stored(metadata):
        raise NewerCommit(
            f"{where}, committed by turn {metadata.n} of epoch {metadata.epoch} of another copy of ledger "
            f"{metadata.ledger}; the turn of that number in this copy, which is at turn {newest.n} of epoch "
            f"{newest.epoch}, is another one. Nothing was committed",
            tp=tp,
            offset=committed.offset,
        )


def still_acknowledged(
    committed: Committed | None, acknowledged_foreign_offset: int | None, newest: CommitMetadata
) -> int | None:
    """The foreign offset that may still be overwritten once a plan has found `committed`: None if that is a commit of
    this ledger. A later commit at the same foreign offset is then a new move of the group, and is not overwritten."""
    return None if is_of_ledger(committed, newest.pipeline, newest.ledger) else acknowledged_foreign_offset
