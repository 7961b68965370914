"""Rules broken on purpose: whoever judges must notice. M1 to M3 carry most weight; the others are of acts, claims, the
breaker and parked partitions, and are broken for the machine alone."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from ackline.commit_rule import CommitMetadata, Committed
from ackline.errors import AcklineError
from ackline.ledger import PartitionState
from ackline.offsets import TopicPartition
from ackline.steps import action_plans, claim, commit, decide, plan, run, settle
from ackline.steps.parts import Parts
from ackline.testing.memory_kafka import MemoryGroup
from ackline.testing.memory_store import MemoryStore, MemoryTable
from ackline.turns import Plan, PlannedPartition, SettledPartition, Settlement, TurnId, TurnKind
from tests.chaos.config import GROUP


def commit_before_settlement(patch: pytest.MonkeyPatch) -> None:
    """M1: the group moves before the settlement is stored."""
    real = MemoryStore.store_settlement

    def commits_first(store: MemoryStore, settlement: Settlement, plan: Plan | None = None, **first: Any) -> bool:
        if plan is None:
            return real(store, settlement, plan, **first)
        table = store.tables["settlements"]
        mark = CommitMetadata(store.ledger_id(), store.pipeline, settlement.turn.epoch, settlement.turn.n).encode()
        floors = {tp: Committed(one.state.floor, mark) for tp, one in settlement.partitions.items()}
        with contextlib.suppress(AcklineError):
            MemoryGroup(store.world, GROUP, table.by, table.hook).commit(floors)
        return real(store, settlement, plan)

    patch.setattr(MemoryStore, "store_settlement", commits_first)


def complete_to_without_proof(patch: pytest.MonkeyPatch) -> None:
    """M2: settle takes what was planned for what was handled."""
    real, proved = settle.settle_turn, MemoryStore.has_outcomes
    settling: list[bool] = []

    def trusts(parts: Parts, plan: Plan, before: Settlement) -> None:
        settling.append(True)
        try:
            real(parts, plan, before)
        finally:
            settling.pop()

    def has_outcomes(store: MemoryStore, turn: TurnId) -> bool:
        return bool(settling) or proved(store, turn)

    patch.setattr(MemoryStore, "has_outcomes", has_outcomes)
    for module in (settle, plan, run):
        patch.setattr(module, "settle_turn", trusts)


def no_fence_on_outcomes(patch: pytest.MonkeyPatch) -> None:
    """M3: outcomes n are stored as often as somebody brings them."""
    real = MemoryTable.fenced

    def fenced(table: MemoryTable, application: str, number: int) -> bool:
        return application.endswith("/outcomes") or real(table, application, number)

    patch.setattr(MemoryTable, "fenced", fenced)


def claim_without_commit(patch: pytest.MonkeyPatch) -> None:
    """At most once: records are handed out before the group has moved over them (I7)."""
    patch.setattr(claim, "commit_newest", lambda _: None)


def start_marker_ignored(patch: pytest.MonkeyPatch) -> None:
    """At most once: whoever finds the start marker taken hands the records out again (I7)."""
    real = MemoryStore.store_start

    def store_start(store: MemoryStore, plan: Plan, at: datetime) -> bool:
        real(store, plan, at)
        return True

    patch.setattr(MemoryStore, "store_start", store_start)


def acts_answer_nothing(patch: pytest.MonkeyPatch) -> None:
    """An act does not record the foreign value that it answers (S36)."""
    real = action_plans.action_row

    def action_row(parts: Parts, newest: Settlement, one: SettledPartition, *rest: Any) -> PlannedPartition:
        return replace(real(parts, newest, one, *rest), acknowledged_foreign_offset=one.acknowledged_foreign_offset)

    patch.setattr(action_plans, "action_row", action_row)


def resume_forgets_pending(patch: pytest.MonkeyPatch) -> None:
    """A partition that is resumed begins at complete_to (I4)."""
    real = decide.states_after

    def states_after(plan: Plan, *rest: Any) -> dict[TopicPartition, PartitionState]:
        states = real(plan, *rest)
        resumed = plan.partitions if plan.kind is TurnKind.RESUME else ()
        return states | {tp: PartitionState(states[tp].complete_to) for tp in resumed}

    patch.setattr("ackline.steps.settle.states_after", states_after)


def mark_without_epoch(patch: pytest.MonkeyPatch) -> None:
    """Commits of every epoch carry the mark of the first (I3)."""
    real = commit.commit_metadata_of
    patch.setattr(commit, "commit_metadata_of", lambda parts, newest: replace(real(parts, newest), epoch=0))


def breaker_never_trips(patch: pytest.MonkeyPatch) -> None:
    """A turn is settled however many of its new records failed (S46)."""
    patch.setattr(settle, "_check_breaker", lambda *_: None)


def parked_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Partitions that are no longer subscribed are not committed again: Kafka forgets them (I12)."""
    real = commit.check_commit

    def check_commit(parts: Parts, newest: Settlement) -> dict[TopicPartition, Committed]:
        return {tp: one for tp, one in real(parts, newest).items() if parts.pipeline.kafka.wants(*tp)}

    patch.setattr(commit, "check_commit", check_commit)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "M1": commit_before_settlement,
    "M2": complete_to_without_proof,
    "M3": no_fence_on_outcomes,
}

OTHERS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    one.__name__: one
    for one in (
        claim_without_commit,
        start_marker_ignored,
        acts_answer_nothing,
        resume_forgets_pending,
        mark_without_epoch,
        breaker_never_trips,
        parked_not_committed,
    )
}
