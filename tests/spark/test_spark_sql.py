"""The engine spark of `ackline sql` answers each question of the cookbook as DuckDB does, and nothing but queries."""

import json
import subprocess
import sys
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ackline.audit.sql import sql_result, table_folders
from ackline.errors import ConfigError
from ackline.tables.store import LedgerStore
from tests.audit.hard_story import begin_hard_story
from tests.audit.story import begin_story
from tests.cli.cookbook import ANSWERS, blocks, plain
from tests.e2e.lab import ROOT

QUESTIONS = blocks("sql") | blocks("sql spark")
HOSTILE = [
    "COPY INTO x FROM y",
    "SELECT * FROM csv.`/etc/passwd`",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM delta.`/tmp`",
    "SELECT (SELECT max(value) FROM text.`/etc/passwd`) AS x FROM outcomes",
    "WITH a AS (SELECT * FROM text.`/etc/passwd`) SELECT * FROM a",
    "SELECT * FROM `/etc/passwd`",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "SELECT TRANSFORM(outcome) USING 'cat' AS (x STRING) FROM outcomes",
    "SELECT * FROM (FROM outcomes MAP outcome USING 'cat' AS x)",
    "SELECT reflect('java.lang.System', 'getProperty', 'user.home')",
    "SELECT `java_method`('java.lang.System', 'getProperty', 'user.home') FROM outcomes",
    "SELECT 1 WHERE EXISTS (SELECT try_reflect('java.lang.System', 'getenv', 'HOME'))",
    "SELECT * FROM VALUES (reflect('java.lang.System', 'getProperty', 'user.home'))",
    "SELECT * FROM table_changes_by_path('/tmp', 0)",
    "SELECT * FROM table_changes('outcomes', 0)",
    "SELECT 1; SELECT 2",
    "SET spark.sql.runSQLOnFiles = true",
    "ADD JAR '/tmp/x.jar'",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1",
    "WITH a AS (SELECT 1) INSERT INTO outcomes SELECT * FROM a",
    "FROM outcomes INSERT INTO x SELECT *",
    "CREATE TABLE mine USING delta LOCATION '/tmp/mine' AS SELECT 1",
    "CREATE TEMPORARY FUNCTION f AS 'x'",
    "CACHE TABLE outcomes",
    "EXPLAIN SELECT 1",
    "BEGIN SELECT 1; END",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "SHOW TABLES",
    "SELECT no_such_column FROM outcomes",
    "SELEC 1",
    "",
]


ALLOWED = [
    "WITH a AS (SELECT turn FROM turns) SELECT count(*) AS n FROM outcomes JOIN a USING (turn);",
    "SELECT DISTINCT x FROM outcomes, LATERAL explode(array(1, 2)) AS t(x) WHERE turn IN (SELECT turn FROM turns)",
    "SELECT transform(array(1, 2), x -> x + 1) AS y, row_number() OVER (ORDER BY 1) AS n UNION ALL SELECT NULL, 0",
    "VALUES (1), (2)",
    "SELECT o.turn, t.n FROM output_orders_totals t JOIN outcomes o ON t._turn = o.turn",
]
OF_VIEWS = [
    *("SELECT * FROM attempts", "SELECT * FROM outcomes", "SELECT * FROM records", "SELECT * FROM turns"),
    *("SELECT * FROM runs", "SELECT * FROM pending", "SELECT turn, kind, topic FROM plans"),
]
Answer = tuple[list[str] | None, Any]


