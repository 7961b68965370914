"""The report of a backfill names the version of each output table before its first turn and after its last one."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from ackline.backfill.perform import report_of
from ackline.backfill.run import find_backfill
from ackline.delta.log import DeltaLog
from ackline.outputs.lane_rows import TableVersions, versions_of_tables
from tests.backfill.shadow_lane import order, shadow, shop
from tests.support.memory_lane import MemoryBackfill
from tests.worker.disk_lane import DiskBackfill, DiskLane

ONE_TABLE = [{"from": "source", "table": "prices"}]


def table_of(lane: DiskLane, version: int | None = None, name: str = "prices") -> DeltaTable:
    return DeltaTable(str(lane.root / "lane" / "outputs" / name), version=version)


def ids_of(lane: DiskLane, version: int | None, name: str = "prices") -> list[tuple[int, str]]:
    assert version is not None
    rows = table_of(lane, version, name).to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["_lane"]) for row in rows)


def versions(backfill: MemoryBackfill) -> dict[str, TableVersions]:
    return versions_of_tables(backfill.adapters().store)


def test_turns_of_other_lanes_and_compactions_stand_between_them_and_time_travel_shows_both() -> None:
    with shop(outputs=ONE_TABLE) as lane:
        before = [(n, "live") for n in range(5)]
        backfill = DiskBackfill(lane, "b", "orders")
        backfill.run(max_records=2)
        lane.produce(order(5, "6.00"))
        lane.run()
        table_of(lane).optimize.compact()
        backfill.run()
        found = versions(backfill)
        lane.produce(order(6, "7.00"))
        lane.run()
        table_of(lane).optimize.compact()
        assert versions(backfill) == found, "what comes after the last turn changes nothing"
        assert found.keys() == {"prices"}
        assert ids_of(lane, found["prices"].before) == before
        of_backfill = [(n, "backfill-b") for n in range(5)]
        assert ids_of(lane, found["prices"].after) == [*of_backfill, (5, "live")]


def test_a_new_epoch_counts_to_the_same_lane() -> None:
    with shop(outputs=ONE_TABLE) as lane:
        backfill = DiskBackfill(lane, "b", "orders:0:0-2")
        backfill.run()
        first = versions(backfill)["prices"]
        backfill.begin_epoch(1)
        assert versions(backfill)["prices"] == first
        backfill.run()
        assert versions(backfill)["prices"] == first._replace(after=table_of(lane).version())
        assert (first.after or 0) < table_of(lane).version()


def test_a_shadow_has_those_of_its_own_tables_and_a_lane_without_rows_has_none() -> None:
    with shop() as lane:
        shadow(lane).run()
        found = versions(shadow(lane))
        assert found.keys() == {"prices__v2"}
        assert ids_of(lane, found["prices__v2"].before, "prices__v2") == []
        assert len(ids_of(lane, found["prices__v2"].after, "prices__v2")) == 3
        none = DiskBackfill(lane, "none", "orders")
        none.begin()
        assert versions(none) == {}


def test_only_the_entries_since_the_first_turn_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with shop(outputs=ONE_TABLE) as lane:
        for number in range(5, 9):
            lane.produce(order(number, "6.00"))
            lane.run()
        backfill = DiskBackfill(lane, "b", "orders:0:0-2")
        backfill.run()
        first, read, entry = table_of(lane).version(), list[int](), DeltaLog.entry
        table_of(lane).create_checkpoint()

        def counted(log: DeltaLog, version: int) -> object:
            read.append(version if log.storage.uri.endswith("prices") else first)
            return entry(log, version)

        monkeypatch.setattr(DeltaLog, "entry", counted)
        assert versions(backfill)["prices"] == (first - 1, first)
        assert min(read) == first


def test_a_version_whose_entry_has_expired_is_named_as_lost_and_not_guessed() -> None:
    with shop(outputs=ONE_TABLE) as lane:
        backfill = DiskBackfill(lane, "b", "orders")
        backfill.run(max_records=2)
        between = table_of(lane).version()
        backfill.run()
        last = table_of(lane).version()
        table_of(lane).create_checkpoint()

        def expire(version: int) -> str:
            for number in range(version):
                log = Path(lane.root, "lane", "outputs", "prices", "_delta_log")
                (log / f"{number:020}.json").unlink(missing_ok=True)
            found = find_backfill(backfill.adapters().store)
            assert found is not None
            body, text = report_of(backfill.adapters(), found)
            assert body.dump()["tables"] == {"prices": versions(backfill)["prices"]._asdict()}
            return text.splitlines()[-1]

        lost = "a version that is not in its log any more"
        assert expire(between) == (
            f"Output table prices: version {between - 1} before the first turn, version {last} after the last one."
        )
        assert expire(last) == f"Output table prices: {lost} before the first turn, version {last} after the last one."
        lane.produce(order(5, "6.00"))
        lane.run()
        assert expire(last + 1) == f"Output table prices: {lost} before the first turn, {lost} after the last one."


def test_a_report_does_not_fail_for_a_table_that_is_gone_or_can_not_be_read() -> None:
    with shop(outputs=ONE_TABLE) as lane:
        backfill = DiskBackfill(lane, "b", "orders")
        backfill.run()
        log = lane.root / "lane" / "outputs" / "prices" / "_delta_log"
        newest = max(log.glob("*.json"))
        newest.write_bytes(b"")
        assert versions(backfill) == {"prices": TableVersions(None, None)}
        log.rename(log.with_name("away"))
        assert versions(backfill) == {"prices": TableVersions(None, None)}
