"""What an operator is told about rows that can't be published, and that the command which is named ends the state."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from ackline import Dead
from ackline.actions import void
from ackline.errors import FatalError, LedgerError
from ackline.ledger.outcomes import AnswerKind, Outcome, OutcomeRow
from ackline.ledger.published import OutputsOfTurn
from ackline.ledger.turns import TurnKind
from ackline.outputs.output_table import OutputTable
from ackline.outputs.publish import publish_settled, publish_table
from ackline.outputs.settled import check_open_skip
from tests.actions.test_drop_outputs import adapters_of
from tests.delta.test_damaged_files import flipped_page
from tests.outputs.kept_lane import (
    NOW,
    TABLE,
    Lane,
    lane_with_rows,
    newest_of,
    next_turn,
    offsets,
    plan_of,
    staged_turn,
    turn_of,
)
from tests.outputs.test_turn import EMITS, away
from tests.support.memory_lane import void as void_open_turn
from tests.worker import disk_handlers
from tests.worker.disk_lane import lane_of

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "no Parquet": lambda whole: b"x" * len(whole),
    "a page": lambda whole: flipped_page(whole, "value"),
    "a header of a page": lambda whole: whole[:4] + b"\xff" * 8 + whole[12:],
    "a name": lambda whole: whole.replace(b"value", b"valuf"),
}
"""Damages that leave the size of a file, so that no look at the size finds them. A page can be decoded all the same."""


@pytest.fixture(autouse=True)
def _no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(void, "commit_or_reason", lambda _: None)


def give_up(lane: Lane) -> None:
    adapters, _ = adapters_of(lane)
    void.drop_outputs(adapters, lane.turn, [TABLE], "a test")


@pytest.mark.parametrize("given_up", [1, 2], ids=["one turn", "two turns"])
@pytest.mark.parametrize("published", [True, False], ids=["published beside it", "not published"])
def test_a_turn_that_is_given_up_while_another_process_publishes_it_stops_no_later_turn(
    tmp_path: Path, published: bool, given_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table holds turn n, or the turn before it: no step can know which, so each of them is right."""
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    publish_settled(lane.adapters, newest_of(lane))
    expected = [0]
    for number in range(given_up):
        unpublished = next_turn(lane, 7 + number)
        outputs = OutputsOfTurn.decode(unpublished.outputs)

        def fail(*_: Any, of: Any = unpublished) -> None:
            if published and of.turn == lane.turn:  # the other process is quicker than this one, and is not seen
                monkeypatch.undo()
                monkeypatch.setattr(void, "commit_or_reason", lambda _: None)
                publish_table(lane.adapters, of.turn, OutputsOfTurn.decode(of.outputs), TABLE)
            raise LedgerError("the store does not answer")

        monkeypatch.setattr("ackline.outputs.given_up.publish_table", fail)
        give_up(lane)
        expected += [7 + number] if published else []
        assert lane.store.given_up(lane.turn) == {TABLE}
        assert outputs.number
    for number in (20, 21):
        publish_settled(lane.adapters, next_turn(lane, number))
    assert offsets(tmp_path) == [*expected, 20, 21]


def test_a_void_turn_after_one_that_was_given_up_stops_no_later_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with lane_of(EMITS) as lane:
        lane.produce(b"{}")
        lane.run()
        lane.produce(b"{}")
        with monkeypatch.context() as patch:
            patch.setattr(OutputTable, "append", away)
            lane.run_fails(FatalError, "the table is away")
            void.drop_outputs(lane.adapters(), lane.newest().turn, ["totals"], "a test")
        lane.produce(b"{}")
        lane.plan()
        void_open_turn(lane)
        lane.run()
        published = DeltaTable(str(lane.root / "lane" / "outputs" / "totals")).to_pyarrow_table()
        assert sorted(published["id"].to_pylist()) == [0, 2]


def test_i6_staged_rows_that_are_gone_stop_a_turn_before_a_dead_letter_is_sent() -> None:
    """An operator may void the turn, and a letter of a void turn announces as dead what the next turn handles again."""
    with lane_of({**EMITS, "retry": {"max_retries": 0}}) as lane:
        disk_handlers.ANSWERS[1] = raises_dead
        lane.produce(b"{}", b"{}")
        lane.plan_and_replay()
        [staged] = (lane.root / "lane" / ".staging").rglob("*.parquet")
        content = staged.read_bytes()
        staged.unlink()
        with pytest.raises(LedgerError, match="`ackline void lane"):
            lane.settle()
        assert lane.letters() == []
        staged.write_bytes(content)
        lane.settle()
        assert len(lane.letters()) == 1


