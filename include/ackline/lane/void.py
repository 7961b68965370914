"""Close a turn as void: it changes no state, none of its rows counts, and a later turn plans its offsets again.

At least once, settlement n alone closes the turn: it takes the number that settling the turn would take. What a driver
stores after it does not count.

At most once, a void settlement alone would race with the driver that claims the turn and hands its records out: both
would win, and the next turn would hand the same records out again (I7). So the writes come in this order:
1. Waiver n, which takes the number of claim n. A turn is either claimed or waived, and stays so. After a crash here,
   every process that meets the turn closes it, with the reason that the waiver holds. No process commits its end.
2. Settlement n, of kind void.
A claimed turn is never void, because the group may have moved over it: it is recorded as lost (lane/claim.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ackline.errors import ConfigError, FatalError, RangeGone, TopicChanged, TurnVoided
from ackline.lane.adapters import Adapters
from ackline.ledger.metrics import fetch_metrics
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE, VOIDED_BY_OPERATOR, Marker, MarkerKind, Plan, Settlement, TurnId, TurnKind
from ackline.pipeline.outputs import without_effect
from ackline.pipeline.pipeline import is_at_most_once


def void_turn(adapters: Adapters, plan: Plan, before: Settlement, reason: str) -> bool:
    """Closes a plan that can't be carried out as void. Returns whether the turn is void now: False if it is claimed, or
    if another process has settled it meanwhile."""
    waiver = Marker(MarkerKind.WAIVER, adapters.run_id, adapters.now(), adapters.actor, reason)
    if is_at_most_once(plan):
        if waive(adapters, plan, waiver):
            close_if_waived(adapters, plan, before)
    else:
        store_void(adapters, plan, before, waiver)
    return adapters.store.is_settled(plan.turn) and adapters.store.settlement(plan.turn).kind is TurnKind.VOID


def waive(adapters: Adapters, plan: Plan, waiver: Marker) -> bool:
    """Takes the claim's number of an at-most-once turn. Returns whether the turn is waived, by this process or by
    another one; False if it is claimed."""
    return adapters.store.store_waiver(plan, waiver) or adapters.store.has_waiver(plan.turn)


def close_if_waived(adapters: Adapters, plan: Plan, before: Settlement) -> bool:
    """Closes an open turn as void if it was waived, with the reason that the waiver holds. Returns whether it was.

    Every step that meets an open turn calls this. The process that has waived it may have died before it could close
    the turn, and no other step may carry out a waived turn.
    """
    waiver = adapters.store.waiver_of(plan.turn) if is_at_most_once(plan) else None
    if waiver is not None:
        store_void(adapters, plan, before, waiver)
    return waiver is not None


def store_void(adapters: Adapters, plan: Plan, before: Settlement, waiver: Marker) -> bool:
    """Stores the void settlement of an open plan. Returns False if settlement n is stored already.

    The void settlement takes number n of the settlements. So it races with a process that settles the turn: the first
    one stored decides, and the other one is refused.
    """
    partitions = {
        tp: replace(
            settled,
            old_floor=settled.state.floor,
            counts={},
            gaps=0,
            evidence=VOIDED_BY_OPERATOR if waiver.by_operator else "void",
            # What the plan has found out about the group stays true although the turn is void: a foreign offset is
            # acknowledged only until a plan has found a commit of this ledger.
            acknowledged_foreign_offset=acknowledged_foreign_offset(tp, plan, before),
            metrics=fetch_metrics(settled.metrics),
            ranges=None,  # only a genesis holds what was chosen
            paused=settled.paused or (waiver.pause and tp in plan.partitions and not plan.partitions[tp].empty),
        )
        for tp, settled in before.partitions.items()
    }
    settlement = Settlement(
        plan.turn, TurnKind.VOID, adapters.run_id, adapters.now(), partitions, waiver.actor, waiver.reason,
        # Answers that the turn has read did not count, so the next turn reads them again.
        answers=before.answers.after_turn_without_answers() if before.answers else None,
        outputs=without_effect(before.outputs),
    )  # fmt: skip
    return adapters.store.store_settlement(settlement, plan)


def acknowledged_foreign_offset(tp: TopicPartition, plan: Plan, before: Settlement) -> int | None:
    """Returns the foreign offset that stays acknowledged: by the plan if it holds the partition, else as before."""
    partitions = plan.partitions if tp in plan.partitions else before.partitions
    return partitions[tp].acknowledged_foreign_offset


def check_not_voided(adapters: Adapters, turn: TurnId) -> None:
    """Raises TurnVoided if an operator has closed the turn, as void or as lost: the run that worked on it ends, and
    plans no other turn."""
    newest = adapters.store.newest()
    if newest is None or (newest.turn.epoch, newest.turn.n) < (turn.epoch, turn.n):
        return
    settlement = adapters.store.settlement(turn)
    if not settlement.closed_by_operator:
        return
    if settlement.kind is TurnKind.VOID:
        raise TurnVoided(
            f"{turn} was closed as void by {settlement.actor or 'an operator'}: {settlement.reason}. Nothing of it "
            f"counts, and nothing more was planned; the next run plans its offsets again"
        )
    # Without the actor: any process may settle a turn after an operator has recorded it as lost.
    raise TurnVoided(
        f"{turn} was recorded as lost by an operator: {settlement.reason}. What this run has handled of it does not "
        f"count, and nothing more was planned; the next run goes on after it"
    )


def void_advice(turn: TurnId) -> str:
    """Returns the sentence that names the way out of an open turn."""
    lane = "" if turn.lane == LIVE else f" --lane {turn.lane}"
    return f"If the turn can't be carried out, close it with `ackline void {turn.pipeline}{lane} --reason …`"


@contextmanager
def advises_void_if_file_changed(adapters: Adapters, plan: Plan) -> Iterator[None]:
    """Adds `void_advice` to a ConfigError if the pipeline file differs from the settings of the plan.

    Such an error advises to change the file, which is no way out of a turn that runs by the settings of its plan.
    """
    try:
        yield
    except ConfigError as error:
        now = adapters.pipeline.settings()
        if any(now[key] != value for key, value in plan.settings.items() if key in now):
            error.add_advice(
                f"{plan.turn} runs by the settings of its plan. The file has changed since, and counts from the next "
                f"turn on. {void_advice(plan.turn)}"
            )
        raise


@contextmanager
def advises_void(turn: TurnId) -> Iterator[None]:
    """Adds `void_advice` to a fatal error, because the same turn would meet it again.

    Adds nothing to RangeGone and TopicChanged, for which the step closes the turn itself.
    """
    try:
        yield
    except (RangeGone, TopicChanged):
        raise
    except FatalError as error:
        error.add_advice(void_advice(turn))
        raise
