"""Publishing a settled turn to real output tables: every row of it once, whatever the store answers."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ackline.errors import ConfigError
from ackline.ledger.outcomes import Outcome, OutcomeRow
from ackline.ledger.turns import TurnId
from ackline.outputs import keep
from ackline.pipeline.output_columns import STAGED_ANCHORS, arrow_type
from ackline.pipeline.outputs import OutputsOfTurn, StagedFile, StagedTable
from ackline.tables import append
from ackline.tables.files import DataFileWriter
from ackline.tables.folder import Folder
from ackline.tables.kept_rows import KeptRows
from ackline.tables.object_store import options_of
from ackline.tables.output_table import OutputTable
from ackline.tables.publish import publish, table_of
from tests.outputs.kept_lane import TP, Store
from tests.tables.roots import EVERYWHERE, ON_DISK

ROOTS = EVERYWHERE
TURN = TurnId("shop", "live", 0, 7)
COLUMNS = {"day": "string", "sum": "double"}
ROWS: list[dict[str, Any]] = [{"day": "x", "sum": 0.5}, {"day": "a/b c%ü", "sum": 1.0}, {"day": None, "sum": 1.5}]


@pytest.fixture
def ledger(root: str) -> Any:
    """The ledger of a lane whose turn has acked the records of all rows."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    return Store(root, rows={TURN: [OutcomeRow(number, 1, Outcome.ACKED, now) for number in range(100)]})


class Staging:
    """The staging folder of a lane. Each row that is staged there has a record of its own."""

    def __init__(self, root: str) -> None:
        self.storage = Folder(f"{root}/shop/.staging")
        self.rows = 0

    def table(
        self, rows: list[dict[str, Any]], columns: dict[str, str] = COLUMNS, partition_by: tuple[str, ...] = ("day",)
    ) -> StagedTable:
        """Stages rows for the table `totals`."""
        numbers = range(self.rows, self.rows + len(rows))
        self.rows += len(rows)
        anchors = [[{"topic": TP.topic, "partition": TP.partition, "offset": n, "attempt": 1}] for n in numbers]
        schema = pa.schema([STAGED_ANCHORS, *((name, arrow_type(kind)) for name, kind in columns.items())])
        writer = DataFileWriter(self.storage, f"live-0-7/{self.rows}.parquet", schema)
        writer.write(
            pa.Table.from_pylist([{"_anchors": a, **row} for a, row in zip(anchors, rows, strict=True)], schema)
        )
        file = writer.finish()
        return StagedTable("totals", columns, partition_by, [StagedFile(0, file.path, file.size, len(rows))])


@pytest.fixture
def staging(root: str) -> Staging:
    return Staging(root)


def publish_turn(ledger: Any, *sources: StagedTable) -> None:
    """Publishes rows as any process does that meets the settled turn."""
    outputs = OutputsOfTurn("ackline/id/shop/live/0/output", "", {"totals": len(sources)}, released=sources)
    publish(ledger, TURN, outputs, None, f"{ledger.root}/shop/.staging", "live-0-7")


def delta(table: OutputTable) -> DeltaTable:
    """The table as a user opens it."""
    return DeltaTable(table.uri, storage_options=options_of(table.uri))


def rows_of(ledger: Any) -> list[dict[str, Any]]:
    """The emitted columns of the rows of the table, in their order."""
    table = table_of(ledger, "totals")
    read = delta(table).to_pyarrow_dataset(filesystem=table.storage.filesystem).to_table()
    emitted = [name for name in read.column_names if not name.startswith("_")]
    rows: list[dict[str, Any]] = read.sort_by("_offset").select(emitted).to_pylist()
    return rows


# ---- what the store answers -------------------------------------------------------------------------------------


def refused_once_stored(commit: Callable[..., None]) -> Callable[..., None]:
    """The commit, as one whose answer is lost: the writer repeats it, and is refused by its own entry."""

    def store_and_refuse(*arguments: Any, **more: Any) -> None:
        commit(*arguments, **more)
        raise CommitFailedError("version is stored already")

    return store_and_refuse


