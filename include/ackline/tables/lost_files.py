"""Files of outcomes that the log names and that are lost: they do not exist any more, or are cut short or damaged.

A read or a compaction that needs such a file fails, and fails again for good. The log stops naming a lost file only if
no row of it can count: all its rows are of one turn, and that turn is void. A lost file of a turn that counts stays
named, because its rows are outcomes that nothing else proves.
"""

import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction
from deltalake.transaction import RemoveAction

from ackline.scrub import scrub_address
from ackline.tables.append import REWRITE, retry_beside_rivals
from ackline.tables.errors import IgnoredStorageErrors
from ackline.tables.table import AuditTable

Turn = tuple[int, int]
"""An epoch and a number in it."""
_logger = logging.getLogger(__name__)


def files_of(version: DeltaTable, turns: Collection[Turn]) -> list[dict[str, Any]]:
    """Returns the files all rows of which are of one of these turns, by their statistics.

    A file that a compaction has mixed, and one without statistics, is none of them.
    """
    files = pa.table(version.get_add_actions(flatten=True)).to_pylist()
    return [file for file in files if _turn_of(file) in turns]


def _turn_of(file: dict[str, Any]) -> Turn | None:
    """Returns the turn of all rows of a file; None if they are of several turns, or if that is not known."""
    first, last = ((file.get(f"{bound}.epoch"), file.get(f"{bound}.turn")) for bound in ("min", "max"))
    return None if first != last or None in first else (int(str(first[0])), int(str(first[1])))


def lost_files(
    table: AuditTable, version: DeltaTable, turns: Collection[Turn], read: bool = False
) -> list[dict[str, Any]]:
    """Returns the files of these turns that do not exist, or do not have the size that the log names.

    With `read`, returns also those whose content is damaged, at the cost of reading all files of these turns. A store
    that does not answer is an OSError, and no loss.
    """
    files = files_of(version, turns)
    lost = without_their_size(table, files)
    return [file for file in files if file in lost or (read and not _is_whole(table, file["path"]))]


def without_their_size(table: AuditTable, files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns those of a version's files that do not exist, or do not have the size that the log names. Opens none."""
    infos = table.storage.filesystem.get_file_info([file["path"] for file in files]) if files else []
    return [
        file
        for file, info in zip(files, infos, strict=True)
        if info.type is pafs.FileType.NotFound or info.size != file["size_bytes"]
    ]


def _is_whole(table: AuditTable, path: str) -> bool:
    # Read first, and parsed after that: an error of the disk or the store proves nothing about the content.
    with table.storage.filesystem.open_input_file(path) as file:
        content = file.read_buffer()
    with IgnoredStorageErrors():
        for _ in pq.ParquetFile(pa.BufferReader(content)).iter_batches():
            pass
        return True
    return False


def removals(files: Sequence[dict[str, Any]]) -> list[RemoveAction]:
    """Returns the actions by which a commit stops naming these files.

    They are marked as no change of data, because the tables are append-only for every other writer.
    """
    now = int(time.time() * 1000)
    return [
        RemoveAction(
            file["path"], False, now, file["size_bytes"], {"plan_date": file["partition.plan_date"].isoformat()}
        )
        for file in files
    ]


def drop_lost_files(table: AuditTable, turns: Collection[Turn], read: bool = False) -> int:
    """Stops naming the lost files of these turns, all of which are void. Returns how many they were. `read` is as in
    `lost_files`.

    One commit, and none if no file is lost; so a repeat changes nothing. It needs no fence of a turn: a void turn stays
    void. Raises FatalError if the table can't be read or written.
    """

    def drop() -> int:
        with table.lock():
            version = table.open()
            lost = [] if version is None else lost_files(table, version, turns, read)
            if version is not None and lost:
                # Files are removed under the id of compactions, so of two at once one fails and looks again.
                table.commit(version, removals(lost), [Transaction(REWRITE, version.version() + 1)])
            return len(lost)

    with table.errors():
        version = table.open()  # without the lock: usually nothing is lost, and writers need not wait
        if version is None or not turns or not lost_files(table, version, turns, read):
            return 0
        dropped = retry_beside_rivals(drop)
    _logger.warning(
        "%d lost files of void turns are not in the table %s at %s any more; no row of them counted",
        dropped, table.name, scrub_address(table.uri),
    )  # fmt: skip
    return dropped
