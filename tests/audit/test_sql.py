"""SQL over real tables: what each view holds, and what a query cannot do."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from ackline.actions.maintain import maintain
from ackline.audit.history import settled_turns
from ackline.audit.sql import VIEWS, sql_result
from ackline.cli.app import app
from ackline.cli.options import check_lane
from ackline.errors import ConfigError
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.turns import LOST_BY_OPERATOR, VOIDED_BY_OPERATOR, TurnKind
from ackline.tables.store import LedgerStore
from tests.audit.hard_story import begin_hard_story, begin_reset
from tests.audit.story import begin_story, failed, planned, settled
from tests.tables.lane_rows import NOON, TP, TP1, plan, settlement, store_turn, turn, written
from tests.tables.lanes import begin_lane


def rows(root: str, query: str, *pipelines: str) -> list[tuple[Any, ...]]:
    with sql_result(root, query, pipelines) as reader:
        return [tuple(row.values()) for row in reader.read_all().to_pylist()]


@pytest.fixture
def lane(store: LedgerStore) -> LedgerStore:
    return begin_story(store)


@pytest.mark.parametrize("compacted", [False, True])
def test_each_view_holds_its_rows(root: str, lane: LedgerStore, compacted: bool) -> None:
    if compacted:
        maintain(root)
    count = "SELECT outcome, count(*) FROM outcomes WHERE topic = 'orders' AND partition = 0 GROUP BY ALL ORDER BY ALL"
    assert rows(root, count) == [("acked", 13), ("dead", 1), ("expired", 1), ("failed", 3)]
    attempts = "SELECT effective, count(*) FROM attempts WHERE partition = 0 GROUP BY ALL ORDER BY ALL"
    assert rows(root, attempts) == [(False, 10), (True, 18)], "a void turn has 10"
    pending = 'SELECT topic, partition, "offset", end_offset, offsets, kind, attempts, error_class FROM pending'
    assert rows(root, pending) == [("orders", 0, 15, 16, 1, "retry", 1, "HTTPError")]
    records = (
        'SELECT "offset", end_offset, outcome, attempts FROM records WHERE partition = 0 AND attempts <> 1 ORDER BY 1'
    )
    assert rows(root, records) == [(16, None, "dead", 2), (20, 24, "expired", 0)]
    assert rows(root, 'SELECT outcome, error_class FROM records WHERE "offset" = 15') == [("pending", None)]
    assert rows(root, "SELECT count(*), max(turn) FROM plans") == [(4, 4)]
    assert rows(root, "SELECT count(*) FROM settlements WHERE kind = 'run'") == [(2,)]


@pytest.mark.parametrize("root", ["s3"], indirect=True)
def test_tables_in_an_object_store_are_read_with_the_login_of_the_ledger(root: str, lane: LedgerStore) -> None:
    count = "SELECT outcome, count(*) FROM outcomes WHERE topic = 'orders' AND partition = 0 GROUP BY ALL ORDER BY ALL"
    assert rows(root, count) == [("acked", 13), ("dead", 1), ("expired", 1), ("failed", 3)]
    assert rows(root, "SELECT error_class FROM attempts WHERE error_class = 'HTTPError'") == [("HTTPError",)]
    assert [turn.turn for turn in settled_turns(root, "orders", limit=2)] == [3, 2]


def test_runs_have_start_end_duration_and_records(root: str, store: LedgerStore) -> None:
    begin_lane(store)
    (run,) = rows(root, 'SELECT run_id, start = "end", duration, turns, records FROM runs')
    assert run == ("run", True, 0.0, 3, 0), "the settlements of this lane count no record"


def test_several_pipelines_are_read_together_or_one_by_name(root: str, lane: LedgerStore) -> None:
    begin_lane(LedgerStore(root, "payments", "live"))
    query = "SELECT pipeline, count(*) FROM outcomes GROUP BY ALL ORDER BY ALL"
    assert [name for name, _ in rows(root, query)] == ["orders", "payments"]
    assert [name for name, _ in rows(root, query, "payments")] == ["payments"]


def test_no_progress_bar_is_printed_among_the_rows_of_a_long_query(root: str) -> None:
    assert rows(root, "SELECT current_setting('enable_progress_bar')") == [(False,)]


@pytest.mark.parametrize("view", VIEWS)
def test_without_tables_each_view_is_empty(root: str, view: str) -> None:
    assert rows(root, f"SELECT * FROM {view}") == []


@pytest.mark.parametrize(
    "query",
    [
        "COPY outcomes TO '/tmp/out.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_parquet('https://example.org/x.parquet')",
        "ATTACH '/tmp/x.db'",
        "SET memory_limit = '100GB'",
        "CREATE TABLE mine AS SELECT 1",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''/etc/passwd'')'))",
        "SELECT * FROM enable_logging(storage = 'file', storage_path = '/tmp/leak')",
        "SELECT * FROM enable_profiling(save_location = '/tmp/leak')",
        "SELECT * FROM root",
        "WITH x AS (DELETE FROM _plans RETURNING *) SELECT * FROM x",
        "EXPLAIN ANALYZE SELECT 1",
        "PRAGMA version",
        "CALL pragma_version()",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '/tmp/leak'",
        "SELECT 1; SELECT 2",
        "SELECT no_such_column FROM outcomes",
        "SELEC 1",
        "",
    ],
)
def test_a_query_is_one_select_over_the_views_and_reaches_no_file(root: str, query: str) -> None:
    with pytest.raises(ConfigError):
        rows(root, query)


def test_the_command_prints_a_table_json_csv_or_a_file(
    root: str, lane: LedgerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    query = "SELECT outcome, sum(1) AS n, '=x' AS x FROM outcomes WHERE partition = 0 GROUP BY ALL ORDER BY ALL"

    def shown(*options: str) -> str:
        done = CliRunner().invoke(app, ["sql", query, *options], catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    assert [line.split() for line in shown().splitlines()][1:3] == [["acked", "13", "=x"], ["dead", "1", "=x"]]
    assert json.loads(shown("--json"))[0] == {"outcome": "acked", "n": 13, "x": "=x"}
    assert shown("--csv").splitlines()[:2] == ["outcome,n,x", "acked,13,'=x"]
    file = tmp_path / "out.parquet"
    assert shown("--parquet", str(file)) == ""
    assert pq.read_table(file)["n"].to_pylist() == [13, 1, 1, 3]


@pytest.fixture
def output_file(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline file with two output tables. That of the totals exists, partitioned by country, with two rows."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    outputs = [{"from": "source", "table": "Totals"}, {"from": "source.more", "table": "more"}]
    kafka = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders"]}
    file = {"name": "b-shop", "kafka": kafka, "handler": "tests.support.journal:handle", "dead_letter": "none"}
    (folder / "shop.yaml").write_text(json.dumps({**file, "outputs": outputs}))
    monkeypatch.setenv("ACKLINE_PIPELINES", str(folder))
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    totals = pa.table({"n": [1, 2], "country": ["United States/é", None], "_turn": [1, 1]})
    write_deltalake(f"{root}/b-shop/outputs/Totals", totals, partition_by=["country"])
    return folder / "shop.yaml"


def sql(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["sql", *arguments, "--json"])
    return done.exception if done.exception else json.loads(done.stdout)


def test_an_output_table_that_a_pipeline_file_names_is_a_view(output_file: Path) -> None:
    assert sql("SELECT n, country FROM output_b_shop_totals ORDER BY n") == [
        {"n": 1, "country": "United States/é"}, {"n": 2, "country": None}
    ]  # fmt: skip
    assert sql("SELECT n FROM output_b_shop_totals WHERE country IS NULL") == [{"n": 2}]
    assert sql("SELECT n FROM Output_B_Shop_Totals WHERE country LIKE 'United%'", "--pipeline", "b-shop") == [{"n": 1}]
    assert isinstance(sql("SELECT n FROM output_b_shop_totals", "--pipeline", "other"), ConfigError)


def test_without_a_query_each_view_is_listed_with_its_columns_or_why_it_can_not_be_read(output_file: Path) -> None:
    listed = {row["view"]: row["columns"] for row in sql()}
    assert set(listed) == {*VIEWS, "output_b_shop_totals", "output_b_shop_more"}
    assert listed["output_b_shop_totals"] == "n, country"
    assert listed["pending"].startswith("pipeline, lane, epoch, topic")
    assert "there is no table at" in listed["output_b_shop_more"]


def test_an_output_table_that_can_not_be_read_fails_only_the_query_that_names_it(root: str, output_file: Path) -> None:
    assert sql("SELECT count(*) AS n FROM output_b_shop_totals") == [{"n": 2}]
    assert "there is no table at" in str(sql("SELECT * FROM output_b_shop_more"))
    hides_rows = {"delta.enableDeletionVectors": "true"}
    write_deltalake(f"{root}/b-shop/outputs/more", pa.table({"n": [1]}), configuration=hides_rows)
    assert "a feature of Delta that only newer readers have" in str(sql("SELECT * FROM output_b_shop_more"))
    named_twice = json.loads(output_file.read_text())
    named_twice["outputs"].append({"from": "source.third", "table": f"file://{root}/elsewhere/more"})
    output_file.write_text(json.dumps(named_twice))
    assert "is the view of several tables" in str(sql("SELECT * FROM output_b_shop_more"))
    assert sql("SELECT count(*) AS n FROM output_b_shop_totals") == [{"n": 2}]


def test_the_history_lists_turns_and_acts_newest_first(root: str, lane: LedgerStore) -> None:
    lane.store_settlement(settled(4, 30, failed(15), kind=TurnKind.VOID), planned(4, OffsetRange(30, 50)))
    done = replace(
        settled(5, 40, kind=TurnKind.SKIP), actor="ada", reason="poison batch", settled_at=NOON + timedelta(hours=6)
    )
    store_turn(lane, planned(5, OffsetRange(40, 40), kind=TurnKind.SKIP), settled=done)
    turns = settled_turns(root, "orders")
    assert [turn.turn for turn in turns] == [5, 4, 3, 2, 1, 0]
    assert [turn.kind for turn in turns] == ["skip", "void", "void", "run", "run", "genesis"]
    assert (turns[0].actor, turns[0].reason, turns[0].partitions) == ("ada", "poison batch", 1)
    assert turns[-1].start is None
    assert settled_turns(root, "orders", limit=2) == turns[:2]
    assert settled_turns(root, "orders", "live", actions_only=True) == turns[:1]
    assert settled_turns(root, "orders", "backfill-x") == []


def test_the_new_records_of_a_turn_are_its_own_and_those_of_a_void_turn_are_none(root: str, store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    own, kept = {"new_records": 8.0, "new_failed": 2.0}, {"last_new_records": 8.0, "last_new_failed": 2.0}
    for n, (kind, metrics) in enumerate([(TurnKind.RUN, own), (TurnKind.RUN, kept), (TurnKind.VOID, own)], 1):
        partitions = {tp: replace(row, metrics=metrics) for tp, row in settlement(n).partitions.items()}
        store_turn(store, plan(n), settled=replace(settlement(n), kind=kind, partitions=partitions))
    turns = settled_turns(root, "orders")
    assert [(turn.new_records, turn.new_failed) for turn in turns] == [(0, 0), (0, 0), (8, 2), (0, 0)]
    assert rows(root, "SELECT new_records, new_failed FROM runs") == [(8, 2)]


def test_turns_and_runs_and_the_history_show_the_code_of_each_turn(
    root: str, store: LedgerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turn 1 is of a version that stored no code. Run `two` has settled two turns, the last one by new code."""
    store.store_settlement(settlement(0))
    for n, run_id, code in ((1, "one", ""), (2, "two", "v1"), (3, "two", "v2-dirty")):
        store.store_plan(replace(plan(n), code="planned"))
        row = settlement(n).partitions[TP]
        store.store_settlement(replace(settlement(n, run_id), code=code, partitions={TP: row, TP1: row}), plan(n))
    assert rows(root, "SELECT turn, code FROM turns ORDER BY turn") == [
        (0, None),
        (1, None),
        (2, "v1"),
        (3, "v2-dirty"),
    ]
    assert rows(root, "SELECT run_id, code FROM runs ORDER BY ALL") == [("one", None), ("two", "v2-dirty")]
    assert rows(root, "SELECT DISTINCT code FROM plans") == [("planned",)]
    (tmp_path / "orders.yaml").write_text(
        "name: orders\nhandler: tests.support.journal:handle\ndead_letter: none\n"
        "kafka: {bootstrap_servers: 'memory:1', group_id: g, topics: [orders]}\n"
    )
    monkeypatch.setenv("ACKLINE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    shown = CliRunner().invoke(app, ["history", "orders", "--json"], catch_exceptions=False)
    assert [row["code"] for row in json.loads(shown.stdout)["turns"]] == ["v2-dirty", "v1", None, None]
    monkeypatch.setenv("COLUMNS", "200")
    table = CliRunner().invoke(app, ["history", "orders"], catch_exceptions=False).stdout
    assert "code" in table.splitlines()[0]
    assert "v2-dirty" in table


def test_a_turn_that_an_operator_has_closed_is_an_act_and_no_run(root: str, store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    closed = [(TurnKind.VOID, "void"), (TurnKind.VOID, VOIDED_BY_OPERATOR), (TurnKind.RUN, LOST_BY_OPERATOR),
              (TurnKind.SKIP, LOST_BY_OPERATOR), (TurnKind.RUN, "outcomes 5")]  # fmt: skip
    for n, (kind, evidence) in enumerate(closed, 1):
        store.store_plan(plan(n))
        partitions = {tp: replace(row, evidence=evidence) for tp, row in settlement(n).partitions.items()}
        store.store_settlement(replace(settlement(n, f"run-{n}"), kind=kind, partitions=partitions), plan(n))
    assert [action.turn for action in settled_turns(root, "orders", actions_only=True)] == [4, 3, 2]
    assert rows(root, "SELECT run_id, turns, void_turns FROM runs ORDER BY ALL") == [("run-1", 1, 1), ("run-5", 1, 0)]


def test_a_lane_without_tables_is_refused_with_the_lanes_that_there_are(
    root: str, lane: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    check_lane("orders", "live")
    with pytest.raises(ConfigError, match="--lane backfill-x: orders has the lanes live"):
        check_lane("orders", "backfill-x")


@pytest.fixture
def hard(store: LedgerStore) -> LedgerStore:
    begin_hard_story(store)
    return store


RECORD = 'SELECT "offset", end_offset, outcome, attempts, error_class FROM records ORDER BY "offset", end_offset'


@pytest.mark.parametrize("compacted", [False, True])
def test_the_views_of_the_live_lane_hold_the_settled_turns_of_its_newest_epoch(
    root: str, hard: LedgerStore, compacted: bool
) -> None:
    """No row of an older epoch, of a void or open turn, or of another lane."""
    if compacted:
        maintain(root)
    outcomes = 'SELECT epoch, turn, "offset", end_offset, outcome FROM outcomes ORDER BY "offset"'
    assert rows(root, outcomes) == [
        (1, 1, 25, None, "acked"), (1, 1, 26, None, "failed"), (1, 1, 27, None, "acked"), (1, 2, 28, 30, "lost"),
    ]  # fmt: skip
    assert rows(root, RECORD) == [
        (25, None, "acked", 1, None), (26, None, "pending", 1, None), (27, None, "acked", 1, None),
        (28, 30, "lost", 0, None),
    ]  # fmt: skip
    pending = 'SELECT lane, epoch, "offset", end_offset FROM pending ORDER BY lane'
    assert rows(root, pending) == [("backfill-x", 0, 11, 12), ("live", 1, 26, 27)]


def test_attempts_are_the_rows_of_all_lanes_epochs_and_turns_and_void_and_open_ones_are_not_effective(
    root: str, hard: LedgerStore
) -> None:
    not_effective = "SELECT lane, epoch, turn, count(*) FROM attempts WHERE NOT effective GROUP BY ALL ORDER BY ALL"
    assert rows(root, not_effective) == [("live", 0, 3, 5), ("live", 1, 3, 2)]
    effective = "SELECT lane, epoch, count(*) FROM attempts WHERE effective GROUP BY ALL ORDER BY ALL"
    assert rows(root, effective) == [("backfill-x", 0, 2), ("live", 0, 25), ("live", 1, 4)]


def test_right_after_a_reset_nothing_is_pending_and_no_row_is_of_the_new_epoch(root: str, store: LedgerStore) -> None:
    """The settlement of the reset still names what was pending: it is pending no more."""
    store.store_settlement(settled(0, 10, kind=TurnKind.GENESIS))
    file = written(store, turn(1), [(20, 1, "failed")])
    store_turn(store, planned(1, OffsetRange(10, 21)), file, settled=settled(1, 21, failed(20)))
    begin_reset(store)
    for view in ("outcomes", "records", "pending"):
        assert rows(root, f"SELECT count(*) FROM {view}") == [(0,)], view


def test_a_record_has_its_last_outcome_and_the_error_class_of_that_one(root: str, store: LedgerStore) -> None:
    """Dead after failed attempts; acked at the second; failed and then in a range, which encloses a shorter one."""
    begin_hard_story(store, newest_epoch=0)
    found = {offset: tuple(row) for offset, *row in rows(root, RECORD) if row[0] is None}
    assert found[11] == (None, "dead", 2, "E2")
    assert found[12] == (None, "acked", 2, None), "the class of its failed attempt is not that of its outcome"
    assert found[20] == (None, "expired", 1, None)
    assert [row[:3] for row in rows(root, RECORD) if row[1] is not None] == [(18, 40, "expired"), (19, 20, "skipped")]


def test_turns_and_runs_count_each_outcome_and_a_void_turn_no_record(root: str, hard: LedgerStore) -> None:
    query = (
        "SELECT kind, records, acked, failed, dead, skipped, lost, partitions FROM turns WHERE lane = 'live' "
        "ORDER BY epoch, turn"
    )
    assert rows(root, query) == [
        ("genesis", 0, 0, 0, 0, 0, 0, 1), ("run", 10, 8, 2, 0, 0, 0, 1), ("run", 2, 1, 1, 1, 0, 0, 1),
        ("void", 0, 5, 0, 0, 0, 0, 1), ("run", 10, 9, 1, 0, 0, 0, 1), ("skip", 0, 0, 0, 0, 11, 0, 1),
        ("reset", 0, 0, 0, 0, 0, 0, 1), ("run", 3, 2, 1, 0, 0, 0, 1), ("run", 0, 0, 0, 0, 0, 2, 1),
    ]  # fmt: skip
    runs = "SELECT lane, run_id, turns, void_turns, records FROM runs ORDER BY ALL"
    assert rows(root, runs) == [
        ("backfill-x", "run-1", 1, 0, 2), ("live", "run-1", 2, 0, 13), ("live", "run-2", 2, 0, 2),
        ("live", "run-3", 1, 1, 0), ("live", "run-4", 1, 0, 10),
    ]  # fmt: skip
