"""Figures of a turn in the settlement and in `ackline status`; and turns that keep counts in place of rows."""

import json
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.errors import TransientError
from ackline.steps import claim as claiming
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, fails

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
    assert first.figures is not None
    assert other.figures is not None
    assert {name: first.figures[name] for name in ("log_start", "log_end", "read", "lag", "due", "oldest_pending")} == {
        "log_start": 0, "log_end": 10, "read": 10, "lag": 8, "due": 0, "oldest_pending": 2,
    }  # fmt: skip
    assert (first.figures["pending_retry"], first.figures["retries"], other.figures["lag_seconds"]) == (2, 0, 0)
    assert first.figures["fetches"] >= 1
    assert 0 < first.figures["fetch_seconds_mean"] <= first.figures["fetch_seconds_max"] < 60
    assert first.totals == NONE | {"acked": 8, "failed": 2}
    assert other.totals == NONE | {"acked": 3}

    fetched = other.figures["fetch_seconds_max"]
    one.wait(10)
    one.run()
    again, idle = one.settled(), one.settled(1)
    assert again.totals == NONE | {"acked": 9, "failed": 3, "dead": 1, "retries": 2}
    assert again.figures is not None
    assert (again.figures["retries"], again.figures["lag"], again.figures["fetches"]) == (2, 0, 1)
    assert idle.totals == NONE | {"acked": 3}
    assert idle.figures is not None
    assert idle.figures["fetch_seconds_max"] == fetched, "no turn has read there since"

    said = status(one)
    assert said["partitions"][0] | {
        "read": 10, "due": 0, "oldest_pending_offset": None, "oldest_pending_at": None, "lag": 0,
        "acked": 9, "failed": 3, "dead": 1, "retries": 2, "fetch_seconds_max": again.figures["fetch_seconds_max"],
    } == said["partitions"][0]  # fmt: skip
    (topic,) = said["topics"]
    assert topic | {
        "topic": one.topic, "partitions": 2, "log_start": 0, "log_end": 13, "committed": 13, "floor": 13, "read": 13,
        "lag": 0, "acked": 12, "failed": 3, "dead": 1, "retries": 2,
    } == topic  # fmt: skip


def test_status_says_what_is_due_and_since_when_the_oldest_waits(lab: MakeLab) -> None:
    one = lab(retry={"initial_delay": "10s"})
    one.records(4, fails([1, 2], 1))
    one.run()
    before = status(one)["partitions"][0]
    assert (before["due"], before["oldest_pending_offset"]) == (0, 1)
    assert before["oldest_pending_at"] is not None
    one.wait(10)
    assert status(one)["partitions"][0]["due"] == 2


def test_a_reset_begins_its_totals_at_0_and_a_void_turn_adds_nothing(lab: MakeLab) -> None:
    one = lab(breaker={"failure_ratio": 0.5, "min_records": 1})
    one.records(3)
    one.run()
    one.records(2, fails([0, 1], -1))
    assert one.command("run", one.name, "--now", one.now.isoformat()).returncode == 1
    void = one.settlement()
    assert (void.kind, one.settled().totals) == ("void", NONE | {"acked": 3})
    assert one.command("reset", one.name, "--to", "floor").returncode == 0
    assert status(one)["partitions"][0] | NONE == status(one)["partitions"][0]
    one.define(breaker=None)
    one.wait(3600)
    one.run()
    assert one.settled().totals == NONE | {"failed": 2}


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


def test_s50_without_rows_what_is_lost_is_a_row_all_the_same(lab: MakeLab) -> None:
    one = lab(guarantee="at_most_once", record_outcomes=False, lost_after="10m")
    one.records(3)
    plan = one.plan()
    with one.parts() as parts:
        newest = parts.store.newest()
        assert newest is not None
        claiming.claim(parts, plan, newest)
        assert claiming.start(parts, plan)
    with pytest.raises(TransientError, match="handed out by another process"):
        one.run()
    one.wait(600)
    one.run()
    assert one.rows() == [Row(0, 0, "lost", 3)]
    assert (one.settled().gaps, one.settled().totals) == (0, NONE | {"lost": 1})


def test_counts_that_the_log_of_the_table_has_forgotten_are_unknown_and_no_gaps(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = lab(guarantee="no_guarantee", record_outcomes=False)
    one.records(3)
    one.plan()
    one.replay()
    monkeypatch.setattr("ackline.audit.table.AuditTable.note_of", lambda *_: None)
    one.settle()
    assert (one.settled().gaps, one.settled().counts, one.committed()) == (None, {}, 3)


def test_a_turn_planned_without_rows_keeps_them_once_the_file_says_at_least_once(lab: MakeLab) -> None:
    """A failure that left no row would pass for a gap, and be lost."""
    one = lab(guarantee="no_guarantee", record_outcomes=False)
    one.records(3, fails([1], 1))
    one.plan()
    one.define(guarantee="at_least_once", record_outcomes=True)
    one.run()
    assert one.pending() == [1]
    assert one.outcomes() == {"acked": 2, "failed": 1}


def test_the_settings_in_force_are_said_and_show_no_secret(lab: MakeLab) -> None:
    secret = "canary-3kQ"
    one = lab(kafka={"properties": {"sasl.password": secret, "client.id": "abc"}}, max_uncommitted=77)
    one.records(1)
    done = one.command("run", one.name)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("settings in force: ")]
    for said in (
        f"name={one.name}", "guarantee=at_least_once", "max_uncommitted=77", "retry.max_retries=5",
        f"kafka.bootstrap_servers={one.broker.bootstrap}", "kafka.properties=[client.id,sasl.password]",
    ):  # fmt: skip
        assert said in line.split(" ")
    assert secret not in done.stderr + done.stdout
