"""A damaged data file holds up neither the rest of its table nor another table, and maintenance names it."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from ackline.actions.maintain import maintain
from ackline.delta.files import DataFileWriter, delta_stats, row_groups
from ackline.delta.folder import Folder
from ackline.delta.table import FencedTable
from ackline.errors import FatalError
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import TurnId
from ackline.outputs.output_table import OF_ROW, OUTPUT_LAYOUT, OutputCompactor, OutputTable
from ackline.outputs.written import _write_files, entries
from ackline.stored import DamagedError
from ackline.tables.audit_table import AuditTable
from ackline.tables.layout import lanes_of
from ackline.tables.maintenance import RETENTION
from ackline.tables.store import LedgerStore
from tests.tables.lanes import begin_lane, delta

TURNS = 3
INSTANTS = [
    datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    datetime(1677, 9, 21, tzinfo=UTC),
    datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC),
    datetime(2262, 4, 12, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]
"""Times around those that Parquet's INT96 can hold in nanoseconds of 64 bits."""


def published(table: OutputTable, n: int) -> None:
    """Publishes a row of turn n."""
    anchors = [{"topic": "orders", "partition": 0, "offset": n, "attempt": 1, "outcome": "acked"}]
    row = {"_topic": "orders", "_partition": 0, "_offset": n, "_attempt": 1, "_lane": "live", "_epoch": 0, "_turn": n,
           "_anchors": anchors, "at": INSTANTS[n % len(INSTANTS)]}  # fmt: skip
    schema = pa.schema([*OF_ROW.remove_metadata(), ("at", pa.timestamp("us", "UTC"))])
    rows = pa.Table.from_pylist([row], schema)
    assert table.append(entries(_write_files(table, rows)), "ackline/ledger/orders/live/output", n << 24)


def rows(table: FencedTable) -> list[str]:
    return sorted(map(str, delta(table).to_pyarrow_dataset(filesystem=table.storage.filesystem).to_table().to_pylist()))


def paths(table: FencedTable) -> list[str]:
    return sorted(map(unquote, pa.table(delta(table).get_add_actions())["path"].to_pylist()))


def content(table: FencedTable, path: str) -> bytes:
    with table.storage.filesystem.open_input_file(path) as file:
        return bytes(file.read())


def put(table: FencedTable, path: str, damaged: bytes | None) -> None:
    if damaged is None:
        table.storage.filesystem.delete_file(path)
        return
    with table.storage.filesystem.open_output_stream(path) as file:
        file.write(damaged)


def flipped(whole: bytes, start: int, end: int) -> bytes:
    return whole[:start] + bytes(byte ^ 0xFF for byte in whole[start:end]) + whole[end:]


def flipped_page(whole: bytes, name: str | None = None) -> bytes:
    """Flips one bit in the last byte of a column, which can be decoded all the same: a checksum finds it. Without a
    name, of the last column of times."""
    group = pq.read_metadata(pa.BufferReader(whole)).row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    chosen = [c for c in columns if (c.physical_type == "INT64" if name is None else c.path_in_schema == name)][-1]
    start = chosen.dictionary_page_offset if chosen.has_dictionary_page else chosen.data_page_offset
    at = start + chosen.total_compressed_size - 1
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "empty": lambda _: b"",
    "missing": lambda _: None,
    "footer": lambda whole: flipped(whole, len(whole) - 200, len(whole) - 8),
    "page": flipped_page,
}


CASES = [
    *(("disk", "outcomes", damage) for damage in DAMAGES),
    ("disk", "settlements", "missing"),
    ("disk", "outputs/totals", "footer"),
    ("s3", "outcomes", "missing"),
]


@pytest.mark.parametrize(("root", "name", "damage"), CASES, indirect=["root"])
def test_maintenance_names_a_damaged_file_and_maintains_all_else(
    root: str, store: LedgerStore, name: str, damage: str
) -> None:
    begin_lane(store, TURNS)
    other = begin_lane(LedgerStore(root, "payments", "live"), 1)
    output = OutputTable(f"{store.folder}/outputs/totals", {"at": "timestamp"})
    for n in range(1, TURNS + 1):
        published(output, n)
    table = output if name.startswith("outputs/") else AuditTable(store.folder, name)
    broken, before = paths(table)[0], rows(table)
    whole = content(table, broken)
    put(table, broken, DAMAGES[damage](whole))

    with pytest.raises(FatalError) as failed:
        maintain(root)
    told = str(failed.value)
    assert "6 tables were maintained, 1 were not" in told
    assert f"the table {table.name} at" in told
    assert f"left as they are: {broken} (" in told
    assert "Restore these files from a backup, then run `ackline maintain` again" in told
    assert broken in paths(table), "the log still names it"
    assert len(paths(table)) == 2, "the others were merged"
    assert [len(paths(each)) for each in (other.plans, other.outcomes, other.settlements, store.plans)] == [1, 1, 1, 1]
    assert table.log.files().newest_checkpoint == delta(table).version(), "the log is checkpointed"

    put(table, broken, whole)
    assert len(maintain(root)) == 7
    assert (len(paths(table)), rows(table)) == (1, before)