def test_rows_of_a_commit_that_is_stored_and_reported_as_refused_stay(
    ledger: Any, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = staging.table(ROWS)
    monkeypatch.setattr("ackline.tables.table.link_entry", refused_once_stored(append.link_entry))
    monkeypatch.setattr(OutputTable, "commit", refused_once_stored(OutputTable.commit))
    for _ in range(2):
        publish_turn(ledger, staged)
        assert rows_of(ledger) == ROWS


@ON_DISK
def test_a_log_entry_whose_link_is_made_and_reported_as_existing_is_ours(
    ledger: Any, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS: the server makes the link, its answer is lost, and the client's repeat finds the name taken."""

    def link(source: Any, target: Any) -> None:
        made(source, target)
        raise FileExistsError(target)

    made = os.link
    publish_turn(ledger, staging.table(ROWS))
    table = table_of(ledger, "totals")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        assert table.append([], "another", 1) is True
    assert table.append([], "another", 1) is False
    assert delta(table).transaction_version("another") == 1


@ON_DISK
def test_a_log_entry_of_a_writer_without_our_lock_is_not_taken_for_ours(
    ledger: Any, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Any, target: Any) -> None:
        if not rivals:
            rivals.append("sets a property")
            delta(table).alter.set_table_properties({"delta.appendOnly": "true"})
        made(source, target)

    made, rivals = os.link, list[str]()
    publish_turn(ledger, staging.table(ROWS))
    table = table_of(ledger, "totals")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        assert table.append([], "another", 1) is True
    assert delta(table).version() == 3
    assert delta(table).transaction_version("another") == 1


# ---- values of partition columns --------------------------------------------------------------------------------


def test_rows_with_long_values_of_partition_columns_are_published(ledger: Any, staging: Staging) -> None:
    """30 CJK characters take 270 bytes in a path, where a file system allows 255 in a name and S3 1,024 in a key."""
    names = [f"c{number}" for number in range(12)]
    columns = {**dict.fromkeys(names, "string"), "n": "long"}
    long = {**dict.fromkeys(names, "漢" * 15), "n": 1}
    rows: list[dict[str, Any]] = [
        {**dict.fromkeys(names, "a"), "c0": "漢" * 30, "n": 0},
        long,
        {**long, "c11": "漢" * 14, "n": 2},
        {**long, "c11": None, "n": 3},
        {**dict.fromkeys(names, "a"), "c0": "x" * 50_000, "n": 4},
    ]
    publish_turn(ledger, staging.table(rows, columns, tuple(names)))
    assert rows_of(ledger) == rows
    assert len(delta(table_of(ledger, "totals")).file_uris()) == len(rows)


# ---- columns ----------------------------------------------------------------------------------------------------


def test_a_column_that_rows_lack_is_null_also_if_the_table_is_partitioned_by_it(ledger: Any, staging: Staging) -> None:
    """A user has created the table, or added columns to it, after the rows were staged."""
    uri = table_of(ledger, "totals").uri
    of_user = OutputTable(uri, {"note": "string", "sum": "double", "day": "string"}, ["day", "_lane"])
    assert of_user.append([], "a user", 1)
    only_sum = [{"sum": 0.5}, {"sum": 1.0}]
    publish_turn(ledger, staging.table(only_sum, {"sum": "double"}, ()), staging.table(ROWS))
    assert rows_of(ledger) == [{"note": None, "day": None, **row} for row in (*only_sum, *ROWS)]


def test_a_new_table_has_the_columns_of_all_rows_that_it_begins_with(ledger: Any, staging: Staging) -> None:
    sources = [
        staging.table([{"sum": 0.5}], {"sum": "double"}, ("day",)),
        staging.table([{"sum": 1.0, "day": "x"}], {"sum": "double", "day": "string"}, ("day",)),
        staging.table([{"n": 1, "sum": 1.5}], {"n": "long", "sum": "double"}, ()),
    ]
    publish_turn(ledger, *sources)
    expected: list[dict[str, Any]] = [{"sum": 0.5}, {"sum": 1.0, "day": "x"}, {"n": 1, "sum": 1.5}]
    assert rows_of(ledger) == [{"day": None, "n": None, **row} for row in expected]


def test_settle_accepts_rows_of_other_columns_that_a_new_table_takes_together(
    ledger: Any, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that wait since two turns, of which the second had a field more."""
    rows = [staging.table([{"sum": 1.0}], {"sum": "double"}, ()), staging.table(ROWS[:1], COLUMNS, ())]
    monkeypatch.setattr(keep, "is_at_most_once", lambda _: False)
    keep._check_columns(SimpleNamespace(store=ledger), None, (), KeptRows([], rows, {"totals": 2}))  # type: ignore[arg-type]
    publish_turn(ledger, *rows)
    assert rows_of(ledger) == [{"sum": 1.0, "day": None}, {"sum": 0.5, "day": "x"}]


def test_a_table_that_another_lane_creates_first_with_other_columns_gets_no_row_that_does_not_fit(
    ledger: Any, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = OutputTable.create

    def created_by_another_lane(table: OutputTable) -> None:
        create(OutputTable(table.uri, {"sum": "string"}))
        create(table)

    monkeypatch.setattr(OutputTable, "create", created_by_another_lane)
    with pytest.raises(ConfigError, match=r"differ from those of the table or of the pipeline file \(day, sum\)"):
        publish_turn(ledger, staging.table(ROWS))
    assert rows_of(ledger) == []


@pytest.mark.parametrize("columns", [{"day": "string", "n": "long"}, {"day": "string", "sum": "long", "n": "long"}])
def test_rows_with_a_column_that_their_table_lacks_or_has_with_another_type_are_refused_by_its_name(
    root: str, ledger: Any, staging: Staging, columns: dict[str, str]
) -> None:
    assert OutputTable(table_of(ledger, "totals").uri, columns).append([], "a user", 1)
    with pytest.raises(ConfigError, match=r"or of the pipeline file \(sum\)"):
        publish_turn(ledger, staging.table(ROWS))


def test_values_of_each_type_of_column_are_published_as_they_were_staged(ledger: Any, staging: Staging) -> None:
    columns = {
        "string": "string", "long": "long", "double": "double", "boolean": "boolean", "binary": "binary",
        "timestamp": "timestamp", "price": "decimal(9,2)", "large": "decimal(38,9)",
    }  # fmt: skip
    row = {
        "string": "", "long": -1, "double": 0.5, "boolean": False, "binary": b"\0",
        "timestamp": datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC), "price": Decimal("0.10"),
        "large": Decimal("-12345678901234567890.123456789"),
    }  # fmt: skip
    rows = [row, dict.fromkeys(columns)]
    publish_turn(ledger, staging.table(rows, columns, ()))
    assert rows_of(ledger) == rows
