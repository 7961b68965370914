"""A folder on a file system or in an object store: of a table, of staged rows, of a lease, of the markers of tasks.

Every fence of the ledger depends on an exclusive creation: each entry of Delta's log is created by one writer only, and
all others are refused. In an object store that is a conditional put, in S3 a put with the header `If-None-Match: *`.
Some stores ignore the header; there a rival's turn would overwrite ours, so `prove_conditional_put` tries it first.

Three clients work behind `Folder`, because none of them does all of this. Arrow reads and writes data files. obstore,
the Python binding of the Rust library through which delta-rs commits, makes the conditional puts and removes objects:
Arrow has no conditional put and leaves an empty object in place of a folder, and delta-rs looks for a rival's entry
first, so that its commits prove nothing about the store. On a local disk Ackline makes the system calls itself: obstore
syncs neither a file nor a folder, so what it has written may be gone after a power cut.

A write to a local disk survives a power cut only after the file and each new directory entry on the way to it are
synced. An object store keeps what it has acknowledged, so there is nothing to sync.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from ackline.errors import AcklineError, ConfigError, TransientError
from ackline.scrub import scrub_address
from ackline.tables.errors import IgnoredStorageErrors, cause_of, is_outage, storage_errors, unusable
from ackline.tables.object_store import arrow_filesystem, is_remote, options_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TRIES = 20
"""How often a folder is made that another run removes. Each run removes it once, when its job ends."""
_proved: set[str] = set()
"""The buckets that this process has proved."""


class Folder:
    """A folder, by its path or URI. Paths of files are relative to it, with `/` between the parts.

    The methods raise OSError if the disk or the store refuses, and ConnectionError if the store does not answer. No
    instance is pickled: open it where it is used.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._store, self._base = arrow_filesystem(uri)
        self.filesystem = pafs.SubTreeFileSystem(self._base, self._store)
        """Arrow's file system, below the folder."""
        self.local = Path(self._base) if isinstance(self._store, pafs.LocalFileSystem) else None
        """The path of a local folder; None in an object store."""
        self._synced: set[Path] = set()
        """Folders whose own directory entries this process has synced."""

    # ---- folders ------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Creates the folder and those above it, where they are missing. An object store has no folders."""
        if self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)

    def make_folder_of(self, path: str) -> None:
        """Makes the folder of a file. An object store has no folders."""
        if self.local is not None:
            (self.local / path).parent.mkdir(parents=True, exist_ok=True)

    def make_durably(self, name: str) -> None:
        """Makes a folder below a local one, and syncs it and each folder above it as far as this user may."""
        if self.local is None:
            return
        folder = self.local / name
        folder.mkdir(parents=True, exist_ok=True)
        for above in (folder, *folder.absolute().parents):
            with contextlib.suppress(PermissionError):  # such a folder is not ours, and was there before
                sync_folder(above)

    def names(self) -> list[str]:
        """Returns the names of the files and folders in the folder, sorted; none if it does not exist."""
        selector = pafs.FileSelector(self._base, allow_not_found=True)
        return sorted(info.base_name for info in self._store.get_file_info(selector))

    def remove_tree(self) -> None:
        """Removes the folder with all that is in it, as far as that can be removed."""
        with IgnoredStorageErrors():
            self._store.delete_dir(self._base)

    def remove_if_empty(self) -> None:
        """Removes the folder itself, if it is empty. An object store has no empty folders."""
        if self.local is not None:
            with contextlib.suppress(OSError):  # another task has a file in it
                os.rmdir(self.local)

    # ---- reading ------------------------------------------------------------------------------------------------

    def read(self, name: str, most: int | None = None) -> bytes | None:
        """Returns the content of a file, its first `most` bytes if that is given; None if it does not exist."""
        try:
            with self.filesystem.open_input_stream(name) as file:
                return bytes(file.read(most))
        except FileNotFoundError:
            return None

    def written_at(self, name: str) -> datetime | None:
        """Returns when a file was last written, by the clock of the disk or store; None if it does not exist."""
        written: datetime | None = self.filesystem.get_file_info(name).mtime
        return written

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the sizes in bytes of those files that exist."""
        wanted = list(names)
        infos = self.filesystem.get_file_info(wanted)
        return {name: info.size for name, info in zip(wanted, infos, strict=True) if info.is_file}

    def refresh(self, names: Iterable[str]) -> None:
        """Makes an NFS client ask its server again for the folders of these files.

        The client may remember for up to a minute that a file does not exist; to open and list the folder ends that.
        """
        if self.local is not None:
            for folder in {(self.local / name).parent for name in names}:
                with contextlib.suppress(OSError):  # the caller looks for the files again, and names what it misses
                    os.listdir(folder)

    # ---- writing ------------------------------------------------------------------------------------------------

    def write(self, name: str, content: bytes) -> None:
        """Writes a file. Raises OSError, also if the folder does not exist on a file system."""
        with self.filesystem.open_output_stream(name) as file:
            file.write(content)

    def write_first(self, name: str, content: bytes) -> None:
        """Creates the folder with a file in it.

        Another run may remove the folder as long as it is empty (`remove_if_empty`), so both are done again until the
        file is there. From then on no run removes the folder.
        """
        for left in reversed(range(_TRIES)):
            self.make()
            try:
                self.write(name, content)
                return
            except FileNotFoundError:
                if not left:
                    raise

    def write_durably(self, name: str, content: bytes) -> None:
        """Writes a file, which is on the disk when this returns. Creates the folder where it is missing."""
        self.make()
        self.write(name, content)
        if self.local is not None:
            sync_file(self.local / name)
            for folder in (self.local / name).parents[:4]:  # up to the audit root
                sync_folder(folder)

    def replace(self, name: str, content: bytes) -> None:
        """Replaces a file, and creates the folder where it is missing. A reader finds the old content or the new one,
        never a part. A local file is not synced."""
        self.make()
        # A rename is atomic on a disk, and a put is in an object store, which has no rename.
        scratch = name if self.local is None else f".{name}-{uuid.uuid4().hex}"
        self.write(scratch, content)
        if scratch != name:
            self.filesystem.move(scratch, name)

    def sync(self, path: str) -> None:
        """Makes a finished file durable: its content, its directory entry, and the folders between it and this one.

        The folders are synced although they may have been there before: the process that made them may have died before
        it synced them. One process syncs the upper ones once.
        """
        if self.local is None:
            return
        sync_file(self.local / path)
        leaf, *upper = [self.local / parent for parent in PurePosixPath(path).parents]
        sync_folder(leaf)
        for folder in upper:
            if folder not in self._synced:
                sync_folder(folder)
                self._synced.add(folder)

    def create_exclusively(self, name: str) -> bool:
        """Creates an empty file that does not exist yet. Returns False if it exists; of all callers, on all machines,
        one gets True.

        If the answer of an object store is lost, the object may exist although no caller has got True: a caller that
        gets False must not take the object for its own.
        """
        if self.local is None:
            return self._put(name, b"")
        try:
            # The system call is exclusive on NFS too, from version 3 on. Not synced: a marker protects from tasks of
            # this job, and a crash that loses it ends the driver, or its file server, with the job.
            os.close(os.open(self.local / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    def create_first(self, name: str, content: bytes) -> bytes:
        """Creates a file with `content`, unless it exists, and the folder where it is missing.

        Returns what the file holds: of all callers, on all machines, the first one's content.
        """
        existing = self.read(name)
        if existing is not None:
            return existing
        self.make()
        if self.local is None:
            self._put(name, content)
        else:
            # Linked once it is whole and on the disk: no reader meets a part of it.
            beside = self.local / f".{name}-{uuid.uuid4()}"
            try:
                beside.write_bytes(content)
                sync_file(beside)
                with contextlib.suppress(FileExistsError):
                    os.link(beside, self.local / name)
                sync_folder(self.local)
            finally:
                beside.unlink(missing_ok=True)
        first = self.read(name)
        if first is None:
            raise FileNotFoundError(f"{name} was removed")
        return first

    def delete(self, name: str) -> None:
        """Removes a file; does nothing if it does not exist."""
        if self.local is not None:
            (self.local / name).unlink(missing_ok=True)
            return
        import obstore

        with storage_errors(self.uri, self._error):
            obstore.delete(self._objects, name)

    def remove(self, name: str) -> None:
        """Removes a file, if it exists and can be removed."""
        with IgnoredStorageErrors():
            self.delete(name)

    def _put(self, name: str, content: bytes) -> bool:
        """Creates an object. Returns False if it exists."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with storage_errors(self.uri, self._error):
            try:
                obstore.put(self._objects, name, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def _error(self, error: BaseException) -> OSError:
        """Returns a ConnectionError if the store did not answer: the text may be too long to show that."""
        return (ConnectionError if is_outage(error) else OSError)(cause_of(error, self.uri))

    @cached_property
    def _objects(self) -> "ObjectStore":
        from obstore.store import from_url

        options = options_of(self.uri)
        # obstore takes this one as an option of its HTTP client.
        insecure = options.pop("aws_allow_http", "").lower() in ("true", "1")
        config: Any = options
        return from_url(self.uri, config=config, client_options={"allow_http": insecure})


def prove_conditional_put(uri: str) -> None:
    """Checks that the object store of a URI refuses to create an object twice. Does nothing for a path.

    A process proves each bucket once. Raises ConfigError if the second put overwrites the first, or if the store can't
    be used, and TransientError if it does not answer.
    """
    bucket = "/".join(uri.split("/", 3)[:3])
    if not is_remote(uri) or bucket in _proved:
        return
    what = f"the object store of {scrub_address(uri)}"

    def error_of(error: BaseException) -> AcklineError:
        if isinstance(error, ConnectionError):
            return unusable(what, error, uri)
        return ConfigError(
            f"{what} can't be used: {error}. Check bucket, endpoint, region and login, and that the login may list, "
            f"read, write and delete below ACKLINE_AUDIT",
            key="ACKLINE_AUDIT",
        )

    folder, probe = Folder(uri), f".probe-{uuid.uuid4()}"  # readers pass over names that begin with a dot
    with storage_errors(uri, error_of):
        first, second = folder.create_exclusively(probe), folder.create_exclusively(probe)
        folder.delete(probe)
    if not first:  # the name is new, so an answer was lost on its way and the put was made again
        raise TransientError(f"{what} did not answer; run this again")
    if second:
        raise ConfigError(
            f"{what} has overwritten an object that it should have refused to create again (S3: `If-None-Match: *`). "
            f"Two runs could both store the same turn there, and records would be lost. Use a store that supports "
            f"conditional writes, or set ACKLINE_AUDIT to a file system",
            key="ACKLINE_AUDIT",
        )
    _proved.add(bucket)


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
