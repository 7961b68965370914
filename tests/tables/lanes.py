"""Lanes with settled turns, for the tests of maintenance."""

import contextlib
from collections.abc import Callable, Iterator
from typing import ClassVar

from deltalake import DeltaTable

from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.tables.store import LedgerStore
from ackline.tables.table import AuditTable
from tests.tables.lane_rows import NOON, TP, plan, settlement, turn, written

OUTCOMES_A_TURN = {"acked": 5, "failed": 1, "dead": 1}
ROWS_A_TURN = sum(OUTCOMES_A_TURN.values())
FILES_A_TURN = 3
"""In the outcomes table: two of attempts, one of decisions."""


def settle_turns(store: LedgerStore, turns: range, tp: TopicPartition = TP) -> None:
    """Store turns whole, each with the outcomes of `OUTCOMES_A_TURN`."""
    for n in turns:
        of = turn(n, pipeline=store.pipeline)
        planned = plan(n, pipeline=store.pipeline)
        assert store.store_plan(planned)
        acked = written(store, of, [(offset, 1, "acked") for offset in range(5)], tp)
        assert store.store_outcomes(of, [acked, written(store, of, [(5, 1, "failed")], tp)])
        assert store.store_decisions(planned, "run", {tp: [OutcomeRow(5, 0, Outcome.DEAD, NOON)]})
        assert store.store_settlement(settlement(n, pipeline=store.pipeline), planned)


def begin_lane(store: LedgerStore, turns: int = 3) -> LedgerStore:
    """Store a genesis and some whole turns; returns the store."""
    store.store_settlement(settlement(0, pipeline=store.pipeline))
    settle_turns(store, range(1, turns + 1))
    return store


def files(table: AuditTable) -> list[str]:
    """Returns the data files of the newest version."""
    return sorted(DeltaTable(table.uri).file_uris())


class WithoutLock(AuditTable):
    """A table as on an object store: no lock. At each read of the table `contested` one of the rivals commits before
    the reader does."""

    rivals: ClassVar[list[Callable[[], object]]] = []
    contested: ClassVar[str] = "outcomes"
    has_lock = False

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def open(self) -> DeltaTable | None:
        """Returns the newest version, after which the next rival has committed."""
        table = super().open()
        if table is not None and self.name == self.contested and self.rivals:
            self.rivals.pop(0)()
        return table
