"""Whatever stands still is found without a run, and is the first line of status, explain and doctor."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ackline.actions import standstill
from ackline.actions.standstill import StandsStill, what_stands_still
from ackline.errors import AcklineError, ConfigError, NewerCommit, TooManyFailures
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.outputs.turn import publish_settled
from ackline.pipeline.outputs import OutputsOfTurn
from tests.cli.memory_command import MemoryCommand
from tests.outputs.kept_lane import NOW, TABLE, Lane, lane_with_rows, table_of_a_user
from tests.support.memory_lane import FAILS, GROUP, OK, TP, MemoryLane, lose_a_file


def found(lane: MemoryLane) -> StandsStill:
    standing = what_stands_still(lane.adapters())
    assert standing is not None
    return standing


def committed_by_another_ledger(lane: MemoryLane) -> MemoryLane:
    metadata = CommitMetadata("another", "lane", 0, 9)
    lane.world.committed[GROUP, TP] = Committed(9, metadata.encode())
    return lane


def recreated(lane: MemoryLane) -> MemoryLane:
    lane.create("orders")
    return lane


def test_a_lane_whose_next_run_goes_on_stands_still_for_nothing() -> None:
    assert what_stands_still(MemoryLane(OK, FAILS).adapters()) is None
    assert what_stands_still(MemoryLane(OK, FAILS).after_plan().adapters()) is None
    assert what_stands_still(MemoryLane(OK, FAILS).after_replay().adapters()) is None
    assert what_stands_still(MemoryLane(OK, FAILS).after_run().adapters()) is None


@pytest.mark.parametrize("open_turn", [False, True])
def test_it_is_the_error_with_which_the_run_stops(open_turn: bool) -> None:
    lane = committed_by_another_ledger(MemoryLane(OK, OK).after_run())
    if open_turn:
        lane = MemoryLane(OK, OK).after_replay()
        committed_by_another_ledger(lane)
    standing = found(lane)
    error = lane.run_fails(NewerCommit)
    assert standing.reason == "NewerCommit"
    assert standing.command == "ackline adopt-ledger lane --reason …"
    assert str(error).startswith(standing.sentence[:60])


def test_changed_settings_under_pending_records_name_the_way_back() -> None:
    lane = MemoryLane(FAILS, retry={"initial_delay": "1h"}).after_run()
    lane.settings["guarantee"] = "at_most_once"
    assert (found(lane).reason, found(lane).command) == ("ConfigError", "ackline reset lane --to floor --reason …")
    assert found(lane).sentence == str(lane.run_fails(ConfigError))


def test_lost_files_of_an_open_turn_name_void() -> None:
    lane = MemoryLane(OK)
    lose_a_file(lane)
    assert (found(lane).reason, found(lane).command) == ("LedgerError", "ackline void lane --reason …")


def test_a_turn_that_the_breaker_has_closed_names_the_way_through() -> None:
    lane = MemoryLane(*[FAILS] * 4, breaker={"failure_ratio": 0.5, "min_records": 2})
    lane.run_fails(TooManyFailures)
    assert (found(lane).reason, found(lane).command) == ("TooManyFailures", "ackline run lane --no-breaker")
    assert "4 of 4 new records failed" in found(lane).sentence


def test_a_paused_lane_names_resume() -> None:
    lane = MemoryLane(OK).after_run()
    lane.perform(TurnKind.PAUSE)
    assert (found(lane).reason, found(lane).command) == ("Paused", "ackline resume lane")


# ---- a settled turn that can't be published -------------------------------------------------------------------------


def adapters_of(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    newest = SimpleNamespace(
        turn=lane.turn, outputs=lane.store.settlements[lane.turn], partitions={}, kind=TurnKind.RUN, reason=""
    )
    store: Any = lane.store
    store.newest, store.lane = lambda: newest, "live"
    monkeypatch.setattr(standstill, "preview", lambda _: None)
    group = SimpleNamespace(check_no_members=lambda: None)
    adapters = SimpleNamespace(
        store=store, pipeline=SimpleNamespace(name="shop"), actor="ada", run_id="cli", now=lambda: NOW, group=group,
        commits=True, newest_and_open_plan=lambda: (newest, None), is_subscribed=lambda _: True,
    )  # fmt: skip
    return adapters, newest


def test_a_settled_turn_that_can_not_be_published_is_what_the_lane_stands_still_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    table_of_a_user(lane)
    adapters, newest = adapters_of(lane, monkeypatch)
    standing = what_stands_still(adapters)
    with pytest.raises(AcklineError) as refused:
        publish_settled(adapters, newest)
    assert standing is not None
    assert (standing.sentence, standing.reason) == (str(refused.value), type(refused.value).__name__)
    assert standing.command == "ackline void shop --give-up totals --reason …"


def test_a_settled_turn_that_the_next_run_publishes_is_told_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    adapters, newest = adapters_of(lane, monkeypatch)
    before = sorted(tmp_path.rglob("*"))
    standing = what_stands_still(adapters)
    assert standing is not None
    assert (standing.reason, standing.command) == ("Unpublished", "ackline run shop")
    assert sorted(tmp_path.rglob("*")) == before
    publish_settled(adapters, newest)
    assert what_stands_still(adapters) is None


def test_rows_that_are_lost_before_they_are_published_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    outputs = OutputsOfTurn.decode(lane.store.settlements[lane.turn])
    without = {name: replace(table, files=None) for name, table in outputs.tables.items()}
    lane.store.settlements[lane.turn] = replace(outputs, tables=without).encode()
    for file in tmp_path.rglob("0-*.parquet"):
        file.unlink()
    standing = what_stands_still(adapters_of(lane, monkeypatch)[0])
    assert standing is not None
    assert standing.reason == "LedgerError"
    assert TABLE in standing.sentence
    assert "are gone" in standing.sentence


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ackline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCommand:
    lane = MemoryLane(OK, FAILS, retry={"initial_delay": "0s"}).after_run()
    return MemoryCommand(committed_by_another_ledger(lane), tmp_path, monkeypatch)


@pytest.mark.parametrize("command", [["status", "lane"], ["explain", "lane"], ["explain", "lane", "orders", "0", "1"]])
def test_what_stands_still_is_the_first_line_and_nothing_is_promised_of_the_next_run(
    ackline: MemoryCommand, command: list[str]
) -> None:
    first, *_ = (text := ackline(*command).output).splitlines()
    assert first.startswith("The lane stands still (NewerCommit): ")
    assert "ackline adopt-ledger lane" in first
    assert "the next run makes it" not in text
    standing = json.loads(ackline(*command, "--json").output)["stands_still"]
    assert (standing["reason"], standing["command"]) == ("NewerCommit", "ackline adopt-ledger lane --reason …")


def test_without_a_stand_still_explain_tells_what_the_next_run_does(ackline: MemoryCommand) -> None:
    ackline.lane = MemoryLane(OK, FAILS, retry={"initial_delay": "0s"}).after_run()
    assert "the next run makes it" in ackline("explain", "lane").output
    assert ackline("status", "lane", "--json").json["stands_still"] is None


def test_the_overview_calls_such_a_pipeline_stopped(ackline: MemoryCommand) -> None:
    (pipeline,) = ackline("status", "--json").json["pipelines"]
    assert pipeline["health"] == "stopped"
    assert "adopt-ledger" in pipeline["problem"]


def test_doctor_begins_with_it(ackline: MemoryCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackline.cli.doctor.open_adapters", ackline._open_adapters)
    checks = json.loads(ackline("doctor", "lane", "--json").output)
    assert (checks[0]["check"], checks[0]["ok"]) == ("lane lane", False)
    assert "adopt-ledger" in checks[0]["detail"]


def test_doctor_of_a_pipeline_fails_for_that_one_alone_and_names_the_remedy_of_a_missing_topic(
    ackline: MemoryCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackline.cli.doctor.open_adapters", ackline._open_adapters)
    (tmp_path / "other.yaml").write_text("name: other\nnonsense: 1\n")
    (tmp_path / "lane.yaml").write_text((tmp_path / "lane.yaml").read_text().replace("[orders]", "[ordres]"))
    checks = json.loads(ackline("doctor", "lane", "--json").output)
    (other,) = [check for check in checks if check["check"] == "pipeline file"]
    assert (other["ok"], other["detail"].startswith("warning: ")) == (True, True)
    (topic,) = [check for check in checks if check["check"] == "topic ordres"]
    assert topic["detail"].startswith("missing; correct its name or the connection, or create it")
    (own,) = [check for check in json.loads(ackline("doctor", "--json").output) if check["check"] == "pipeline file"]
    assert not own["ok"]
