"""One run: one turn after another, until a turn has read a record or the log has no more.

Otherwise, a turn that reads only gaps would cost a whole schedule interval. The identity of the work is the turn's, not
the run's: a run that finds an open turn finishes it, whichever run began it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ackline.errors import RangeGone
from ackline.forms.form import RunRequest
from ackline.lane.adapters import Adapters, Progress
from ackline.lane.claim import check_not_voided
from ackline.lane.commit import CommitResult
from ackline.lane.turn_metrics import stored_report, turn_outcomes
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.states import NEW_FAILED, NEW_RECORDS
from ackline.ledger.turns import Plan, Settlement, TurnId, TurnKind
from ackline.steps.plan import Planned, plan
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

    `plans` are the plans of its turns; the last one may be left open for another step. `outcomes` counts those of its
    turns and actions that count; a range counts as all its offsets. `commit` is the group's commit after the last turn;
    None if no turn was settled. `voided` holds the reasons of the void turns since the last turn that was not void.
    """

    plans: list[Plan] = field(default_factory=list)
    calls: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    commit: CommitResult | None = None
    missing: tuple[str, ...] = ()
    leaderless: tuple[TopicPartition, ...] = ()
    new_records: int = 0
    """How many records its turns have handled for the first time."""
    new_failed: int = 0
    """How many of these failed."""
    voided: list[str] = field(default_factory=list)
    answers: Counter[str] | None = None
    """How many answers from outside were applied and ignored; None without an ack topic."""
    warnings: list[str] = field(default_factory=list)
    """Answers that the ack topic has lost."""

    def add(self, replayed: Replayed, settlement: Settlement | None) -> None:
        """Counts a turn that was replayed; `settlement` is None if it is left open, or to another run."""
        reason = replayed.void
        if settlement is not None:  # it decides, whatever this process has found
            reason = (reason or settlement.reason) if settlement.kind is TurnKind.VOID else None
        if reason is not None:
            self.voided.append(reason)
            return
        self.voided.clear()
        if settlement is None:
            return
        if settlement.answers is not None:
            self.answers = (self.answers or Counter()) + Counter(settlement.answers.counts)
            self.warnings += settlement.answers.warnings
        self.add_counts(settlement)

    def add_counts(self, settlement: Settlement) -> None:
        """Counts the outcomes of a settlement."""
        for settled in settlement.partitions.values():
            self.outcomes.update(settled.counts)
            metrics = settled.metrics or {}
            self.new_records += int(metrics.get(NEW_RECORDS, 0))
            self.new_failed += int(metrics.get(NEW_FAILED, 0))


OnPlan = Callable[[Plan, bool], None]
"""Called with each plan, and whether it was adopted."""


def take_turns(
    adapters: Adapters,
    spark: "Callable[[], SparkSession]",
    next_turn: Callable[[RunResult], Planned],
    end_turn: Callable[[RunResult, TurnId], Settlement | None],
    goes_on: Callable[[Plan, Settlement], bool],
    on_plan: OnPlan | None = None,
    on_progress: Progress | None = None,
) -> RunResult:
    """Takes one turn after another: `next_turn`, replay, `end_turn`, and again if `goes_on` with plan and settlement.

    `next_turn` plans a turn; without a plan, the run ends. `end_turn` settles a turn that was replayed; None if it is
    left to another step or run, and then the run ends. It and `goes_on` get the plan that was replayed: another
    process may have ended the turn of `next_turn` in between and planned the next one.

    Raises RangeGone after MAX_VOID_TURNS void turns in a row, TurnVoided if an operator has closed the planned turn in
    between, and what the steps raise.
    """
    result = RunResult()
    while True:
        planned = next_turn(result)
        result.missing, result.leaderless = planned.missing, planned.leaderless
        for action in planned.actions:
            result.add_counts(action)
        if planned.plan is None:
            return result
        if on_plan:
            on_plan(planned.plan, planned.adopted)
        replayed = replay(adapters, spark, on_progress)
        done = replayed.plan or planned.plan
        if done.turn != planned.plan.turn:
            # Another process has ended the planned turn and planned the next one, which this process has replayed.
            check_not_voided(adapters, planned.plan.turn)
        result.plans.append(done)
        result.calls += replayed.calls
        settlement = end_turn(result, done.turn)
        result.add(replayed, settlement)
        if len(result.voided) >= MAX_VOID_TURNS:
            raise _too_many_void_turns(adapters, result.voided[-1])
        if settlement is None or not goes_on(done, settlement):
            return result


