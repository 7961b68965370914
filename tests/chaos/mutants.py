"""The three rules that carry most weight, each broken on purpose (faults.md): whoever judges must notice."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from ackline.errors import AcklineError
from ackline.ledger import CommitMark, Committed, Settlement, TurnId
from ackline.planning import Plan
from ackline.steps import plan, run, settle
from ackline.steps.parts import Parts
from ackline.testing.memory_kafka import MemoryGroup
from ackline.testing.memory_store import MemoryStore, MemoryTable
from tests.chaos.stage import GROUP


def commit_before_settlement(patch: pytest.MonkeyPatch) -> None:
    """M1: the group moves before the settlement is stored."""
    real = MemoryStore.store_settlement

    def commits_first(store: MemoryStore, settlement: Settlement, plan: Plan | None = None) -> bool:
        if plan is None:
            return real(store, settlement, plan)
        table = store.tables["settlements"]
        mark = CommitMark(store.ledger_id(), store.pipeline, settlement.turn.epoch, settlement.turn.n).encode()
        floors = {at: Committed(one.state.floor, mark) for at, one in settlement.partitions.items()}
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


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "M1": commit_before_settlement,
    "M2": complete_to_without_proof,
    "M3": no_fence_on_outcomes,
}
