"""The order of the audit table's rows: a record's rows are its story, the oldest first."""

from typing import Any

from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.outcomes import Outcome
from ackline.tables.queries import AuditFilter, audit_rows
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import NOON, TP, plan, settlement, turn, written


def store_turn(store: LedgerStore, n: int, attempts: list[tuple[int, int, str]], *decisions: OutcomeRow) -> None:
    store.store_plan(plan(n))
    store.store_outcomes(turn(n), [written(store, turn(n), attempts)] if attempts else [])
    store.store_decisions(plan(n), "run", {TP: decisions})
    store.store_settlement(settlement(n), plan(n))


def story(root: str, criteria: AuditFilter) -> list[tuple[Any, ...]]:
    return [
        (row["turn"], row["offset"], row["attempt"], row["outcome"]) for row in audit_rows(root, "orders", criteria)
    ]


def test_the_decision_of_a_turn_comes_after_the_attempt_that_led_to_it(root: str, store: LedgerStore) -> None:
    """Also if the clock of the machine that settles is behind the executor's."""
    store.store_settlement(settlement(0))
    store_turn(store, 1, [(3, 1, "failed")])
    dead = OutcomeRow(3, 0, Outcome.DEAD, NOON.replace(hour=11), "ValueError", reason="after 2 attempts")
    store_turn(store, 2, [(3, 2, "failed"), (4, 1, "failed")], dead)
    in_order = [(1, 3, 1, "failed"), (2, 3, 2, "failed"), (2, 3, 0, "dead")]
    assert story(root, AuditFilter(offsets=OffsetRange(3, 4))) == in_order
    assert story(root, AuditFilter(everything=True)) == [*in_order, (2, 4, 1, "failed")]


def test_a_later_row_of_a_range_comes_after_the_attempts_of_an_offset_in_it(root: str, store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    store_turn(store, 1, [(3, 1, "failed"), (4, 1, "failed")])
    store_turn(store, 2, [], OutcomeRow(0, 0, Outcome.SKIPPED, NOON, None, 10, "gone bad"))
    assert story(root, AuditFilter(offsets=OffsetRange(4, 5))) == [(1, 4, 1, "failed"), (2, 0, 0, "skipped")]
    assert [row[1] for row in story(root, AuditFilter())] == [0, 3, 4], "several offsets are sorted by offset"
