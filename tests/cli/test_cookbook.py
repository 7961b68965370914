"""docs/cookbook.md: each query of the page gives the right answer on a lane whose offsets have every state."""

import runpy
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from ackline.audit.sql import VIEWS, sql_result
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.turns import TurnKind
from ackline.tables.store import LedgerStore
from tests.audit.story import begin_story, failed, planned, settled
from tests.cli.cookbook import ANSWERS, BLOCK, QUESTIONS, blocks, plain
from tests.tables.lane_rows import turn, written

SETUP = next(text for kind, text in BLOCK.findall(QUESTIONS[0]) if kind == "python polars-setup")


@pytest.fixture
def lane(store: LedgerStore) -> LedgerStore:
    return begin_story(store, others=False)


def polars_answer(root: str, number: int, folder: Path) -> list[tuple[Any, ...]]:
    script = folder / "answer.py"
    script.write_text(SETUP + blocks("python polars")[number])
    frame = runpy.run_path(str(script), {"root": root})["answer"].collect()
    assert isinstance(frame, pl.DataFrame)
    return plain(frame.columns, frame.rows())


def run(root: str, query: str) -> list[tuple[Any, ...]]:
    with sql_result(root, query) as reader:
        table = reader.read_all()
    return plain(table.column_names, [tuple(row.values()) for row in table.to_pylist()])


def test_the_page_has_twelve_questions_with_sql() -> None:
    assert list(blocks("sql")) == list(ANSWERS) == list(range(1, 13))
    assert len(blocks("python polars")) >= 9


@pytest.mark.parametrize("number", ANSWERS)
def test_ackline_sql_answers_the_question(root: str, lane: LedgerStore, number: int) -> None:
    assert run(root, blocks("sql")[number]) == ANSWERS[number]


@pytest.mark.parametrize("number", blocks("python polars"))
def test_polars_answers_the_question(root: str, lane: LedgerStore, number: int, tmp_path: Path) -> None:
    assert polars_answer(root, number, tmp_path) == ANSWERS[number]


def test_duckdb_answers_each_question_from_exported_views(root: str, lane: LedgerStore) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for view in VIEWS:
        with sql_result(root, f"SELECT * FROM {view}") as reader:
            connection.register(view, reader.read_all())
    for number, answer in ANSWERS.items():
        found = connection.execute(blocks("sql")[number])
        names = [column[0] for column in found.description or ()]
        assert plain(names, found.fetchall()) == answer, number


def test_a_record_that_two_epochs_acked_and_the_act_between_them_are_found(
    root: str, lane: LedgerStore, tmp_path: Path
) -> None:
    lane.store_settlement(settled(4, 30, failed(15), kind=TurnKind.VOID), planned(4, OffsetRange(30, 50)))
    reset = planned(5, OffsetRange(25, 25), kind=TurnKind.RESET)
    lane.store_plan(reset)
    lane.store_settlement(settled(5, 30, failed(15), kind=TurnKind.RESET), reset)
    first = planned(1, OffsetRange(25, 28), epoch=1)
    lane.store_plan(first)
    lane.store_outcomes(turn(1, 1), [written(lane, turn(1, 1), [(25, 1, "acked")])])
    lane.store_settlement(settled(1, 28, epoch=1, floor=25), first)
    twice = [("orders", "orders", 0, 25, 2, ["live 0", "live 1"])]
    moved = [("ada", "reset", "orders", 0, 10, 25, "")]
    assert (run(root, blocks("sql")[5]), run(root, blocks("sql")[7])) == (twice, moved)
    # The plan of the story has no actor, unlike its settlement.
    assert (polars_answer(root, 5, tmp_path), polars_answer(root, 7, tmp_path)) == (twice, [("", *moved[0][1:])])
