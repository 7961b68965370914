"""A live lane with an output table on disk, and backfills beside it: shadows, and those that count."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.delta.files import DataFileWriter
from ackline.delta.folder import Folder
from ackline.delta.table import FencedTable
from tests.support.actor import Killed
from tests.worker.disk_lane import DiskBackfill, DiskLane, lane_of

FIRST, SECOND, WAITS = (f"tests.backfill.prices:{name}" for name in ("first", "second", "waits"))
FILE: dict[str, Any] = {
    "handler": FIRST,
    "backfill": {"handlers": [SECOND, WAITS]},
    "outputs": [{"from": "source", "table": "prices"}, {"from": "source.seen", "topic": "seen"}],
}


def order(number: int, price: str, note: str | None = None) -> bytes:
    return json.dumps({"id": number, "price": price, "note": note}).encode()


ORDERS = [order(0, "1.005"), order(1, "2.00"), order(2, "3.999"), order(3, "4.00", "bad"), order(4, "5.00", "old")]
"""The second handler rounds orders 0 and 2 another way, gives 3 up and passes over 4."""


@contextmanager
def shop(**of_file: Any) -> Iterator[DiskLane]:
    """A live lane whose first handler has made a row of each of ORDERS."""
    with lane_of(FILE | of_file) as lane:
        lane.create("seen")
        lane.produce(*ORDERS)
        lane.run()
        yield lane


def shadow(lane: DiskLane, backfill_id: str = "v2", *ranges: str, **arguments: Any) -> DiskBackfill:
    """A shadow of the second handler over all orders, not begun."""
    chosen = {"handler": SECOND, "shadow": True, **arguments}
    return DiskBackfill(lane, backfill_id, *(ranges or ("orders",)), **chosen)


def rows_of(lane: DiskLane, table: str) -> list[tuple[int, str, str]]:
    """(id, price, lane) of each row of an output table, sorted."""
    rows = DeltaTable(f"{lane.root}/lane/outputs/{table}").to_pyarrow_table().to_pylist()
    return sorted((row["id"], f"{row['price']:.2f}", row["_lane"]) for row in rows)


def files_of(lane: DiskLane, *apart: str) -> dict[str, bytes]:
    """The content of each file below the root, but for those below the folders `apart` of the pipeline."""
    root = Path(lane.root, "lane")
    files = (path for path in root.rglob("*") if path.is_file())
    named = {str(path.relative_to(root)): path for path in files}
    return {name: path.read_bytes() for name, path in named.items() if not name.startswith(apart)}


WRITES: tuple[tuple[type, str], ...] = (
    (FencedTable, "append"), (FencedTable, "_create"), (DataFileWriter, "finish"), (Folder, "write_durably"),
    (Folder, "remove_tree"),
)  # fmt: skip


@contextmanager
def killed_at(number: int, after: bool) -> Iterator[list[int]]:
    """Kills the process at its write of this number, before or after it. Gives how many writes are left."""
    left = [number]

    def wrapped(write: Callable[..., Any]) -> Callable[..., Any]:
        def strike(*arguments: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise Killed
            result = write(*arguments, **more)
            if left[0] == 0:
                raise Killed
            return result

        return strike

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in WRITES:
            patch.setattr(owner, name, wrapped(getattr(owner, name)))
        yield left
