"""Queries of real audit tables: the first rows in order, whatever the files, without holding more than is shown."""

import csv
import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ackline.actions.maintain import maintain
from ackline.audit import queries
from ackline.audit.queries import AuditFilter, audit_pages, audit_rows
from ackline.audit.scan import LaneScanner
from ackline.cli.app import app
from ackline.errors import ConfigError
from ackline.forms.arguments import PartitionChoice
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.spark.job import ReplayResult
from ackline.steps.replay import add_actions
from ackline.tables import maintenance
from ackline.tables.store import LedgerStore
from ackline.worker.files import Chunk, OutcomeFiles, OutcomeTarget
from tests.tables.lane_rows import DAY, NOON, TP, TP1, plan, settlement, store_turn, told_once, turn, written

Key = tuple[str, int, int, int, int, str, bool]
OUTCOMES = ["acked", "failed", "dead"]


def keys(rows: Any) -> list[Key]:
    return [
        (row["topic"], row["partition"], row["offset"], row["turn"], row["attempt"], row["outcome"], row["effective"])
        for row in rows
    ]


TPS = (TP, TP1, TopicPartition("payments", 0))
_draw = random.Random(7)
DRAWN = {
    n: [(offset, attempt, _draw.choice(OUTCOMES)) for offset in _draw.sample(range(40), 8) for attempt in (1, 2)]
    for n in range(1, 7)
}
"""The attempts of six turns, the same in each partition of TPS. The last two turns are open."""


@told_once
def begin_drawn(store: LedgerStore) -> LedgerStore:
    """Stores the turns of DRAWN, each with a decision, too."""
    store.store_settlement(settlement(0))
    for n, chosen in DRAWN.items():
        decided = OutcomeRow(n * 3, 0, Outcome.EXPIRED, NOON, "HTTPError", n * 3 + 5)
        files = [written(store, turn(n), chosen, tp) for tp in TPS]
        store_turn(store, plan(n), *files, settled=settlement(n) if n < 5 else None, decisions=[decided])
    return store


@pytest.fixture
def drawn(store: LedgerStore) -> list[Key]:
    """The rows of a lane with the turns of DRAWN, in the order of a query."""
    begin_drawn(store)
    rows = [
        (*tp, offset, n, attempt, outcome, n < 5)
        for n, chosen in DRAWN.items() for tp in TPS for offset, attempt, outcome in chosen
    ]  # fmt: skip
    rows += [(*TP, n * 3, n, 0, "expired", n < 5) for n in DRAWN]
    return sorted(rows, key=lambda row: (*row[:4], row[4] == 0, row[4]))


@told_once
def store_five_turns(store: LedgerStore) -> LedgerStore:
    """Stores turns 1 to 5 of ten acked records each: turn n has the offsets from 10 n on."""
    store.store_settlement(settlement(0))
    for n in range(1, 6):
        store.store_outcomes(turn(n), [written(store, turn(n), [(n * 10 + i, 1, "acked") for i in range(10)])])
        store.store_settlement(settlement(n), plan(n))
    return store


