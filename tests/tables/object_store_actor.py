"""A process that works on a lane in an object store, and dies at a given commit.

`python -m tests.tables.object_store_actor ROOT WORK PLACE NUMBER`: WORK is `turn-N` or `maintain`, PLACE is
`before`, `after` or `nowhere`, and NUMBER is that of the commit, counted from 1. PLACE `checkpoint` is after the first
checkpoint was written, and before log entries go.
"""

import itertools
import os
import sys

from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import Outcome
from ackline.tables import table
from ackline.tables.maintenance import maintain
from ackline.tables.store import LedgerStore
from ackline.tables.table import AuditTable
from tests.tables.lane_rows import NOON, TP, plan, settlement, turn, written

DIED = 9


def die(*_: object) -> None:
    """Ends the process as a kill does."""
    os._exit(DIED)


def die_at(place: str, number: int) -> None:
    """Lets the process die at its commit of this number."""
    commit, numbers = AuditTable.commit, itertools.count(1)

    def dying(of: AuditTable, *arguments: object) -> None:
        if next(numbers) != number:
            commit(of, *arguments)  # type: ignore[arg-type]
            return
        if place == "after":
            commit(of, *arguments)  # type: ignore[arg-type]
        die()

    AuditTable.commit = dying  # type: ignore[method-assign, assignment]


def do_turn(store: LedgerStore, n: int) -> None:
    """Stores a turn with an acked and a dead record, as far as it is not stored yet."""
    store.store_plan(plan(n))
    store.store_outcomes(turn(n), [written(store, turn(n), [(n, 1, "acked")])])
    store.store_decisions(plan(n), "run", {TP: [OutcomeRow(100 + n, 0, Outcome.DEAD, NOON)]})
    store.store_settlement(settlement(n), plan(n))


def main(root: str, work: str, place: str, number: str = "1") -> None:
    """Does the work."""
    store = LedgerStore(root, "orders", "live")
    if place == "checkpoint":
        table.expire_entries = die  # type: ignore[attr-defined, assignment]
    elif place != "nowhere":
        die_at(place, int(number))
    if work == "maintain":
        maintain(root)
    else:
        do_turn(store, int(work.removeprefix("turn-")))


if __name__ == "__main__":
    main(*sys.argv[1:])
