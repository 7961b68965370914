"""The file of a lease beside the tables of a lane, and who holds it.

The file of a lease beside the tables of a lane, on a local disk or in an object store.

Which process works on an open turn, by the lease beside the tables of the lane. For readers: nothing rests on it.
"""

import uuid
from datetime import datetime
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.fs as pafs

from ackline.ledger.turns import TurnId
from ackline.tables.errors import cause_of
from ackline.tables.files import Storage
from ackline.tables.lease import Holder, Lease

NAME = "lease.json"
_MAX_BYTES = 4096


class LeaseFile:
    """One small file. Each method raises OSError, with a text without secrets, if the store can't be used."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def read(self) -> bytes | None:
        """Returns the first 4 KiB of the file; None if it does not exist."""
        try:
            store = Storage(self.folder)
            if store.filesystem.get_file_info(NAME).type is pafs.FileType.NotFound:
                return None
            with store.filesystem.open_input_stream(NAME) as file:
                content: bytes = file.read(_MAX_BYTES)
                return content
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            raise OSError(cause_of(error, self.folder)) from None

    def written_at(self) -> datetime | None:
        """Returns when the file was last written, by the clock of the disk or object store; None if it does not
        exist."""
        try:
            written: datetime | None = Storage(self.folder).filesystem.get_file_info(NAME).mtime
            return written
        except (OSError, pa.ArrowException) as error:
            raise OSError(cause_of(error, self.folder)) from None

    def write(self, content: bytes) -> None:
        """Replaces the file. A reader finds the old content or the new one, never a part.

        A local file is not synced: after a power cut its process has ended, and a lease that is lost or stale costs at
        most a minute's wait.
        """
        try:
            store = Storage(self.folder)
            store.make_folder_of(NAME)
            # A rename is atomic on a disk, and a put is in an object store, which has no rename.
            scratch = NAME if store.folder is None else f".{NAME}-{uuid.uuid4().hex}"
            with store.filesystem.open_output_stream(scratch) as file:
                file.write(content)
            if scratch != NAME:
                store.filesystem.move(scratch, NAME)
        except (OSError, pa.ArrowException) as error:
            raise OSError(cause_of(error, self.folder)) from None

    def remove(self) -> None:
        """Removes the file; does nothing if it does not exist."""
        try:
            Storage(self.folder).filesystem.delete_file(NAME)
        except FileNotFoundError:
            return
        except (OSError, pa.ArrowException) as error:
            raise OSError(cause_of(error, self.folder)) from None

    def __str__(self) -> str:
        return str(PurePosixPath(self.folder) / NAME)


def holder_of(file: LeaseFile, turn: TurnId, now: datetime) -> Holder | None:
    """Returns the process that holds the lease of a turn; None if no process does, or if the lease can't be read.

    `now` is the time of the clock: the lease is renewed by it, whatever `--now` is.
    """
    try:
        content, renewed_at = file.read(), file.written_at()
        lease = None if content is None else Lease.decode(content)
    except (OSError, ValueError):
        return None
    # A lease of another turn is left over from a process that has died.
    if lease is None or renewed_at is None or lease.turn != str(turn):
        return None
    return Holder.of(lease, renewed_at, now)
