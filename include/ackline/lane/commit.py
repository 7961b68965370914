"""Commits the newest floor of the ledger to the consumer group, and reads it back.

Kafka's copy is derived; the settlement is the authority. So every step that commits reads the newest settlement first
and commits *its* floors, never those of the turn that the step has settled itself: a process that wakes up late repeats
the right offsets, and cannot move the group back (I3). A crash before the commit costs nothing, because any later run
makes the same commit. A crash after it costs nothing either, because committing the same offsets again changes nothing.

Every write of a turn is fenced by the turn's number, and no lock keeps two processes from the same lane. A step that
loses a number has stored nothing: it reads the ledger anew in another of its `Rounds`, and goes on from what the other
process has stored. `ackline.steps.plan` takes a turn in such rounds, and the group is committed in them.

A ledger that is adopted as an older copy gets an id of its own. Two copies of a ledger that both go on have different
turns under the same numbers. Commit metadata names a ledger by its id, so with one id neither copy could tell the
other's commits from its own: each would overwrite them as commits of an older turn. With a new id, the commits under
the old one are another ledger's. If the lost copy comes back, its runs stop at the commits of this one.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ackline.errors import GroupMoved, LedgerError, NewerCommit
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import ledger_advice
from ackline.ledger.commit_rule import (
    CommitMetadata,
    Committed,
    check_commit_allowed,
    is_of_ledger,
    is_of_pipeline,
    stamp_of,
)
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import Plan, Settlement, TurnId, TurnKind
from ackline.pipeline.pipeline import claims


def acknowledging(plan: Plan) -> Plan:
    """Returns the plan of an adoption, in which each row acknowledges the commit that it has found, of whatever
    ledger."""
    rows = {
        tp: replace(row, acknowledged_foreign_offset=row.committed.offset) if row.committed is not None else row
        for tp, row in plan.partitions.items()
    }
    return replace(plan, partitions=rows)


def renew_id_of_copy(adapters: Adapters, plan: Plan) -> None:
    """Gives the ledger a new id if `plan` adopts it as an older copy; does nothing for any other plan.

    Each process that settles the turn calls this before it stores the settlement. The new id is computed from the plan,
    and replaces the old one only, so a repeat changes nothing. After a crash before the settlement, the next run does
    it again; after the settlement, nothing is left to do.
    """
    if plan.kind is not TurnKind.SKIP:
        return
    ledger, name = adapters.store.ledger_id(), adapters.pipeline.name
    # Only an adoption acknowledges commits of the ledger's own id: any other plan takes them for its own.
    acknowledging_rows = [row for row in plan.partitions.values() if row.acknowledged_foreign_offset is not None]
    if ledger and any(is_of_ledger(row.committed, name, ledger) for row in acknowledging_rows):
        new = uuid.uuid5(uuid.NAMESPACE_OID, f"{ledger}/{plan.turn.epoch}/{plan.turn.n}/{plan.run_id}")
        adapters.store.replace_ledger_id(ledger, str(new))


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The newest settlement, and the offsets that were committed from it and read back.

    `stored` is the settlement that this process has stored itself; None if another process was quicker.
    """

    settlement: Settlement | None
    committed: Mapping[TopicPartition, Committed]
    stored: Settlement | None = None


Publish = Callable[[Adapters, Settlement | None], None]
"""Publishes the output rows of a settled turn, where a table lacks them: `ackline.outputs.publish.publish_settled`."""


