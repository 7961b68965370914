"""Maintenance without a lock, as on an object store: no writer fails because of it, and no row is stored twice."""

from collections.abc import Callable

import pytest
from deltalake import DeltaTable

from ackline.actions.maintain import maintain
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.errors import LedgerError
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import OperatorLoss
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import NOON, TP, plan, turn, written
from tests.tables.lanes import ROWS_A_TURN, WithoutLock, begin_lane, files
from tests.tables.roots import ON_BOTH


def no_rival() -> None:
    """Commit nothing."""


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """The rivals of maintenance. It writes nothing upon its first three reads of the outcomes."""
    for module in ("ackline.actions.maintain", "ackline.tables.maintenance"):
        monkeypatch.setattr(f"{module}.AuditTable", WithoutLock)
    monkeypatch.setattr(WithoutLock, "rivals", [no_rival, no_rival, no_rival])
    return WithoutLock.rivals


def test_without_a_lock_an_append_goes_through_beside_a_compaction(root: str, store: LedgerStore) -> None:
    begin_lane(store)
    table = WithoutLock(store.folder, "outcomes")
    WithoutLock.rivals.append(lambda: DeltaTable(table.uri).optimize.compact())
    application = "ackline/orders/live/0/outcomes"
    assert table.append([written(store, turn(4), [(0, 1, "acked")])], application, 4)
    assert len(files(table)) == 2
    assert table.version_of(application) == 4
    assert store.outcomes_of(turn(4)).counts == {TP: {"acked": 1}}


def rival_maintenance(root: str) -> Callable[[], object]:
    """Returns a whole maintenance, to be done before ours writes."""

    def run() -> None:
        rivals, WithoutLock.rivals = WithoutLock.rivals, []
        maintain(root)
        WithoutLock.rivals = rivals

    return run


def test_without_a_lock_a_compaction_that_loses_is_tried_again_and_doubles_no_row(
    root: str, store: LedgerStore, rivals: list[Callable[[], object]]
) -> None:
    begin_lane(store)
    rivals.append(rival_maintenance(root))
    assert (maintain(root)[1].busy, len(files(store.outcomes))) == (0, 1)
    assert len(list(audit_rows(root, "orders", AuditFilter()))) == 3 * ROWS_A_TURN


@pytest.mark.parametrize("reads", [0, 1], ids=["before it looks for its files", "right before its commit"])
def test_beside_a_compaction_of_another_tool_which_takes_no_lock_no_row_is_doubled(
    root: str, store: LedgerStore, rivals: list[Callable[[], object]], reads: int
) -> None:
    begin_lane(store)
    rivals += [*[no_rival] * reads, lambda: DeltaTable(store.outcomes.uri).optimize.compact()]
    assert maintain(root)[1].busy == 0
    assert len(list(audit_rows(root, "orders", AuditFilter()))) == 3 * ROWS_A_TURN


def test_outcomes_that_another_tool_has_merged_with_other_turns_are_not_replaced_by_lost_ranges(
    store: LedgerStore,
) -> None:
    """An offset would have two terminal outcomes."""
    begin_lane(store)
    planned, lost = plan(4), {TP: [OutcomeRow(0, 0, Outcome.LOST, NOON, None, 10)]}
    store.store_plan(planned)
    store.store_outcomes(turn(4), [written(store, turn(4), [(0, 1, "acked")])])
    DeltaTable(store.outcomes.uri).optimize.compact()
    with pytest.raises(LedgerError, match=r"another tool has merged the outcomes of .*turn 4.* Restore"):
        store.replace_by_lost(planned, "run", lost, OperatorLoss("gone", pause=False))
    assert not store.has_decisions(turn(4))
    assert store.outcomes_of(turn(4)).counts == {TP: {"acked": 1}}


@ON_BOTH
def test_without_a_lock_the_transaction_id_refuses_a_compaction_with_a_rival_right_before_its_commit(
    root: str, store: LedgerStore, rivals: list[Callable[[], object]]
) -> None:
    begin_lane(store)
    rivals += [no_rival, rival_maintenance(root)]  # after it has chosen its files, and has found them all there
    assert (maintain(root)[1].busy, len(files(store.outcomes))) == (0, 1)
    assert len(list(audit_rows(root, "orders", AuditFilter()))) == 3 * ROWS_A_TURN
