"""An operator gives up rows of a settled turn that can't be published."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.actions import void
from ackline.actions.form import ACTIONS
from ackline.actions.perform import entered_action
from ackline.errors import ConfigError, FatalError
from ackline.forms.form import EVERYTHING, Entered
from ackline.ledger.outcomes import Outcome
from ackline.ledger.published import OutputsOfTurn, TableOfTurn
from ackline.outputs.given_up import unpublished_turn
from ackline.outputs.publish import publish_settled
from tests.outputs.kept_lane import NOW, TABLE, Lane, lane_with_rows


@pytest.fixture(autouse=True)
def _no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(void, "commit_or_reason", lambda _: None)


def adapters_of(lane: Lane) -> tuple[Any, Any]:
    """The adapters of an operator's command, and the newest settlement of the lane."""
    newest = SimpleNamespace(turn=lane.turn, outputs=lane.store.settlements[lane.turn], partitions={})
    store: Any = lane.store
    store.newest, store.lane = lambda: newest, "live"
    pipeline = SimpleNamespace(name="shop", topology=None)
    who = {"actor": "ada", "run_id": "cli", "now": lambda: NOW, "request": EVERYTHING}
    return SimpleNamespace(store=store, pipeline=pipeline, **who), newest


def beside(outputs: OutputsOfTurn, away: str) -> str:
    """A turn that has five rows for another table, too."""
    expected = {away: outputs.expected[TABLE], **outputs.expected}
    tables = {away: TableOfTurn(5, None), **outputs.tables}
    return replace(outputs, expected=expected, tables=tables).encode()


def test_what_can_be_published_is_published_and_the_rest_is_named(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED, Outcome.ACKED)
    outputs = OutputsOfTurn.decode(lane.store.settlements[lane.turn])
    away = f"file://{tmp_path}/shop/.staging/live-0-1/0-b0.parquet/away"  # no table can be below a file
    lane.store.settlements[lane.turn] = beside(outputs, away)
    adapters, newest = adapters_of(lane)
    with pytest.raises(FatalError, match=r"can't be used.* give these rows up with `ackline void shop --give-up file:"):
        publish_settled(adapters, newest)
    assert unpublished_turn(adapters, [away, f"file://{tmp_path}/shop/outputs/{TABLE}"]).rows == {away: 5, TABLE: 2}
    with pytest.raises(ConfigError, match="other is no output table that lacks the rows"):
        unpublished_turn(adapters, ["other"])
    dropped = void.drop_outputs(adapters, lane.turn, [away], "the bucket is gone")
    assert (dropped.rows, list(dropped.lost)) == ({away: 5}, [away])
    assert DeltaTable(f"{tmp_path}/shop/outputs/{TABLE}").to_pyarrow_table().num_rows == 2
    record = json.loads((tmp_path / "shop" / ".staging" / "live-0-1-dropped.json").read_text())
    assert (record["actor"], record["reason"], record["rows_at_most"]) == ("ada", "the bucket is gone", {away: 5})
    publish_settled(adapters, newest)
    with pytest.raises(ConfigError, match="nothing to give up"):
        unpublished_turn(adapters, [away])


def test_void_with_give_up_shows_the_rows_and_then_gives_up_those_of_the_turn_that_was_shown(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    outputs = OutputsOfTurn.decode(lane.store.settlements[lane.turn])
    away = f"file://{tmp_path}/shop/.staging/live-0-1/0-b0.parquet/away"
    lane.store.settlements[lane.turn] = beside(outputs, away)
    adapters, newest = adapters_of(lane)
    entered = Entered({"give_up": [away], "reason": "the bucket is gone"}, by_option=True)
    action = entered_action(ACTIONS["void"], "shop", entered, NOW)
    assert f"{away}: at most 5 rows" in action.preview(adapters).text
    assert not list(tmp_path.rglob("*-dropped.json"))
    assert f"{away}: at most 5 rows are lost" in action.perform(adapters, as_shown=True).text
    publish_settled(adapters, newest)


def test_nothing_is_given_up_of_another_turn_than_the_confirmed_one(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    adapters, _ = adapters_of(lane)
    with pytest.raises(FatalError, match="is not the newest settled turn any more"):
        void.drop_outputs(adapters, lane.turn._replace(n=9), [TABLE], "why")
    assert not list(tmp_path.rglob("*-dropped.json"))


def test_no_row_is_given_up_of_a_table_that_was_not_named_and_that_can_be_mended(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    outputs = OutputsOfTurn.decode(lane.store.settlements[lane.turn])
    away = f"file://{tmp_path}/shop/.staging/live-0-1/0-b0.parquet/away"
    lane.store.settlements[lane.turn] = beside(outputs, away)
    adapters, newest = adapters_of(lane)
    with pytest.raises(FatalError, match=r"can't be published to file:.*away either, so no rows were given up"):
        void.drop_outputs(adapters, lane.turn, [TABLE], "why")
    assert not list(tmp_path.rglob("*-dropped.json"))
    with pytest.raises(FatalError, match="can't be used"):
        publish_settled(adapters, newest)
