"""Mutants: each breaks one rule of the steps, and the state machine must find a violation.

M1 to M3 break the rules that carry most weight; tests/chaos/test_mutants.py breaks them on real tables too. The others
are about operator actions, claims, the breaker, parked partitions, and answers from outside.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ackline.errors import AcklineError, RangeGone, TopicChanged
from ackline.in_flight import decide as answers
from ackline.in_flight.ack_topic import AnswerRange, range_to_read
from ackline.lane import claim, commit, plans
from ackline.lane.adapters import Adapters
from ackline.lane.commit import CommitResult
from ackline.ledger.answers import Ignored
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.fold import OutcomeRow, PartitionState
from ackline.ledger.offsets import OffsetRange, TopicPartition, arrays_of
from ackline.ledger.order import Order
from ackline.ledger.outcomes import AnswerKind, ErrorClass, Outcome, RangeRows
from ackline.ledger.turns import (
    AnswerReport,
    Marker,
    MarkerKind,
    Plan,
    PlannedPartition,
    SettledPartition,
    Settlement,
    TurnId,
    TurnKind,
)
from ackline.steps import decide, plan, replay, run, run_plan, settle
from ackline.worker.files import WrittenFile
from tests.chaos.config import GROUP
from tests.support.memory import Hook, LogRecord, World
from tests.support.memory_adapters import MemoryJob
from tests.support.memory_kafka import MemoryGroup
from tests.support.memory_store import MemoryStore
from tests.support.memory_table import MemoryTable


def commit_before_settlement(patch: pytest.MonkeyPatch) -> None:
    """M1: settle commits to the group before it stores the settlement."""
    real = MemoryStore.store_settlement

    def commits_first(store: MemoryStore, settlement: Settlement, plan: Plan | None = None, **first: Any) -> bool:
        if plan is None:
            return real(store, settlement, plan, **first)
        table = store.tables["settlements"]
        turn = settlement.turn
        metadata = CommitMetadata(store.ledger_id(), store.pipeline, turn.epoch, turn.n).encode()
        floors = {tp: Committed(settled.state.floor, metadata) for tp, settled in settlement.partitions.items()}
        with contextlib.suppress(AcklineError):
            MemoryGroup(store.world, GROUP, table.run_id, table.hook).commit(floors)
        return real(store, settlement, plan)

    patch.setattr(MemoryStore, "store_settlement", commits_first)


def complete_to_without_proof(patch: pytest.MonkeyPatch) -> None:
    """M2: settle takes the plan as proof that its range was read and handled."""
    real, proved = settle.settle_turn, MemoryStore.has_outcomes
    settling: list[bool] = []

    def settle_without_proof(adapters: Adapters, plan: Plan, before: Settlement) -> None:
        settling.append(True)
        try:
            real(adapters, plan, before)
        finally:
            settling.pop()

    def has_outcomes(store: MemoryStore, turn: TurnId) -> bool:
        return bool(settling) or proved(store, turn)

    patch.setattr(MemoryStore, "has_outcomes", has_outcomes)
    for module in (settle, plan, run):
        patch.setattr(module, "settle_turn", settle_without_proof)


def no_fence_on_outcomes(patch: pytest.MonkeyPatch) -> None:
    """M3: the number of an outcomes commit can be taken more than once."""
    real = MemoryTable.is_free

    def is_free(table: MemoryTable, application: str, number: int) -> bool:
        return application.endswith("/outcomes") or real(table, application, number)

    patch.setattr(MemoryTable, "is_free", is_free)


def claim_without_commit(patch: pytest.MonkeyPatch) -> None:
    """At most once: replay hands records out before it commits the claim to the group (I7)."""

    def commit_nothing(adapters: Adapters, _: object) -> CommitResult:
        newest = adapters.store.newest()
        assert newest is not None
        return CommitResult(newest, commit.allowed_commits(adapters, newest))

    patch.setattr(claim, "commit_newest", commit_nothing)


def start_marker_ignored(patch: pytest.MonkeyPatch) -> None:
    """At most once: a process that finds the start marker taken hands the records out again (I7)."""
    real = MemoryStore.store_start_marker

    def store_start_marker(store: MemoryStore, plan: Plan, *args: Any) -> bool:
        real(store, plan, *args)
        return True

    patch.setattr(MemoryStore, "store_start_marker", store_start_marker)


def actions_acknowledge_nothing(patch: pytest.MonkeyPatch) -> None:
    """An operator action does not record the foreign offset that it acknowledges (S36)."""
    real = plans.action_row

    def action_row(adapters: Adapters, newest: Settlement, settled: SettledPartition, *rest: Any) -> PlannedPartition:
        planned = real(adapters, newest, settled, *rest)
        return replace(planned, acknowledged_foreign_offset=settled.acknowledged_foreign_offset)

    patch.setattr(plans, "action_row", action_row)


def resume_forgets_pending(patch: pytest.MonkeyPatch) -> None:
    """A resumed partition loses its pending offsets (I4)."""
    real = decide.states_after

    def states_after(plan: Plan, *rest: Any) -> dict[TopicPartition, PartitionState]:
        states = real(plan, *rest)
        resumed = plan.partitions if plan.kind is TurnKind.RESUME else ()
        return states | {tp: PartitionState(states[tp].complete_to) for tp in resumed}

    patch.setattr("ackline.steps.settle.states_after", states_after)


def rows_without_the_first(patch: pytest.MonkeyPatch) -> None:
    """Replay reports no outcome for one of the fresh records that it has handled (I4)."""
    real = MemoryJob._file

    def write_file(job: MemoryJob, tp: TopicPartition, outcome: Outcome, rows: list[OutcomeRow]) -> WrittenFile:
        return real(job, tp, outcome, rows if rows[0].attempt > 1 or len(rows) == 1 else rows[1:])

    patch.setattr(MemoryJob, "_file", write_file)


def metadata_without_epoch(patch: pytest.MonkeyPatch) -> None:
    """The metadata of each commit names epoch 0 (I3)."""
    real = commit.commit_metadata_of
    patch.setattr(commit, "commit_metadata_of", lambda adapters, newest: replace(real(adapters, newest), epoch=0))


def breaker_never_trips(patch: pytest.MonkeyPatch) -> None:
    """A turn is settled however many of its fresh records failed (S46)."""
    patch.setattr(settle, "_void_if_too_many_failed", lambda *_: None)


def parked_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Partitions that are no longer subscribed are not committed again, so Kafka removes their commits (I12)."""
    real = commit.allowed_commits

    def allowed_commits(adapters: Adapters, newest: Settlement) -> dict[TopicPartition, Committed]:
        kafka = adapters.pipeline.kafka
        return {tp: committed for tp, committed in real(adapters, newest).items() if kafka.subscribes_to(*tp)}

    patch.setattr(commit, "allowed_commits", allowed_commits)


