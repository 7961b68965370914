"""An output table in memory, for the machine of tables with `rows: newest`: versions, their files, and who looks.

`MemoryTable` stands for `OutputTable`, and `MemoryOlderRows` reads its files in place of Parquet. Which files and rows
are chosen, what an entry needs and what a lane expects of a table is decided by the package's own code.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ackline.delta.append import retry_beside_rivals
from ackline.delta.table import Upon
from ackline.errors import TransientError
from ackline.ledger.published import publishers
from ackline.ledger.turns import turn_in
from ackline.outputs.newest_rows import OlderRows, _may_name
from ackline.outputs.output_table import ANCHORS
from tests.chaos.account import Violation

SCHEMA = pa.schema(
    [("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()), ("_lane", pa.string()),
     ("_epoch", pa.int32()), ("_anchors", ANCHORS), ("value", pa.int64())]
)  # fmt: skip


@dataclass(frozen=True)
class Version:
    """A version of a table, as its state and as what is opened of it. `truth` is what the oracle keeps beside it."""

    version: int
    transactions: Mapping[str, int]
    files: Mapping[str, pa.Table]
    truth: Any

    @cached_property
    def listed(self) -> pa.Table:
        """The files with their bounds, as `table_files` returns them."""
        columns: dict[str, list[Any]] = {"path": list(self.files), "num_records": [len(f) for f in self.files.values()]}
        for name in ("_topic", "_partition", "_offset"):
            bounds = [pc.min_max(file[name]).as_py() for file in self.files.values()]
            columns |= {f"{end}.{name}": [each[end] for each in bounds] for end in ("min", "max")}
        return pa.table(columns)

    @cached_property
    def values(self) -> list[int]:
        return sorted(value for file in self.files.values() for value in file["value"].to_pylist())


@dataclass
class MemoryTable:
    """`loose` are files that no version names. `meanwhile` is called between the version that an entry is made upon and
    the entry; `entered` with the transaction id and number of an entry, and returns the truth after it."""

    uri: str
    meanwhile: Callable[[], None]
    entered: Callable[["MemoryTable", str, int], Any]
    newest: Version
    loose: dict[str, pa.Table] = field(default_factory=dict)
    looks: int = 0
    refused: int = 0

    def state(self) -> Version:
        return self.newest

    opened = state

    def transactions(self) -> Mapping[str, int]:
        return self.newest.transactions

    def columns(self) -> dict[str, str]:
        return {"value": "long"}

    def errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check_replaceable(self, pipeline: str) -> None:
        pass

    def is_new(self, state: Version) -> bool:
        return not publishers(state.transactions) and not state.files

    def has_files(self, files: Sequence[Any]) -> bool:
        return all(file.path in self.loose for file in files)

    def check_is_at(self, opened: Version, state: Version) -> None:
        if opened.version != state.version:
            raise CommitFailedError(f"version {state.version + 1} is stored already")

    def write(self, rows: pa.Table) -> str:
        """Returns the path of a new file, which no version names yet."""
        path = uuid.uuid4().hex
        self.loose[path] = rows
        return path

    def append(
        self, actions: Sequence[AddAction], application: str, number: int, upon: Callable[[Version], Upon]
    ) -> bool:
        """Does what `FencedTable.append` does upon an object store: there is no lock, and rivals come in between."""

        def store() -> bool:
            state = self.newest
            if turn_in(state.transactions.get(application, -1)) >= turn_in(number):
                return False
            what = upon(state)
            self.meanwhile()
            if turn_in(self.newest.transactions.get(application, -1)) >= turn_in(number):
                return False
            if self.newest is not state and (what.exclusive or what.actions):
                self.refused += 1
                raise CommitFailedError("Tried committing existing table version")
            files, names = dict(self.newest.files), {application: number} | dict(what.numbers)
            for action in (*what.actions, *actions):
                if isinstance(action, RemoveAction):
                    del files[action.path]
                elif action.path not in self.loose:
                    raise Violation(f"an entry of {self.uri} names a file that is gone")
                else:
                    files[action.path] = self.loose.pop(action.path)
            truth = self.entered(self, application, number)
            self.newest = Version(self.newest.version + 1, {**self.newest.transactions, **names}, files, truth)
            return True

        try:
            return retry_beside_rivals(store)
        except CommitFailedError:
            raise TransientError("others write all the time") from None

    def compact(self, order: Callable[[list[int]], None]) -> None:
        """Merges all files into one, with the rows in another order."""
        if self.newest.files:
            rows = pa.concat_tables(self.newest.files.values())
            places = list(range(len(rows)))
            order(places)
            files = {uuid.uuid4().hex: rows.take(places)}
            self.newest = Version(self.newest.version + 1, self.newest.transactions, files, self.newest.truth)


@dataclass
class MemoryOlderRows(OlderRows):
    """Reads files in memory, counts each look at a file, and keeps each rule of `OlderRows`."""

    table: Any

    def _candidates(self, version: Any, state: Any) -> Iterator[dict[str, Any]]:
        self.table.looks += bool(version.files)
        return super()._candidates(version, state)

    def _may_be_anchored(self, path: str) -> bool:
        lists = self.table.newest.files[path]["_anchors"].combine_chunks()
        if (pc.max(pc.list_value_length(lists)).as_py() or 0) <= 1:
            return False
        named = pc.list_flatten(lists)
        bounds = {f"{end}._{name}": [pc.min_max(named.field(name))[end].as_py()]
                  for end in ("min", "max") for name in ("topic", "partition", "offset")}  # fmt: skip
        return bool(_may_name(pa.table(bounds), self.records)[0])

    def _read(self, version: Any, file: Mapping[str, Any], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        yield version.files[file["path"]]

    def _rewritten(self, version: Any, file: Mapping[str, Any], removed: int) -> Iterator[AddAction | RemoveAction]:
        rows = version.files[file["path"]]
        others = rows.filter(pa.array(~self._chosen_of(rows, {})))
        yield RemoveAction(file["path"], True, 0, 0, {})
        if len(others):
            yield AddAction(self.table.write(others), 1, {}, 0, True, "")