def test_maintenance_goes_on_beside_a_table_of_a_former_version_and_a_folder_that_can_not_be_listed(
    root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_lane(LedgerStore(root, "a-former", "live"), 1)
    begin_lane(LedgerStore(root, "b-unlisted", "live"), 1)
    begin_lane(store, TURNS)
    former = DeltaTable(LedgerStore(root, "a-former", "live").plans.uri)
    former.alter.add_columns([Field("seen", PrimitiveType("long"))])

    def refuse_to_list(above: str, pipeline: str) -> Any:
        if pipeline == "b-unlisted":
            raise FatalError("the folder of b-unlisted can't be used: permission denied")
        return lanes_of(above, pipeline)

    monkeypatch.setattr("ackline.actions.maintain.lanes_of", refuse_to_list)
    with pytest.raises(FatalError, match=r"3 tables were maintained, 4 were not: .*a-former.* is now .*b-unlisted"):
        maintain(root)
    assert len(paths(store.outcomes)) == 1


@pytest.mark.parametrize(("name", "column"), [("outcomes", "attempt"), ("settlements", "complete_to")])
def test_a_page_that_is_damaged_and_can_be_decoded_stops_a_read_of_the_ledger(
    root: str, store: LedgerStore, name: str, column: str
) -> None:
    """Without the checksum, settle would take another number for what was stored."""
    table, turn = AuditTable(begin_lane(store, 1).folder, name), TurnId(store.pipeline, store.lane, 0, 1)
    for path in paths(table):
        put(table, path, flipped_page(content(table, path), column))
    damaged = LedgerStore(root, store.pipeline, store.lane)
    reads: dict[str, Callable[[], object]] = {
        "outcomes": lambda: damaged.outcomes_of(turn, {TopicPartition("orders", 0): 1 << 40}),
        "settlements": damaged.newest,
    }
    for read in (reads[name], lambda: AuditTable(store.folder, name).read({"turn": 1})):
        with pytest.raises(FatalError, match=rf"the table {name} .* could not verify page integrity"):
            read()
    if name == "outcomes":
        assert damaged.has_lost_files(turn)


def test_a_file_with_any_changed_byte_is_damaged_or_reads_as_it_was(root: str) -> None:
    folder = Folder(root)
    rows = pa.table({"offset": range(50), "text": [f"{n % 7}" for n in range(50)]})
    writer = DataFileWriter(folder, "whole.parquet", rows.schema)
    writer.write(rows)
    whole = writer.finish()
    content = folder.read("whole.parquet")
    assert content is not None
    footer = int.from_bytes(content[-8:-4], "little")
    found = 0
    for at in range(whole.size - footer - 8):
        folder.write("changed.parquet", flipped(content, at, at + 1))
        try:
            assert pa.concat_tables(row_groups(folder, "changed.parquet")).equals(rows), at
        except DamagedError:
            found += 1
    assert found > 100
    with pytest.raises(FileNotFoundError):
        list(row_groups(folder, "none.parquet"))
    Path(root, "folder.parquet").mkdir()
    with pytest.raises(OSError, match="directory"):  # can't be read, which proves nothing about its content
        list(row_groups(folder, "folder.parquet"))


def test_a_file_that_has_another_number_of_rows_than_the_log_states_is_damaged(root: str, store: LedgerStore) -> None:
    begin_lane(store, TURNS)
    of_attempts, of_fewer = sorted(paths(store.outcomes), key=lambda path: -_rows_in(store.outcomes, path))[
        :: 3 * TURNS - 1
    ]
    put(store.outcomes, of_fewer, content(store.outcomes, of_attempts))
    with pytest.raises(FatalError, match=r"damaged files.*\(it holds \d rows, and the log states \d\)"):
        maintain(root)


def test_times_that_another_tool_has_written_as_int96_stay_exactly_as_they_are(root: str, store: LedgerStore) -> None:
    begin_lane(store)
    table = OutputTable(f"{store.folder}/outputs/totals", {"at": "timestamp"})
    for n in range(1, len(INSTANTS) + 1):
        published(table, n)
    before = rows(table)
    opened = DeltaTable(table.uri)
    added: list[AddAction | RemoveAction] = []
    for path in paths(table)[1:]:
        file = f"{table.uri}/{path}"
        pq.write_table(pq.ParquetFile(file).read(), file, use_deprecated_int96_timestamps=True)
        size = len(content(table, path))
        added.append(AddAction(path, size, {}, 0, False, delta_stats(pq.read_metadata(file))))
    opened.create_write_transaction(added, "append", opened.schema())
    assert {_type_of_at(table, path) for path in paths(table)[1:]} == {"INT96"}
    assert [done.compacted for done in maintain(root) if done.table == "outputs/totals"] == [len(INSTANTS)]
    assert (len(paths(table)), rows(table)) == (1, before)


def _rows_in(table: FencedTable, path: str) -> int:
    return int(pq.read_metadata(pa.BufferReader(content(table, path))).num_rows)


def _type_of_at(table: FencedTable, path: str) -> str:
    columns = pq.read_metadata(pa.BufferReader(content(table, path))).schema
    return str(columns.column(columns.names.index("at")).physical_type)


def test_the_error_of_many_damaged_files_names_the_first_three(store: LedgerStore, root: str) -> None:
    table = OutputTable(f"{store.folder}/outputs/totals", {"at": "timestamp"})
    compactor = OutputCompactor(table, OUTPUT_LAYOUT, RETENTION)
    compactor._damaged = {f"f{n}": "no footer" for n in range(5)}
    assert "f0 (no footer), f1 (no footer), f2 (no footer), and 2 more." in str(compactor._damage())
