"""The files of one table, on a local disk or in an object store.

A write to a local disk survives a power cut only after the file and each new directory entry on the way to it are
synced. An object store keeps what it has acknowledged, so there is nothing to sync.
"""

import contextlib
import errno
import os
from pathlib import Path, PurePosixPath

import pyarrow.fs as pafs

from ackline.audit.object_store import arrow_filesystem


class Storage:
    """The folder of a table. Paths are relative to it, with `/` between the parts."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        store, base = arrow_filesystem(uri)
        self.filesystem = pafs.SubTreeFileSystem(base, store)
        self.folder = Path(base) if isinstance(store, pafs.LocalFileSystem) else None
        """The folder of a local table; None in an object store."""
        self._synced: set[Path] = set()
        """Folders whose own directory entries this process has synced."""

    def make_folder_of(self, path: str) -> None:
        """Makes the folder of a file. An object store has no folders."""
        if self.folder is not None:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)

    def sync(self, path: str) -> None:
        """Makes a finished file durable: its content, its directory entry, and the folders between it and the table.

        The folders are synced although they may have been there before: the process that made them may have died before
        it synced them. One process syncs the upper ones once.
        """
        if self.folder is None:
            return
        sync_file(self.folder / path)
        leaf, *upper = [self.folder / parent for parent in PurePosixPath(path).parents]
        sync_folder(leaf)
        for folder in upper:
            if folder not in self._synced:
                sync_folder(folder)
                self._synced.add(folder)

    def make_durably(self, name: str) -> None:
        """Makes a folder of a local table, and syncs it and each folder above it as far as this user may."""
        if self.folder is None:
            return
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for above in (folder, *folder.absolute().parents):
            with contextlib.suppress(PermissionError):  # such a folder is not ours, and was there before
                sync_folder(above)


def sync_file(path: Path) -> None:
    """Writes a file's content to the disk. Raises OSError if that fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Writes a folder's directory entries to the disk. Raises OSError if that fails.

    Some file systems cannot sync a folder and answer EINVAL or EBADF. Ackline ignores these errors, as
    databases do, because no other call syncs a folder there.
    """
    try:
        sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
