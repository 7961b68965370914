"""The engine spark of `ackline sql` answers each question of the cookbook as DuckDB does, and nothing but queries."""

import json
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from ackline.audit.sql import VIEWS, table_folders
from ackline.audit.store import LedgerStore
from ackline.errors import ConfigError
from ackline.ledger import OutcomeRow
from ackline.offsets import OffsetRange
from ackline.outcome import Outcome
from ackline.turns import TurnKind
from tests.contract.lane_rows import NOON, TP, turn, written
from tests.contract.story import begin_story, failed, planned, settled
from tests.contract.test_cookbook import ANSWERS, blocks, plain, run
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


def ask_spark(root: str, queries: list[str]) -> list[tuple[list[str] | None, Any]]:
    """Returns the columns and rows of each query, in a session of its own; None and the text of each refusal."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.spark_queries", root],
        cwd=ROOT, input=json.dumps(queries), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1], object_hook=_value)
    return [(names, rows if names is None else [tuple(row) for row in rows]) for names, rows in answers]


def _value(tagged: dict[str, Any]) -> Any:
    types = {"date": date.fromisoformat, "datetime": datetime.fromisoformat}
    return next((types[name](text) for name, text in tagged.items() if name in types), tagged)


def test_spark_answers_each_question_as_duckdb_does(root: str, store: LedgerStore) -> None:
    """First on the story of the cookbook, and then after a reset that acks a record again, with a skipped range."""
    begin_story(store, others=False)
    answers = ask_spark(root, list(QUESTIONS.values()))
    assert {n: plain(*answer) for n, answer in zip(QUESTIONS, answers, strict=True)} == ANSWERS  # type: ignore[arg-type]
    store.store_settlement(settled(4, 30, failed(15), kind=TurnKind.VOID), planned(4, OffsetRange(30, 50)))
    skip = planned(5, OffsetRange(40, 40), kind=TurnKind.SKIP)
    store.store_plan(skip)
    store.store_decisions(skip, "run-5", {TP: [OutcomeRow(15, 0, Outcome.SKIPPED, NOON, None, 16)]})
    store.store_settlement(settled(5, 40, kind=TurnKind.SKIP), skip)
    all_views = [f"SELECT * FROM {view} ORDER BY ALL" for view in ("outcomes", "attempts", "records", "turns", "runs")]
    before_reset = [*QUESTIONS.values(), *all_views]
    reset = planned(6, OffsetRange(25, 25), kind=TurnKind.RESET)
    expected = _by_duckdb(root, before_reset)
    for query, (names, rows), wanted in zip(before_reset, ask_spark(root, before_reset), expected, strict=True):
        assert names is not None, (query, rows)
        assert sorted(map(str, plain(names, rows))) == sorted(map(str, wanted)), query
    store.store_plan(reset)
    store.store_settlement(settled(6, 40, kind=TurnKind.RESET), reset)
    first = planned(1, OffsetRange(25, 28), epoch=1)
    store.store_plan(first)
    store.store_outcomes(turn(1, 1), [written(store, turn(1, 1), [(25, 1, "acked")])])
    store.store_settlement(settled(1, 28, epoch=1, floor=25), first)
    expected = _by_duckdb(root, before_reset)
    for query, (names, rows), wanted in zip(before_reset, ask_spark(root, before_reset), expected, strict=True):
        assert names is not None, (query, rows)
        assert sorted(map(str, plain(names, rows))) == sorted(map(str, wanted)), query


def _by_duckdb(root: str, queries: list[str]) -> list[list[tuple[Any, ...]]]:
    in_duckdb = {text: blocks("sql")[n] for n, text in blocks("sql spark").items()}
    return [run(root, in_duckdb.get(query, query)) for query in queries]


def test_spark_refuses_all_but_one_query_over_the_views(root: str, store: LedgerStore) -> None:
    begin_story(store)
    allowed = [
        "WITH a AS (SELECT turn FROM turns) SELECT count(*) AS n FROM outcomes JOIN a USING (turn)",
        "SELECT DISTINCT x FROM outcomes, LATERAL explode(array(1, 2)) AS t(x) WHERE turn IN (SELECT turn FROM turns)",
        "SELECT transform(array(1, 2), x -> x + 1) AS y, row_number() OVER (ORDER BY 1) AS n UNION ALL SELECT NULL, 0",
        "VALUES (1), (2)",
    ]
    answers = ask_spark(root, [*allowed, *HOSTILE, *(f"SELECT * FROM {view} LIMIT 1" for view in VIEWS)])
    for query, (names, rows) in zip(allowed, answers, strict=False):
        assert names is not None, (query, rows)
    for query, (names, refusal) in zip(HOSTILE, answers[len(allowed) :], strict=False):
        assert names is None, (query, refusal)
        assert refusal.startswith("ConfigError: "), (query, refusal)
    for view, (names, rows) in zip(VIEWS, answers[len(allowed) + len(HOSTILE) :], strict=True):
        assert names is not None, (view, rows)


def test_tables_in_an_object_store_are_refused_by_name_before_spark_starts() -> None:
    with pytest.raises(ConfigError, match="--engine spark reads tables in a folder that all executors share"):
        table_folders("s3://bucket/audit", "SELECT 1 FROM outcomes")


def test_of_tables_that_do_not_exist_spark_reads_nothing(tmp_path: Path) -> None:
    found = table_folders(str(tmp_path / "none"), "SELECT * FROM runs")
    assert found == {"plans": [], "outcomes": [], "settlements": []}
