"""`ackline explain` over real tables, and `ackline diff`: what another handler has made of the same records."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from ackline.cli.app import app
from ackline.lane.adapters import Adapters
from ackline.tables.store import LedgerStore
from tests.audit.story import begin_story
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import DEAD, FAILS, OK, MemoryBackfill, MemoryLane


def shown(monkeypatch: pytest.MonkeyPatch, adapters: Adapters, *arguments: str) -> str:
    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[tuple[Adapters, None]]:
        yield adapters, None

    monkeypatch.setattr("ackline.cli.explain.opened_to_read", opened)
    done = CliRunner().invoke(app, ["explain", "orders", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_an_offset_is_one_object_with_state_events_and_sentence(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = replace(MemoryLane().adapters(), store=begin_story(store))
    found = json.loads(shown(monkeypatch, adapters, "orders", "0", "16", "--json"))
    assert {"offset", "state", "events", "sentence"} <= found.keys()
    assert (found["offset"], found["state"], found["attempts"], found["pending"]) == (16, "dead", 2, None)
    names = ["epoch", "turn", "attempt", "outcome", "error_class", "at", "run_id", "error_place", "tree"]
    assert list(found["events"][0]) == names
    waiting = json.loads(shown(monkeypatch, adapters, "orders", "0", "15", "--json"))
    assert (waiting["state"], waiting["pending"]["kind"], waiting["pending"]["attempts"]) == ("pending", "retry", 1)
    text = shown(monkeypatch, adapters, "orders", "0", "16")
    assert text.startswith(
        "Offset 16 of orders[0] is dead after 2 attempts (HTTPError). Turn 2 settled it on 2026-03-01"
    )
    assert [line.split()[3] for line in text.splitlines()[-3:-1]] == ["failed", "failed"]


def test_the_open_turn_is_named_with_who_planned_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = MemoryLane(OK)
    plan = lane.plan()
    text = shown(monkeypatch, lane.adapters())
    assert f"Open: {plan.turn}, planned 0 seconds ago by run {plan.run_id}" in text
    assert "  No process holds its lease." in text
    for arguments in (("--json",), ("orders", "0", "--json")):
        found = json.loads(shown(monkeypatch, lane.adapters(), *arguments))["open_turn"]
        assert (found["turn"], found["run_id"], found["holder"]) == (1, plan.run_id, None)
    lane.replay()
    lane.settle()
    assert "open_turn" not in json.loads(shown(monkeypatch, lane.adapters(), "--json"))


def test_a_partition_is_one_object_with_what_holds_it_and_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = MemoryLane(OK, FAILS, OK, dead_letter="none", retry={"initial_delay": "1h"}).after_run()
    found = json.loads(shown(monkeypatch, lane.adapters(), "orders", "0", "--json"))
    assert list(found) == ["topic", "partition", "floor", "held_by", "retention", "sentence", "stands_still"]
    assert list(found["held_by"]) == ["offset", "kind", "attempts", "due", "error_class"]
    assert (found["floor"], found["held_by"]["offset"], found["held_by"]["kind"]) == (1, 1, "retry")
    assert found["retention"] == {"log_start": 0, "eta": None}
    assert shown(monkeypatch, lane.adapters()).startswith("The floor of orders[0] is 1, because offset 1 failed once")
    every = json.loads(shown(monkeypatch, lane.adapters(), "--json"))
    assert [partition["topic"] for partition in every["partitions"]] == ["orders"]


@pytest.fixture
def lane() -> MemoryLane:
    """A live lane, and a backfill of records 1 to 4 whose handler acks what was dead."""
    lane = MemoryLane(OK, OK, DEAD, FAILS, OK, retry={"max_retries": 0}).after_run()
    lane.world.handle = lambda record: None
    MemoryBackfill(lane, "v2", "orders:0:1-5").run()
    lane.produce(OK)
    return lane


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


@pytest.mark.parametrize("option", [("--key", "4711"), ("--key-hex", "34")])
def test_a_key_without_hashes_of_keys_is_refused_with_what_to_set(
    option: tuple[str, str], ackline: MemoryCommand
) -> None:
    error = ackline("audit", "lane", *option, "--json").error
    assert (error["exit_status"], error["key"]) == (2, option[0])
    assert "set `audit: {key_hash: true}` in the file of lane" in error["error"]
    assert "4711" not in error["error"]
