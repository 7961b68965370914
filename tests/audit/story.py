"""A lane whose offsets have every state, in real tables: for the tests of what became of a record."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.ledger.offsets import LogBounds, OffsetRange, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Plan, PlannedPartition, SettledPartition, Settlement, TurnKind
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import NOON, TP, TP1, store_turn, told_once, turn, written

LOG = LogBounds(0, 100)
DUE = NOON + timedelta(minutes=5)
START = 10


def planned(
    n: int,
    fresh: OffsetRange,
    retries: tuple[ValuedRange[int], ...] = (),
    kind: TurnKind = TurnKind.RUN,
    epoch: int = 0,
    **settings: Any,
) -> Plan:
    row = PlannedPartition("id", fresh, retries, START, START, LOG)
    return Plan(turn(n, epoch), kind, f"run-{n}", NOON + timedelta(hours=n), {TP: row}, "read_committed", settings)


def settled(
    n: int,
    complete_to: int,
    *pending: ValuedRange[Pending],
    kind: TurnKind = TurnKind.RUN,
    epoch: int = 0,
    floor: int = START,
    counts: Mapping[str, int] | None = None,
    gaps: int = 0,
) -> Settlement:
    """A settlement ten minutes after its plan; the log ends at 100."""
    state = PartitionState(complete_to, pending)
    metrics = {"lag": float(100 - state.floor)}
    partition = SettledPartition("id", floor, state, counts or {}, gaps, metrics=metrics)
    at = NOON + timedelta(hours=n, minutes=10)
    return Settlement(turn(n, epoch), kind, f"run-{n}", at, {TP: partition}, "ada", "")


def failed(offset: int, attempts: int = 1) -> ValuedRange[Pending]:
    return ValuedRange(offset, offset + 1, Pending(PendingKind.RETRY, attempts, DUE, "HTTPError"))


@told_once
def begin_story(store: LedgerStore, /, others: bool = True, **settings: Any) -> LedgerStore:
    """Stores a lane that begins at 10, and returns its store; with `others` a row of another partition, too.
    `settings` are those of turn 2.

    Turn 1 reads [10, 20): 13 holds no record, 15 and 16 fail. Turn 2 retries 16, which is dead, and reads [20, 30), of
    which retention has taken [20, 24). Turn 3 is void; turn 4 is open.
    """
    store.store_settlement(settled(0, START, kind=TurnKind.GENESIS))
    files = [
        written(store, turn(1), [(offset, 1, "acked") for offset in range(10, 20) if offset not in (13, 15, 16)]),
        written(store, turn(1), [(15, 1, "failed"), (16, 1, "failed")], message="503"),
        *([written(store, turn(1), [(13, 1, "acked")], TP1)] if others else []),
    ]
    first = settled(1, 20, failed(15), failed(16), counts={"acked": 7, "failed": 2}, gaps=1)
    store_turn(store, planned(1, OffsetRange(10, 20)), *files, settled=first)
    file = written(store, turn(2), [(16, 2, "failed"), *((offset, 1, "acked") for offset in range(24, 30))])
    dead = OutcomeRow(16, 0, Outcome.DEAD, NOON, "HTTPError", reason="after 2 attempts")
    counts = {"acked": 6, "failed": 1, "dead": 1, "expired": 4}
    store_turn(
        store, planned(2, OffsetRange(24, 30), (ValuedRange(16, 17, 2),), **settings), file,
        settled=settled(2, 30, failed(15), counts=counts),
        decisions=[dead, OutcomeRow(20, 0, Outcome.EXPIRED, NOON, None, 24)],
    )  # fmt: skip
    file = written(store, turn(3), [(offset, 1, "acked") for offset in range(30, 40)])
    void = settled(3, 30, failed(15), kind=TurnKind.VOID)
    store_turn(store, planned(3, OffsetRange(30, 40)), file, settled=void)
    store.store_plan(planned(4, OffsetRange(30, 50), (ValuedRange(15, 16, 2),)))
    return store
