"""Figures of a turn in the settlement and in `ackline status`; and turns that keep counts in place of rows."""

import json
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, fails

NONE = dict.fromkeys(
    ("acked", "failed", "skipped", "dropped", "dead", "expired", "compacted", "lost", "retries"), 0
)  # fmt: skip


def status(one: Lab, *options: str) -> Any:
    done = one.command("status", one.name, "--json", "--now", one.now.isoformat(), *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_settlement_holds_the_numbers_of_its_turn_and_the_totals_of_its_epoch(lab: MakeLab) -> None:
    one = lab(retry={"initial_delay": "10s", "max_retries": 1}, partitions=2)
    one.records(10, fails([2], 1) | fails([5], -1))
    one.records(3, partition=1)
    one.run()
    first, other = one.settled(), one.settled(1)
    assert first.metrics is not None
    assert other.metrics is not None
    assert {name: first.metrics[name] for name in ("log_start", "log_end", "read", "lag", "due", "oldest_pending")} == {
        "log_start": 0, "log_end": 10, "read": 10, "lag": 8, "due": 0, "oldest_pending": 2,
    }  # fmt: skip
    assert (first.metrics["pending_retry"], first.metrics["retries"], other.metrics["lag_seconds"]) == (2, 0, 0)
    assert first.metrics["fetches"] >= 1
    assert 0 < first.metrics["fetch_seconds_mean"] <= first.metrics["fetch_seconds_max"] < 60
    assert first.totals == NONE | {"acked": 8, "failed": 2}
    assert other.totals == NONE | {"acked": 3}

    fetched = other.metrics["fetch_seconds_max"]
    early = status(one)["partitions"][0]
    assert (early["due"], early["oldest_pending_offset"], early["lag"]) == (0, 2, 8)
    assert early["oldest_pending_at"] is not None
    one.wait(10)
    assert status(one)["partitions"][0]["due"] == 2
    one.run()
    again, idle = one.settled(), one.settled(1)
    assert again.totals == NONE | {"acked": 9, "failed": 3, "dead": 1, "retries": 2}
    assert again.metrics is not None
    assert (again.metrics["retries"], again.metrics["lag"], again.metrics["fetches"]) == (2, 0, 1)
    assert idle.totals == NONE | {"acked": 3}
    assert idle.metrics is not None
    assert idle.metrics["fetch_seconds_max"] == fetched, "no turn has read there since"

    said = status(one)
    assert said["partitions"][0] | {
        "read": 10, "due": 0, "oldest_pending_offset": None, "oldest_pending_at": None, "lag": 0,
        "acked": 9, "failed": 3, "dead": 1, "retries": 2, "fetch_seconds_max": again.metrics["fetch_seconds_max"],
    } == said["partitions"][0]  # fmt: skip
    (topic,) = said["topics"]
    assert topic | {
        "topic": one.topic, "partitions": 2, "log_start": 0, "log_end": 13, "committed": 13, "floor": 13, "read": 13,
        "lag": 0, "acked": 12, "failed": 3, "dead": 1, "retries": 2,
    } == topic  # fmt: skip


@pytest.mark.parametrize("guarantee", ["no_guarantee", "at_most_once"])
def test_without_rows_the_counts_are_stored_and_judged_all_the_same(lab: MakeLab, guarantee: str) -> None:
    """`record_outcomes: false`: one commit of outcomes a turn, with no file in it."""
    one = lab(guarantee=guarantee, record_outcomes=False, partitions=2)
    one.records(6, fails([1, 4], -1) | {3: None})
    one.records(2, partition=1)
    one.run()
    assert one.table("outcomes") == []
    assert DeltaTable(f"{one.audit}/outcomes").file_uris() == []
    assert (one.settled().counts, one.settled(1).counts) == ({"acked": 3, "dropped": 2, "skipped": 1}, {"acked": 2})
    assert one.settled().totals == NONE | {"acked": 3, "dropped": 2, "skipped": 1}
    assert (one.settled().gaps, one.committed()) == (0, 6)
    assert one.run().calls == 0
    one.judge(settled=True)
    audit = one.command("audit", one.name)
    assert "record_outcomes: false" in audit.stderr
