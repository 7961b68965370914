"""A lane that an early version has begun goes on with this one: it plans, replays, settles, and is shown whole.

The tables are real, with the columns that each row has needed from the start and none of those that came later.
"""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ackline import Record
from ackline.tables import schemas
from tests.cli.memory_command import MemoryCommand
from tests.support.journal import follow_orders
from tests.support.memory_lane import DEAD, FAILS_ONCE, OK
from tests.worker.disk_lane import DiskLane

LAST = {"plans": "reason", "outcomes": "handled_at", "settlements": "settled_at"}
"""The last column of each table at the start. Each one behind it means "not known" where it is null."""
EARLY = {name: schemas.TABLES[name].names[: schemas.TABLES[name].names.index(LAST[name]) + 1] for name in LAST}
FILE: dict[str, Any] = {
    "handler": "tests.tables.test_older_lane:handle",
    "retry": {"initial_delay": "1m", "period": "0s", "max_retries": 1},
}


def handle(record: Record) -> None:
    """Does what the record orders."""
    follow_orders(json.loads(record.value or b"{}"), record.attempt)


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskLane:
    """A lane on disk of which an early version has settled a turn, with a retry that waits, and left the next one
    open."""
    lane = DiskLane(tmp_path / "audit")
    lane.settings = dict(FILE)  # without an ack topic, which an early version did not have
    lane.produce(OK, FAILS_ONCE, DEAD, OK)
    lane.run()
    lane.produce(OK, OK)
    lane.plan()
    for name in EARLY:
        make_early(lane.root / "lane" / name, EARLY[name])
    return lane


def make_early(table: Path, names: list[str]) -> None:
    """Removes all other columns from a table: from its schema, its files, and their statistics. Each commit keeps its
    number and its transaction ids."""
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            if meta := action.get("metaData"):
                schema = json.loads(meta["schemaString"])
                fields = [field for field in schema["fields"] if field["name"] in names]
                meta["schemaString"] = json.dumps(schema | {"fields": fields})
            if add := action.get("add"):
                file = table / unquote(add["path"])
                kept = pq.ParquetFile(file).read()
                pq.write_table(kept.select([name for name in kept.column_names if name in names]), file)
                stats = json.loads(add["stats"])
                for part in ("minValues", "maxValues", "nullCount"):
                    stats[part] = {name: value for name, value in stats.get(part, {}).items() if name in names}
                add |= {"size": file.stat().st_size, "stats": json.dumps(stats)}
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def columns(lane: DiskLane, name: str) -> list[str]:
    return [field.name for field in DeltaTable(f"{lane.root}/lane/{name}").schema().fields]


def test_a_lane_of_an_early_version_is_shown_as_it_is_and_nothing_is_written(
    lane: DiskLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ackline = MemoryCommand(lane, tmp_path, monkeypatch)
    (partition,) = ackline("status", "lane", "--json").json["partitions"]
    assert (partition["floor"], partition["read"], partition["pending"]["retry"]) == (1, 4, 1)
    assert partition["acked"] == 0, "the early version has stored no totals"
    assert "offset 1 failed once" in ackline("explain", "lane").output
    assert "acked" in ackline("explain", "lane", "orders", "0", "3").output
    assert {name: columns(lane, name) for name in EARLY} == EARLY


def test_the_open_turn_of_an_early_version_is_adopted_and_the_lane_goes_on_to_the_end(
    lane: DiskLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = lane.run()
    assert [plan.turn.n for plan in done.plans] == [2]
    assert lane.floor() == 1, "the retry waits"
    lane.world.now += timedelta(minutes=2)
    lane.produce(OK)
    lane.run()
    assert lane.floor() == lane.committed() == 7
    rows = DeltaTable(f"{lane.root}/lane/outcomes").to_pyarrow_table().to_pylist()
    assert sorted((row["offset"], row["attempt"], row["outcome"]) for row in rows if row["offset"] in (1, 2)) == [
        (1, 1, "failed"), (1, 2, "acked"), (2, 0, "dead"), (2, 1, "failed"),
    ]  # fmt: skip
    assert columns(lane, "settlements") == schemas.TABLES["settlements"].names
    assert columns(lane, "plans") == schemas.TABLES["plans"].names
    (partition,) = MemoryCommand(lane, tmp_path, monkeypatch)("status", "lane", "--json").json["partitions"]
    assert (partition["floor"], partition["acked"]) == (7, 4), "those of the turns since"
