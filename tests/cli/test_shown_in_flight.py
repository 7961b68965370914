"""What `ackline explain` and `status` show of records in flight, and how many of each partition may be in flight."""

from pathlib import Path

import pytest

from ackline.ledger.offsets import OffsetRange
from ackline.ledger.planning import IN_FLIGHT_FULL
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import OK, TP, TP1, WAITS, AnsweredLane


def test_explain_and_status_name_the_record_that_holds_the_floor_and_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = AnsweredLane(OK, WAITS, WAITS)
    lane.run()
    lane.answer(2, "renew 1h")
    lane.at(2).run()
    ackline = MemoryCommand(lane, tmp_path, monkeypatch)
    found = ackline("explain", "lane", "orders", "0", "--json").json
    deadline = "2026-03-01T12:00:10+00:00"
    held = found["held_by"]
    assert (found["floor"], held["offset"], held["kind"], held["attempts"]) == (1, 1, "in_flight", 1)
    assert (held["due"], held["error_class"]) == (deadline, None)
    assert "offset 1 is in flight and waits for its answer until" in found["sentence"]
    status = ackline("status", "lane", "--json").json["partitions"][0]
    assert (status["pending"]["in_flight"], status["floor"], status["next_due"]) == (2, 1, deadline)
    lane.answer(1)
    lane.at(3).run()
    held = ackline("explain", "lane", "orders", "0", "--json").json["held_by"]
    assert (held["offset"], held["due"]) == (2, "2026-03-01T13:00:02+00:00")


def test_explain_names_no_deadline_where_nothing_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = AnsweredLane(WAITS, timeout="none")
    lane.run()
    found = MemoryCommand(lane, tmp_path, monkeypatch)("explain", "lane", "orders", "0", "--json").json
    assert found["held_by"]["due"] is None
    assert "offset 0 is in flight and waits for its answer." in found["sentence"]


def test_in_flight_max_holds_for_each_partition_alone() -> None:
    lane = AnsweredLane(*[WAITS] * 4, partitions=2, in_flight={"max": 2})
    for _ in range(4):
        lane.produce(OK, WAITS, tp=TP1)
    first = lane.run().plans[0].partitions
    assert [first[tp].fresh for tp in (TP, TP1)] == [OffsetRange(0, 2), OffsetRange(0, 2)]
    second = lane.run().plans[0].partitions
    assert (second[TP].why, second[TP].fresh.end, second[TP1].fresh) == (IN_FLIGHT_FULL, 2, OffsetRange(2, 3))