def commit_newest(adapters: Adapters, publish: Publish) -> CommitResult:
    """Publishes the rows of the newest settlement, commits its floors or those of a claim, whichever process stored it,
    and reads them back. Commits nothing in a backfill lane.

    `publish` has no default, so that no caller can commit without it. Idle and parked partitions are committed again
    too, because Kafka forgets offsets that are not renewed. Raises GroupMoved, NewerCommit or GroupBusy if nothing may
    be committed, and what `publish` raises.
    """
    rounds = Rounds(adapters, "committing the group's offsets")
    for newest in rounds:
        # Before the commit, and of the settlement that is committed: a record below the group's offset has its rows in
        # each output table (I16). If this raises, nothing is committed.
        publish(adapters, newest)
        if newest is None or not adapters.commits:
            return CommitResult(newest, {})
        try:
            offsets = allowed_commits(adapters, newest)
        except NewerCommit as error:
            rounds.lose_to(error)  # another run may have settled and committed between the two reads above
            continue
        if offsets:
            # The settlement or claim behind `offsets` is durable, because newest() has returned it. A commit before
            # that would move the group over records that have no stored outcome (I1, I2).
            #
            # Kafka has no compare-and-set: if another run commits a newer floor between the check above and this
            # line, the older floor overwrites it. Nothing is lost or read twice by that, because the lane reads from
            # the ledger and not from Kafka; the next run commits the newest floor again (I3).
            adapters.group.commit(offsets)
            adapters.notify("committed", offsets)
        return CommitResult(newest, offsets)
    raise rounds.all_lost()


class CommitCheck:
    """The rule of commits for one newest settlement, or claim: `metadata` is what a commit would carry."""

    def __init__(self, adapters: Adapters, metadata: CommitMetadata) -> None:
        self._adapters, self._metadata = adapters, metadata
        self._stamps: dict[tuple[int, int], set[str]] = {}

    def check(self, tp: TopicPartition, committed: Committed | None, acknowledged_foreign_offset: int | None) -> None:
        """Does what `check_commit_allowed` does. An error about another ledger also names the tables of this one."""
        try:
            check_commit_allowed(tp, committed, self._metadata, acknowledged_foreign_offset, self._is_stored)
        except NewerCommit as error:
            error.add_advice(ledger_advice(self._adapters.store))
            raise

    def _is_stored(self, found: CommitMetadata) -> bool:
        """Returns whether this ledger holds what the metadata of a commit names. Most commits are of the newest turn,
        and cost no read. A commit of an earlier version has no stamp, and counts as its own."""
        number = found.epoch, found.n
        if not found.stamp or (number, found.stamp) == ((self._metadata.epoch, self._metadata.n), self._metadata.stamp):
            return True
        if number not in self._stamps:
            store = self._adapters.store
            self._stamps[number] = store.stamps(TurnId(store.pipeline, store.lane, *number))
        return found.stamp in self._stamps[number]


def allowed_commits(adapters: Adapters, newest: Settlement) -> dict[TopicPartition, Committed]:
    """Returns what may be committed now: the floors of `newest`, or the ends of the open plan if it is claimed.

    A foreign commit of a parked partition is left alone under every `on_external_reset`: the topic may belong to
    another pipeline by now, and this one reads nothing from it. Raises GroupMoved or NewerCommit.
    """
    partitions = adapters.unchanged_partitions({tp: settled.topic_id for tp, settled in newest.partitions.items()})
    metadata = commit_metadata_of(adapters, newest)
    floors = {tp: settled.state.floor for tp, settled in newest.partitions.items()}
    acknowledged = {tp: settled.acknowledged_foreign_offset for tp, settled in newest.partitions.items()}
    plan = adapters.store.open_plan(newest)
    if plan is not None and plan.kind.replays:
        # A plan that has found a commit of this ledger acknowledges no foreign offset any more. If the group stands at
        # that offset again, another client moved it; a commit would undo that move without an error (S36).
        acknowledged |= {tp: planned.acknowledged_foreign_offset for tp, planned in plan.partitions.items()}
        if claimed := claimed_floors(adapters, plan):
            floors |= claimed
            metadata = replace(metadata, n=plan.turn.n, stamp=stamp_of("plan", plan.run_id, plan.planned_at))
    committed, check = adapters.group.committed(partitions), CommitCheck(adapters, metadata)
    allowed = [
        tp for tp in partitions if _may_commit(adapters, check, tp, committed.get(tp), metadata, acknowledged[tp])
    ]
    return {tp: Committed(floors[tp], metadata.encode()) for tp in allowed}


