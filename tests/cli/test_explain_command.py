"""The command `ackline explain` over real tables and a broker in memory: its JSON and its sentences."""

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
from tests.support.memory_lane import FAILS, OK, MemoryLane
from tests.tables.story import begin_story


def shown(monkeypatch: pytest.MonkeyPatch, adapters: Adapters, *arguments: str) -> str:
    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[Adapters]:
        yield adapters

    monkeypatch.setattr("ackline.cli.explain.opened", opened)
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
    names = ["epoch", "turn", "attempt", "outcome", "error_class", "at", "run_id", "tree"]
    assert list(found["events"][0]) == names
    waiting = json.loads(shown(monkeypatch, adapters, "orders", "0", "15", "--json"))
    assert (waiting["state"], waiting["pending"]["kind"], waiting["pending"]["attempts"]) == ("pending", "retry", 1)
    text = shown(monkeypatch, adapters, "orders", "0", "16")
    assert text.startswith(
        "Offset 16 of orders[0] is dead after 2 attempts (HTTPError). Turn 2 settled it on 2026-03-01"
    )
    assert [line.split()[3] for line in text.splitlines()[-3:-1]] == ["failed", "failed"]


def test_a_partition_is_one_object_with_what_holds_it_and_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = MemoryLane(OK, FAILS, OK, dead_letter="none", retry={"initial_delay": "1h"}).after_run()
    found = json.loads(shown(monkeypatch, lane.adapters(), "orders", "0", "--json"))
    assert list(found) == ["topic", "partition", "floor", "held_by", "retention", "sentence"]
    assert list(found["held_by"]) == ["offset", "kind", "attempts", "due", "error_class"]
    assert (found["floor"], found["held_by"]["offset"], found["held_by"]["kind"]) == (1, 1, "retry")
    assert found["retention"] == {"log_start": 0, "eta": None}
    assert shown(monkeypatch, lane.adapters()).startswith("The floor of orders[0] is 1, because offset 1 failed once")
    every = json.loads(shown(monkeypatch, lane.adapters(), "--json"))
    assert [partition["topic"] for partition in every["partitions"]] == ["orders"]
