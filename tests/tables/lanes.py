"""Lanes with settled turns, for the tests of maintenance."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from deltalake import DeltaTable

from ackline.delta.handle import TableHandle
from ackline.delta.object_store import options_of
from ackline.ledger.fold import OutcomeRow, PartitionState
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, SettledPartition, Settlement, TurnKind
from ackline.tables.audit_table import AuditTable
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import NOON, TP, plan, settlement, store_turn, told_once, turn, written

OUTCOMES_A_TURN = {"acked": 5, "failed": 1, "dead": 1}
ROWS_A_TURN = sum(OUTCOMES_A_TURN.values())


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


@told_once
def begin_lane(store: LedgerStore, turns: int = 3) -> LedgerStore:
    """Store a genesis and some whole turns; returns the store."""
    store.store_settlement(settlement(0, pipeline=store.pipeline))
    settle_turns(store, range(1, turns + 1))
    return store


PRICE, TAX = "handlers/shop.py:41 in price", "handlers/tax.py:12 in rate"


def pipeline_file(folder: Path, name: str) -> None:
    """Writes a pipeline file with the address of no broker."""
    (folder / f"{name}.yaml").write_text(
        f"name: {name}\nhandler: tests.support.journal:handle\ndead_letter: none\n"
        f"kafka: {{bootstrap_servers: '127.0.0.1:9', group_id: {name}, topics: [orders]}}\n"
    )


def begin_dead_lane(folder: Path, name: str, deaths: dict[int, str], at: datetime = NOON) -> None:
    """Stores a pipeline with a turn in which the records at these offsets have died of a KeyError. Their first attempt
    has failed at TAX, their last one at its place."""
    pipeline_file(folder, name)
    store, of = LedgerStore(str(folder / "audit"), name, LIVE), turn(1, pipeline=name)
    store.store_settlement(settlement(0, pipeline=name))
    files = [written(store, of, [(o, 1, "failed")], error_class="KeyError", place=TAX) for o in deaths]
    files += [written(store, of, [(o, 2, "failed")], error_class="KeyError", place=deaths[o]) for o in deaths]
    dead = [OutcomeRow(offset, 0, Outcome.DEAD, at, "KeyError") for offset in deaths]
    partition = SettledPartition("id", 0, PartitionState(10), {"dead": len(dead)})
    settled = Settlement(of, TurnKind.RUN, "run", at, {TP: partition})
    store_turn(store, plan(1, pipeline=name), *files, settled=settled, decisions=dead)


def delta(table: TableHandle, version: int | None = None) -> DeltaTable:
    """The table as a user opens it."""
    return DeltaTable(table.uri, version=version, storage_options=options_of(table.uri))


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