@pytest.mark.parametrize(("page", "compacted"), [(20, False), (20, True), (1_000_000, True)])
def test_pages_of_any_size_give_all_rows_once_and_in_order(
    root: str, drawn: list[Key], page: int, compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compacted:
        maintain(root)
    monkeypatch.setattr(queries, "PAGE_ROWS", page)
    effective = [key for key in drawn if key[-1]]
    assert keys(audit_rows(root, "orders", AuditFilter(everything=True))) == drawn
    assert keys(audit_rows(root, "orders", AuditFilter())) == effective
    for limit in (0, 7, len(effective)):
        assert keys(audit_rows(root, "orders", AuditFilter(limit=limit))) == effective[:limit]
    chosen = AuditFilter(topic="orders", partition=0, outcome="failed", offsets=OffsetRange(10, 20), limit=5)
    wanted = [k for k in effective if k[:2] == ("orders", 0) and k[5] == "failed" and 10 <= k[2] < 20]
    assert keys(audit_rows(root, "orders", chosen)) == wanted[:5]


def test_an_offset_is_found_in_the_ranges_that_contain_it(root: str, drawn: list[Key]) -> None:
    rows = keys(audit_rows(root, "orders", AuditFilter(topic="orders", partition=0, offsets=OffsetRange(11, 12))))
    ranges = [(row[2], row[3]) for row in rows if row[5] == "expired"]
    assert ranges == [(n * 3, n) for n in range(1, 5) if n * 3 <= 11 < n * 3 + 5]


def test_a_limit_opens_no_file_beyond_the_last_row(
    root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_five_turns(store)
    files = sorted(Path(store.outcomes.uri).rglob("plan_date=*/*.parquet"), key=lambda path: path.name)
    for later in files[2:]:
        later.write_bytes(b"not Parquet")
    assert [row["offset"] for row in audit_rows(root, "orders", AuditFilter(limit=12))] == list(range(10, 22))
    for first in files[:3]:
        first.write_bytes(b"not Parquet")
    offsets = AuditFilter(offsets=OffsetRange(200, 210))
    assert list(audit_rows(root, "orders", offsets)) == [], "no file can hold these offsets"


def test_the_command_prints_a_list_in_json_however_many_rows_there_are(
    root: str, drawn: list[Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackline.cli.audit.pipeline_named", lambda _: None)
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    for arguments, count in (([], len([k for k in drawn if k[-1]])), (["--limit", "1"], 1), (["--turn", "99"], 0)):
        shown = CliRunner().invoke(app, ["audit", "orders", "--json", *arguments])
        assert len(json.loads(shown.stdout)) == count


def test_newest_first_gives_all_rows_once_however_small_the_pages(
    root: str, drawn: list[Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    effective = sorted((key for key in drawn if key[-1]), key=lambda key: -key[3])
    for page, compacted in ((20, False), (1_000, True)):
        monkeypatch.setattr(queries, "PAGE_ROWS", page)
        if compacted:
            maintain(root)
        found = keys(audit_rows(root, "orders", AuditFilter(newest_first=True)))
        assert found == effective
        assert keys(audit_rows(root, "orders", AuditFilter(newest_first=True, limit=9))) == found[:9]


def test_newest_first_opens_only_the_files_of_the_last_turns(root: str, store: LedgerStore) -> None:
    store_five_turns(store)
    scanner = LaneScanner(store)
    (page,) = audit_pages(root, "orders", AuditFilter(newest_first=True, limit=12), [scanner])
    assert page["offset"].to_pylist() == [*range(50, 60), 40, 41]
    assert scanner.files_opened == 2


@pytest.mark.parametrize(
    ("criteria", "wanted"),
    [
        (AuditFilter(epoch=1), lambda _: False),
        (AuditFilter(lane="live", attempt=2), lambda key: key[4] == 2),
        (AuditFilter(lane="backfill-x"), lambda _: False),
        (AuditFilter(choice=PartitionChoice(("orders",), (0, 1))), lambda key: key[0] == "orders"),
        (AuditFilter(choice=PartitionChoice(partitions=(1,))), lambda key: key[1] == 1),
        (AuditFilter(since=NOON), lambda _: True),
        (AuditFilter(since=NOON + timedelta(seconds=1)), lambda _: False),
        (AuditFilter(error_class="HTTPError"), lambda key: key[5] == "expired"),
        (AuditFilter(error_class=""), lambda key: key[5] != "expired"),
        (AuditFilter(run_id="run"), lambda _: True),
        (AuditFilter(run_id="other"), lambda _: False),
        (AuditFilter(as_of=NOON), lambda _: True),
        (AuditFilter(as_of=NOON - timedelta(seconds=1)), lambda _: False),
    ],
)
def test_each_filter_keeps_its_rows_alone(
    root: str, drawn: list[Key], criteria: AuditFilter, wanted: Callable[[Key], bool]
) -> None:
    assert keys(audit_rows(root, "orders", criteria)) == [key for key in drawn if key[-1] and wanted(key)]


@pytest.mark.parametrize(("step", "offsets"), [("price", [1]), ("pri", [2]), ("source", [3, 4]), ("total", [])])
def test_the_attempts_that_a_step_has_ended_are_those_whose_message_names_it(
    root: str, store: LedgerStore, step: str, offsets: list[int]
) -> None:
    messages = {1: "step price: no such product", 2: "step pri: 7", 3: "a step price: is no prefix", 4: None}
    rows = [OutcomeRow(n, 1, Outcome.FAILED, NOON, "ValueError", reason=text) for n, text in messages.items()]
    store.store_settlement(settlement(0))
    store_turn(store, plan(1), settled=settlement(1), decisions=rows)
    found = audit_rows(root, "orders", AuditFilter(outcome="failed", step=step))
    assert [row["offset"] for row in found] == offsets


def test_as_of_a_version_shows_the_rows_that_it_held(root: str, store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    for n in (1, 2):
        store.store_outcomes(turn(n), [written(store, turn(n), [(n, 1, "acked")])])
        store.store_settlement(settlement(n), plan(n))
    offsets = [[row["offset"] for row in audit_rows(root, "orders", AuditFilter(as_of=version))] for version in (1, 2)]
    assert offsets == [[1], [1, 2]], "version 0 is the empty table"
    with pytest.raises(ConfigError, match="version 7 of the table outcomes"):
        list(audit_rows(root, "orders", AuditFilter(as_of=7)))


def test_exports_hold_the_rows_of_the_table_and_no_formula(
    root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ackline.cli.audit.pipeline_named", lambda _: None)
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    store.store_settlement(settlement(0))
    for n, message in enumerate(("=cmd()", "+1", "-1", "@x", "\tx", "\rx", "fine = 1"), 1):
        store.store_outcomes(turn(n), [written(store, turn(n), [(n, 1, "failed")], message=message)])
        store.store_settlement(settlement(n), plan(n))
    shown = CliRunner().invoke(app, ["audit", "orders", "--csv", "--offsets", "0:9"])
    rows = list(csv.DictReader(io.StringIO(shown.stdout, newline="")))
    assert [row["error_message"] for row in rows] == ["'=cmd()", "'+1", "'-1", "'@x", "'\tx", "'\rx", "fine = 1"]
    assert [int(row["offset"]) for row in rows] == list(range(1, 8))
    file = tmp_path / "rows.parquet"
    assert CliRunner().invoke(app, ["audit", "orders", "--parquet", str(file), "--turn", "3"]).exit_code == 0
    assert [row["error_message"] for row in pq.read_table(file).to_pylist()] == ["-1"]
    refused = CliRunner().invoke(app, ["audit", "orders", "--parquet", str(tmp_path / "none" / "x"), "--json"])
    assert isinstance(refused.exception, ConfigError)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["rows.parquet"]


MEASURE = """
import resource, sys
from ackline.audit.queries import AuditFilter, audit_pages, audit_rows
from ackline.audit.scan import LaneScanner, Scan
from ackline.ledger.offsets import OffsetRange
root, limit = sys.argv[1], int(sys.argv[2])
warm = list(audit_rows(root, "orders", AuditFilter(offsets=OffsetRange(5, 6), limit=1)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(1 for _ in audit_rows(root, "orders", AuditFilter(partition=0, limit=limit or None)))
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_partition_of_a_million_rows_costs_few_megabytes(root: str) -> None:
    rows = 1_000_000
    fill(root, rows)
    for limit, most in ((200, 100), (0, 200)):
        command = [sys.executable, "-c", MEASURE, root, str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        shown, mebibytes = map(int, done.stdout.split())
        assert shown == (limit or rows)
        assert mebibytes <= most, mebibytes


def test_of_a_compacted_file_only_the_row_groups_are_read_that_may_hold_the_rows(
    root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a file whose first row group holds a range that reaches to the offset."""
    store.store_settlement(settlement(0))
    for n in range(1, 7):
        file = written(store, turn(n), [(offset, 1, "acked") for offset in range(n * 10, n * 10 + 10)])
        decisions = [OutcomeRow(15, 0, Outcome.EXPIRED, NOON, None, 33)] if n == 1 else []
        store_turn(store, plan(n), file, settled=settlement(n), decisions=decisions)
    monkeypatch.setitem(maintenance.LAYOUTS, "outcomes", replace(maintenance.LAYOUTS["outcomes"], rows=11))
    maintain(root)
    for criteria, most, found in (  # of six groups; a group may hold rows of two turns
        (AuditFilter("orders", 0, OffsetRange(65, 66)), 2, [65]),
        (AuditFilter("orders", 0, OffsetRange(32, 33)), 3, [15, 32]),
        (AuditFilter(limit=12), 3, [*range(10, 16), *range(15, 21)]),
        (AuditFilter(newest_first=True, limit=12), 3, [50, 51, *range(60, 70)]),
    ):
        scanner = LaneScanner(store)
        pages = list(audit_pages(root, "orders", criteria, [scanner]))
        assert sorted(row["offset"] for page in pages for row in page.to_pylist()) == found
        assert scanner.files_opened == 1
        assert scanner.groups_read <= most


def fill(root: str, rows: int) -> None:
    """Stores one settled turn with `rows` acked records of one partition, as a Spark task writes them."""
    store = LedgerStore(root, "orders", "live")
    store.store_settlement(settlement(0))
    files = OutcomeFiles(OutcomeTarget(store.outcomes.uri, turn(1), DAY, "run"))
    for start in range(0, rows, 100_000):
        offsets = np.arange(start, start + 100_000)
        ones = np.ones(len(offsets), dtype=np.int32)
        files.add(TP, Outcome.ACKED, Chunk(offsets, offsets, ones, offsets))
    result = ReplayResult(tuple(files.close()), {}, rows, 0)
    store.store_outcomes(turn(1), add_actions(plan(1), result))
    store.store_settlement(settlement(1), plan(1))


# ---- the order of rows: a record's rows are its story, the oldest first


def story(root: str, criteria: AuditFilter) -> list[tuple[Any, ...]]:
    return [
        (row["turn"], row["offset"], row["attempt"], row["outcome"]) for row in audit_rows(root, "orders", criteria)
    ]


def test_the_decision_of_a_turn_comes_after_the_attempt_that_led_to_it(root: str, store: LedgerStore) -> None:
    """Also if the clock of the machine that settles is behind the executor's."""
    store.store_settlement(settlement(0))
    store_turn(store, plan(1), written(store, turn(1), [(3, 1, "failed")]), settled=settlement(1))
    dead = OutcomeRow(3, 0, Outcome.DEAD, NOON.replace(hour=11), "ValueError", reason="after 2 attempts")
    file = written(store, turn(2), [(3, 2, "failed"), (4, 1, "failed")])
    store_turn(store, plan(2), file, settled=settlement(2), decisions=[dead])
    in_order = [(1, 3, 1, "failed"), (2, 3, 2, "failed"), (2, 3, 0, "dead")]
    assert story(root, AuditFilter(offsets=OffsetRange(3, 4))) == in_order
    assert story(root, AuditFilter(everything=True)) == [*in_order, (2, 4, 1, "failed")]


def test_a_later_row_of_a_range_comes_after_the_attempts_of_an_offset_in_it(root: str, store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    file = written(store, turn(1), [(3, 1, "failed"), (4, 1, "failed")])
    store_turn(store, plan(1), file, settled=settlement(1))
    skipped = OutcomeRow(0, 0, Outcome.SKIPPED, NOON, None, 10, "gone bad")
    store_turn(store, plan(2), settled=settlement(2), decisions=[skipped])
    assert story(root, AuditFilter(offsets=OffsetRange(4, 5))) == [(1, 4, 1, "failed"), (2, 0, 0, "skipped")]
    assert [row[1] for row in story(root, AuditFilter())] == [0, 3, 4], "several offsets are sorted by offset"
