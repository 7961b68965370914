"""Rows of records in flight against a model: random turns, kills at any write, and two processes that settle."""

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

from ackline.audit import kept_rows
from ackline.errors import ConfigError, LedgerError
from ackline.outcome import AnswerKind, Outcome
from ackline.outcome_rows import OutcomeRow
from ackline.outputs import OutputsOfTurn, kept_after
from ackline.steps.outputs import publish_settled, store_plan
from ackline.turns import TurnKind
from tests.unit.steps.kept_lane import NOW, WRITES, Lane, Store, lane_with_rows, table_of_a_user, turn_of


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
        publish_settled(lane.parts, SimpleNamespace(turn=lane.turn, outputs=after.encode()))  # type: ignore[arg-type]
    assert (after.kept, after.released, after.tables) == (OutputsOfTurn.decode(before).kept, (), {})


def test_rows_that_are_gone_stop_settle_by_name_unless_another_process_has_settled_the_turn(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    before = lane.store.settlements[lane.turn]
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    lane.turn = lane.turn._replace(n=2)
    acked = OutcomeRow(0, 1, Outcome.ACKED, NOW, answer=AnswerKind.ACK)
    with pytest.raises(LedgerError, match=r"turn 2 .* staged rows below .* gone .* `ackline void .* `ackline reset"):
        turn_of(lane, [acked], before=before)
    lane.store.settlements[lane.turn] = "of another process"
    lane.pending = {0}
    turn_of(lane, [acked], before=before)


def test_damaged_rows_stop_settle_by_name(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    before = lane.store.settlements[lane.turn]
    for path in tmp_path.rglob("kept-*.parquet"):
        path.write_bytes(b"no parquet")
    lane.turn = lane.turn._replace(n=2)
    with pytest.raises(LedgerError, match="gone or damaged"):
        turn_of(lane, [OutcomeRow(0, 1, Outcome.ACKED, NOW, answer=AnswerKind.ACK)], before=before)


def test_a_skip_of_other_records_reads_nothing_of_what_waits(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    before = lane.store.settlements[lane.turn]
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    lane.turn = lane.turn._replace(n=2)
    lane.store.rows[lane.turn] = rows = [OutcomeRow(7, 0, Outcome.SKIPPED, NOW, None, 9)]
    skip = SimpleNamespace(turn=lane.turn, kind=TurnKind.SKIP)
    lane._settle(skip, SimpleNamespace(outputs=before), "", rows)
    assert kept_after(lane.store.settlements[lane.turn]) == kept_after(before)


def test_no_turn_but_a_reset_is_planned_while_rows_that_wait_are_gone(tmp_path: Path) -> None:
    """An operator action that is planned has to be settled, so it is refused before."""
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    newest: Any = SimpleNamespace(turn=lane.turn, outputs=lane.store.settlements[lane.turn])
    planned: list[TurnKind] = []

    def store(plan: Any) -> bool:
        planned.append(plan.kind)
        return True

    lane.store.store_plan = store  # type: ignore[attr-defined]
    for kind in (TurnKind.RUN, TurnKind.SKIP, TurnKind.RESET):
        assert store_plan(lane.parts, newest, SimpleNamespace(kind=kind))  # type: ignore[arg-type]
    for path in tmp_path.rglob("kept-*.parquet"):
        path.write_bytes(path.read_bytes()[:-1])
    for kind in (TurnKind.RUN, TurnKind.SKIP):
        with pytest.raises(LedgerError, match=r"1 of 1 files .* gone or cut short .* `ackline reset shop --to floor"):
            store_plan(lane.parts, newest, SimpleNamespace(kind=kind))  # type: ignore[arg-type]
    assert store_plan(lane.parts, newest, SimpleNamespace(kind=TurnKind.RESET))  # type: ignore[arg-type]
    assert planned == [TurnKind.RUN, TurnKind.SKIP, TurnKind.RESET, TurnKind.RESET]


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
        publish_settled(lane.parts, SimpleNamespace(turn=lane.turn, outputs=before))  # type: ignore[arg-type]
    with suppress(FileNotFoundError):
        assert DeltaTable(other.uri).to_pyarrow_table().num_rows == 0
