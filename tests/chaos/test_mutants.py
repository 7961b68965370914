"""The judges judged: each rule that carries weight is broken on purpose, and must be missed by somebody.

M1 commits before the settlement, M2 moves complete_to to where it has read without proof, M3 stores outcomes unfenced.
"""

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from deltalake.transaction import AddAction

from ackline.audit.store import LedgerStore
from ackline.commit_rule import CommitMetadata, Committed
from ackline.errors import LedgerError
from ackline.steps import plan, replay
from ackline.turns import Settlement, TurnId
from tests.e2e.fixtures import MakeLab


class Killed(Exception):
    """The process ends here."""


def test_m1_a_commit_before_its_settlement_is_found(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = lab()
    one.records(4)
    with one.parts() as parts, monkeypatch.context() as patch:
        plan.plan(parts)
        replay.replay(parts, one.spark)

        def commits_first(store: LedgerStore, settlement: Settlement, *_: Any) -> bool:
            mark = CommitMetadata(store.ledger_id(), one.name, settlement.turn.epoch, settlement.turn.n).encode()
            parts.group.commit({tp: Committed(p.state.floor, mark) for tp, p in settlement.partitions.items()})
            raise Killed

        patch.setattr(LedgerStore, "store_settlement", commits_first)
        with pytest.raises(Killed):
            one.settle()
    assert any(found.startswith("I1") for found in one.violations())
    one.judged = True


def test_m2_complete_to_without_proof_is_found(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = lab()
    one.records(4)
    one.plan()
    with monkeypatch.context() as patch:
        patch.setattr(LedgerStore, "has_outcomes", lambda *_: True)
        one.settle()
    assert one.committed() == 4
    found = one.violations()
    assert any(line.startswith("I2") for line in found)
    assert any(line.startswith("I4") for line in found)
    one.judged = True


def test_m3_outcomes_without_a_fence_are_found(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second set of outcomes before the settlement is refused by the ledger; one after it is found by the checker."""
    one = lab()
    one.records(4, {1: {"fail": 1}})
    real = LedgerStore.store_outcomes

    def unfenced(store: LedgerStore, turn: TurnId, files: Sequence[AddAction]) -> bool:
        return real(store, turn, files) or store.outcomes.append(files, f"mutant/{uuid.uuid4()}", turn.n)

    with monkeypatch.context() as patch, one.parts("late") as late:
        patch.setattr(LedgerStore, "store_outcomes", unfenced)
        planned = one.plan()
        results = [replay._run_spark_job(late, planned, one.spark, None) for _ in range(2)]
        late.store.store_outcomes(planned.turn, replay.add_actions(planned, results[0]))
        one.settle()
        assert one.violations() == []
        late.store.store_outcomes(planned.turn, replay.add_actions(planned, results[1]))
    assert any(found.startswith("I9") for found in one.violations())
    one.judged = True


def test_m3_two_outcomes_before_the_settlement_are_refused(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = lab()
    one.records(4, {1: {"fail": 1}})
    with one.parts("late") as late:
        planned = one.plan()
        for number in (planned.turn.n, 99):
            result = replay._run_spark_job(late, planned, one.spark, None)
            name = f"ackline/{one.name}/live/0/outcomes" if number != 99 else "mutant"
            late.store.outcomes.append(replay.add_actions(planned, result), name, number)
    with pytest.raises(LedgerError, match="two attempts"):
        one.settle()
    assert one.committed() is None
    one.judged = True
