"""A process that appends outcomes of turn 1 to a lane, and dies at a given place."""

import os
import sys

from ackline.audit.store import LedgerStore
from ackline.audit.table import AuditTable
from tests.contract.lane_rows import turn, written


def main(root: str, place: str) -> None:
    """Appends to the lane below `root`. Dies `before` or `after` the log entry; prints the answer otherwise."""
    store = LedgerStore(root, "orders", "live")
    commit = AuditTable.commit

    def dying(table: AuditTable, *arguments: object) -> None:
        if place == "after":
            commit(table, *arguments)  # type: ignore[arg-type]
        os._exit(9)

    if place != "nowhere":
        AuditTable.commit = dying  # type: ignore[method-assign, assignment]
    print(store.store_outcomes(turn(1), [written(store, turn(1), [(0, 1, "acked")])]))


if __name__ == "__main__":
    main(*sys.argv[1:])