def claimed_floors(adapters: Adapters, plan: Plan) -> dict[TopicPartition, int]:
    """Returns the floors that a claim has set: the ends of the open plan. Empty without a claim.

    Only a claim allows to commit the end of an open plan. A plan without a claim may still become void, and its records
    would be passed over without an outcome (I1). A claimed turn never becomes void; a waived one is never claimed.
    """
    if not claims(plan) or not adapters.store.has_claim(plan.turn):
        return {}
    return {tp: planned.fresh.end for tp, planned in plan.partitions.items() if planned.fresh}


def _may_commit(
    adapters: Adapters,
    check: CommitCheck,
    tp: TopicPartition,
    committed: Committed | None,
    metadata: CommitMetadata,
    acknowledged_foreign_offset: int | None,
) -> bool:
    subscribed = adapters.is_subscribed(tp)
    if subscribed and may_restore(adapters, committed, metadata):
        return True
    try:
        check.check(tp, committed, acknowledged_foreign_offset)
    except GroupMoved:
        if subscribed:
            raise
        return False
    return True


def commit_metadata_of(adapters: Adapters, newest: Settlement) -> CommitMetadata:
    """Returns the metadata with which the floors of `newest` are committed."""
    stamp = stamp_of("settlement", newest.run_id, newest.settled_at)
    return CommitMetadata(adapters.store.ledger_id(), adapters.pipeline.name, newest.turn.epoch, newest.turn.n, stamp)


def may_restore(adapters: Adapters, committed: Committed | None, metadata: CommitMetadata) -> bool:
    """Returns whether `on_external_reset: restore` allows to overwrite this foreign commit.

    False for a commit of this pipeline: such a commit comes from another ledger or from a newer turn.
    """
    return (
        adapters.pipeline.on_external_reset == "restore"
        and committed is not None
        and not is_of_pipeline(committed, metadata.pipeline)
    )


MAX_LOST_RACES = 20
"""Rounds of such a loop before the step stops.

A step loses a round only to a process that has stored something in the meantime, so the lane goes on although this
process does not. A lane has one scheduled run, and now and then an operator's command beside it: two lost rounds in a
row are rare. Twenty in a row mean that runs start one another without end, or that the tables do not return what was
stored. Going on would hide that. There is no wait between rounds: the other process has stored its turn already, and
waiting would not change what the next round reads.
"""


class Rounds:
    """The rounds of one step, MAX_LOST_RACES at most. Each begins with the newest settlement, read anew; None if the
    lane has not begun. `doing` names the step in the error of one that has lost every round."""

    def __init__(self, adapters: Adapters, doing: str) -> None:
        self._adapters, self._doing = adapters, doing
        self._progress: tuple[TurnId | None, bool] | None = None
        """The ledger's newest turn, and whether the turn after it is claimed."""

    def __iter__(self) -> Iterator[Settlement | None]:
        for _ in range(MAX_LOST_RACES):
            yield self._adapters.store.newest()

    def all_lost(self) -> LedgerError:
        """Returns the error of a step that has lost all rounds."""
        return LedgerError(
            f"{self._doing} of {self._adapters.pipeline.name}: other runs were quicker {MAX_LOST_RACES} times in a "
            f"row. Look for runs that start one another without end; if there are none, `ackline doctor` checks the "
            "tables"
        )

    def lose_to(self, error: NewerCommit) -> None:
        """Returns if another round may find that the commit is of this ledger; raises `error` if it is not.

        A commit that looks newer than the ledger has two possible causes. Every step stores before it commits, so
        another run may have stored and committed since this round read the ledger: then the ledger has changed, and the
        next round sees that. Or the commit is from another ledger, or this ledger is an old copy: then the ledger has
        not changed between two rounds, and the error stands.
        """
        newest, plan = self._adapters.newest_and_open_plan()
        is_claimed = plan is not None and self._adapters.store.has_claim(plan.turn)
        previous, self._progress = self._progress, (newest.turn if newest else None, is_claimed)
        if self._progress == previous:
            raise error
