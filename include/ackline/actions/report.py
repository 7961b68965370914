"""What an operator action changes, partition by partition, for a person and for a program.

It is computed from the plan of the action and the lane before it, so that a dry run and the action itself show the
same. Each JSON object is one type, whose fields are its keys: the command prints it, and the DAG's task returns it.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pydantic import Field

from ackline.actions.actions import PreparedAction
from ackline.actions.adopt_ledger import Adoption, OutstandingTokens
from ackline.actions.objects import JsonObject, PartitionObject, RangeObject
from ackline.actions.void import ClosedTurn, Consequence, OpenTurn
from ackline.errors import counted
from ackline.lane.adapters import Adapters
from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import TopicPartition, count
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.published import OLDER_TABLE
from ackline.ledger.turns import LIVE, Plan, SettledPartition, Settlement, TurnId, TurnKind
from ackline.outputs.given_up import DroppedOutputs, UnpublishedTurn
from ackline.steps.decide import skipped_by, states_after
from ackline.tables.turn_outcomes import TurnOutcomes

T = TypeVar("T")


class Both(JsonObject, Generic[T]):
    """A value before and after an action."""

    before: T
    after: T


class ChangeObject(PartitionObject):
    """A partition before and after an action. All counts are of offsets; an offset without a record counts too."""

    floor: Both[int]
    complete_to: Both[int]
    pending: Both[int]
    paused: Both[bool]
    skipped: int
    """How many offsets are settled as `skipped`: they are never handled, or never again."""
    handled_again: int
    """How many offsets below the old `complete_to` the new epoch reads again."""
    due_now: int
    """How many pending retries become due."""


class TurnOfOperator(JsonObject):
    """A turn that an operator takes, closes or gives up."""

    pipeline: str
    lane: str
    epoch: int
    turn: int


class ActionObject(TurnOfOperator):
    """An action: its turn, its actor and reason, and what it changes. A dry run has the same keys and counts."""

    left_out = frozenset({"older_copies", "notes"})
    kind: str
    reason: str
    actor: str
    partitions: tuple[ChangeObject, ...] = ()
    skipped: int = 0
    handled_again: int = 0
    due_now: int = 0
    older_copies: dict[str, str] | None = None
    """Of a reset or an adoption: the output tables that are older copies, or ahead of the ledger, and why. Left out
    where there are none."""
    notes: tuple[str, ...] | None = None
    """Sentences about a target that is a time, in a log that is not in the order of its timestamps."""
    dry_run: bool
    not_committed: str | None = None


class JoinObject(PartitionObject):
    """A partition that joins a ledger, and where it begins."""

    floor: int
    evidence: str | None


class AdoptionObject(ActionObject):
    """What adopting a ledger changes: its action, whose counts are 0 without one, and the partitions that begin."""

    ledgers: tuple[str, ...]
    older_copy: bool
    unsigned_tokens: int | None
    begins: tuple[JoinObject, ...]


class VoidObject(TurnOfOperator):
    """An open turn, and what becomes of it when it is closed."""

    kind: str
    consequence: str
    reason: str
    pause: bool
    """Whether the partitions are paused, or would be."""
    partitions: tuple[RangeObject, ...]
    not_paused: str | None = None
    not_committed: str | None = None
    dry_run: bool


class DroppedObject(TurnOfOperator):
    """The rows of a settled turn that are given up; `why` has the reason of each table that has lost its rows."""

    reason: str
    rows_at_most: dict[str, int]
    why: dict[str, str] = Field(default_factory=dict)
    not_committed: str | None = None
    dry_run: bool


def changes_of(plan: Plan, before: Settlement) -> dict[TopicPartition, ChangeObject]:
    """Returns the change of each partition that the action is about; of every partition of the lane for a reset."""
    decided = skipped_by(plan, before, plan.planned_at) if plan.kind.moves_floor else {}
    skipped = {tp: rows.offsets for tp, rows in decided.items()}
    columns = {tp: OutcomeColumns.of(rows) for tp, rows in decided.items()}
    counts = {tp: {Outcome.SKIPPED.value: number} for tp, number in skipped.items()}
    states = states_after(plan, before, TurnOutcomes(columns, counts, {}))
    changed = before.partitions if plan.kind.opens_epoch else plan.partitions
    return {tp: _change(plan, tp, before.partitions[tp], states[tp], skipped.get(tp, 0)) for tp in sorted(changed)}


def _change(
    plan: Plan, tp: TopicPartition, settled: SettledPartition, after: PartitionState, skipped: int
) -> ChangeObject:
    planned, before, again = plan.partitions.get(tp), settled.state, 0
    if plan.kind.opens_epoch:
        start = planned.fresh.start if planned else before.floor
        same_topic = planned is None or planned.topic_id == settled.topic_id
        again = max(0, before.complete_to - start) if same_topic else 0
        after = PartitionState(start)
    return ChangeObject(
        **tp._asdict(),
        floor=Both(before=before.floor, after=after.floor),
        complete_to=Both(before=before.complete_to, after=after.complete_to),
        pending=Both(before=before.pending.offsets, after=after.pending.offsets),
        paused=Both(before=settled.paused, after=settled.paused if plan.kind.pauses is None else plan.kind.pauses),
        skipped=skipped,
        handled_again=again,
        due_now=count(planned.retries) if planned and plan.kind is TurnKind.RETRY else 0,
    )


def totals(changes: Mapping[TopicPartition, ChangeObject]) -> dict[str, int]:
    """Returns the sums of the counts over all partitions."""
    names = ("skipped", "handled_again", "due_now")
    return {name: sum(getattr(change, name) for change in changes.values()) for name in names}


SHOWN = 20
"""Partitions that the text lists; `--json` lists all."""


def action_object(action: PreparedAction, dry_run: bool) -> ActionObject:
    """Returns what the action changes, or has changed, as an object."""
    plan, changes = action.plan, changes_of(action.plan, action.before)
    return ActionObject(
        **_turn(plan.turn), kind=plan.kind.value, reason=plan.reason, actor=plan.actor,
        partitions=tuple(changes.values()), **totals(changes), older_copies=dict(action.older_copies) or None,
        notes=action.notes or None, dry_run=dry_run, not_committed=action.not_committed,
    )  # fmt: skip


def _turn(turn: TurnId) -> dict[str, Any]:
    return {"pipeline": turn.pipeline, "lane": turn.lane, "epoch": turn.epoch, "turn": turn.n}


def action_text(action: PreparedAction, done: bool) -> str:
    """Returns what the action changes, or has changed if it is `done`: partition by partition, then the totals."""
    plan, changes = action.plan, changes_of(action.plan, action.before)
    lines = [f"{plan.turn}, a {plan.kind}" + (f" ({plan.reason})" if plan.reason else "") + ":"]
    # A pause or a resume of all partitions also holds those that stay as they are.
    same = {tp for tp, change in changes.items() if change.paused.before is change.paused.after is plan.kind.pauses}
    changed = {tp: change for tp, change in changes.items() if tp not in same}
    lines += [f"  {tp}: {_change_text(plan.kind, change)}" for tp, change in list(changed.items())[:SHOWN]]
    if len(changed) > SHOWN:
        lines.append(f"  and {counted(len(changed) - SHOWN, 'more partition')}; --json lists all")
    if same:
        state = "paused" if plan.kind.pauses else "read"
        lines.append(f"  {counted(len(same), 'partition')} {'is' if len(same) == 1 else 'are'} {state} already")
    return "\n".join([*lines, *totals_lines(changes, done), *action.notes[:SHOWN], *_older_copies(action)])


def _older_copies(action: PreparedAction) -> list[str]:
    lines = []
    for why in action.older_copies.values():
        then = "Records that are handled again publish their rows there again; all other rows stay as they are"
        if OLDER_TABLE in why and not action.plan.kind.opens_epoch:
            then = f"The next run stops, until the table is restored or `ackline reset {action.plan.turn.pipeline}` "
            then += "takes it as it is"
        lines.append(f"{why[:1].upper()}{why[1:]}. {then}.")
    return lines


def totals_lines(changes: Mapping[TopicPartition, ChangeObject], done: bool) -> list[str]:
    """Returns a sentence for each sum of an action that is not 0."""
    lines, sums = list[str](), totals(changes)
    for name, noun, what in _SUMS:
        if number := sums[name]:
            verb = ("is" if number == 1 else "are") if done else "would be"
            lines.append(f"{counted(number, noun)} {verb} {what}.")
    return lines


def done_text(action: PreparedAction) -> str:
    """Returns that an action is done, with its sums, for a person who has seen its partitions before it was."""
    return "\n".join([f"Done: {action.plan.turn}.", *totals_lines(changes_of(action.plan, action.before), done=True)])


_SUMS = (("skipped", "record", "skipped, and never handled"), ("handled_again", "record", "handled again"),
         ("due_now", "retry", "due now"))  # fmt: skip


def _change_text(kind: TurnKind, change: ChangeObject) -> str:
    if kind.pauses is not None:
        words = ["paused" if paused else "read" for paused in (change.paused.before, change.paused.after)]
        return f"{words[0]} → {words[1]}"
    if kind is TurnKind.RETRY:
        return f"{change.due_now:,} of {change.pending.before:,} pending due now"
    counts = [f"{change.skipped:,} skipped"] * bool(change.skipped)
    counts += [f"{change.handled_again:,} handled again"] * bool(change.handled_again)
    floors = f"floor {change.floor.before:,} → {change.floor.after:,}"
    return ", ".join([floors, f"pending {change.pending.before:,} → {change.pending.after:,}", *counts])


def adoption_object(adapters: Adapters, adoption: Adoption, reason: str, dry_run: bool) -> AdoptionObject:
    """Returns what adopting a ledger changes, or has changed, as an object."""
    turn = TurnId(adapters.pipeline.name, LIVE, 0, 0)
    action = ActionObject(
        **_turn(turn), kind=TurnKind.GENESIS.value, reason=reason, actor=adapters.actor, dry_run=dry_run
    )
    if adoption.action is not None:
        action = action_object(adoption.action, dry_run)
    begins = tuple(
        JoinObject(topic=tp.topic, partition=tp.partition, floor=row.state.floor, evidence=row.evidence)
        for tp, row in sorted(adoption.begins.items())
    )
    return AdoptionObject(
        **{**dict(action), "not_committed": adoption.not_committed}, ledgers=adoption.ledgers,
        older_copy=adoption.older_copy, unsigned_tokens=adoption.outstanding.in_flight, begins=begins,
    )  # fmt: skip


def adoption_text(adoption: Adoption, done: bool) -> str:
    """Returns what adopting a ledger changes, or has changed if it is `done`."""
    others = ", ".join(adoption.ledgers)
    lines = [f"The group was committed by the ledger {others}." if others else "No ledger has committed the group."]
    if adoption.older_copy:
        lines.append(
            "ACKLINE_AUDIT holds an older copy of this ledger. The copy goes on under an id of its own, with what is "
            "pending in it."
        )
    lines += _outstanding_text(adoption.outstanding)
    if adoption.rescue_topic is not None and adoption.ledgers:
        lines.append(
            f"Records below these commits that the other ledger had released (`rescue.release`) are pending nowhere "
            f"now: their copies are in {adoption.rescue_topic}."
        )
    if adoption.begins:
        lines.append("Partitions that begin in this ledger:" if done else "Partitions that would begin in this ledger:")
        lines += [f"  {tp}: at {row.state.floor:,} ({row.evidence})" for tp, row in sorted(adoption.begins.items())]
    if adoption.action is not None:
        lines.append(action_text(adoption.action, done))
    return "\n".join(lines)


def _outstanding_text(tokens: OutstandingTokens) -> list[str]:
    if tokens.in_flight is None:
        return [
            "Tokens of records in flight that the other ledger has handed out count no more: answers for them are "
            "ignored as unsigned. This ledger reads those records again if they are not below its start."
        ]
    if not tokens.in_flight:
        return []
    lines = [
        f"Records in flight whose tokens count no more: {tokens.in_flight:,}. Answers for them are ignored as "
        f"unsigned. They time out and are tried again, each under a new token."
    ]
    if tokens.without_timeout:
        lines.append(
            f"{tokens.without_timeout:,} of them have no timeout and stay in flight: end them with `ackline skip`, or "
            f"read them again with `ackline reset`."
        )
    return lines


def void_object(closed: OpenTurn | ClosedTurn, reason: str, pause: bool) -> VoidObject:
    """Returns an open turn and what would become of it, or a closed one and what has, as an object."""
    plan, done = closed.plan, closed if isinstance(closed, ClosedTurn) else None
    not_paused = done.not_paused if done else None
    partitions = tuple(
        RangeObject(topic=tp.topic, partition=tp.partition, start=planned.fresh.start, end=planned.fresh.end)
        for tp, planned in sorted(plan.partitions.items())
        if not planned.empty
    )
    return VoidObject(
        **_turn(plan.turn), kind=plan.kind.value, consequence=closed.consequence.value, reason=reason,
        pause=pause and closed.consequence is not Consequence.SETTLED and not_paused is None, partitions=partitions,
        not_paused=not_paused, not_committed=done.not_committed if done else None, dry_run=done is None,
    )  # fmt: skip


def void_preview(to_close: OpenTurn, pause: bool) -> str:
    """Returns what becomes of an open turn that is closed."""
    plan = to_close.plan
    lines = [f"{plan.turn}, a {plan.kind} of {plan.planned_at.isoformat(timespec='seconds')} by run {plan.run_id}:"]
    for tp, planned in sorted(plan.partitions.items()):
        if not planned.empty:
            retries = sum(len(run) for run in planned.retries)
            lines.append(
                f"  {tp} [{planned.fresh.start}, {planned.fresh.end})"
                + (f", {counted(retries, 'retry')}" * (retries > 0))
            )
    lines.append(_CONSEQUENCES[to_close.consequence])
    if to_close.has_outcomes and to_close.consequence is Consequence.VOID:
        lines.append(
            "Its outcomes are stored, so a run may be able to settle it. After a void they do not count; dead letters "
            "that it has sent stay."
        )
    if to_close.has_outcomes and to_close.consequence is Consequence.LOST:
        lines.append(
            "Its outcomes are stored. If a file of them is lost or damaged, all of them are replaced by the lost "
            "ranges, outcomes of acked records too. If all are whole, the command is refused: a run settles the turn."
        )
    if pause and to_close.consequence is not Consequence.SETTLED:
        lines.append("These partitions will be paused until `ackline resume`.")
    return "\n".join(lines)


_CONSEQUENCES = {
    Consequence.VOID: "It will be void: nothing of it counts, and its offsets are planned again.",
    Consequence.LOST: "It is claimed, so it can't be void: its records will be lost, and not handled again.",
    Consequence.SETTLED: "It handles no record: it will be settled. Only a skip that can't be settled will be void.",
}


def void_text(closed: ClosedTurn, name: str) -> str:
    """Returns what has become of a turn that was closed."""
    did = {
        Consequence.VOID: "is void; the next run plans its offsets again"
        if closed.plan.kind.replays
        else "is void: nothing of it was done",
        Consequence.LOST: "is settled; its records are lost",
        Consequence.SETTLED: "is settled",
    }
    text = f"{closed.plan.turn} {did[closed.consequence]}."
    if closed.not_committed is not None:
        text += f"\nIt is stored; {closed.not_committed}"
    if closed.not_paused is not None:
        text += f"\nIts partitions were not paused: {closed.not_paused}. Pause them with `ackline pause {name}`."
    return text


def dropped_object(dropped: UnpublishedTurn | DroppedOutputs, reason: str) -> DroppedObject:
    """Returns the rows that would be given up, or that are, as an object."""
    body = {**_turn(dropped.turn), "reason": reason, "rows_at_most": dict(dropped.rows)}
    if isinstance(dropped, UnpublishedTurn):
        return DroppedObject(**body, dry_run=True)
    return DroppedObject(**body, why=dict(dropped.lost), not_committed=dropped.not_committed, dry_run=False)


def unpublished_preview(to_drop: UnpublishedTurn) -> str:
    """Returns which tables lack the rows of a settled turn, and what becomes of them."""
    lines = [f"{to_drop.turn} is settled, and its rows are not in:"]
    lines += [f"  {table}: at most {counted(rows, 'row')}" for table, rows in to_drop.rows.items()]
    lines.append(
        "Each output table of the turn is tried once more. The rows of these that can't be published then are lost: "
        "their records stay acked, and no later turn reads them."
    )
    return "\n".join(lines)


def dropped_text(dropped: DroppedOutputs) -> str:
    """Returns what has become of a settled turn whose rows an operator has given up."""
    lines = [f"{dropped.turn} counts as published."]
    for table, rows in dropped.rows.items():
        lost = f"at most {counted(rows, 'row')} {'is' if rows == 1 else 'are'} lost"
        lines.append(f"  {table}: {lost}: {dropped.lost[table]}")
    lines += [] if dropped.rows else ["Each table has its rows now; nothing is lost."]
    lines += [] if dropped.not_committed is None else [f"It is stored; {dropped.not_committed}"]
    return "\n".join(lines)
