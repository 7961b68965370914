"""The file of a lease beside the tables of a lane, and which process holds it.

A lease is advice, so no write of the ledger depends on this file.
"""

from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import PurePosixPath

from ackline.ledger.turns import TurnId
from ackline.tables.errors import IgnoredStorageErrors, cause_of, storage_errors
from ackline.tables.folder import Folder
from ackline.tables.lease import Holder, Lease

NAME = "lease.json"
_MAX_BYTES = 4096


class LeaseFile:
    """One small file. Each method raises OSError, with a text without secrets, if the store can't be used."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def read(self) -> bytes | None:
        """Returns the first 4 KiB of the file; None if it does not exist."""
        with self._errors():
            return Folder(self.folder).read(NAME, _MAX_BYTES)

    def written_at(self) -> datetime | None:
        """Returns when the file was last written, by the clock of the disk or object store; None if it does not
        exist."""
        with self._errors():
            return Folder(self.folder).written_at(NAME)

    def write(self, content: bytes) -> None:
        """Replaces the file. A reader finds the old content or the new one, never a part.

        A local file is not synced: after a power cut its process has ended, and a lease that is lost or stale costs at
        most a minute's wait.
        """
        with self._errors():
            Folder(self.folder).replace(NAME, content)

    def remove(self) -> None:
        """Removes the file; does nothing if it does not exist."""
        with self._errors():
            Folder(self.folder).delete(NAME)

    def _errors(self) -> AbstractContextManager[None]:
        return storage_errors(self.folder, lambda error: OSError(cause_of(error, self.folder)))

    def __str__(self) -> str:
        return str(PurePosixPath(self.folder) / NAME)


def holder_of(file: LeaseFile, turn: TurnId, now: datetime) -> Holder | None:
    """Returns the process that holds the lease of a turn, for readers to show; None if no process does, or if the lease
    can't be read.

    `now` is the time of the clock: the lease is renewed by it, whatever `--now` is.
    """
    lease, renewed_at = None, None
    with IgnoredStorageErrors():
        content, renewed_at = file.read(), file.written_at()
        lease = None if content is None else Lease.decode(content)
    # A lease of another turn is left over from a process that has died.
    if lease is None or renewed_at is None or lease.turn != str(turn):
        return None
    return Holder.of(lease, renewed_at, now)
