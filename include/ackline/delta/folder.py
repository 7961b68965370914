"""A folder on a file system or in an object store: of a table, of staged rows, of a lease, of the markers of tasks.

Every fence of the ledger depends on an exclusive creation: one writer creates each entry of Delta's log, and all others
are refused. In S3 that is a put with the header `If-None-Match: *`. Some stores ignore the header; there a rival's turn
would overwrite ours, so `prove_conditional_put` tries it first.

Arrow reads and writes data files, but has no conditional put and leaves an empty object in place of a folder. So
obstore, through whose Rust library delta-rs commits, makes the conditional puts and removes objects. delta-rs looks for
a rival's entry first, so its own commits prove nothing about the store. On a local disk Ackline makes the system calls
itself, because obstore syncs nothing: a write survives a power cut only after the file and each new directory entry on
the way to it are synced. An object store keeps what it has acknowledged.
"""

import contextlib
import errno
import os
import struct
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from ackline.delta.errors import IgnoredStorageErrors, cause_of, chown, is_outage, storage_errors, unusable, user_name
from ackline.delta.object_store import arrow_filesystem, is_remote, options_of
from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.scrub import scrub_address

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TRIES = 20
"""Tries of `write_first`. Another run may remove the empty folder before the file is in it, once, when its job ends."""
_tried: set[Path] = set()
"""The folders of tables in which this process has found its files usable by the owner of the folder."""
_proved: set[str] = set()
"""The buckets (`s3://BUCKET`) whose conditional put this process has tried with success."""


class Folder:
    """A folder, by its path or URI. Paths of files are relative to it, with `/` between the parts. The methods raise
    OSError if the disk or the store refuses, and ConnectionError if the store does not answer. No instance is pickled:
    open it where it is used."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._store, self._base = arrow_filesystem(uri)
        self.filesystem = pafs.SubTreeFileSystem(self._base, self._store)
        """Arrow's file system, whose paths are relative to the folder."""
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
        """Creates the folder of the file `path` where it is missing. Does nothing in an object store."""
        if self.local is not None:
            (self.local / path).parent.mkdir(parents=True, exist_ok=True)

    def make_durably(self, name: str) -> None:
        """Creates a local folder in this one, and syncs it and each folder above it that this user may open."""
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
        """Removes the folder with all that is in it. An error of the storage is ignored, so a part may stay."""
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

    def without_size(self, sizes: Mapping[str, int]) -> list[str]:
        """Returns which of these files do not exist, or have another size in bytes than is stated. Opens none."""
        found = self.sizes(sizes)
        return [name for name, size in sizes.items() if found.get(name) != size]

    def refresh(self, names: Iterable[str]) -> None:
        """Makes an NFS client ask its server again for the folders of these files: it may remember for up to a minute
        that a file does not exist, and to open and list the folder ends that."""
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
        """Creates the folder with a file in it. Another run may remove the folder as long as it is empty
        (`remove_if_empty`), so both are done again until the file is there."""
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
        """Makes a finished file durable: its content, its directory entry, and the folders between it and this one. The
        folders are synced although they may have been there before: the process that made them may have died before it
        synced them. One process syncs the upper ones once."""
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
        one gets True. If the answer of an object store is lost, the object may exist although no caller has got True: a
        caller that gets False must not take the object for its own."""
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
        """Creates a file with `content`, unless it exists, and the folder where it is missing. Returns what the file
        holds: of all callers, on all machines, the first one's content."""
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
        """Removes a file. Does nothing if it does not exist, or if the storage refuses."""
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
        """Returns the error to raise for one of obstore: ConnectionError if the store did not answer, else OSError."""
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
    """Checks that the object store of a URI refuses to create an object twice, once a process and bucket. Does nothing
    for a path. Raises ConfigError if the second put overwrites the first, or if the store can't be used, and
    TransientError if it does not answer."""
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


def check_user(folder: Path) -> None:
    """Raises FatalError if the owner of a local folder could not use what this process creates there: a file of root's
    to which the owner may not write, or a file of anyone that the owner may not read. Does nothing if the folder does
    not exist. Each process tries a folder once. Raises OSError if it may not write there."""
    if folder in _tried or not folder.is_dir():
        return
    owner = folder.stat()
    if owner.st_uid != os.geteuid():
        # What the file system makes of a file counts: NFS and containers may map its owner.
        probe = folder / f".probe-{uuid.uuid4()}"
        probe.touch()
        made, granted = probe.stat(), granted_by_list(probe, owner.st_uid)
        probe.unlink()
        if not usable_by_owner(owner, made, granted):
            name, me = user_name(owner.st_uid), user_name(made.st_uid)
            raise FatalError(
                f"{folder} belongs to {name}, and {name} could not use the files that {me} writes there (mode "
                f"{made.st_mode & 0o777:o}). Nothing was written. Run this as {name}, `sudo -E -u '{name}' ackline …`, "
                f"or give the tables over: `{chown(made.st_uid, folder)}`"
            )
    _tried.add(folder)


def granted_by_list(path: Path, user: int) -> int:
    """Returns the rights that an access control list of POSIX grants to a user by its id, as three bits; 0 without a
    list, and on a system without them. A file takes the default list of its folder, and then no umask applies."""
    with contextlib.suppress(OSError, AttributeError):
        entries = struct.iter_unpack("<HHI", os.getxattr(path, "system.posix_acl_access")[4:])
        rights: dict[tuple[int, int], int] = {(tag, id_ if tag == _ACL_USER else 0): bits for tag, bits, id_ in entries}
        return rights.get((_ACL_USER, user), 0) & rights.get((_ACL_MASK, 0), 7)
    return 0


_ACL_USER, _ACL_MASK = 0x02, 0x10
"""The kinds of an entry for a user by its id, and of the one that bounds it, as Linux stores them."""


def usable_by_owner(owner: os.stat_result, made: os.stat_result, granted: int = 0) -> bool:
    """Returns whether the owner of a folder can use a file that was made there, by its mode or by the rights that are
    `granted` beside it. Users may share tables by their group, or hand them on after one another, so of a file of
    another user than root only its reading is wanted."""
    if owner.st_uid == 0:
        return True  # root uses each file, but for that of a server that maps it
    wanted = 0o6 if made.st_uid == 0 else 0o4
    of_group = made.st_mode >> 3 if made.st_gid == owner.st_gid else 0
    return made.st_uid == owner.st_uid or any(bits & wanted == wanted for bits in (of_group, made.st_mode, granted))


def sync_file(path: Path) -> None:
    """Writes a file's content to the disk. Raises OSError if that fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Writes a folder's directory entries to the disk. Raises OSError if that fails, but not for EINVAL or EBADF: some
    file systems cannot sync a folder, and databases ignore that, too."""
    try:
        sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