def void_beside_a_claim(patch: pytest.MonkeyPatch) -> None:
    """At most once: a turn whose range is gone is void without a waiver, if no claim was seen a moment ago (I7)."""
    real = replay._claim_or_waive

    def claim_or_void(
        adapters: Adapters, plan: Plan, newest: Settlement, range_error: RangeGone | TopicChanged | None
    ) -> bool:
        if range_error is None or adapters.store.has_claim(plan.turn):
            return real(adapters, plan, newest, None)
        marker = Marker(MarkerKind.WAIVER, adapters.run_id, adapters.now(), adapters.actor, str(range_error))
        claim.store_void(adapters, plan, newest, marker)
        return False

    patch.setattr(replay, "_claim_or_waive", claim_or_void)


def waiver_ignored(patch: pytest.MonkeyPatch) -> None:
    """At most once: a driver takes a waiver for a claim, and hands the turn out (I7)."""
    patch.setattr(MemoryStore, "has_claim", lambda store, turn: store._rights(turn)[0])
    patch.setattr(MemoryStore, "has_waiver", lambda *_: False)


def operator_loss_not_marked(patch: pytest.MonkeyPatch) -> None:
    """At most once: a turn that an operator records as lost is stored like one that a driver gives up (I11)."""
    patch.setattr(MemoryStore, "_marks", lambda *_: [])


