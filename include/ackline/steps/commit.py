"""Commit the newest floor of the ledger to the consumer group, and read it back."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ackline.commit_rule import CommitMetadata, Committed, check_commit_allowed, is_ours
from ackline.errors import GroupMoved, NewerCommit
from ackline.offsets import TopicPartition
from ackline.steps.parts import Parts
from ackline.turns import Settlement, TurnId, TurnKind


@dataclass(frozen=True, slots=True)
class Settled:
    """The newest settlement, and what the broker holds after the commit, read back; `stored` is the settlement that
    this process has stored, which nobody else can say of the same turn."""

    settlement: Settlement | None
    committed: Mapping[TopicPartition, Committed]
    stored: Settlement | None = None


def commit_newest(parts: Parts) -> Settled:
    """Commit the floors of the newest settlement or claim, whoever stored it, and read them back.

    Every partition is committed again, idle and parked ones too: Kafka forgets offsets that nobody commits.
    """
    come = None
    while True:
        newest = parts.store.newest()
        if newest is None:
            return Settled(None, {})
        try:
            committed = check_commit(parts, newest)
        except NewerCommit:
            before, come = come, ledger_progress(parts)
            if come == before:
                raise
            continue
        if committed:
            parts.group.commit(committed)
            parts.notify("committed", committed)
        return Settled(newest, committed)


def ledger_progress(parts: Parts) -> tuple[TurnId | None, bool]:
    """How far the ledger has come: its newest turn, and whether the next one is claimed.

    A commit is stored here before it is made there. So one that looks newer may be another run's, made since the ledger
    was read; it is another ledger's, or an old copy is read here, where it still does after a look at the same ledger.
    """
    newest = parts.store.newest()
    plan = parts.store.open_plan(newest) if newest else None
    return newest.turn if newest else None, plan is not None and parts.store.has_claim(plan.turn)


def check_commit(parts: Parts, newest: Settlement) -> dict[TopicPartition, Committed]:
    """What may be committed now: the floors of the newest settlement, or the ends of the plan that is claimed.

    What somebody else has committed of a parked partition is left alone, whatever the file says of moved groups: it
    may have become another pipeline's, and nothing follows it here. Raises GroupMoved, NewerCommit or GroupBusy.
    """
    there = parts.existing({tp: one.topic_id for tp, one in newest.partitions.items()})
    mark = commit_metadata_of(parts, newest)
    floors = {tp: one.state.floor for tp, one in newest.partitions.items()}
    acknowledged_foreign_offset = {tp: one.acknowledged_foreign_offset for tp, one in newest.partitions.items()}
    plan = parts.store.open_plan(newest)
    if plan is not None and plan.kind is TurnKind.RUN:  # it may have met a commit of ours: then nothing is answered
        acknowledged_foreign_offset |= {tp: one.acknowledged_foreign_offset for tp, one in plan.partitions.items()}
        if parts.pipeline.guarantee == "at_most_once" and parts.store.has_claim(plan.turn):
            floors |= {tp: one.fresh.end for tp, one in plan.partitions.items() if one.fresh}
            mark = replace(mark, n=plan.turn.n)
    committed = parts.group.committed(there)
    allowed = [tp for tp in there if _may_commit(parts, tp, committed.get(tp), mark, acknowledged_foreign_offset[tp])]
    return {tp: Committed(floors[tp], mark.encode()) for tp in allowed}


def _may_commit(
    parts: Parts,
    tp: TopicPartition,
    committed: Committed | None,
    mark: CommitMetadata,
    acknowledged_foreign_offset: int | None,
) -> bool:
    subscribed = parts.wants(tp)
    if subscribed and may_restore(parts, committed, mark):
        return True
    try:
        check_commit_allowed(tp, committed, mark, acknowledged_foreign_offset)
    except GroupMoved:
        if subscribed:
            raise
        return False
    return True


def commit_metadata_of(parts: Parts, newest: Settlement) -> CommitMetadata:
    """The metadata of a commit of the newest settlement."""
    return CommitMetadata(parts.store.ledger_id(), parts.pipeline.name, newest.turn.epoch, newest.turn.n)


def may_restore(parts: Parts, committed: Committed | None, mark: CommitMetadata) -> bool:
    """Whether the file says that a foreign commit is to be overwritten. One of ours from elsewhere never is."""
    return (
        parts.pipeline.on_external_reset == "restore"
        and committed is not None
        and not is_ours(committed, mark.pipeline)
    )
