"""`ackline diff`: what another handler has made of the same records."""

from pathlib import Path

import pytest

from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import DEAD, FAILS, OK, MemoryBackfill, MemoryLane


@pytest.fixture
def lane() -> MemoryLane:
    """A live lane, and a backfill of records 1 to 4 whose handler acks what was dead."""
    lane = MemoryLane(OK, OK, DEAD, FAILS, OK, retry={"max_retries": 0}).after_run()
    lane.world.handle = lambda record: None
    MemoryBackfill(lane, "v2", "orders:0:1-5").run()
    lane.produce(OK)
    return lane


@pytest.fixture
def ackline(lane: MemoryLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCommand:
    """The command on that lane."""
    return MemoryCommand(lane, tmp_path, monkeypatch)


def test_offsets_that_both_lanes_have_are_the_same_or_changed_by_outcome_and_class(ackline: MemoryCommand) -> None:
    found = ackline("diff", "lane", "live", "backfill-v2", "--json").json
    acked = {"outcome": "acked", "error_class": None}
    assert found["same"] == 2
    assert sorted(found["changed"], key=str) == [
        {"from": {"outcome": "dead", "error_class": "Dead"}, "to": acked, "count": 1},
        {"from": {"outcome": "dead", "error_class": "ValueError"}, "to": acked, "count": 1},
    ]
    assert found["only"] == {"live": 1, "backfill-v2": 0}


def test_each_record_that_differs_is_listed_on_request(ackline: MemoryCommand) -> None:
    records = ackline("diff", "lane", "live", "backfill-v2", "--records", "--json").json["records"]
    assert [(each["start"], each["end"]) for each in records] == [(2, 3), (3, 4)]
    text = ackline("diff", "lane", "live", "backfill-v2", "--records").output
    assert "orders[0] [3, 4): dead (ValueError) → acked" in text
    assert "2 offsets have the same outcome" in text


def test_a_lane_that_has_not_begun_and_a_lane_that_is_named_twice_are_refused(ackline: MemoryCommand) -> None:
    assert "has no lane backfill-x" in ackline("diff", "lane", "live", "backfill-x", "--json").error["error"]
    assert ackline("diff", "lane", "live", "live", "--json").error["exit_status"] == 2
