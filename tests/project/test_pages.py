"""The examples of the short pages of docs/ do what the page says."""

import json
import sqlite3
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow.sdk import DAG

from ackline.handler import Record
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.spark.lineage import tasks_for
from tests.e2e.documents import blocks, section

HERE = "docs/exactly-once.md"


def record(offset: int, value: dict[str, str], attempt: int = 1) -> Record:
    return Record("orders", 0, offset, datetime.now(UTC), b"k", json.dumps(value).encode(), (), attempt)


def names_of(heading: str) -> dict[str, Any]:
    """Returns what the Python block below a heading defines."""
    names: dict[str, Any] = {}
    exec(next(block.text for block in blocks(section(HERE, heading)) if block.language == "python"), names)  # noqa: S102
    return names


def test_a_record_that_is_handled_again_changes_no_row(tmp_path: Path) -> None:
    names = names_of("## Into a database")
    names["connect"] = lambda: sqlite3.connect(tmp_path / "shop.db")
    with names["connect"]() as database:
        key = "topic, partition, record_offset"
        database.execute(f"CREATE TABLE handled ({key}, PRIMARY KEY ({key}))")
        database.execute("CREATE TABLE stock AS SELECT 'teapot' AS product, 10 AS pieces")
    for offset, attempt in ((4, 1), (4, 1), (5, 1), (4, 2)):
        names["handle"](record(offset, {"product": "teapot"}, attempt))
    assert database.execute("SELECT pieces FROM stock").fetchall() == [(8,)]


def test_an_older_offset_changes_no_state() -> None:
    [upsert] = [block.text for block in blocks(section(HERE, "## Into a database")) if block.language == "sql"]
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE customers (id PRIMARY KEY, city, record_offset)")
    for row in (("ada", "Turin", 7), ("ada", "London", 3), ("ada", "Turin", 7)):
        database.execute(upsert, row)
    assert database.execute("SELECT * FROM customers").fetchall() == [("ada", "Turin", 7)]


def test_each_attempt_sends_the_same_key() -> None:
    handle = names_of("## Over HTTP")["handle"]
    with patch("urllib.request.urlopen", return_value=nullcontext()) as sent:
        for attempt in (1, 2):
            handle(record(4, {}, attempt))
    assert [call.args[0].get_header("Idempotency-key") for call in sent.call_args_list] == ["orders-0-4"] * 2


def test_the_dag_file_of_a_second_team_has_no_dag_of_the_maintenance(tmp_path: Path) -> None:
    [example] = [block for block in blocks(section("docs/several-teams.md", "## What each team has"))
                 if block.language == "python"]  # fmt: skip
    (tmp_path / "pipelines").mkdir()
    kafka = {"bootstrap_servers": "b:1", "group_id": "b-shop", "topics": ["orders"]}
    file = {"name": "b-shop", "kafka": kafka, "handler": "handlers.shop:handle", "dead_letter": "none"}
    (tmp_path / "pipelines" / "shop.yaml").write_text(json.dumps(file))
    names: dict[str, Any] = {"__file__": str(tmp_path / "dags.py")}
    exec(example.text, names)  # noqa: S102
    made = sorted(name for name, value in names.items() if isinstance(value, DAG))
    assert made == ["backfill__b-shop", "operate__b-shop", "replay__b-shop"]


def test_a_partition_is_divided_into_tasks_as_the_page_on_sizing_says() -> None:
    ranges = [{TopicPartition("orders", 0): OffsetRange(0, records)} for records in (9_999, 20_000, 50_000, 1_000_000)]
    assert [tasks_for(each, cores=8) for each in ranges] == [1, 1, 2, 8]
