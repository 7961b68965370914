"""Rows of records in flight against a model: random turns, kills at any write, and two processes that settle."""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.errors import ConfigError, LedgerError
from ackline.ledger.offsets import OffsetRange, ValuedRange
from ackline.ledger.outcomes import AnswerKind, Outcome, OutcomeRow
from ackline.ledger.turns import TurnKind
from ackline.outputs.turn import publish_settled, store_plan
from ackline.pipeline.outputs import OutputsOfTurn, kept_after
from ackline.tables import kept_rows
from tests.outputs.kept_lane import (
    NOW,
    TABLE,
    TP,
    WRITES,
    Lane,
    Row,
    Store,
    lane_with_rows,
    plan_of,
    staged_turn,
    table_of_a_user,
    turn_of,
)


@settings(max_examples=40)
@given(st.integers(0, 1 << 30), st.integers(1, 9), st.sampled_from([2, kept_rows.MOST_FILES]))
def test_s67_s68_each_row_is_published_once_by_the_first_ack_of_a_record_whatever_is_killed(
    seed: int, turns: int, most: int
) -> None:
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_rows, "MOST_FILES", most)
        lane = Lane(Store(root), Random(seed))
        for _ in range(turns):
            lane.step()
            lane.check()


def test_a_turn_in_which_no_attempt_ends_writes_and_removes_nothing(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT, Outcome.IN_FLIGHT)
    before = lane.store.settlements[lane.turn]
    lane.turn = lane.turn._replace(n=2)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in WRITES:
            patch.setattr(owner, name, None)
        patch.setattr(lane.store, "outcome_rows_of", None)
        renewed = OutcomeRow(0, 1, Outcome.IN_FLIGHT, NOW, answer=AnswerKind.RENEW)
        after = turn_of(lane, [renewed], before=before)
        publish_settled(lane.adapters, SimpleNamespace(turn=lane.turn, outputs=after.encode()))  # type: ignore[arg-type]
    assert (after.kept, after.released, after.tables) == (OutputsOfTurn.decode(before).kept, (), {})


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"no parquet")])
def test_rows_that_are_gone_or_damaged_stop_settle_by_name_unless_another_process_has_settled_the_turn(
    tmp_path: Path, damage: Any
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    before = lane.store.settlements[lane.turn]
    for path in tmp_path.rglob("*.parquet"):
        damage(path)
    lane.turn = lane.turn._replace(n=2)
    acked = OutcomeRow(0, 1, Outcome.ACKED, NOW, answer=AnswerKind.ACK)
    with pytest.raises(
        LedgerError, match=r"turn 2 .* staged rows below .* gone or damaged.* `ackline void .* `ackline"
    ):
        turn_of(lane, [acked], before=before)
    lane.store.settlements[lane.turn] = "of another process"
    lane.pending = {0}
    turn_of(lane, [acked], before=before)


def after_a_skip(tmp_path: Path, offset: int) -> tuple[str, str]:
    """What the settlements hold before and after a skip of records from an offset on, beside a record 0 that is in
    flight, and whose rows are lost."""
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    before = lane.store.settlements[lane.turn]
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    lane.turn = lane.turn._replace(n=2)
    lane.store.rows[lane.turn] = rows = [OutcomeRow(offset, 0, Outcome.SKIPPED, NOW, None, 9)]
    lane._settle(plan_of(lane.turn, TurnKind.SKIP), SimpleNamespace(outputs=before), "", rows)
    return before, lane.store.settlements[lane.turn]


def test_a_skip_of_other_records_reads_nothing_of_what_waits(tmp_path: Path) -> None:
    before, after = after_a_skip(tmp_path, 7)
    assert kept_after(after) == kept_after(before)


def test_a_skip_after_which_nothing_is_in_flight_drops_what_waits_and_needs_none_of_it(tmp_path: Path) -> None:
    before, after = after_a_skip(tmp_path, 0)
    skipped = OutputsOfTurn.decode(after)
    assert (skipped.kept, skipped.released, skipped.tables) == ((), kept_after(before), {})


def test_no_turn_but_one_that_drops_what_waits_is_planned_while_rows_that_wait_are_gone(tmp_path: Path) -> None:
    """An operator action that is planned has to be settled, so it is refused before."""
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    planned: list[TurnKind] = []

    def store(plan: Any) -> bool:
        planned.append(plan.kind)
        return True

    lane.store.store_plan = store  # type: ignore[attr-defined]
    other, all_of_it = skip(lane, to=0), skip(lane, to=1)
    for plan in (plan_of(lane.turn, empty=True), other, all_of_it, plan_of(lane.turn, TurnKind.RESET)):
        assert store_plan(lane.adapters, newest_of(lane), plan)
    for path in tmp_path.rglob("kept-*.parquet"):
        path.write_bytes(path.read_bytes()[:-1])
    for plan in (plan_of(lane.turn, empty=True), other):
        with pytest.raises(LedgerError, match=r"1 of 1 files .* gone or cut short .* `ackline reset shop --to floor"):
            store_plan(lane.adapters, newest_of(lane), plan)
        lane_of_backfill = newest_of(lane, turn=lane.turn._replace(lane="backfill-b"))
        with pytest.raises(LedgerError, match=r"gone or cut short .* `ackline backfill shop --cancel b`, and choose"):
            store_plan(lane.adapters, lane_of_backfill, plan)
    chosen = skip(lane, to=0, retries=(ValuedRange(0, 1, 2),))
    for plan in (all_of_it, chosen, plan_of(lane.turn, TurnKind.RESET)):
        assert store_plan(lane.adapters, newest_of(lane), plan)
    run, moved, reset = TurnKind.RUN, TurnKind.SKIP, TurnKind.RESET
    assert planned == [run, moved, moved, reset, moved, moved, reset]


def newest_of(lane: Lane, **more: Any) -> Any:
    values = {"turn": lane.turn, "outputs": lane.store.settlements[lane.turn], "partitions": lane.partitions()}
    return SimpleNamespace(**{**values, **more})


def skip(lane: Lane, to: int, retries: Any = ()) -> Any:
    """The plan of a skip of the lane's partition."""
    planned = SimpleNamespace(fresh=OffsetRange(to, to), retries=retries)
    return plan_of(lane.turn, TurnKind.SKIP, partitions={TP: planned})


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_settled_turn_whose_manifest_is_lost_is_an_error_with_a_way_out(tmp_path: Path, damage: Any) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    damage(tmp_path / "shop" / ".staging" / "live-0-1" / "execution-b.json")
    with pytest.raises(LedgerError, match=r"staged rows in .* are gone.* `ackline void shop --give-up TABLE --reason"):
        publish_settled(lane.adapters, newest_of(lane))


STAGED_ONLY = (Outcome.ACKED, Outcome.ACKED)
"""No record is in flight, so settle hands none of the staged rows on."""


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
@pytest.mark.parametrize("name", ["0-b0.parquet", "execution-b.json"])
def test_staged_rows_that_are_gone_stop_the_turn_before_its_settlement(tmp_path: Path, name: str, damage: Any) -> None:
    """It can still be voided and replayed then. Once it is settled, nothing would publish it."""
    lane, named, rows = staged_turn(tmp_path, *STAGED_ONLY)
    damage(tmp_path / "shop" / ".staging" / "live-0-1" / name)
    with pytest.raises(
        LedgerError, match=r"turn 1 .* can't be settled: staged rows below .* `ackline void shop --reason"
    ):
        turn_of(lane, rows, named)
    lane.store.settlements[lane.turn] = "of another process, which has published it"
    turn_of(lane, rows, named)


def test_at_most_once_a_turn_whose_staged_rows_are_gone_is_settled(tmp_path: Path) -> None:
    """A reported turn can't be voided there. The group has passed its records."""
    lane, named, rows = staged_turn(tmp_path, *STAGED_ONLY)
    for path in tmp_path.rglob("0-b*.parquet"):
        path.unlink()
    lane.store.rows[lane.turn] = rows
    plan = plan_of(lane.turn, settings={"guarantee": "at_most_once"})
    lane._settle(plan, SimpleNamespace(outputs=""), named, rows)
    assert OutputsOfTurn.decode(lane.store.settlements[lane.turn]).tables == {TABLE: 2}


def test_staged_rows_that_do_not_fit_the_table_any_more_stop_the_turn_before_its_settlement(tmp_path: Path) -> None:
    lane, named, rows = staged_turn(tmp_path, *STAGED_ONLY)
    table_of_a_user(lane)
    with pytest.raises(ConfigError, match=r"wait for the table totals, and their columns differ .* \(value\)"):
        turn_of(lane, rows, named)
    assert lane.turn not in lane.store.settlements


def test_rows_that_do_not_fit_the_table_any_more_stop_the_turn_before_its_settlement(tmp_path: Path) -> None:
    """It can still be voided then."""
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    before = lane.store.settlements[lane.turn]
    table_of_a_user(lane)
    lane.turn = lane.turn._replace(n=2)
    with pytest.raises(ConfigError, match=r"wait for the table totals, and their columns differ .* \(value\)"):
        turn_of(lane, [OutcomeRow(0, 1, Outcome.ACKED, NOW, answer=AnswerKind.ACK)], before=before)
    assert lane.turn not in lane.store.settlements


def test_rows_that_do_not_fit_the_table_any_more_are_not_published_into_it(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT, Outcome.ACKED)
    before = lane.store.settlements[lane.turn]
    other = table_of_a_user(lane)
    with pytest.raises(ConfigError, match=r"wait for the table totals, and their columns differ .* \(value\)"):
        publish_settled(lane.adapters, SimpleNamespace(turn=lane.turn, outputs=before))  # type: ignore[arg-type]
    with suppress(FileNotFoundError):
        assert DeltaTable(other.uri).to_pyarrow_table().num_rows == 0


@pytest.mark.parametrize("ledger", ["of a new folder", "ledger"])
def test_a_ledger_that_takes_a_number_again_publishes_its_rows(tmp_path: Path, ledger: str) -> None:
    """Its tables were removed, or restored from a backup as of before the turn, and the staging folder was left."""
    lane = lane_with_rows(tmp_path, Outcome.ACKED, Outcome.ACKED)
    publish_settled(lane.adapters, newest_of(lane))
    shutil.rmtree(tmp_path / "shop" / "outputs")
    again, named, rows = staged_turn(tmp_path, Outcome.ACKED, ledger=ledger, execution="c")
    turn_of(again, rows, named)
    publish_settled(again.adapters, newest_of(again))
    assert DeltaTable(f"{tmp_path}/shop/outputs/{TABLE}").to_pyarrow_table().num_rows == 1


def test_a_process_that_publishes_late_does_not_make_a_later_turn_look_unpublished(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    late = newest_of(lane)
    publish_settled(lane.adapters, late)
    lane.turn = lane.turn._replace(n=2)
    row = Row(7, {7: Outcome.ACKED})
    turn_of(lane, [OutcomeRow(7, 1, Outcome.ACKED, NOW)], lane._stage([row]))
    publish_settled(lane.adapters, newest_of(lane))
    publish_settled(lane.adapters, late)
    shutil.rmtree(tmp_path / "shop" / "outputs")  # by its user
    publish_settled(lane.adapters, newest_of(lane))
