"""What an operator action changes, partition by partition: computed from its plan and the lane before it, so that a dry
run and the action itself show the same."""

from collections.abc import Mapping
from dataclasses import dataclass

from ackline.audit.turn_outcomes import TurnOutcomes
from ackline.ledger import PartitionState
from ackline.offsets import TopicPartition, count
from ackline.outcome import Outcome
from ackline.steps.action_plans import MOVES
from ackline.steps.decide import skipped_by, states_after
from ackline.turns import Plan, SettledPartition, Settlement, TurnKind


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A partition before and after an action. All counts are of offsets; an offset without a record counts too."""

    before: PartitionState
    after: PartitionState
    paused: tuple[bool, bool]
    """Whether it is paused, before and after."""
    skipped: int = 0
    """How many offsets are settled as `skipped`: they are never handled, or never again."""
    handled_again: int = 0
    """How many offsets below the old `complete_to` the new epoch reads again."""
    due_now: int = 0
    """How many pending retries become due."""


def changes_of(plan: Plan, before: Settlement) -> dict[TopicPartition, PartitionChange]:
    """Returns the change of each partition that the action is about; of every partition of the lane for a reset."""
    decided = skipped_by(plan, before, plan.planned_at) if plan.kind in MOVES else {}
    counts = {tp: {Outcome.SKIPPED.value: sum(row.end - row.offset for row in rows)} for tp, rows in decided.items()}
    states = states_after(plan, before, TurnOutcomes(decided, counts, {}))
    changed = before.partitions if plan.kind is TurnKind.RESET else plan.partitions
    return {
        tp: _change(plan, tp, before.partitions[tp], states[tp], counts.get(tp, {}).get(Outcome.SKIPPED.value, 0))
        for tp in sorted(changed)
    }


def _change(
    plan: Plan, tp: TopicPartition, settled: SettledPartition, after: PartitionState, skipped: int
) -> PartitionChange:
    planned, again, paused = plan.partitions.get(tp), 0, settled.paused
    if plan.kind is TurnKind.RESET:
        start = planned.fresh.start if planned else settled.state.floor
        same_topic = planned is None or planned.topic_id == settled.topic_id
        again = max(0, settled.state.complete_to - start) if same_topic else 0
        after = PartitionState(start)
    if plan.kind in (TurnKind.PAUSE, TurnKind.RESUME):
        paused = plan.kind is TurnKind.PAUSE
    due_now = count(planned.retries) if planned and plan.kind is TurnKind.RETRY else 0
    return PartitionChange(settled.state, after, (settled.paused, paused), skipped, again, due_now)


def totals(changes: Mapping[TopicPartition, PartitionChange]) -> dict[str, int]:
    """Returns the sums of the counts over all partitions."""
    names = ("skipped", "handled_again", "due_now")
    return {name: sum(getattr(change, name) for change in changes.values()) for name in names}
