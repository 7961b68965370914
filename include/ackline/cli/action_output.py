"""What an operator action changes, for a person and for a program; the same for a dry run and for the action itself."""

from typing import Any

from ackline.offsets import TopicPartition, count
from ackline.steps.action_changes import PartitionChange, changes_of, totals
from ackline.steps.operator_actions import PreparedAction
from ackline.turns import TurnId, TurnKind

SHOWN = 20
"""Partitions that the text lists; `--json` lists all."""


def action_json(action: PreparedAction, dry_run: bool, not_committed: str | None = None) -> dict[str, Any]:
    """Returns the object that `--json` prints. A dry run has the same keys and counts."""
    plan, changes = action.plan, changes_of(action.plan, action.before)
    return {
        **turn_json(plan.turn, plan.kind, plan.reason, plan.actor),
        "partitions": [_partition_json(tp, change) for tp, change in changes.items()],
        **totals(changes),
        "dry_run": dry_run,
        "not_committed": not_committed,
    }


def turn_json(turn: TurnId, kind: TurnKind, reason: str, actor: str) -> dict[str, Any]:
    """Returns the identity of an action's turn, and who asked for it, and why."""
    of_turn = {"pipeline": turn.pipeline, "lane": turn.lane, "epoch": turn.epoch, "turn": turn.n}
    return {**of_turn, "kind": kind.value, "reason": reason, "actor": actor}


def _partition_json(tp: TopicPartition, change: PartitionChange) -> dict[str, Any]:
    def both(of_before: Any, of_after: Any) -> dict[str, Any]:
        return {"before": of_before, "after": of_after}

    before, after = change.before, change.after
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "floor": both(before.floor, after.floor),
        "complete_to": both(before.complete_to, after.complete_to),
        "pending": both(count(before.pending), count(after.pending)),
        "paused": both(*change.paused),
        "skipped": change.skipped,
        "handled_again": change.handled_again,
        "due_now": change.due_now,
    }


def action_text(action: PreparedAction, done: bool) -> str:
    """Returns what the action changes, or has changed if it is `done`: partition by partition, then the totals."""
    plan, changes = action.plan, changes_of(action.plan, action.before)
    lines = [f"{plan.turn}, a {plan.kind}" + (f" ({plan.reason})" if plan.reason else "") + ":"]
    lines += [f"  {tp}: {_change_text(plan.kind, change)}" for tp, change in list(changes.items())[:SHOWN]]
    if len(changes) > SHOWN:
        lines.append(f"  and {len(changes) - SHOWN:,} more partitions; --json lists all")
    sums = totals(changes)
    if sums["skipped"]:
        never = "are skipped: they are never handled" if done else "would never be handled"
        lines.append(f"{sums['skipped']:,} records {never}.")
    if sums["handled_again"]:
        lines.append(f"{sums['handled_again']:,} records {'are' if done else 'would be'} handled again.")
    if sums["due_now"]:
        lines.append(f"{sums['due_now']:,} retries {'are' if done else 'would be'} due now.")
    return "\n".join(lines)


def _change_text(kind: TurnKind, change: PartitionChange) -> str:
    if kind in (TurnKind.PAUSE, TurnKind.RESUME):
        words = ["paused" if paused else "read" for paused in change.paused]
        return f"{words[0]} → {words[1]}"
    if kind is TurnKind.RETRY:
        return f"{change.due_now:,} of {count(change.before.pending):,} pending due now"
    counts = [f"{change.skipped:,} skipped"] * bool(change.skipped)
    counts += [f"{change.handled_again:,} handled again"] * bool(change.handled_again)
    pending = [count(state.pending) for state in (change.before, change.after)]
    floors = f"floor {change.before.floor:,} → {change.after.floor:,}"
    return ", ".join([floors, f"pending {pending[0]:,} → {pending[1]:,}", *counts])
