"""One run: one turn after another, until a turn has read a record or the log has no more.

Otherwise, a turn that reads only gaps would cost a whole schedule interval. The identity of the work is the turn's, not
the run's: a run that finds an open turn finishes it, whichever run began it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ackline.errors import RangeGone
from ackline.lane.adapters import Parts, Progress
from ackline.lane.commit import CommitResult
from ackline.lane.turn_metrics import stored_report, turn_outcomes
from ackline.lane.void import check_not_voided
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Plan, Settlement, TurnKind
from ackline.pipeline.arguments import RunRequest
from ackline.steps.plan import plan
from ackline.steps.replay import Replayed, replay
from ackline.steps.settle import settle, settle_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_VOID_TURNS = 5
"""Void turns in a row after which a run stops.

A turn is void if its range is gone when replay reads it. One or two happen if retention deletes a segment between plan
and read. Five in a row mean that retention is quicker than the run, and more turns would not change that.
"""


@dataclass(slots=True)
class RunResult:
    """What a run did: `calls` are handler calls of this process, `outcomes` offsets by outcome.

    `outcomes` counts those of its turns and actions that count; a range counts as all its offsets.
    `commit` is the group's commit after the last turn; None if no turn was taken. `voided` holds the reasons of the
    void turns since the last turn that was not void.
    """

    plans: list[Plan] = field(default_factory=list)
    calls: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    commit: CommitResult | None = None
    missing: tuple[str, ...] = ()
    leaderless: tuple[TopicPartition, ...] = ()
    voided: list[str] = field(default_factory=list)
    answers: Counter[str] | None = None
    """How many answers from outside were applied and ignored; None without an ack topic."""
    warnings: list[str] = field(default_factory=list)
    """Answers that the ack topic has lost."""


def run(
    parts: Parts,
    spark: "Callable[[], SparkSession]",
    on_plan: Callable[[Plan, bool], None] | None = None,
    on_progress: Progress | None = None,
) -> RunResult:
    """Plans, replays and settles, and again while the last turn has read no record and the log has more.

    `on_plan` is called with each plan, and whether it was adopted. Raises RangeGone after MAX_VOID_TURNS void turns in
    a row, TurnVoided if an operator has closed a turn of this run, and what the three steps raise.
    """
    result = RunResult()
    while True:
        planned = plan(parts)
        result.missing, result.leaderless = planned.missing, planned.leaderless
        for action in planned.actions:
            for settled in action.partitions.values():
                result.outcomes.update(settled.counts)
        if planned.plan is None:
            return result
        if on_plan:
            on_plan(planned.plan, planned.adopted)
        replayed = replay(parts, spark, on_progress)
        # This turn only. If another run has planned the next turn, that run settles it.
        result.commit = settle(parts, planned.plan.turn)
        settlement = parts.store.settlement(planned.plan.turn)
        _add_turn(result, planned.plan, replayed, settlement)
        if not needs_another_turn(planned.plan, settlement):
            return result
        if len(result.voided) >= MAX_VOID_TURNS:
            raise _too_many_void_turns(parts, result.voided[-1])


def replay_until_records(
    parts: Parts, spark: "Callable[[], SparkSession]", on_progress: Progress | None = None
) -> Replayed:
    """Replays turns until one has read a record or the log has no more: the replay step of a DAG.

    Turns without a record are settled here, and the next turn is planned and replayed. So the DAG's settle step finds
    the turn that has read records. Raises RangeGone after MAX_VOID_TURNS void turns in a row, and TurnVoided if an
    operator has closed the turn.
    """
    calls = void_turns = 0
    while True:
        replayed = replay(parts, spark, on_progress)
        calls += replayed.calls
        void_turns = void_turns + 1 if replayed.void else 0
        if void_turns >= MAX_VOID_TURNS:
            raise _too_many_void_turns(parts, replayed.void)
        newest = parts.store.newest()
        open_plan = parts.store.open_plan(newest) if newest else None
        if newest is None or replayed.plan is None:
            return replace(replayed, calls=calls)
        if open_plan is None or open_plan.turn != replayed.plan.turn:
            check_not_voided(parts, replayed.plan.turn)
        if open_plan is not None and open_plan.turn != replayed.plan.turn:
            # Another run has settled this process's turn and planned the next turn. That run settles it.
            return replace(replayed, calls=calls)
        if open_plan is not None:
            report = stored_report(parts, open_plan)
            counts = report.counts if report else turn_outcomes(parts, open_plan, report).counts
            if any(map(has_records, counts.values())) or not log_has_more(open_plan):
                return replace(replayed, calls=calls)
            settle_turn(parts, open_plan, newest)
            check_not_voided(parts, open_plan.turn)
        # A driver of Airflow does not get the request of its DAG run: the plan of the first turn holds it.
        plan(replace(parts, request=RunRequest.of_plan(replayed.plan.settings)))


def _too_many_void_turns(parts: Parts, reason: str | None) -> RangeGone:
    return RangeGone(
        f"{parts.pipeline.name}: {MAX_VOID_TURNS} turns in a row found their range gone; the last: {reason}. Retention "
        f"deletes records faster than the pipeline reads them: raise the topic's retention, or run more often"
    )


def needs_another_turn(done: Plan, settlement: Settlement) -> bool:
    """Returns whether the run takes another turn: the last one was void, or has read no record and the log has more."""
    if settlement.kind is TurnKind.VOID:
        return True
    has_read = any(has_records(settled.counts) for settled in settlement.partitions.values())
    return not has_read and log_has_more(done)


def has_records(counts: Mapping[str, int]) -> bool:
    """Returns whether these counts include a record that was read. A record that retention took does not count."""
    return any(
        counts.get(word)
        for word in (Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, Outcome.DROPPED, Outcome.IN_FLIGHT)
    )


def log_has_more(done: Plan) -> bool:
    """Returns whether a plan moved a partition forward and ended before the log's end.

    Both are needed: after a turn that moves nothing, the next one would be the same, without end.
    """
    return any(planned.complete_to < planned.fresh.end < planned.log.end for planned in done.partitions.values())


def _add_turn(result: RunResult, planned: Plan, replayed: Replayed, settlement: Settlement) -> None:
    result.plans.append(planned)
    result.calls += replayed.calls
    if settlement.kind is TurnKind.VOID:
        result.voided.append(replayed.void or settlement.reason)
        return
    result.voided.clear()
    if settlement.answers is not None:
        result.answers = (result.answers or Counter()) + Counter(settlement.answers.counts)
        result.warnings += settlement.answers.warnings
    for settled in settlement.partitions.values():
        result.outcomes.update(settled.counts)
