"""Rows of records in flight against a model: random turns, kills at any write, and two processes that settle."""

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.errors import ConfigError, FatalError, LedgerError
from ackline.ledger.offsets import OffsetRange, ValuedRange
from ackline.ledger.outcomes import AnswerKind, Outcome, OutcomeRow
from ackline.ledger.published import OutputsOfTurn, TableOfTurn, kept_after
from ackline.ledger.turns import TurnKind
from ackline.outputs import kept_rows
from ackline.outputs.checks import store_plan
from ackline.outputs.output_table import OutputTable, place_of
from ackline.outputs.publish import publish_settled, publish_table
from ackline.outputs.settled import settled_outputs
from ackline.tables.turn_outcomes import TurnOutcomes
from tests.outputs.kept_lane import (
    COLUMNS,
    NOW,
    TABLE,
    TP,
    WRITES,
    Lane,
    Row,
    Store,
    lane_with_rows,
    newest_of,
    next_turn,
    offsets,
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
        after = turn_of(lane, [renewed])
        publish_settled(lane.adapters, SimpleNamespace(turn=lane.turn, outputs=after.encode()))  # type: ignore[arg-type]
    assert (after.kept, after.released, after.tables) == (OutputsOfTurn.decode(before).kept, [], {})


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"no parquet")])
def test_rows_that_are_gone_or_damaged_stop_settle_by_name_unless_another_process_has_settled_the_turn(
    tmp_path: Path, damage: Any
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    for path in tmp_path.rglob("*.parquet"):
        damage(path)
    lane.turn = lane.turn._replace(n=2)
    acked = OutcomeRow(0, 1, Outcome.ACKED, NOW, answer=AnswerKind.ACK)
    with pytest.raises(
        LedgerError, match=r"turn 2 .* staged rows below .* gone or damaged.* `ackline void .* `ackline"
    ):
        turn_of(lane, [acked])
    lane.store.settlements[lane.turn] = "of another process"
    lane.pending = {0}
    turn_of(lane, [acked])


def after_a_skip(tmp_path: Path, offset: int) -> tuple[str, str]:
    """What the settlements hold before and after a skip of records from an offset on, beside a record 0 that is in
    flight, and whose rows are lost."""
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    before = lane.store.settlements[lane.turn]
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    lane.turn = lane.turn._replace(n=2)
    lane.store.rows[lane.turn] = rows = [OutcomeRow(offset, 0, Outcome.SKIPPED, NOW, None, 9)]
    lane._settle(plan_of(lane.turn, TurnKind.SKIP), SimpleNamespace(turn=lane.turn._replace(n=1), outputs=before), rows)
    return before, lane.store.settlements[lane.turn]


def test_a_skip_of_other_records_reads_nothing_of_what_waits(tmp_path: Path) -> None:
    before, after = after_a_skip(tmp_path, 7)
    assert kept_after(after) == kept_after(before)


def test_a_skip_after_which_nothing_is_in_flight_drops_what_waits_and_needs_none_of_it(tmp_path: Path) -> None:
    before, after = after_a_skip(tmp_path, 0)
    skipped = OutputsOfTurn.decode(after)
    assert (skipped.kept, skipped.released, skipped.tables) == ([], kept_after(before), {})


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
        assert store_plan(lane.adapters, newest_of(lane), plan, publish_settled)
    for path in tmp_path.rglob("kept-*.parquet"):
        path.write_bytes(path.read_bytes()[:-1])
    for plan in (plan_of(lane.turn, empty=True), other):
        with pytest.raises(LedgerError, match=r"1 of 1 files .* gone or cut short .* `ackline reset shop --to floor"):
            store_plan(lane.adapters, newest_of(lane), plan, publish_settled)
        lane_of_backfill = newest_of(lane, turn=lane.turn._replace(lane="backfill-b"))
        with pytest.raises(LedgerError, match=r"gone or cut short .* `ackline backfill shop --cancel b`, and choose"):
            store_plan(lane.adapters, lane_of_backfill, plan, publish_settled)
    chosen = skip(lane, to=0, retries=(ValuedRange(0, 1, 2),))
    for plan in (all_of_it, chosen, plan_of(lane.turn, TurnKind.RESET)):
        assert store_plan(lane.adapters, newest_of(lane), plan, publish_settled)
    run, moved, reset = TurnKind.RUN, TurnKind.SKIP, TurnKind.RESET
    assert planned == [run, moved, moved, reset, moved, moved, reset]


def skip(lane: Lane, to: int, retries: Any = ()) -> Any:
    """The plan of a skip of the lane's partition."""
    planned = SimpleNamespace(fresh=OffsetRange(to, to), retries=retries)
    return plan_of(lane.turn, TurnKind.SKIP, partitions={TP: planned})


def final_files(root: Path) -> list[Path]:
    """The data files of the output table."""
    return list((root / "shop" / "outputs" / TABLE).glob("*.parquet"))


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_settled_turn_is_published_from_what_is_left_of_its_files_and_is_an_error_without_any(
    tmp_path: Path, damage: Any
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    manifest = tmp_path / "shop" / ".staging" / "live-0-1" / "execution-0000000b.json"
    content = manifest.read_bytes()
    for path in final_files(tmp_path):
        path.unlink()  # as a vacuum of its user does
    damage(manifest)
    with pytest.raises(LedgerError, match=r"staged rows in .* are gone.* `ackline void shop --give-up totals --reason"):
        publish_settled(lane.adapters, newest_of(lane))
    manifest.write_bytes(content)
    publish_settled(lane.adapters, newest_of(lane))
    assert DeltaTable(f"{tmp_path}/shop/outputs/{TABLE}").to_pyarrow_table().num_rows == 1


def test_a_settled_turn_needs_no_staged_rows_to_be_published(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    shutil.rmtree(tmp_path / "shop" / ".staging" / "live-0-1")
    publish_settled(lane.adapters, newest_of(lane))
    assert DeltaTable(f"{tmp_path}/shop/outputs/{TABLE}").to_pyarrow_table().num_rows == 1


def test_a_turn_is_settled_only_once_its_rows_are_in_files_of_their_tables_and_publishing_names_these(
    tmp_path: Path,
) -> None:
    lane, rows = staged_turn(tmp_path, *STAGED_ONLY)
    outputs = turn_of(lane, rows)
    [file] = outputs.tables[TABLE].files or ()
    table = DeltaTable(f"{tmp_path}/shop/outputs/{TABLE}")
    assert ([path.name for path in final_files(tmp_path)], table.file_uris()) == ([file.path], [])
    publish_settled(lane.adapters, newest_of(lane))
    table.update_incremental()
    assert [Path(uri).name for uri in table.file_uris()] == [file.path]
    assert table.transaction_version(outputs.application(TABLE)) == outputs.number


@pytest.mark.parametrize("older", ["ledger", "table"])
def test_an_older_copy_of_a_ledger_or_a_table_stops_the_lane_before_its_turn_is_settled(
    tmp_path: Path, older: str
) -> None:
    """The turns of such a ledger take numbers again that the table has: without the check none would be published."""
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    publish_settled(lane.adapters, newest_of(lane))
    copy = lane.turn, dict(lane.store.settlements), set(lane.store.published)
    shutil.copytree(tmp_path / "shop" / "outputs", tmp_path / "copy")
    for number in (7, 8):
        publish_settled(lane.adapters, next_turn(lane, number))
    text = "holds turn 1 .* has published turn 3 of .* there: the table is an older copy"
    if older == "ledger":
        lane.turn, lane.store.settlements, lane.store.published = copy
        text = r"table totals holds turn 3 of lane live, .*older copy of the ledger.*reset"
    else:
        shutil.rmtree(tmp_path / "shop" / "outputs")
        shutil.move(tmp_path / "copy", tmp_path / "shop" / "outputs")
    with pytest.raises(LedgerError, match=text):
        next_turn(lane, 9)


@pytest.mark.parametrize("later", [0, 1])
def test_a_table_that_its_user_makes_anew_stops_no_turn(tmp_path: Path, later: int) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    publish_settled(lane.adapters, newest_of(lane))
    for number in range(later):
        publish_settled(lane.adapters, next_turn(lane, 7 + number))
    shutil.rmtree(tmp_path / "shop" / "outputs")
    table = OutputTable(f"{tmp_path}/shop/outputs/{TABLE}", COLUMNS)
    assert table.append([], "a user", 1)
    publish_settled(lane.adapters, newest_of(lane))
    publish_settled(lane.adapters, next_turn(lane, 9))
    assert offsets(tmp_path) == [9]


def test_a_table_has_one_place_whatever_the_file_calls_it_and_wherever_the_folders_are(tmp_path: Path) -> None:
    """By its name, its URI and a link; once its folder is copied; once the table is moved and linked from there; and a
    name that is a link to one of several copies, whichever it leads to."""
    store = Store(str(tmp_path / "audit"))
    folder = Path(store.live_folder) / "outputs" / TABLE
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "audit")
    uris = [f"file://{folder}", f"file://{tmp_path}/link/shop/outputs/{TABLE}"]
    assert [place_of(store, name) for name in (TABLE, *uris)] == [TABLE] * 3  # type: ignore[arg-type]
    elsewhere = f"file://{tmp_path}/lake/of/mine"
    assert [place_of(store, name) for name in (elsewhere, "s3://bucket/a")] == [elsewhere, "s3://bucket/a"]  # type: ignore[arg-type]
    copied = Store(str(shutil.copytree(tmp_path / "audit", tmp_path / "copy")))
    assert place_of(copied, f"file://{tmp_path}/copy/shop/outputs/{TABLE}") == TABLE  # type: ignore[arg-type]
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    for name in (TABLE, *uris, f"file://{tmp_path}/moved"):
        assert place_of(store, name, ["other", TABLE]) == TABLE  # type: ignore[arg-type]
    (folder.parent / "v1").mkdir()
    (folder.parent / "current").symlink_to("v1")
    assert place_of(store, "current") == "current"  # type: ignore[arg-type]


def test_rows_that_wait_are_published_although_the_file_gives_their_table_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table takes a turn once: under two names, the rows of one would be taken for published."""
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    uri = f"file://{tmp_path}/shop/outputs/{TABLE}"
    monkeypatch.setattr("tests.outputs.kept_lane.TABLE", uri)
    lane.turn = lane.turn._replace(n=2)
    lane._stage([Row(7, {7: Outcome.ACKED})])
    ack = OutcomeRow(0, 1, Outcome.ACKED, NOW, answer=AnswerKind.ACK)
    settled = turn_of(lane, [OutcomeRow(7, 1, Outcome.ACKED, NOW), ack])
    assert {place: table.rows for place, table in settled.tables.items()} == {TABLE: 2}
    for path in tmp_path.glob(f"shop/outputs/{TABLE}/*.parquet"):
        path.unlink()  # as a vacuum does: the rows are written again, from both names
    publish_settled(lane.adapters, newest_of(lane))
    monkeypatch.undo()
    assert offsets(tmp_path) == [0, 7]


def test_files_of_a_turn_that_has_waited_for_days_are_written_again_because_a_vacuum_may_have_listed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    [old] = final_files(tmp_path)
    tomorrow = time.time() + 2 * 86_400
    monkeypatch.setattr("ackline.outputs.publish.time.time", lambda: tomorrow)
    publish_settled(lane.adapters, newest_of(lane))
    old.unlink()
    assert DeltaTable(f"{tmp_path}/shop/outputs/{TABLE}").to_pyarrow_table().num_rows == 1


def test_a_planner_beside_another_run_loses_its_number_and_is_not_told_that_rows_are_gone(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
    late = newest_of(lane)
    lane.turn = lane.turn._replace(n=2)
    turn_of(lane, [OutcomeRow(0, 1, Outcome.ACKED, NOW, answer=AnswerKind.ACK)])
    publish_settled(lane.adapters, newest_of(lane))
    assert store_plan(lane.adapters, late, plan_of(late.turn, empty=True), publish_settled) is False


STAGED_ONLY = (Outcome.ACKED, Outcome.ACKED)
"""No record is in flight, so settle hands none of the staged rows on."""


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
@pytest.mark.parametrize("name", ["0-b0.parquet", "execution-0000000b.json"])
def test_staged_rows_that_are_gone_stop_the_turn_before_its_settlement(tmp_path: Path, name: str, damage: Any) -> None:
    """It can still be voided and replayed then. Once it is settled, nothing would publish it."""
    lane, rows = staged_turn(tmp_path, *STAGED_ONLY)
    damage(tmp_path / "shop" / ".staging" / "live-0-1" / name)
    with pytest.raises(
        LedgerError, match=r"turn 1 .* can't be settled: staged rows below .* `ackline void shop --reason"
    ):
        turn_of(lane, rows)
    lane.store.settlements[lane.turn] = "of another process, which has published it"
    turn_of(lane, rows)


def test_at_most_once_a_turn_whose_staged_rows_are_gone_is_settled(tmp_path: Path) -> None:
    """A reported turn can't be voided there. The group has passed its records."""
    lane, rows = staged_turn(tmp_path, *STAGED_ONLY)
    for path in tmp_path.rglob("0-b*.parquet"):
        path.unlink()
    lane.store.rows[lane.turn] = rows
    plan = plan_of(lane.turn, settings={"guarantee": "at_most_once", "outputs": [TABLE]})
    lane._settle(plan, SimpleNamespace(turn=lane.turn._replace(n=0), outputs=""), rows)
    assert OutputsOfTurn.decode(lane.store.settlements[lane.turn]).tables == {TABLE: TableOfTurn(2, None)}


@pytest.mark.parametrize("error", [RecursionError("row 7"), KeyError("secret"), LedgerError("no")])
def test_at_most_once_no_error_of_an_output_table_keeps_a_reported_turn_from_its_settlement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever its class: publishing meets it again, and names the way out. At least once the turn can be voided."""

    def fail(*_: Any) -> None:
        raise error

    lane, rows = staged_turn(tmp_path, *STAGED_ONLY)
    monkeypatch.setattr("ackline.outputs.settled.write_table", fail)
    monkeypatch.setattr("ackline.outputs.publish.write_table", fail)
    with pytest.raises(FatalError, match=r"`ackline void shop --reason|^no$") as caught:
        turn_of(lane, rows)
    assert "secret" not in str(caught.value)
    lane.store.rows[lane.turn] = rows
    plan = plan_of(lane.turn, settings={"guarantee": "at_most_once", "outputs": [TABLE]})
    lane._settle(plan, SimpleNamespace(turn=lane.turn._replace(n=0), outputs=""), rows)
    assert OutputsOfTurn.decode(lane.store.settlements[lane.turn]).tables == {TABLE: TableOfTurn(2, None)}
    with pytest.raises(FatalError, match="`ackline void shop --give-up totals"):
        publish_settled(lane.adapters, newest_of(lane))


def test_at_most_once_a_turn_that_an_operator_has_recorded_as_lost_publishes_none_of_its_rows(tmp_path: Path) -> None:
    """Not even those that no record tracks. Outcomes n, which the lost ranges have replaced, name its execution."""
    lane, _ = staged_turn(tmp_path)
    lane._stage([Row(9, {})])
    lost = [OutcomeRow(0, 0, Outcome.LOST, NOW, None, 5)]
    lane.store.rows[lane.turn] = lost
    plan = plan_of(lane.turn, settings={"guarantee": "at_most_once", "outputs": [TABLE]})
    before: Any = SimpleNamespace(turn=lane.turn._replace(n=0), outputs="", partitions={})
    for is_lost, published in ((False, [TABLE]), (True, [])):
        outputs = settled_outputs(lane.adapters, plan, before, {}, TurnOutcomes({TP: lost}, {}, {}), is_lost)
        assert list(OutputsOfTurn.decode(outputs).tables if outputs else ()) == published


@pytest.mark.parametrize("waits", [False, True], ids=["of the turn", "of a record in flight"])
def test_rows_that_do_not_fit_the_table_any_more_stop_the_turn_before_its_settlement(
    tmp_path: Path, waits: bool
) -> None:
    """It can still be voided then."""
    lane, rows = staged_turn(tmp_path, *STAGED_ONLY)
    if waits:
        lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT)
        lane.turn = lane.turn._replace(n=2)
        rows = [OutcomeRow(0, 1, Outcome.ACKED, NOW, answer=AnswerKind.ACK)]
    table_of_a_user(lane)
    with pytest.raises(ConfigError, match=r"wait for the table totals, and their columns differ .* \(value\)"):
        turn_of(lane, rows)
    assert lane.turn not in lane.store.settlements


def overwritten_by_a_user(lane: Lane) -> OutputTable:
    """The output table with another type of its column, which a user has overwritten in place: its folder keeps the
    files that no version names."""
    table = OutputTable(f"{lane.store.root}/shop/outputs/{TABLE}")
    fields = [pa.field(name, pa.string() if name == "value" else kind) for name, kind in schema_of(table).items()]
    write_deltalake(table.uri, pa.schema(fields).empty_table(), mode="overwrite", schema_mode="overwrite")
    return table


def schema_of(table: OutputTable) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in pa.schema(DeltaTable(table.uri).schema().to_arrow())}


@pytest.mark.parametrize("changed", [table_of_a_user, overwritten_by_a_user])
def test_rows_that_do_not_fit_the_table_any_more_are_not_published_into_it(
    tmp_path: Path, changed: Callable[[Lane], OutputTable]
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT, Outcome.ACKED)
    before = lane.store.settlements[lane.turn]
    other = changed(lane)
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
    again, rows = staged_turn(tmp_path, Outcome.ACKED, ledger=ledger, execution=12)
    turn_of(again, rows)
    publish_settled(again.adapters, newest_of(again))
    assert DeltaTable(f"{tmp_path}/shop/outputs/{TABLE}").to_pyarrow_table().num_rows == 1


def test_a_process_that_publishes_late_does_not_make_a_later_turn_look_unpublished(tmp_path: Path) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    late = newest_of(lane)
    publish_settled(lane.adapters, late)
    publish_settled(lane.adapters, next_turn(lane, 7))
    publish_settled(lane.adapters, late)
    # A process that has looked before the turn was published, and goes on now.
    publish_table(lane.adapters, late.turn, OutputsOfTurn.decode(late.outputs), TABLE)
    shutil.rmtree(tmp_path / "shop" / "outputs")  # by its user
    publish_settled(lane.adapters, newest_of(lane))