class Answers(NamedTuple):
    """What Spark answers: the questions on the story of the cookbook, all of OF_VIEWS on a hard one, and the others."""

    questions: dict[int, Answer]
    hard: dict[str, Answer]
    allowed: list[Answer]
    hostile: list[Answer]
    hard_root: str


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """One Spark session answers all queries, because it takes longer to start than to answer."""
    story, hard = (str(tmp_path_factory.mktemp(name) / "audit") for name in ("story", "hard"))
    begin_story(LedgerStore(story, "orders", "live"), others=False)
    begin_hard_story(LedgerStore(hard, "orders", "live"))
    write_deltalake(f"{story}/orders/outputs/totals", pa.table({"n": [7], "_turn": [1]}))
    on_hard = [*OF_VIEWS, *QUESTIONS.values()]
    of_story, of_hard = _ask_spark((story, [*QUESTIONS.values(), *ALLOWED, *HOSTILE]), (hard, on_hard))
    allowed = of_story[len(QUESTIONS) :][: len(ALLOWED)]
    return Answers(
        dict(zip(QUESTIONS, of_story, strict=False)),
        dict(zip(on_hard, of_hard, strict=True)),
        allowed,
        of_story[len(QUESTIONS) + len(ALLOWED) :],
        hard,
    )


def _ask_spark(*asked: tuple[str, list[str]]) -> list[list[Answer]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.audit.spark_queries"],
        cwd=ROOT, input=json.dumps(asked), capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    answers = json.loads(done.stdout.splitlines()[-1], object_hook=_value)
    return [
        [(names, rows if names is None else [tuple(row) for row in rows]) for names, rows in of_root]
        for of_root in answers
    ]


def _value(tagged: dict[str, Any]) -> Any:
    types = {"date": date.fromisoformat, "datetime": datetime.fromisoformat}
    return next((types[name](text) for name, text in tagged.items() if name in types), tagged)


@pytest.mark.parametrize("number", ANSWERS)
def test_spark_answers_the_question(answers: Answers, number: int) -> None:
    names, rows = answers.questions[number]
    assert names is not None, rows
    assert plain(names, rows) == ANSWERS[number]


@pytest.mark.parametrize("query", [*OF_VIEWS, *QUESTIONS.values()])
def test_spark_and_duckdb_give_the_same_rows_of_a_lane_with_epochs_void_turns_and_ranges(
    answers: Answers, query: str
) -> None:
    in_duckdb = {text: blocks("sql")[n] for n, text in blocks("sql spark").items()}
    names, rows = answers.hard[query]
    assert names is not None, rows
    with sql_result(answers.hard_root, in_duckdb.get(query, query)) as reader:
        expected = reader.read_all()
    assert names == expected.column_names
    assert _comparable(rows) == _comparable(row.values() for row in expected.to_pylist())


def _comparable(rows: Iterable[Iterable[Any]]) -> list[list[str]]:
    """Returns the values as text, sorted: the engines differ in types of numbers, and in order without ORDER BY."""

    def text(value: Any) -> str:
        if isinstance(value, Decimal | int | float) and not isinstance(value, bool):
            return f"{float(value):.6f}"
        return value.isoformat() if isinstance(value, datetime) else repr(value)

    return sorted([text(value) for value in row] for row in rows)


def test_spark_runs_a_query_with_subqueries_ctes_and_functions(answers: Answers) -> None:
    for query, (names, rows) in zip(ALLOWED, answers.allowed, strict=True):
        assert names is not None, (query, rows)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_spark_refuses_all_but_one_query_over_the_views(answers: Answers, number: int) -> None:
    names, refusal = answers.hostile[number]
    assert names is None, (HOSTILE[number], refusal)
    assert refusal.startswith("ConfigError: "), (HOSTILE[number], refusal)


def test_tables_in_an_object_store_are_refused_by_name_before_spark_starts() -> None:
    with pytest.raises(ConfigError, match="--engine spark reads tables in a folder that all executors share"):
        table_folders("s3://bucket/audit", "SELECT 1 FROM outcomes")


def test_of_tables_that_do_not_exist_spark_reads_nothing(tmp_path: Path) -> None:
    found = table_folders(str(tmp_path / "none"), "SELECT * FROM runs")
    assert found == {"plans": [], "outcomes": [], "settlements": []}
