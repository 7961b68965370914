"""A filtered read of a table finds every row that matches, whatever statistics the files have."""

import pytest

from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import Outcome
from ackline.tables.maintenance import maintain
from ackline.tables.store import LedgerStore
from ackline.tables.table import AuditTable
from tests.tables.lane_rows import NOON, TP, TP1, plan, settlement, turn, written

ROOTS = ["disk", "s3"]


@pytest.fixture
def outcomes(store: LedgerStore) -> AuditTable:
    """Two files: one of ten acked rows without an error class, and one of a decision with one."""
    store.store_settlement(settlement(0))
    store.store_plan(plan(1))
    store.store_outcomes(turn(1), [written(store, turn(1), [(offset, 1, "acked") for offset in range(10)])])
    store.store_decisions(plan(1), "run", {TP1: [OutcomeRow(7, 0, Outcome.DEAD, NOON, "HTTPError")]})
    store.store_settlement(settlement(1), plan(1))
    return store.outcomes


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("where", [{"error_class": "HTTPError"}, {"run_id": "run", "outcome": "dead"}])
def test_a_filter_on_a_column_without_statistics_finds_its_rows(
    root: str, outcomes: AuditTable, where: dict[str, str], compacted: bool
) -> None:
    if compacted:
        maintain(root)
    rows = outcomes.read(where).to_pylist()
    assert [(row["partition"], row["offset"], row["outcome"]) for row in rows] == [(1, 7, "dead")]


def test_a_file_whose_statistics_rule_a_match_out_is_not_opened(outcomes: AuditTable) -> None:
    version = outcomes.open()
    assert version is not None

    def files(where: dict[str, str | int]) -> int:
        return len(list(outcomes.dataset(version, where).get_fragments()))

    assert files({"epoch": 0}) == 2
    assert files({"partition": TP.partition}) == files({"outcome": "dead"}) == files({"turn": 1, "attempt": 1}) == 1
    assert files({"turn": 2}) == files({"topic": "other"}) == 0
    assert files({"error_class": "HTTPError"}) == 2, "it has no statistics"
