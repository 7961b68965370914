"""The rules that carry most weight are broken on real tables, and the checker or the ledger must find each.

M1 commits before the settlement, M2 moves complete_to without proof, M3 stores outcomes without a fence.
"""

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from deltalake.transaction import AddAction

from ackline.errors import LedgerError
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.turns import Settlement, TurnId
from ackline.steps import plan, replay
from ackline.steps.replay import job_of
from ackline.tables.store import LedgerStore
from tests.e2e.fixtures import MakeLab
from tests.support.actor import Killed


def test_m1_a_commit_before_its_settlement_is_found(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lab()
    lane.produce_records(4)
    with lane.adapters() as adapters, monkeypatch.context() as patch:
        plan.plan(adapters)
        replay.replay(adapters, lane.spark)

        def commits_first(store: LedgerStore, settlement: Settlement, *_: Any) -> bool:
            turn = settlement.turn
            metadata = CommitMetadata(store.ledger_id(), lane.name, turn.epoch, turn.n).encode()
            partitions = settlement.partitions
            adapters.group.commit({tp: Committed(settled.state.floor, metadata) for tp, settled in partitions.items()})
            raise Killed

        patch.setattr(LedgerStore, "store_settlement", commits_first)
        with pytest.raises(Killed):
            lane.settle()
    assert any(found.startswith("I1") for found in lane.violations())
    lane.judged = True


def test_m2_complete_to_without_proof_is_found(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lab()
    lane.produce_records(4)
    lane.plan()
    with monkeypatch.context() as patch:
        patch.setattr(LedgerStore, "has_outcomes", lambda *_: True)
        lane.settle()
    assert lane.committed() == 4
    found = lane.violations()
    assert any(line.startswith("I2") for line in found)
    assert any(line.startswith("I4") for line in found)
    lane.judged = True


def test_m3_outcomes_without_a_fence_are_found(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker finds a second set of outcomes that comes after the settlement."""
    lane = lab()
    lane.produce_records(4, {1: {"fail": 1}})
    real = LedgerStore.store_outcomes

    def unfenced(store: LedgerStore, turn: TurnId, files: Sequence[AddAction]) -> bool:
        return real(store, turn, files) or store.outcomes.append(files, f"mutant/{uuid.uuid4()}", turn.n)

    with monkeypatch.context() as patch, lane.adapters("late") as late:
        patch.setattr(LedgerStore, "store_outcomes", unfenced)
        planned = lane.plan()
        results = [late.run_job(lane.spark, job_of(late, planned), None) for _ in range(2)]
        late.store.store_outcomes(planned.turn, replay.add_actions(planned, results[0]))
        lane.settle()
        assert lane.violations() == []
        late.store.store_outcomes(planned.turn, replay.add_actions(planned, results[1]))
    assert any(found.startswith("I9") for found in lane.violations())
    lane.judged = True


def test_m3_two_outcomes_before_the_settlement_are_refused(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lab()
    lane.produce_records(4, {1: {"fail": 1}})
    with lane.adapters("late") as late:
        planned = lane.plan()
        for number in (planned.turn.n, 99):
            result = late.run_job(lane.spark, job_of(late, planned), None)
            name = f"ackline/{lane.name}/live/0/outcomes" if number != 99 else "mutant"
            late.store.outcomes.append(replay.add_actions(planned, result), name, number)
    with pytest.raises(LedgerError, match="two attempts"):
        lane.settle()
    assert lane.committed() is None
    lane.judged = True