def raises_dead() -> Iterator[None]:
    for reason in ("a test",):
        raise Dead(reason)
    yield


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_staged_file_is_named_and_not_the_table_that_its_rows_are_for(tmp_path: Path, damage: str) -> None:
    lane, rows = staged_turn(tmp_path, Outcome.ACKED)
    [file] = tmp_path.rglob("0-b0.parquet")
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(LedgerError) as caught:
        turn_of(lane, rows)
    text = str(caught.value)
    assert f"the staged file {file}, with rows for an output table, is gone or damaged" in text
    assert "`ackline void shop --reason" in text
    assert "totals" not in text


def test_a_damaged_staged_file_of_a_settled_turn_is_named_with_the_command_that_gives_the_rows_up(
    tmp_path: Path,
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    for path in (tmp_path / "shop" / "outputs" / TABLE).glob("*.parquet"):
        path.unlink()  # as a vacuum of its user does
    [file] = tmp_path.rglob("0-b0.parquet")
    file.write_bytes(b"x" * file.stat().st_size)
    command = r"`ackline void shop --give-up totals --reason"
    with pytest.raises(LedgerError, match=rf"the staged file .*0-b0.parquet, .* is gone or damaged.*{command}"):
        publish_settled(lane.adapters, newest_of(lane))
    give_up(lane)
    publish_settled(lane.adapters, next_turn(lane, 7))
    assert offsets(tmp_path) == [7]


def test_an_older_copy_of_a_table_under_an_unpublished_turn_is_told_to_give_the_rows_up_before_the_reset(
    tmp_path: Path,
) -> None:
    """No turn is planned, a reset neither, while the newest settled turn is not published."""
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    publish_settled(lane.adapters, newest_of(lane))
    shutil.copytree(tmp_path / "shop" / "outputs", tmp_path / "copy")
    publish_settled(lane.adapters, next_turn(lane, 7))
    unpublished = next_turn(lane, 8)
    shutil.rmtree(tmp_path / "shop" / "outputs")
    shutil.move(tmp_path / "copy", tmp_path / "shop" / "outputs")
    commands = r"`ackline void shop --give-up totals --reason …`; then .*`ackline reset shop --to OFFSET"
    with pytest.raises(LedgerError, match=rf"older copy.* first give these rows up with {commands}") as caught:
        publish_settled(lane.adapters, unpublished)
    assert str(caught.value).count("--give-up") == 1
    give_up(lane)
    publish_settled(lane.adapters, unpublished)
    with pytest.raises(LedgerError, match="Without one, begin a new epoch"):
        next_turn(lane, 9)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_skip_of_one_of_two_records_in_flight_whose_rows_are_damaged_raises_what_void_closes(
    tmp_path: Path, damage: str
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.IN_FLIGHT, Outcome.IN_FLIGHT)
    before = lane.store.settlements[lane.turn]
    for path in tmp_path.rglob("kept-*.parquet"):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    lane.turn = lane.turn._replace(n=2)
    lane.store.rows[lane.turn] = rows = [OutcomeRow(0, 0, Outcome.SKIPPED, NOW)]
    of_before = SimpleNamespace(turn=lane.turn._replace(n=1), outputs=before)
    newest, skip = SimpleNamespace(**vars(of_before), partitions=lane.partitions()), plan_of(lane.turn, TurnKind.SKIP)
    with pytest.raises(LedgerError, match=r"staged rows .* gone or damaged .* `ackline void shop --reason") as caught:
        lane._settle(skip, of_before, rows)
    with pytest.raises(LedgerError) as found:
        check_open_skip(lane.adapters, skip, cast(Any, newest))
    assert str(found.value) == str(caught.value), "status names it before a run stops at it"
    renewed = OutcomeRow(1, 1, Outcome.IN_FLIGHT, NOW, answer=AnswerKind.RENEW)
    assert turn_of(lane, [renewed]).kept == OutputsOfTurn.decode(before).kept