def _passes_over(patch: pytest.MonkeyPatch, is_broken: Callable[[Plan], bool], pending: bool, unread: bool) -> None:
    """Lets the plans that `is_broken` chooses move the lane to their targets without a row of what is pending or unread
    below, as if nothing was there."""
    decided, folded = decide.skipped_by, decide.states_after

    def skipped_by(plan: Plan, before: Settlement, *rest: Any) -> dict[TopicPartition, RangeRows]:
        rows = decided(plan, before, *rest)
        if not is_broken(plan):
            return rows
        kept = {}
        for tp, decisions in rows.items():
            complete_to = before.partitions[tp].state.complete_to
            parts = [(row.offset, min(row.end, complete_to)) for row in decisions if not pending]
            parts += [(max(row.offset, complete_to), row.end) for row in decisions if not unread]
            ranges = arrays_of([OffsetRange(start, end) for start, end in parts if start < end])
            kept[tp] = replace(decisions, ranges=ranges)
        return kept

    def states_after(plan: Plan, before: Settlement, *rest: Any) -> dict[TopicPartition, PartitionState]:
        if not is_broken(plan):
            return folded(plan, before, *rest)
        states = {tp: settled.state for tp, settled in before.partitions.items()}
        for tp, planned in plan.partitions.items():
            state, target = states[tp], planned.fresh.end
            left = state.pending.minus(arrays_of([OffsetRange(0, target)]))
            states[tp] = replace(state, complete_to=max(state.complete_to, target), pending=left)
        return states

    patch.setattr(decide, "skipped_by", skipped_by)
    patch.setattr(settle, "states_after", states_after)


def reset_leaves_no_rows(patch: pytest.MonkeyPatch) -> None:
    """A reset records nothing of what it passes over, so no epoch has an outcome of it (I15)."""
    _passes_over(patch, lambda plan: plan.kind is TurnKind.RESET, pending=True, unread=True)


def reset_forgets_pending(patch: pytest.MonkeyPatch) -> None:
    """A reset records what it passes over unread, and nothing of what is pending below its target (I15)."""
    _passes_over(patch, lambda plan: plan.kind is TurnKind.RESET, pending=True, unread=False)


def follow_leaves_no_rows(patch: pytest.MonkeyPatch) -> None:
    """A run that follows a moved group records nothing of what it passes over (I15)."""
    _passes_over(patch, lambda plan: plan.reason.startswith("the group was moved"), pending=True, unread=True)


def adoption_leaves_no_rows(patch: pytest.MonkeyPatch) -> None:
    """At most once: an adoption that skips to the commit of another ledger records nothing of what it passes (I15)."""
    _passes_over(
        patch, lambda plan: plan.kind is TurnKind.SKIP and plan.run_id.startswith("adopt"), pending=True, unread=True
    )


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "M1": commit_before_settlement,
    "M2": complete_to_without_proof,
    "M3": no_fence_on_outcomes,
}

OTHERS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    mutant.__name__: mutant
    for mutant in (
        *(claim_without_commit, start_marker_ignored, actions_acknowledge_nothing, resume_forgets_pending),
        *(rows_without_the_first, metadata_without_epoch, breaker_never_trips, parked_not_committed),
        *(void_beside_a_claim, waiver_ignored, operator_loss_not_marked),
        *(reset_leaves_no_rows, reset_forgets_pending, follow_leaves_no_rows, adoption_leaves_no_rows),
    )
}


# ---- answers from outside -------------------------------------------------------------------------------------------


def stale_answers_count(patch: pytest.MonkeyPatch) -> None:
    """An answer of a void turn ends the attempt that a later turn has made (S69)."""
    patch.setattr(answers._Judge, "_is_void", lambda *_: False)


