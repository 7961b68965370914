"""A reader may be as slow as the retention is long, whatever appends, compactions and vacuums do meanwhile (fault 33).

The state machine draws turns, maintenance, hours that pass, and readers that stop after a few rows and go on later. A
query of Ackline opens the newest version for each page. A user's tool reads the files of the version that it opened:
one that is slower than the retention finds them removed and raises. Neither leaves out or repeats a row in silence.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from ackline.tables import queries
from ackline.tables.maintenance import RETENTION, maintain
from ackline.tables.queries import AuditFilter, audit_rows
from ackline.tables.store import LedgerStore
from tests.tables.lanes import OUTCOMES_A_TURN, begin_lane, settle_turns

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


@dataclass(slots=True)
class Reader:
    """One that has begun to read."""

    rows: Iterator[dict[str, Any]]
    expected: Counter[tuple[int, str]]
    """The rows that were there when it began: how many of which turn and outcome."""
    seen: Counter[tuple[int, str]]
    age: timedelta = timedelta()

    def read(self, most: int | None) -> bool:
        """Reads rows, at most so many. Returns whether it is at its end."""
        rows = [(row["turn"], row["outcome"]) for row in islice(self.rows, most)]
        self.seen.update(rows)
        return most is None or len(rows) < most


class SlowReaders(RuleBasedStateMachine):
    """A lane on a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.turns = 2
        begin_lane(LedgerStore(str(self.root), "orders", "live"), self.turns)
        self.readers: list[Reader] = []

    def stored(self) -> Counter[tuple[int, str]]:
        return Counter({(n, word): count for n in range(1, self.turns + 1) for word, count in OUTCOMES_A_TURN.items()})

    @rule(count=st.integers(1, 3))
    def settle(self, count: int) -> None:
        settle_turns(LedgerStore(str(self.root), "orders", "live"), range(self.turns + 1, self.turns + count + 1))
        self.turns += count

    @rule()
    def compact_and_vacuum(self) -> None:
        maintain(str(self.root))
        assert Counter((row["turn"], row["outcome"]) for row in query(self.root)) == self.stored()

    @rule(hours=st.sampled_from([1, 40, 80, 100, 200]))
    def pass_time(self, hours: int) -> None:
        age = timedelta(hours=hours)
        grow_older(self.root, age)
        for reader in self.readers:
            reader.age += age

    @precondition(lambda self: len(self.readers) < 3)
    @rule(kind=st.sampled_from([query, tool]), rows=st.integers(1, 9))
    def begin(self, kind: Callable[[Path], Iterator[dict[str, Any]]], rows: int) -> None:
        reader = Reader(kind(self.root), self.stored(), Counter())
        reader.read(rows)  # the tables are opened when the first row is read
        self.readers.append(reader)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 2), rows=st.sampled_from([1, 4, 9, None]))
    def go_on(self, which: int, rows: int | None) -> None:
        reader = self.readers.pop(which % len(self.readers))
        try:
            if not reader.read(rows):
                self.readers.append(reader)
                return
        except FileNotFoundError:
            assert reader.age >= RETENTION, "its files stay for the retention"
            event("slower than the retention")
            return
        event("read to the end")
        assert reader.seen == reader.expected

    def teardown(self) -> None:
        while self.readers:
            self.go_on(0, None)
        self.folder.cleanup()


def run(examples: int, steps: int, derandomize: bool) -> None:
    run_state_machine_as_test(
        SlowReaders,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, derandomize=derandomize, database=None, deadline=None,
            phases=[Phase.generate, Phase.shrink],
        ),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "PAGE_ROWS", 3)  # a page is read at once, so a slow reader needs several
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no machine loses its power here


def test_fault_33_a_slow_reader_gets_each_row_beside_compaction_and_vacuum() -> None:
    run(6, 12, derandomize=True)


@pytest.mark.deep
def test_fault_33_many_slow_readers_get_each_row_beside_compaction_and_vacuum() -> None:
    run(10, 25, derandomize=False)


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
