"""Lanes with turns that are over, for the tests of maintenance."""

from deltalake import DeltaTable

from ackline.audit.store import LedgerStore
from ackline.audit.table import AuditTable
from ackline.ledger import OutcomeRow
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from tests.contract.lane_rows import NOON, TP, plan, settlement, turn, written

OUTCOMES_A_TURN = {"acked": 5, "failed": 1, "dead": 1}
ROWS_A_TURN = sum(OUTCOMES_A_TURN.values())
FILES_A_TURN = 3
"""Of outcomes."""


def settled(store: LedgerStore, turns: range, tp: TopicPartition = TP) -> None:
    """Turns with these outcomes in these files; each number is won."""
    for n in turns:
        of = turn(n, pipeline=store.pipeline)
        planned = plan(n, pipeline=store.pipeline)
        assert store.store_plan(planned)
        acked = written(store, of, [(offset, 1, "acked") for offset in range(5)], tp)
        assert store.store_outcomes(of, [acked, written(store, of, [(5, 1, "failed")], tp)])
        assert store.store_decisions(planned, "run", {tp: [OutcomeRow(5, 0, Outcome.DEAD, NOON)]})
        assert store.store_settlement(settlement(n, pipeline=store.pipeline), planned)


def begun(store: LedgerStore, turns: int = 3) -> LedgerStore:
    """A lane with some turns settled."""
    store.store_settlement(settlement(0, pipeline=store.pipeline))
    settled(store, range(1, turns + 1))
    return store


def files(table: AuditTable) -> list[str]:
    """What the newest version names."""
    return sorted(DeltaTable(table.uri).file_uris())
