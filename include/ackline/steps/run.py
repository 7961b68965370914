"""One run: turns, one after another, until one met a record or the log has no more.

A turn that only met gaps would otherwise cost a whole schedule interval. Identity is the turn's, not the run's: a run
that finds an open turn finishes it, whoever began it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ackline.errors import RangeGone
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.steps.commit import Settled
from ackline.steps.measure import outcomes_of, report_of
from ackline.steps.parts import Parts, Progress
from ackline.steps.plan import plan
from ackline.steps.replay import Replayed, replay
from ackline.steps.settle import settle, settle_turn
from ackline.turns import Plan, Settlement, TurnKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_VOID = 5
"""Void turns in a row after which a run gives up: retention is quicker than it."""


@dataclass(slots=True)
class Ran:
    """What a run did. `calls` are handler calls of this process; `outcomes` effective rows of its turns and acts."""

    plans: list[Plan] = field(default_factory=list)
    calls: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    settled: Settled | None = None
    missing: tuple[str, ...] = ()
    leaderless: tuple[TopicPartition, ...] = ()
    voided: list[str] = field(default_factory=list)


def run(
    parts: Parts,
    spark: "Callable[[], SparkSession]",
    on_plan: Callable[[Plan, bool], None] | None = None,
    on_progress: Progress | None = None,
) -> Ran:
    """plan, replay and settle, and again while the last turn met no record and the log has more."""
    ran = Ran()
    while True:
        planned = plan(parts)
        ran.missing, ran.leaderless = planned.missing, planned.leaderless
        for act in planned.acts:
            for one in act.partitions.values():
                ran.outcomes.update(one.counts)
        if planned.plan is None:
            return ran
        if on_plan:
            on_plan(planned.plan, planned.adopted)
        replayed = replay(parts, spark, on_progress)
        ran.settled = settle(parts, planned.plan.turn)
        settlement = parts.store.settlement(planned.plan.turn)
        _note(ran, planned.plan, replayed, settlement)
        if not goes_on(planned.plan, settlement):
            return ran
        if len(ran.voided) >= MAX_VOID:
            raise RangeGone(f"{MAX_VOID} turns in a row found their range gone; the last: {ran.voided[-1]}")


def replay_on(parts: Parts, spark: "Callable[[], SparkSession]", on_progress: Progress | None = None) -> Replayed:
    """replay, for a process of its own: turns that met no record are settled here and the next one is planned and
    replayed, so that what settle finds later is the turn that met something."""
    calls = voided = 0
    while True:
        replayed = replay(parts, spark, on_progress)
        calls += replayed.calls
        voided = voided + 1 if replayed.void else 0
        if voided >= MAX_VOID:
            raise RangeGone(f"{MAX_VOID} turns in a row found their range gone; the last: {replayed.void}")
        newest = parts.store.newest()
        open_plan = parts.store.open_plan(newest) if newest else None
        if newest is None or replayed.plan is None:
            return replace(replayed, calls=calls)
        if open_plan is not None and open_plan.turn != replayed.plan.turn:
            return replace(replayed, calls=calls)  # another run went on meanwhile: that turn is its own to prove
        if open_plan is not None:
            found = outcomes_of(parts, open_plan, report_of(parts, open_plan))
            if any(met_records(one) for one in found.counts.values()) or not more_in_log(open_plan):
                return replace(replayed, calls=calls)
            settle_turn(parts, open_plan, newest)
        plan(parts)


def goes_on(done: Plan, settlement: Settlement) -> bool:
    """Whether the run takes another turn: its last one was void, or met no record while the log has more."""
    if settlement.kind is TurnKind.VOID:
        return True
    met = any(met_records(one.counts) for one in settlement.partitions.values())
    return not met and more_in_log(done)


def met_records(counts: Mapping[str, int]) -> bool:
    """Whether outcomes speak of a record that was there: ranges that retention took first are no work done."""
    return any(counts.get(word) for word in (Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, Outcome.DROPPED))


def more_in_log(done: Plan) -> bool:
    """Whether a plan moved on, and stopped short of the log's end: a turn that moves nothing would repeat for ever."""
    return any(one.complete_to < one.fresh.end < one.log.end for one in done.partitions.values())


def _note(ran: Ran, planned: Plan, replayed: Replayed, settlement: Settlement) -> None:
    ran.plans.append(planned)
    ran.calls += replayed.calls
    if settlement.kind is TurnKind.VOID:
        ran.voided.append(replayed.void or settlement.reason)
        return
    ran.voided.clear()
    for one in settlement.partitions.values():
        ran.outcomes.update(one.counts)
