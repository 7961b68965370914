"""Metrics of a turn in the settlement and in `ackline status`, and turns that keep counts instead of rows."""

from typing import Any

from deltalake import DeltaTable

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, fails

ZERO = dict.fromkeys(
    ("acked", "failed", "skipped", "dropped", "dead", "expired", "compacted", "lost", "retries"), 0
)  # fmt: skip


def status(lane: Lab) -> Any:
    return lane.ackline_json("status", lane.name, "--now", lane.now.isoformat())


def test_a_settlement_holds_the_numbers_of_its_turn_and_the_totals_of_its_epoch(lab: MakeLab) -> None:
    lane = lab(retry={"initial_delay": "10s", "max_retries": 1}, partitions=2)
    lane.produce_records(10, fails([2], 1) | fails([5], -1))
    lane.produce_records(3, partition=1)
    lane.run()
    first, other = lane.settled(), lane.settled(1)
    assert first.metrics is not None
    assert other.metrics is not None
    assert {name: first.metrics[name] for name in ("log_start", "log_end", "read", "lag", "due", "oldest_pending")} == {
        "log_start": 0, "log_end": 10, "read": 10, "lag": 8, "due": 0, "oldest_pending": 2,
    }  # fmt: skip
    assert (first.metrics["pending_retry"], first.metrics["retries"], other.metrics["lag_seconds"]) == (2, 0, 0)
    assert first.metrics["fetches"] >= 1
    assert 0 < first.metrics["fetch_seconds_mean"] <= first.metrics["fetch_seconds_max"] < 60
    assert first.totals == ZERO | {"acked": 8, "failed": 2}
    assert other.totals == ZERO | {"acked": 3}

    fetched = other.metrics["fetch_seconds_max"]
    early = status(lane)["partitions"][0]
    assert (early["due"], early["oldest_pending_offset"], early["lag"]) == (0, 2, 8)
    assert early["oldest_pending_at"] is not None
    lane.advance_clock(10)
    assert status(lane)["partitions"][0]["due"] == 2
    lane.run()
    again, idle = lane.settled(), lane.settled(1)
    assert again.totals == ZERO | {"acked": 9, "failed": 3, "dead": 1, "retries": 2}
    assert again.metrics is not None
    assert (again.metrics["retries"], again.metrics["lag"], again.metrics["fetches"]) == (2, 0, 1)
    assert idle.totals == ZERO | {"acked": 3}
    assert idle.metrics is not None
    assert idle.metrics["fetch_seconds_max"] == fetched, "no turn has read this partition since"

    after = status(lane)
    assert after["partitions"][0] | {
        "read": 10, "due": 0, "oldest_pending_offset": None, "oldest_pending_at": None, "lag": 0,
        "acked": 9, "failed": 3, "dead": 1, "retries": 2, "fetch_seconds_max": again.metrics["fetch_seconds_max"],
    } == after["partitions"][0]  # fmt: skip
    (topic,) = after["topics"]
    assert topic | {
        "topic": lane.topic, "partitions": 2, "log_start": 0, "log_end": 13, "committed": 13, "floor": 13, "read": 13,
        "lag": 0, "acked": 12, "failed": 3, "dead": 1, "retries": 2,
    } == topic  # fmt: skip


def test_without_rows_the_counts_are_stored_and_the_checker_judges_by_them(lab: MakeLab) -> None:
    """`record_outcomes: false`: one commit of outcomes a turn, with no file in it."""
    lane = lab(guarantee="at_most_once", record_outcomes=False, partitions=2)
    lane.produce_records(6, fails([1, 4], -1) | {3: None})
    lane.produce_records(2, partition=1)
    lane.run()
    assert lane.table("outcomes") == []
    assert DeltaTable(f"{lane.tables}/outcomes").file_uris() == []
    assert (lane.settled().counts, lane.settled(1).counts) == ({"acked": 3, "dropped": 2, "skipped": 1}, {"acked": 2})
    assert lane.settled().totals == ZERO | {"acked": 3, "dropped": 2, "skipped": 1}
    assert (lane.settled().gaps, lane.committed()) == (0, 6)
    assert lane.run().calls == 0
    lane.judge(settled=True)
    assert "record_outcomes: false" in lane.ackline("audit", lane.name).stderr
