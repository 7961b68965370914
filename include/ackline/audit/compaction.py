"""What maintenance of the ledger's tables and of output tables share: which files are merged, and what it reports."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable

from ackline.audit.storage import Storage

COMPACTION_TRIES = 3
"""How many times maintenance tries a compaction while other processes commit. The next maintenance tries again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table is compacted."""

    size: int
    """Bytes of a compacted file, roughly. Larger files stay as they are."""
    rows: int
    """Rows of a row group."""


@dataclass(frozen=True, slots=True)
class Maintained:
    """What maintenance did to one table of one lane, or to one output table of a pipeline."""

    pipeline: str
    lane: str
    table: str
    """The name of the table; `outputs/NAME` for an output table."""
    files_before: int
    files: int
    compacted: int
    """Files that were merged into larger ones."""
    busy: int
    """Days, or partitions of an output table, that stay fragmented until the next maintenance, because another process
    replaced their files at the same time."""
    removed: int
    """Unused files that were removed."""
    version: int


def small_files(version: DeltaTable, layout: Layout) -> list[dict[str, Any]]:
    """Returns the files below the size of a compacted one, with their statistics, oldest first."""
    files = pa.table(version.get_add_actions(flatten=True)).to_pylist()
    small = [file for file in files if file["size_bytes"] < layout.size]
    return sorted(small, key=lambda file: (file["modification_time"], file["path"]))


def joined(files: list[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    """Yields groups of at least two files, each of which makes up about one compacted file."""
    together: list[dict[str, Any]] = []
    for file in files:
        if together and sum(other["size_bytes"] for other in together) + file["size_bytes"] > size:
            if len(together) > 1:
                yield together
            together = []
        together.append(file)
    if len(together) > 1:
        yield together


def paths_of(version: DeltaTable) -> set[str]:
    """Returns the paths of the files of a version, as its log holds them."""
    return set(pa.table(version.get_add_actions(flatten=True))["path"].to_pylist())


def remove_files(storage: Storage, paths: Sequence[str]) -> int:
    """Removes files of a table. Returns how many.

    Arrow leaves an empty object in an object store for the folder of a file that it removed. delta-rs takes it for an
    unused file once it is old; it is no file for Arrow, and stays.
    """
    infos = storage.filesystem.get_file_info(list(paths))
    files = [info.path for info in infos if info.type is pafs.FileType.File]
    for path in files:
        storage.filesystem.delete_file(path)
    return len(files)
