"""A reader may be as slow as the retention is long, whatever appends, compactions and vacuums do meanwhile (fault 33).

A query of Ackline opens the newest version for each page. A user's tool reads the files of the version that it opened:
one that is slower than the retention finds them removed and raises. Neither leaves out or repeats a row in silence.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ackline.actions.maintain import maintain
from ackline.audit import queries
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.tables.maintenance import RETENTION
from ackline.tables.store import LedgerStore
from tests.tables.lanes import OUTCOMES_A_TURN, begin_lane, settle_turns

Rows = Counter[tuple[int, str]]
"""How many rows there are of which turn and outcome."""
_TIMES = re.compile(r'"(deletionTimestamp|modificationTime)":(\d+)')


def grow_older(root: Path, age: timedelta) -> None:
    """Sets back each time by which a vacuum, or the expiry of log entries, knows how old a file below `root` is."""
    millis = age // timedelta(milliseconds=1)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        then = path.stat().st_mtime - age.total_seconds()
        if path.parent.name == "_delta_log" and path.suffix == ".json":
            text = path.read_text()
            path.write_text(_TIMES.sub(lambda found: f'"{found[1]}":{int(found[2]) - millis}', text))
        elif path.parent.name == "_delta_log" and path.suffix == ".parquet":
            pq.write_table(_older(pq.read_table(path), millis), path)
        os.utime(path, (then, then))


def _older(checkpoint: pa.Table, millis: int) -> pa.Table:
    index = checkpoint.schema.get_field_index("remove")
    removes = checkpoint.column(index).combine_chunks()
    fields = [removes.type.field(n) for n in range(removes.type.num_fields)]
    columns = [
        pc.subtract(removes.field(n), millis) if field.name == "deletionTimestamp" else removes.field(n)
        for n, field in enumerate(fields)
    ]
    changed = pa.StructArray.from_arrays(columns, fields=fields, mask=removes.is_null())
    return checkpoint.set_column(index, checkpoint.schema.field(index), changed)


def query(root: Path) -> Iterator[dict[str, Any]]:
    """Reads as `ackline audit` does."""
    return audit_rows(str(root), "orders", AuditFilter())


def tool(root: Path) -> Iterator[dict[str, Any]]:
    """Reads as a tool for Delta tables does: file by file."""
    for file in DeltaTable(LedgerStore(str(root), "orders", "live").outcomes.uri).to_pyarrow_dataset().get_fragments():
        yield from file.to_table(columns=["turn", "outcome"]).to_pylist()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "PAGE_ROWS", 3)  # a page is read at once, so a slow reader needs several
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no machine loses its power here


@pytest.mark.parametrize("kind", [query, tool])
def test_fault_33_a_slow_reader_gets_each_row_beside_compaction_and_vacuum(
    kind: Callable[[Path], Iterator[dict[str, Any]]], tmp_path: Path
) -> None:
    """At each step a reader begins, the others read on, and a turn is appended. The first one takes 167 hours."""
    store, readers = LedgerStore(str(tmp_path), "orders", "live"), list[tuple[Iterator[dict[str, Any]], Rows, Rows]]()
    begin_lane(store, 2)
    for turns, hours in enumerate((1, 60, 60, 46), 2):
        whole = Rows({(n, word): count for n in range(1, turns + 1) for word, count in OUTCOMES_A_TURN.items()})
        readers.append((kind(tmp_path), whole, Rows()))
        for number, (rows, _, seen) in enumerate(readers):
            seen.update((row["turn"], row["outcome"]) for row in islice(rows, 1 + number))
        settle_turns(store, range(turns + 1, turns + 2))
        maintain(str(tmp_path))
        grow_older(tmp_path, timedelta(hours=hours))
    for rows, whole, seen in readers:
        seen.update((row["turn"], row["outcome"]) for row in rows)
        assert seen == whole


def test_fault_33_a_reader_that_is_slower_than_the_retention_raises(tmp_path: Path) -> None:
    begin_lane(LedgerStore(str(tmp_path), "orders", "live"), 3)
    rows, pages = tool(tmp_path), query(tmp_path)
    seen = [next(rows), next(pages)]
    assert sum(result.removed for result in maintain(str(tmp_path))) == 0
    grow_older(tmp_path, RETENTION - timedelta(hours=2))
    assert sum(result.removed for result in maintain(str(tmp_path))) == 0
    seen += [*islice(rows, 6), *islice(pages, 6)]
    grow_older(tmp_path, timedelta(hours=4))
    assert sum(result.removed for result in maintain(str(tmp_path))) > 9
    with pytest.raises(FileNotFoundError):
        list(rows)
    assert len(seen) + len(list(pages)) == 7 + 21, "a query reads on in the files that took their place"
