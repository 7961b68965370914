"""Tables of an earlier version are read as they are, and the next write adds the columns that they lack."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ackline.audit.history import settled_turns
from ackline.errors import ConfigError
from ackline.tables import schemas
from ackline.tables.audit_table import AuditTable
from ackline.tables.schemas import plan_rows, settlement_rows
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import DAY, TP, newest_of, plan, settlement, turn
from tests.tables.spark_statements import spark

FIGURES = pa.field("some_figures", pa.map_(pa.string(), pa.float64()))
"""A column that no version has yet: maps are added like any other."""
NEW = ["metrics", "totals", "leader_epoch", "steps", "code", FIGURES.name]
"""The columns that the earlier version did not have."""


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An audit root with tables of an earlier version: a genesis, a settlement, and an open plan."""
    root = str(tmp_path / "audit")
    with monkeypatch.context() as earlier:
        for name in ("plans", "settlements"):
            known = [field for field in schemas.TABLES[name] if field.name not in NEW]
            earlier.setitem(schemas.TABLES, name, pa.schema(known))
        _append(root, "plans", plan_rows(plan(2)), "plan", 2)
        for n in (0, 1):
            _append(root, "settlements", settlement_rows(settlement(n), DAY), "settlement", n)
    monkeypatch.setitem(schemas.TABLES, "settlements", schemas.TABLES["settlements"].append(FIGURES))
    return root


def _append(root: str, name: str, rows: pa.Table, kind: str, number: int) -> None:
    known = [column for column in rows.column_names if column not in NEW]
    assert AuditTable(f"{root}/orders", name).append(rows.select(known), f"ackline/orders/live/0/{kind}", number)


def _rows(n: int) -> pa.Table:
    """Returns a settlement with all columns."""
    settled = replace(settlement(n).partitions[TP], leader_epoch=7, totals={"acked": 3})
    known = replace(settlement(n), partitions={TP: settled}, code="v1")
    metrics = pa.array([[("fetch", 0.5)]], FIGURES.type)
    return settlement_rows(known, DAY).append_column(FIGURES, metrics)


def _columns(root: str, name: str) -> list[str]:
    return [field.name for field in DeltaTable(f"{root}/orders/{name}").schema().fields]


@pytest.mark.real
def test_the_first_write_adds_the_columns_and_both_engines_read_old_and_new_rows(older: str) -> None:
    before = LedgerStore(older, "orders", "live").ledger_id()
    table = AuditTable(f"{older}/orders", "settlements")
    assert not table.append(_rows(1), "ackline/orders/live/0/settlement", 1), "an earlier version has taken it"
    assert table.append(_rows(2), "ackline/orders/live/0/settlement", 2)
    store = LedgerStore(older, "orders", "live")
    newest = newest_of(store)
    assert (newest.turn, newest.partitions[TP].leader_epoch) == (turn(2), 7)
    assert (store.settlement(turn(1)), store.ledger_id()) == (settlement(1), before)
    assert _columns(older, "settlements")[-len(NEW) :] == NEW
    columns = ", ".join(["turn", "topic", *NEW])
    with spark() as run:
        read = run(f"SELECT to_json(struct({columns})) FROM delta.`{older}/orders/settlements` ORDER BY turn")
    assert [json.loads(row) for (row,) in read] == [
        {"turn": 0, "topic": "orders", **dict.fromkeys(NEW)},
        {"turn": 1, "topic": "orders", **dict.fromkeys(NEW)},
        {
            "turn": 2,
            "topic": "orders",
            **dict(zip(NEW, (None, {"acked": 3}, 7, None, "v1", {"fetch": 0.5}), strict=True)),
        },
    ]


def test_a_new_table_describes_itself_and_each_column_and_an_added_column_too(older: str, tmp_path: Path) -> None:
    for name, schema in schemas.TABLES.items():
        table = AuditTable(str(tmp_path / "new" / "orders"), name)
        table.create()
        made = DeltaTable(table.uri)
        comments = {field.name: field.metadata.get("comment") for field in made.schema().fields}
        assert list(comments) == schema.names
        assert all(text and text.endswith(".") for column, text in comments.items() if column != FIGURES.name)
        assert made.metadata().description == schemas.DESCRIPTIONS[name]
    assert AuditTable(f"{older}/orders", "settlements").append(_rows(2), "own", 1)
    added = {
        field.name: field.metadata.get("comment") for field in DeltaTable(f"{older}/orders/settlements").schema().fields
    }
    assert added["totals"] == "The offsets of the epoch so far by outcome, and how many attempts were retries."


def test_of_writers_that_add_the_columns_at_once_one_does_and_no_row_is_lost(older: str) -> None:
    def write(n: int) -> bool:
        return AuditTable(f"{older}/orders", "settlements").append(_rows(1), f"own/{n}", 1)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write, range(8)))
    assert _columns(older, "settlements")[-len(NEW) :] == NEW
    operations = [entry["operation"] for entry in DeltaTable(f"{older}/orders/settlements").history()]
    assert operations.count("ADD COLUMN") == 1
    assert AuditTable(f"{older}/orders", "settlements").read(None).num_rows == 2 + 8


def test_without_a_lock_a_rival_that_adds_the_columns_fails_no_append(
    older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rival = AuditTable(f"{older}/orders", "settlements"), AuditTable(f"{older}/orders", "settlements")
    assert table.open() is not None
    real = AuditTable.open

    def late(self: AuditTable) -> DeltaTable | None:
        """Returns the version from before the rival's write."""
        table_before = real(self)
        if self is table:
            monkeypatch.setattr(AuditTable, "open", real)
            rival.create()
        return table_before

    monkeypatch.setattr(AuditTable, "lock", lambda self: nullcontext())
    monkeypatch.setattr(AuditTable, "open", late)
    assert table.append(_rows(2), "own", 1)
    assert _columns(older, "settlements")[-len(NEW) :] == NEW
    operations = [entry["operation"] for entry in DeltaTable(f"{older}/orders/settlements").history()]
    assert operations.count("ADD COLUMN") == 1


@pytest.mark.parametrize("former", schemas.FORMER_COLUMNS)
def test_a_table_with_a_column_of_a_former_name_is_refused_with_what_to_do(
    former: str, older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values would be read as null: without the acknowledged offset, the floor would not be committed."""
    root = f"{older}-former"
    with monkeypatch.context() as earlier:
        known = [field.with_name(former) if field.name == schemas.FORMER_COLUMNS[former] else field
                 for field in schemas.TABLES["settlements"]]  # fmt: skip
        earlier.setitem(schemas.TABLES, "settlements", pa.schema(known))
        earlier.setattr("ackline.tables.audit_table.FORMER_COLUMNS", {})
        AuditTable(f"{root}/orders", "settlements").create()
    store, what_to_do = LedgerStore(root, "orders", "live"), "Point ACKLINE_AUDIT at an empty folder"
    for refused in (
        store.newest,
        store.settlements.open,
        store.settlements.create,
        lambda: settled_turns(root, "orders"),
    ):
        with pytest.raises(ConfigError, match=rf"its column {former} is now \w+\. {what_to_do}"):
            refused()
