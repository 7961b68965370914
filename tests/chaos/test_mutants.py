"""The rules that carry most weight are broken on real tables, and the checker or the ledger must find each.

M1 commits before the settlement, M2 moves complete_to without proof, M3 stores outcomes without a fence.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake.transaction import AddAction

from ackline.errors import LedgerError
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.turns import Settlement
from ackline.steps import replay
from ackline.steps.replay import job_of
from ackline.tables.store import LedgerStore
from ackline.verify.check import judge
from tests.chaos.drill import Drill
from tests.support.actor import Killed
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import FAILS_ONCE, OK


@pytest.fixture
def drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drill:
    """Returns a lane on real tables whose first turn is planned. Nothing of it was set back."""
    drill = Drill(tmp_path, monkeypatch)
    drill.lane.produce(OK, FAILS_ONCE, OK, OK)
    drill.lane.plan()
    return drill


def broken_rules(drill: Drill) -> set[str]:
    """Returns the names of the rules of which the checker finds a violation."""
    return {found.split()[0] for found in judge(drill.evidence()).violations}


def two_outcomes(drill: Drill) -> list[Sequence[AddAction]]:
    """Returns the files of the planned turn, of two processes that have both replayed it."""
    late, planned = drill.lane.adapters("late"), drill.lane.plan()
    return [replay.add_actions(planned, late.run_job(no_session, job_of(late, planned), None)) for _ in range(2)]


def test_m1_a_commit_before_its_settlement_is_found(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    def commits_first(store: LedgerStore, settlement: Settlement, *_: Any) -> bool:
        turn = settlement.turn
        metadata = CommitMetadata(store.ledger_id(), "lane", turn.epoch, turn.n).encode()
        floors = {tp: Committed(settled.state.floor, metadata) for tp, settled in settlement.partitions.items()}
        drill.lane.adapters().group.commit(floors)
        raise Killed

    drill.lane.replay()
    monkeypatch.setattr(LedgerStore, "store_settlement", commits_first)
    with pytest.raises(Killed):
        drill.lane.settle()
    assert "I1" in broken_rules(drill)


def test_m2_complete_to_without_proof_is_found(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LedgerStore, "has_outcomes", lambda *_: True)
    drill.lane.settle()
    assert drill.lane.committed() == 4
    assert broken_rules(drill) >= {"I2", "I4"}


def test_m3_outcomes_without_a_fence_are_found(drill: Drill) -> None:
    """The checker finds a second set of outcomes that comes after the settlement."""
    store, turn, (first, second) = drill.lane.adapters().store, drill.lane.plan().turn, two_outcomes(drill)
    assert store.store_outcomes(turn, first)
    drill.lane.settle()
    assert broken_rules(drill) == set()
    assert not store.store_outcomes(turn, second)
    assert store.outcomes.append(second, "mutant", turn.n)
    assert "I9" in broken_rules(drill)


def test_m3_two_outcomes_before_the_settlement_are_refused(drill: Drill) -> None:
    store, turn = drill.lane.adapters().store, drill.lane.plan().turn
    for files, name in zip(two_outcomes(drill), (f"ackline/lane/live/{turn.epoch}/outcomes", "mutant"), strict=True):
        assert store.outcomes.append(files, name, turn.n)
    with pytest.raises(LedgerError, match="two attempts"):
        drill.lane.settle()
    assert drill.lane.committed() is None
