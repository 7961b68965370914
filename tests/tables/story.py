"""A lane whose offsets have every state, in real tables: for the tests of what became of a record."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.ledger.offsets import LogBounds, OffsetRange, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Plan, PlannedPartition, SettledPartition, Settlement, TurnKind
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import NOON, TP, TP1, turn, written

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


def begin_story(store: LedgerStore, others: bool = True, **settings: Any) -> LedgerStore:
    """Stores a lane that begins at 10, and returns its store; with `others` a row of another partition, too.
    `settings` are those of turn 2.

    Turn 1 reads [10, 20): 13 holds no record, 15 and 16 fail. Turn 2 retries 16, which is dead, and reads [20, 30), of
    which retention has taken [20, 24). Turn 3 is void; turn 4 is open.
    """
    store.store_settlement(settled(0, START, kind=TurnKind.GENESIS))
    store.store_plan(planned(1, OffsetRange(10, 20)))
    acked = [(offset, 1, "acked") for offset in range(10, 20) if offset not in (13, 15, 16)]
    store.store_outcomes(
        turn(1),
        [
            written(store, turn(1), acked),
            written(store, turn(1), [(15, 1, "failed"), (16, 1, "failed")], message="503"),
            *([written(store, turn(1), [(13, 1, "acked")], TP1)] if others else []),
        ],
    )
    store.store_settlement(
        settled(1, 20, failed(15), failed(16), counts={"acked": 7, "failed": 2}, gaps=1),
        planned(1, OffsetRange(10, 20)),
    )
    second = planned(2, OffsetRange(24, 30), (ValuedRange(16, 17, 2),), **settings)
    store.store_plan(second)
    rows = [(16, 2, "failed"), *((offset, 1, "acked") for offset in range(24, 30))]
    store.store_outcomes(turn(2), [written(store, turn(2), rows)])
    dead = OutcomeRow(16, 0, Outcome.DEAD, NOON, "HTTPError", reason="after 2 attempts")
    store.store_decisions(second, "run-2", {TP: [dead, OutcomeRow(20, 0, Outcome.EXPIRED, NOON, None, 24)]})
    counts = {"acked": 6, "failed": 1, "dead": 1, "expired": 4}
    store.store_settlement(settled(2, 30, failed(15), counts=counts), second)
    third = planned(3, OffsetRange(30, 40))
    store.store_plan(third)
    store.store_outcomes(turn(3), [written(store, turn(3), [(offset, 1, "acked") for offset in range(30, 40)])])
    store.store_settlement(settled(3, 30, failed(15), kind=TurnKind.VOID), third)
    store.store_plan(planned(4, OffsetRange(30, 50), (ValuedRange(15, 16, 2),)))
    return store
