"""The tables of a lane of either kind, in memory and on real Delta tables, for tests that both must pass."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake.transaction import AddAction

from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, TurnId
from ackline.tables.store import LedgerStore
from tests.support.memory import World
from tests.support.memory_store import MemoryStore
from tests.support.memory_table import OutcomesFile
from tests.tables import lane_rows
from tests.tables.lane_rows import NOON

Rows = list[tuple[int, int, str]]


@dataclass(frozen=True)
class Tables:
    """Tables of either kind. `store` returns a new store, as each process has one; `written` writes an outcome file."""

    store: Callable[[], LedgerStore]
    written: Callable[[TurnId, Rows, TopicPartition], Any]


def in_memory() -> Tables:
    world = World(NOON)

    def written(of: TurnId, rows: Rows, tp: TopicPartition) -> Any:
        path = world.new_id("file")
        values = tuple(OutcomeRow(offset, attempt, Outcome(word), NOON) for offset, attempt, word in rows)
        world.tables.files[path] = OutcomesFile(of, {tp: values})
        return AddAction(path, 1, {}, 0, True, "{}")

    return Tables(lambda: MemoryStore(world, "orders", LIVE), written)


def on_disk(root: Path) -> Tables:
    def store() -> LedgerStore:
        return LedgerStore(str(root), "orders", LIVE)

    return Tables(store, lambda of, rows, tp: lane_rows.written(store(), of, rows, tp))