def older_attempts_count(patch: pytest.MonkeyPatch) -> None:
    """An answer of an older attempt ends the attempt that is in flight now (S69)."""
    real = answers._Judge._obstacle

    def obstacle(judge: Any, token: Any) -> Any:
        waiting = judge.in_flight.get(token.tp)
        current = waiting.attempt_at(token.offset) if waiting else None
        found = real(judge, token)
        if found is Ignored.STALE and current is not None and token.turn.epoch == judge.plan.turn.epoch:
            return None
        return found

    def apply(judge: Any, token: Any, answer: Any) -> None:
        current = judge.in_flight[token.tp].attempt_at(token.offset)
        applied(judge, token._replace(attempt=current), answer)

    applied = answers._Judge._apply
    patch.setattr(answers._Judge, "_obstacle", obstacle)
    patch.setattr(answers._Judge, "_apply", apply)


def position_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """The settlement takes the position from the topic as it is now, and not from the stored decisions (S69)."""

    def answer_report(adapters: Adapters, plan: Plan, before: Settlement) -> AnswerReport | None:
        report = real(adapters, plan, before)
        if report is None or plan.ack_position is None:
            return report
        return replace(report, position=range_to_read(adapters, plan.ack_position).after)

    real = settle._answer_report
    patch.setattr(settle, "_answer_report", answer_report)


def timeouts_before_answers(patch: pytest.MonkeyPatch) -> None:
    """An attempt whose deadline has passed times out although its answer is there (S65)."""
    real = answers._Judge.rows

    def rows(judge: Any, time_out: bool) -> dict[TopicPartition, list[OutcomeRow]]:
        decided = {tp: list(rows) for tp, rows in real(judge, time_out).items()}
        for tp, rows in decided.items() if time_out else ():
            overdue = judge.in_flight[tp].runs.overdue_at(judge.now)
            for index, row in enumerate(rows):
                if any(run.start <= row.offset < run.end for run in overdue):
                    rows[index] = OutcomeRow(
                        row.offset, row.attempt, Outcome.FAILED, judge.now, ErrorClass.ACK_TIMEOUT,
                        answer=AnswerKind.TIMEOUT,
                    )  # fmt: skip
        return decided

    patch.setattr(answers._Judge, "rows", rows)


def hidden_answers_time_out(patch: pytest.MonkeyPatch) -> None:
    """Attempts time out although an open transaction may hold their answers (S65)."""
    real = range_to_read

    def without_hidden(*arguments: Any) -> AnswerRange:
        return replace(real(*arguments), hides_answers=False)

    patch.setattr(answers, "range_to_read", without_hidden)


ANSWER_MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    mutant.__name__: mutant
    for mutant in (
        *(stale_answers_count, older_attempts_count, position_not_fenced, timeouts_before_answers),
        *(hidden_answers_time_out,),
    )
}


# ---- the order of calls ---------------------------------------------------------------------------------------------


def order_ignored_by_plans(patch: pytest.MonkeyPatch) -> None:
    """A turn reads again what is behind a record of its key that failed (I19)."""
    real = run_plan.limits_of
    patch.setattr(run_plan, "limits_of", lambda *args, **more: replace(real(*args, **more), order=Order.NONE))


def waiting_ignored_by_tasks(patch: pytest.MonkeyPatch) -> None:
    """A task holds back only what is behind a failure of its own turn (I19)."""
    real = MemoryJob.__init__

    def begin(job: MemoryJob, world: World, of_turn: Any, hook: Hook) -> None:
        real(job, world, replace(of_turn, waiting={}), hook)

    patch.setattr(MemoryJob, "__init__", begin)


def failures_hold_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """A task holds back only what is behind a failure of an earlier turn (I19)."""
    real = MemoryJob._in_order

    def in_order(job: MemoryJob, tp: TopicPartition, record: LogRecord, attempt: int) -> OutcomeRow:
        before = dict(job._behind.get(tp, {}))
        row = real(job, tp, record, attempt)
        job._behind[tp] = before
        return row

    patch.setattr(MemoryJob, "_in_order", in_order)


ORDER_MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    mutant.__name__: mutant for mutant in (order_ignored_by_plans, waiting_ignored_by_tasks, failures_hold_nothing_back)
}
