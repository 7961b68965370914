"""Maintenance without a lock, as on an object store: no writer fails because of it, and no row is stored twice."""

from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ackline.tables import maintenance
from ackline.tables.maintenance import OpenTurn, maintain, open_turns
from ackline.tables.queries import AuditFilter, audit_rows
from ackline.tables.store import LedgerStore
from ackline.tables.table import AuditTable
from tests.tables.lane_rows import TP, turn, written
from tests.tables.lanes import FILES_A_TURN, ROWS_A_TURN, WithoutLock, begin_lane, files, settle_turns
from tests.tables.roots import EVERYWHERE

ROOTS = EVERYWHERE


def no_rival() -> None:
    """Commit nothing."""


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """The rivals of maintenance. It writes nothing upon its first three reads of the outcomes."""
    monkeypatch.setattr(maintenance, "AuditTable", WithoutLock)
    monkeypatch.setattr(WithoutLock, "rivals", [no_rival, no_rival, no_rival])
    return WithoutLock.rivals


@pytest.fixture
def before_the_write(
    rivals: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], object]], None]:
    """A function that has an action done after our first compaction has chosen its version, before it writes."""
    rivals.clear()

    def set_action(action: Callable[[], object]) -> None:
        readers = iter(["the vacuum of plans", "the compaction of outcomes"])

        def read(root: str) -> list[OpenTurn]:
            if next(readers) == "the compaction of outcomes":
                monkeypatch.setattr(maintenance, "open_turns", open_turns)
                action()
            return open_turns(root)

        monkeypatch.setattr(maintenance, "open_turns", read)

    return set_action


def test_without_a_lock_an_append_goes_through_beside_a_compaction(root: str, store: LedgerStore) -> None:
    begin_lane(store)
    table = WithoutLock(store.folder, "outcomes")
    WithoutLock.rivals.append(lambda: DeltaTable(table.uri).optimize.compact())
    application = "ackline/orders/live/0/outcomes"
    assert table.append([written(store, turn(4), [(0, 1, "acked")])], application, 4)
    assert len(files(table)) == 2
    assert table.version_of(application) == 4
    assert store.outcomes_of(turn(4)).counts == {TP: {"acked": 1}}


def test_without_a_lock_a_compaction_goes_through_beside_an_append(
    root: str, store: LedgerStore, before_the_write: Callable[[Callable[[], object]], None]
) -> None:
    begin_lane(store)
    before_the_write(lambda: settle_turns(store, range(4, 5)))
    assert maintain(root)[1].compacted == 3 * FILES_A_TURN
    assert len(files(store.outcomes)) == 1 + FILES_A_TURN
    assert len(list(audit_rows(root, "orders", AuditFilter()))) == 4 * ROWS_A_TURN


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


def test_without_a_lock_a_compaction_that_is_late_after_its_claim_doubles_no_row(
    root: str, store: LedgerStore, before_the_write: Callable[[Callable[[], object]], None]
) -> None:
    begin_lane(store)
    before_the_write(rival_maintenance(root))
    assert maintain(root)[1].files == 1
    assert len(list(audit_rows(root, "orders", AuditFilter()))) == 3 * ROWS_A_TURN


def test_without_a_lock_the_transaction_id_refuses_a_compaction_with_a_rival_right_before_its_commit(
    root: str, store: LedgerStore, rivals: list[Callable[[], object]]
) -> None:
    begin_lane(store)
    rivals += [no_rival, rival_maintenance(root)]  # after it has chosen its files, and has found them all there
    assert (maintain(root)[1].busy, len(files(store.outcomes))) == (0, 1)
    assert len(list(audit_rows(root, "orders", AuditFilter()))) == 3 * ROWS_A_TURN


def test_without_a_lock_a_compaction_that_is_stored_without_an_answer_keeps_its_file(
    root: str, store: LedgerStore, rivals: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may store an entry and lose the answer. The client's next try then finds the version taken, by itself."""
    begin_lane(store)
    commit, answers = WithoutLock.commit, iter(["lost"])

    def committing(table: AuditTable, *arguments: Any) -> None:
        commit(table, *arguments)
        if table.name == "outcomes" and next(answers, None):
            raise CommitFailedError("version is stored already")

    monkeypatch.setattr(WithoutLock, "commit", committing)
    assert (maintain(root)[1].busy, len(files(store.outcomes))) == (0, 1)
    assert len(list(audit_rows(root, "orders", AuditFilter()))) == 3 * ROWS_A_TURN


def test_without_a_lock_a_compaction_that_keeps_losing_is_left_for_the_next_time(
    root: str, store: LedgerStore, rivals: list[Callable[[], object]]
) -> None:
    begin_lane(store)
    turns = iter(range(4, 100))

    def rival() -> None:
        rival_maintenance(root)()
        n = next(turns)
        settle_turns(store, range(n, n + 1))

    rivals += [rival] * 10
    assert maintain(root)[1].busy == 1
    rivals.clear()
    assert maintain(root)[1].busy == 0
    assert len(list(audit_rows(root, "orders", AuditFilter()))) == ROWS_A_TURN * (next(turns) - 1)


def test_without_a_lock_appends_go_through_beside_the_claims_of_compactions(root: str, store: LedgerStore) -> None:
    begin_lane(store)
    table = WithoutLock(store.folder, "outcomes")
    WithoutLock.rivals += [rival_claim(table)] * 3
    assert table.append([], "app", 1)
    assert table.version_of("app") == 1


def rival_claim(table: AuditTable) -> Callable[[], object]:
    """Returns the first commit of a compaction without a lock."""
    return lambda: DeltaTable(table.uri).alter.set_table_description("claimed")
