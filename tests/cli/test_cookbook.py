"""docs/cookbook.md: each query of the page gives the right answer on a lane whose offsets have every state."""

import re
import runpy
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from ackline.ledger.offsets import OffsetRange
from ackline.ledger.turns import TurnKind
from ackline.tables.sql import VIEWS, sql_result
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import turn, written
from tests.tables.story import begin_story, failed, planned, settled

PAGE = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text()
QUESTIONS = re.split(r"^## (\d+)\. ", PAGE, flags=re.MULTILINE)
BLOCK = re.compile(r"^```([a-z -]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SETUP = next(text for kind, text in BLOCK.findall(QUESTIONS[0]) if kind == "python polars-setup")


def blocks(kind: str) -> dict[int, str]:
    """Returns the block of this kind of each question that has one, by the question's number."""
    return {
        int(QUESTIONS[index]): text
        for index in range(1, len(QUESTIONS), 2)
        for found, text in BLOCK.findall(QUESTIONS[index + 1])
        if found == kind
    }


ANSWERS: dict[int, Any] = {
    1: [(0, 1, 1, "failed", None), (0, 2, 2, "failed", None), (0, 2, 0, "dead", "HTTPError")],
    2: [(date(2026, 3, 1), "HTTPError", 1)],
    3: [(1, "acked", 13), (1, "pending", 1), (2, "dead", 1)],
    4: [("run-3", 0, 600.0, 0.0), ("run-2", 7, 600.0, 0.012), ("run-1", 9, 600.0, 0.015)],
    5: [],
    6: [(0, 0, 90), (0, 1, 85), (0, 2, 85)],
    7: [],
    8: [("orders", 0, "retry", "HTTPError", 1, 1)],
    9: [("expired", "orders", 0, 20, 24, 2)],
    10: [],
    11: [("orders", 0, 10, 30, 18, 1, 1, 0)],
    12: [(0, 3, "ada", "", "")],
}
"""The rows of each answer, as `plain` leaves them."""


@pytest.fixture
def lane(store: LedgerStore) -> LedgerStore:
    return begin_story(store, others=False)


TIMES = ("handled_at", "settled_at", "next_due")


def plain(names: list[str], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Returns the rows without times and messages, with decimals as numbers."""
    kept = [
        n
        for n, name in enumerate(names)
        if name not in (*TIMES, "error_message") and not (rows and isinstance(rows[0][n], datetime))
    ]
    return [tuple(int(row[n]) if isinstance(row[n], Decimal) else row[n] for n in kept) for row in rows]


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


@pytest.mark.parametrize("number", ANSWERS)
def test_duckdb_answers_the_question_from_exported_views(root: str, lane: LedgerStore, number: int) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for view in VIEWS:
        with sql_result(root, f"SELECT * FROM {view}") as reader:
            connection.register(view, reader.read_all())
    found = connection.execute(blocks("sql")[number])
    names = [column[0] for column in found.description or ()]
    assert plain(names, found.fetchall()) == ANSWERS[number]


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
