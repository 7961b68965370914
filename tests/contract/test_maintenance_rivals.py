"""Maintenance where there is no lock, as on an object store: nobody fails because of it, and no row is there twice."""

import contextlib
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
from deltalake import DeltaTable

from ackline.audit import maintenance
from ackline.audit.maintenance import OpenTurn, maintain, open_turns
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.audit.store import LedgerStore
from ackline.audit.table import AuditTable
from tests.contract.lane_rows import TP, turn, written
from tests.contract.lanes import FILES_A_TURN, ROWS_A_TURN, begun, files, settled


class WithoutLock(AuditTable):
    """A table as on an object store: no lock, and rivals, one a look, that commit between our look and our commit."""

    rivals: ClassVar[list[Callable[[], object]]] = []

    has_lock = False

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def open(self) -> DeltaTable | None:
        """The newest version; then the next rival is quicker."""
        table = super().open()
        if table is not None and self.name == "outcomes" and self.rivals:
            self.rivals.pop(0)()
        return table


def nobody() -> None:
    """No rival."""


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """The rivals of maintenance; the first of its looks at the outcomes are not those on which it writes."""
    monkeypatch.setattr(maintenance, "AuditTable", WithoutLock)
    monkeypatch.setattr(WithoutLock, "rivals", [nobody, nobody, nobody])
    return WithoutLock.rivals


@pytest.fixture
def asleep(
    rivals: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], object]], None]:
    """Says what happens while our first compaction, which has chosen its version, sleeps before it writes."""
    rivals.clear()

    def while_asleep(meanwhile: Callable[[], object]) -> None:
        looks = iter(["the vacuum of plans", "the compaction of outcomes"])

        def look(root: str) -> list[OpenTurn]:
            if next(looks) == "the compaction of outcomes":
                monkeypatch.setattr(maintenance, "open_turns", open_turns)
                meanwhile()
            return open_turns(root)

        monkeypatch.setattr(maintenance, "open_turns", look)

    return while_asleep


def test_without_a_lock_an_append_goes_through_beside_a_compaction(root: str, store: LedgerStore) -> None:
    begun(store)
    table = WithoutLock(root, "outcomes")
    WithoutLock.rivals.append(lambda: DeltaTable(table.uri).optimize.compact())
    assert table.append([written(store, turn(4), [(0, 1, "acked")])], "app", 1)
    assert len(files(table)) == 2
    assert table.version_of("app") == 1
    assert store.outcomes_of(turn(4)).counts == {TP: {"acked": 1}}


def test_without_a_lock_a_compaction_goes_through_beside_an_append(
    root: str, store: LedgerStore, asleep: Callable[[Callable[[], object]], None]
) -> None:
    begun(store)
    asleep(lambda: settled(store, range(4, 5)))
    assert maintain(root)[1].compacted == 3 * FILES_A_TURN
    assert len(files(store.outcomes)) == 1 + FILES_A_TURN
    assert len(audit_rows(root, "orders", AuditFilter())) == 4 * ROWS_A_TURN


def rival_maintenance(root: str) -> Callable[[], object]:
    """Another maintenance, from its look at the table to its commit, as long as ours sleeps."""

    def run() -> None:
        mine, WithoutLock.rivals = WithoutLock.rivals, []
        maintain(root)
        WithoutLock.rivals = mine

    return run


def test_without_a_lock_a_compaction_that_loses_is_tried_again_and_doubles_no_row(
    root: str, store: LedgerStore, rivals: list[Callable[[], object]]
) -> None:
    begun(store)
    rivals.append(rival_maintenance(root))
    assert (maintain(root)[1].busy, len(files(store.outcomes))) == (0, 1)
    assert len(audit_rows(root, "orders", AuditFilter())) == 3 * ROWS_A_TURN


def test_without_a_lock_a_compaction_that_sleeps_on_its_claim_doubles_no_row(
    root: str, store: LedgerStore, asleep: Callable[[Callable[[], object]], None]
) -> None:
    begun(store)
    asleep(rival_maintenance(root))
    assert maintain(root)[1].files == 1
    assert len(audit_rows(root, "orders", AuditFilter())) == 3 * ROWS_A_TURN


def test_without_a_lock_a_compaction_that_keeps_losing_is_left_for_the_next_time(
    root: str, store: LedgerStore, rivals: list[Callable[[], object]]
) -> None:
    begun(store)
    turns = iter(range(4, 100))

    def rival() -> None:
        rival_maintenance(root)()
        n = next(turns)
        settled(store, range(n, n + 1))

    rivals += [rival] * 10
    assert maintain(root)[1].busy == 1
    rivals.clear()
    assert maintain(root)[1].busy == 0
    assert len(audit_rows(root, "orders", AuditFilter())) == ROWS_A_TURN * (next(turns) - 1)


def test_without_a_lock_appends_go_through_beside_the_claims_of_compactions(root: str, store: LedgerStore) -> None:
    begun(store)
    table = WithoutLock(root, "outcomes")
    WithoutLock.rivals += [rival_claim(table)] * 3
    assert table.append([], "app", 1)
    assert table.version_of("app") == 1


def rival_claim(table: AuditTable) -> Callable[[], object]:
    """What a compaction does first where there is no lock."""
    return lambda: DeltaTable(table.uri).alter.set_table_description("claimed")
