"""A checkpoint takes the place of log entries only after it was read back, and the one before stays."""

import json
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ackline.delta.append import LOG_RETENTION
from ackline.delta.files import delta_stats
from ackline.delta.table import CHECKPOINT_EVERY
from ackline.errors import FatalError
from ackline.tables.audit_table import AuditTable
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import settlement, told_once

LAST = 2 * CHECKPOINT_EVERY + 4


def log_of(store: LedgerStore) -> Path:
    return Path(store.settlements.uri, "_delta_log")


def versions(store: LedgerStore, pattern: str) -> list[int]:
    """Returns the versions of the entries or checkpoints of the settlements."""
    return sorted(int(path.name[:20]) for path in log_of(store).glob(pattern))


@told_once
def settle(store: LedgerStore) -> LedgerStore:
    for n in range(LAST + 1):
        assert store.store_settlement(settlement(n))
    return store


@pytest.fixture
def lane(store: LedgerStore) -> LedgerStore:
    """A lane with two checkpoints of its settlements, and entries older than the retention."""
    settle(store)
    assert len(versions(store, "*.checkpoint.parquet")) == 2
    for file in log_of(store).iterdir():
        then = time.time() - LOG_RETENTION.total_seconds() - 60
        os.utime(file, (then, then))
    return store


def checkpoint(store: LedgerStore, which: int) -> Path:
    return sorted(log_of(store).glob("*.checkpoint.parquet"))[which]


@pytest.mark.parametrize("which", [-1, -2])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["lost", "empty"])
def test_without_either_of_its_two_checkpoints_a_table_is_whole(
    lane: LedgerStore, which: int, damage: Callable[[Path], object]
) -> None:
    lane.settlements.checkpoint()
    assert versions(lane, "*.json")[0] == versions(lane, "*.checkpoint.parquet")[-2] > 0, "entries are gone"
    damage(checkpoint(lane, which))
    again = LedgerStore(lane.root, "orders", "live")
    assert again.newest() == settlement(LAST)
    assert again.settlements.transactions() == {"ackline/orders/live/0/settlement": LAST}
    assert sorted(again.settlements.read(None)["turn"].to_pylist()) == list(range(LAST + 1))
    assert again.store_settlement(settlement(LAST + 1))


@pytest.mark.parametrize("text", [b"", b"{", b'{"version": 1', bytes(40)])
def test_a_torn_pointer_to_a_checkpoint_does_not_matter(lane: LedgerStore, text: bytes) -> None:
    (log_of(lane) / "_last_checkpoint").write_bytes(text)
    assert LedgerStore(lane.root, "orders", "live").newest() == settlement(LAST)


def test_young_entries_stay_and_a_table_that_is_checkpointed_once_a_week_keeps_what_its_checkpoints_need(
    lane: LedgerStore,
) -> None:
    lane.settlements.checkpoint()
    kept, newest = versions(lane, "*.checkpoint.parquet")[-2:]
    assert versions(lane, "*.json") == list(range(kept, newest + 1))
    lane.store_settlement(settlement(LAST + 1))
    lane.settlements.checkpoint()
    assert versions(lane, "*.checkpoint.parquet") == [newest, newest + 1]
    assert versions(lane, "*.json") == [newest, newest + 1]


def test_a_checkpoint_that_lacks_something_is_no_checkpoint_and_no_entry_goes(
    lane: LedgerStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = sorted(path.name for path in log_of(lane).iterdir())
    write = DeltaTable.create_checkpoint

    def forgetful(table: DeltaTable) -> None:
        """Write a checkpoint without its transaction ids."""
        write(table)
        [*_, path] = sorted(Path(table.table_uri.removeprefix("file://"), "_delta_log").glob("*.checkpoint.parquet"))
        rows = pq.read_table(path)
        pq.write_table(rows.filter(pa.compute.is_null(rows["txn"])), path)

    monkeypatch.setattr(DeltaTable, "create_checkpoint", forgetful)
    with pytest.raises(FatalError, match="does not hold what the log holds"):
        lane.settlements.checkpoint()
    assert sorted(path.name for path in log_of(lane).iterdir()) == before
    monkeypatch.setattr("ackline.delta.table.CHECKPOINT_EVERY", 1)
    with caplog.at_level(logging.WARNING):
        assert lane.store_settlement(settlement(LAST + 1)), "the commit does not depend on its checkpoint"
    assert "`ackline maintain` tries the checkpoint again" in caplog.text
    monkeypatch.undo()
    lane.settlements.checkpoint()
    assert LedgerStore(lane.root, "orders", "live").newest() == settlement(LAST + 1)


def test_a_process_that_is_killed_while_it_checkpoints_leaves_nothing_behind(
    lane: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = Path(lane.settlements.uri, ".checkpoint", "_delta_log")
    scratch.mkdir(parents=True)
    (scratch / f"{0:020}.json").write_text("left by a process that was killed")
    lane.settlements.checkpoint()
    assert not scratch.parent.exists()
    assert (
        versions(lane, "*.checkpoint.parquet")[-1] == AuditTable(lane.folder, "settlements").log.files().entries[-1][0]
    )


def test_statistics_bound_what_readers_skip_files_by_and_round_times_outward(tmp_path: Path) -> None:
    time = datetime(2026, 1, 1, microsecond=1_500, tzinfo=UTC)
    table = pa.table(
        {
            "topic": ["b", "a" * 249, None],
            "error_message": ["never in the log"] * 3,
            "offset": [3, 1, 2],
            "handled_at": pa.array([time, time + timedelta(seconds=1), time], pa.timestamp("us", "UTC")),
            "end_offset": pa.nulls(3, pa.int64()),
            "paused": [True, False, None],
            "counts": pa.array([[("acked", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(table, tmp_path / "file.parquet", row_group_size=1)
    assert json.loads(delta_stats(pq.read_metadata(tmp_path / "file.parquet"))) == {
        "numRecords": 3,
        "minValues": {"topic": "a" * 249, "offset": 1, "handled_at": "2026-01-01T00:00:00.001Z"},
        "maxValues": {"topic": "b", "offset": 3, "handled_at": "2026-01-01T00:00:01.002Z"},
        "nullCount": {"topic": 1, "error_message": 0, "offset": 0, "handled_at": 0, "end_offset": 3, "paused": 1},
    }


def test_a_column_without_bounds_in_one_row_group_has_none_at_all(tmp_path: Path) -> None:
    """Else a reader would skip the file because of the other row groups."""
    with pq.ParquetWriter(tmp_path / "file.parquet", pa.schema([("topic", pa.string())])) as writer:
        writer.write_table(pa.table({"topic": ["a"]}))
        writer.write_table(pa.table({"topic": ["b" * 10_000]}))
    stats = json.loads(delta_stats(pq.read_metadata(tmp_path / "file.parquet")))
    assert (stats["numRecords"], stats["minValues"], stats["maxValues"]) == (2, {}, {})


@pytest.mark.parametrize("microseconds", [253_402_300_799_999_999, 253_402_300_800_000_000, -(2**62)])
def test_a_time_whose_bound_is_beyond_the_calendar_has_no_bounds(microseconds: int, tmp_path: Path) -> None:
    """Then readers open the file, which is right whatever they look for."""
    times = pa.array([0, microseconds, None], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"due": times, "offset": [1, 2, 3]}), tmp_path / "file.parquet", row_group_size=1)
    stats = json.loads(delta_stats(pq.read_metadata(tmp_path / "file.parquet")))
    assert (stats["minValues"], stats["maxValues"]) == ({"offset": 1}, {"offset": 3})