def run(
    adapters: Adapters,
    spark: "Callable[[], SparkSession]",
    on_plan: OnPlan | None = None,
    on_progress: Progress | None = None,
) -> RunResult:
    """Plans, replays and settles, and again while the last turn has read no record and the log has more.

    Raises as `take_turns` does.
    """
    end_turn = partial(settle_and_commit, adapters)
    return take_turns(adapters, spark, lambda _: plan(adapters), end_turn, needs_another_turn, on_plan, on_progress)


def settle_and_commit(adapters: Adapters, done: RunResult, turn: TurnId) -> Settlement:
    """Settles a turn of a run, and commits the newest floor. Returns the turn's settlement."""
    # This turn only. If another run has planned the next turn, that run settles it.
    done.commit = settle(adapters, turn)
    return adapters.store.settlement(turn)


def replay_until_records(
    adapters: Adapters, spark: "Callable[[], SparkSession]", on_progress: Progress | None = None
) -> RunResult:
    """Replays turns until one has read a record or the log has no more: the replay step of a DAG.

    Begins with the open turn. Turns without a record are settled here, so the DAG's settle step finds the turn that has
    read records. Raises as `take_turns` does.
    """

    def next_turn(done: RunResult) -> Planned:
        if done.plans:
            # A driver of Airflow does not get the request of its DAG run: the plan of the first turn holds it.
            return plan(replace(adapters, request=RunRequest.of_plan(done.plans[-1].settings)))
        return Planned(adapters.newest_and_open_plan()[1], adopted=True)

    def end_turn(_: RunResult, turn: TurnId) -> Settlement | None:
        newest, open_plan = adapters.newest_and_open_plan()
        if newest is not None and open_plan is not None and open_plan.turn == turn:
            report = stored_report(adapters, open_plan)
            counts = report.counts if report else turn_outcomes(adapters, open_plan, report).counts
            if any(map(has_records, counts.values())) or not log_has_more(open_plan):
                return None
            settle_turn(adapters, open_plan, newest)
            open_plan = None
        check_not_voided(adapters, turn)
        # With another open plan: another run has settled this process's turn and planned the next one, and settles it.
        return None if open_plan is not None else adapters.store.settlement(turn)

    return take_turns(adapters, spark, next_turn, end_turn, lambda *_: True, None, on_progress)


def _too_many_void_turns(adapters: Adapters, reason: str) -> RangeGone:
    of_lane, reader = "", "pipeline reads them: raise the topic's retention, or run more often"
    if not adapters.commits:
        of_lane, reader = f" of {adapters.store.lane}", "backfill reads them"
    return RangeGone(
        f"{adapters.pipeline.name}: {MAX_VOID_TURNS} turns{of_lane} in a row found their range gone; the last: "
        f"{reason}. Retention deletes records faster than the {reader}"
    )


def needs_another_turn(done: Plan, settlement: Settlement) -> bool:
    """Returns whether the run takes another turn: the last one was void, or has read no record and the log has more."""
    if settlement.kind is TurnKind.VOID:
        return True
    has_read = any(has_records(settled.counts) for settled in settlement.partitions.values())
    return not has_read and log_has_more(done)


_READ = ("acked", "failed", "skipped", "dropped", "in_flight", "held_back")


def has_records(counts: Mapping[str, int]) -> bool:
    """Returns whether these counts include a record that was read. A record that retention took does not count."""
    return any(counts.get(word) for word in _READ)


def log_has_more(done: Plan) -> bool:
    """Returns whether a plan moved a partition forward and ended before the log's end.

    Both are needed: after a turn that moves nothing, the next one would be the same, without end.
    """
    return any(planned.complete_to < planned.fresh.end < planned.log.end for planned in done.partitions.values())
