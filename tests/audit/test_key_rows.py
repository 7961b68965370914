"""The rows about the records of one key: attempts, decisions, ranges, and rows of epochs and lanes without a hash."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from ackline.actions.maintain import maintain
from ackline.audit import queries
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.errors import FatalError
from ackline.forms.arguments import PartitionChoice
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.tables.layout import lanes_of
from ackline.tables.store import LedgerStore
from ackline.worker.files import Chunk, OutcomeFiles
from tests.audit.story import START, planned, settled
from tests.bench import interleaved as bench
from tests.delta.test_damaged_files import flipped_page
from tests.tables.lane_rows import NOON, TP, TP1, store_turn, turn, written

ORDER, OTHER = -(2**63) + 5, 2**62
Row = tuple[str, int, int, int, int, str]


def number(hashed: int) -> int | str:
    return hashed


def text(hashed: int) -> int | str:
    """Returns a hash as version 0.2.0 has stored it, with 64 more bits."""
    return f"{hashed % 2**64:016x}{'7' * 16}"


EACH = pytest.mark.parametrize("lane", [(number, number), (text, text), (text, number)], indirect=True)
"""How the hashes of each turn but the last, and those of the last, are stored."""


def found(root: str, **criteria: object) -> list[Row]:
    rows = audit_rows(root, "orders", AuditFilter(key_hash=ORDER, **criteria))  # type: ignore[arg-type]
    return [
        (row["lane"], row["epoch"], row["partition"], row["offset"], row["attempt"], row["outcome"]) for row in rows
    ]


@pytest.fixture
def lane(store: LedgerStore, request: pytest.FixtureRequest) -> LedgerStore:
    """12 and 15 of partition 0 and 3 of partition 1 have the key. 15 failed twice, the first time without a hash, and
    falls into a skipped range beside 14. After a reset the topic was created anew: 12 there has another key."""
    stored, last = getattr(request, "param", (number, number))
    order, other = stored(ORDER), stored(OTHER)
    store.store_settlement(settled(0, START, kind=TurnKind.GENESIS))
    files = [
        written(
            store, turn(1), [(12, 1, "acked"), (14, 1, "failed"), (15, 1, "failed")], hashes={12: order, 14: other}
        ),
        written(store, turn(1), [(3, 1, "acked"), (12, 1, "acked")], TP1, hashes={3: order, 12: other}),
    ]
    store_turn(store, planned(1, OffsetRange(10, 16)), *files, settled=settled(1, 16))
    file = written(store, turn(2), [(15, 2, "failed")], hashes={15: order})
    ranges = [OutcomeRow(15, 0, Outcome.SKIPPED, NOON, None, 30), OutcomeRow(13, 0, Outcome.EXPIRED, NOON, None, 15)]
    store_turn(store, planned(2, OffsetRange(16, 16)), file, settled=settled(2, 30), decisions=ranges)
    reset = settled(3, 30, kind=TurnKind.RESET)
    store_turn(store, planned(3, OffsetRange(12, 12), kind=TurnKind.RESET), settled=reset)
    file = written(store, turn(1, 1), [(12, 1, "acked")], hashes={12: last(OTHER)})
    store_turn(store, planned(1, OffsetRange(12, 14), epoch=1), file, settled=settled(1, 14, epoch=1))
    return store


OF_KEY: list[Row] = [
    ("live", 0, 0, 12, 1, "acked"), ("live", 0, 0, 15, 1, "failed"), ("live", 0, 0, 15, 2, "failed"),
    ("live", 0, 0, 15, 0, "skipped"), ("live", 0, 1, 3, 1, "acked"),
]  # fmt: skip


@EACH
@pytest.mark.parametrize("compacted", [False, True])
def test_a_key_finds_its_attempts_its_decisions_and_the_range_that_holds_its_record(
    root: str, lane: LedgerStore, compacted: bool
) -> None:
    """Not 14, which another range holds, nor 12 of another partition or of the topic that was created anew."""
    if compacted:
        maintain(root)
    assert found(root) == OF_KEY


def test_other_filters_apply_too(root: str, lane: LedgerStore) -> None:
    assert found(root, outcome="failed") == OF_KEY[1:3]
    assert found(root, choice=PartitionChoice((), (1,))) == OF_KEY[4:]
    assert found(root, offsets=OffsetRange(12, 13)) == OF_KEY[:1]
    assert found(root, limit=2) == OF_KEY[:2]
    assert found(root, choice=PartitionChoice(("another",), ())) == []


def test_a_row_of_another_lane_without_a_hash_is_found_by_the_offset(root: str, lane: LedgerStore) -> None:
    backfill = lane.other_lane("backfill-x")
    of = turn(1)._replace(lane="backfill-x")
    backfill.store_settlement(replace(settled(0, START, kind=TurnKind.GENESIS), turn=of._replace(n=0)))
    plan, file = replace(planned(1, OffsetRange(12, 13)), turn=of), written(backfill, of, [(12, 1, "acked")])
    store_turn(backfill, plan, file, settled=replace(settled(1, 13), turn=of))
    assert found(root) == [("backfill-x", 0, 0, 12, 1, "acked"), *OF_KEY]
    assert found(root, lane="backfill-x") == [("backfill-x", 0, 0, 12, 1, "acked")]


@pytest.mark.skipif(
    not hasattr(pq.ColumnChunkMetaData, "bloom_filter_offset"), reason="this pyarrow does not say where a filter is"
)
def test_pages_of_other_keys_are_not_read_and_those_of_the_key_are_checked(root: str, store: LedgerStore) -> None:
    def write(files: OutcomeFiles) -> None:
        ones = np.ones(3, dtype=np.int64)
        hashes = pa.array([ORDER, None, OTHER])
        files.add(TP, Outcome.ACKED, Chunk(np.arange(3), ones, ones.astype(np.int32), ones, key_hashes=hashes))

    bench.store_turn(store, 1, OffsetRange(0, 3), [TP], write, run_id="run", key_hashes=True)
    assert found(root) == [("live", 0, 0, 0, 1, "acked")]
    (path,) = Path(store.outcomes.uri).glob("plan_date=*/*.parquet")
    path.write_bytes(flipped_page(path.read_bytes(), "key_hash64"))
    assert list(audit_rows(root, "orders", AuditFilter(key_hash=5))) == []
    with pytest.raises(FatalError, match="could not verify page integrity"):
        found(root)


def test_a_key_without_records_finds_nothing(root: str, lane: LedgerStore, store: LedgerStore) -> None:
    assert list(audit_rows(root, "orders", AuditFilter(key_hash=5))) == []
    assert list(audit_rows(root, "payments", AuditFilter(key_hash=ORDER))) == []


def test_the_filter_of_a_key_keeps_no_array_of_numpy(
    root: str, lane: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of Arrow may free the filter last. An array of NumPy needs Python's lock for that, and a thread that
    waits for the lock while Python ends aborts the process: `ackline audit --key` exited with 134 after its rows."""
    arrays: list[weakref.ref[Any]] = []
    sort = np.sort

    def remembered(values: Any) -> Any:
        array = sort(values)
        arrays.append(weakref.ref(array))
        return array

    monkeypatch.setattr(np, "sort", remembered)
    of_key = queries.rows_of_key([folder.folder for folder in lanes_of(root, "orders")], ORDER, ds.scalar(True))
    assert of_key.offsets == OffsetRange(3, 16)
    assert [array() for array in arrays] == [None, None]
