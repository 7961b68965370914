"""A lane with all that the views must tell apart: epochs, void and open turns, ranges, `lost`, another lane."""

from dataclasses import replace
from typing import Any

from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import OffsetRange, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnId, TurnKind
from ackline.tables.store import LedgerStore
from tests.audit.story import START, failed, planned, settled
from tests.tables.lane_rows import NOON, TP, store_turn, told_once, turn, written

Retries = tuple[ValuedRange[int], ...]


@told_once
def begin_hard_story(store: LedgerStore, newest_epoch: int = 1) -> LedgerStore:
    """Stores epoch 0 and 1 of the live lane, and a backfill; epoch 0 of the live lane alone if it is the newest.

    Epoch 0: 11 is dead after two failures, 12 is acked at the second attempt, turn 3 is void, and a skip settles 20,
    which has failed, in a range that encloses a shorter one. Epoch 1, after a reset to 25: 26 waits, [28, 30) is lost,
    and a turn is open.
    """
    store.store_settlement(settled(0, START, kind=TurnKind.GENESIS))
    _epoch_0(store)
    if newest_epoch:
        _epoch_1(store)
        _backfill(LedgerStore(store.root, "orders", "backfill-x"))
    return store


def _epoch_0(store: LedgerStore) -> None:
    def run(n: int, start: int, end: int, failing: tuple[int, ...], retries: Retries = (), **more: Any) -> None:
        rows = [(offset, 1, "failed" if offset in failing else "acked") for offset in range(start, end)]
        file = written(store, turn(n), more.pop("rows", rows), error_class=more.pop("error_class", "HTTPError"))
        decisions = more.pop("decisions", ())
        store_turn(
            store, planned(n, OffsetRange(start, end), retries), file, decisions=decisions,
            settled=settled(n, more.pop("complete_to", end), *map(failed, more.pop("pending", failing)), **more),
        )  # fmt: skip

    run(1, 10, 20, (11, 12), counts={"acked": 8, "failed": 2})
    rows, dead = [(11, 2, "failed"), (12, 2, "acked")], OutcomeRow(11, 0, Outcome.DEAD, NOON, "E2")
    counts = {"acked": 1, "failed": 1, "dead": 1}
    run(2, 20, 20, (), (ValuedRange(11, 13, 2),), rows=rows, error_class="E2", decisions=[dead], counts=counts)
    run(3, 20, 25, (), complete_to=20, kind=TurnKind.VOID, counts={"acked": 5})
    run(4, 20, 30, (20,), counts={"acked": 9, "failed": 1})
    ranges = [OutcomeRow(18, 0, Outcome.EXPIRED, NOON, None, 40), OutcomeRow(19, 0, Outcome.SKIPPED, NOON, None, 20)]
    skipped = settled(5, 40, kind=TurnKind.SKIP, counts={"skipped": 11})
    store_turn(store, planned(5, OffsetRange(40, 40), kind=TurnKind.SKIP), settled=skipped, decisions=ranges)


def begin_reset(store: LedgerStore) -> None:
    """Stores the reset that ends epoch 0, alone."""
    reset = planned(6, OffsetRange(25, 25), kind=TurnKind.RESET)
    store_turn(store, reset, settled=settled(6, 40, failed(20), kind=TurnKind.RESET))


def _epoch_1(store: LedgerStore) -> None:
    begin_reset(store)
    file = written(store, turn(1, 1), [(25, 1, "acked"), (26, 1, "failed"), (27, 1, "acked")])
    first = settled(1, 28, failed(26), epoch=1, floor=25, counts={"acked": 2, "failed": 1})
    store_turn(store, planned(1, OffsetRange(25, 28), epoch=1), file, settled=first)
    second = planned(2, OffsetRange(28, 30), epoch=1)
    store.store_plan(second)
    store.store_decisions(second, "run-2", {TP: [OutcomeRow(28, 0, Outcome.LOST, NOON, None, 30)]})
    store.store_settlement(settled(2, 30, failed(26), epoch=1, floor=26, counts={"lost": 2}), second)
    third = planned(3, OffsetRange(30, 35), (ValuedRange(26, 27, 2),), epoch=1)
    store_turn(store, third, written(store, turn(3, 1), [(26, 2, "acked"), (30, 1, "acked")]))


def _backfill(store: LedgerStore) -> None:
    def lane(n: int) -> TurnId:
        return turn(n)._replace(lane="backfill-x")

    store.store_settlement(replace(settled(0, START, kind=TurnKind.GENESIS), turn=lane(0)))
    file = written(store, lane(1), [(10, 1, "acked"), (11, 1, "failed")])
    first = replace(settled(1, 12, failed(11), counts={"acked": 1, "failed": 1}), turn=lane(1))
    store_turn(store, replace(planned(1, OffsetRange(10, 12)), turn=lane(1)), file, settled=first)
