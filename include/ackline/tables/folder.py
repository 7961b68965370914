"""Small files that one writer creates exclusively, and that the driver and its tasks share.

Conditional puts: an object is created by one writer only, and the store refuses all others.

Every fence of the ledger depends on this: each entry of Delta's log is created by a conditional put. In S3 that is a
put with the header `If-None-Match: *`. Some stores ignore the header; there a rival's turn would overwrite ours.

obstore makes the puts here: it is the Python binding of the Rust library through which delta-rs commits. Arrow has no
conditional put, and delta-rs looks for a rival's entry first, so that its commits prove nothing about the store.

Small files below the audit root through which the driver and its tasks prove that they share it.
"""

import contextlib
import os
import uuid
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from ackline.errors import ConfigError, TransientError
from ackline.scrub import scrub_address
from ackline.tables.errors import IgnoredStorageErrors, cause_of, is_outage, unusable
from ackline.tables.files import sync_file, sync_folder
from ackline.tables.object_store import arrow_filesystem, is_remote, options_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_proved: set[str] = set()
"""The buckets that this process has proved."""


def create_exclusively(root: str, name: str, content: bytes = b"") -> bool:
    """Creates the object `name` below the URI `root`. Returns False if it exists; of all callers one gets True.

    Raises OSError if the store can't be used, ConnectionError if it does not answer. If the answer to a put is lost,
    the object may exist although no caller has got True: a caller that gets False must not take the object for its own.
    """
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        _put(open_store(root), name, content)
    except AlreadyExistsError:
        return False
    except BaseError as error:
        raise _os_error(error, root) from None
    return True


def prove_conditional_put(folder: str) -> None:
    """Checks that the object store of a URI refuses to create an object twice. Does nothing for a path.

    A process proves each bucket once. Raises ConfigError if the second put overwrites the first, or if the store can't
    be used, and TransientError if it does not answer.
    """
    bucket = "/".join(folder.split("/", 3)[:3])
    if not is_remote(folder) or bucket in _proved:
        return
    probe = f".probe-{uuid.uuid4()}"  # readers pass over names that begin with a dot
    try:
        first, second = create_exclusively(folder, probe), create_exclusively(folder, probe)
        remove_object(folder, probe)
    except ConnectionError as error:
        raise unusable(f"the object store of {scrub_address(folder)}", error, folder) from None
    except OSError as error:
        raise ConfigError(
            f"the object store of {scrub_address(folder)} can't be used: {error}. Check bucket, endpoint, region and "
            f"login, and that the login may list, read, write and delete below ACKLINE_AUDIT",
            key="ACKLINE_AUDIT",
        ) from None
    if not first:  # the name is new, so an answer was lost on its way and the put was made again
        raise TransientError(f"the object store of {scrub_address(folder)} did not answer; run this again")
    if second:
        raise ConfigError(
            f"the object store of {scrub_address(folder)} has overwritten an object that it should have refused to "
            f"create again (S3: `If-None-Match: *`). Two runs could both store the same turn there, and records would "
            f"be lost. Use a store that supports conditional writes, or set ACKLINE_AUDIT to a file system",
            key="ACKLINE_AUDIT",
        )
    _proved.add(bucket)


def _put(store: "ObjectStore", name: str, content: bytes) -> None:
    import obstore

    obstore.put(store, name, content, mode="create", use_multipart=False)


def remove_object(folder: str, name: str, store: "ObjectStore | None" = None) -> None:
    """Removes the object `name` below the URI `folder`, with `store` if that is open already. Raises OSError.

    Arrow's `delete_file` would leave an empty object with the name of the folder.
    """
    import obstore
    from obstore.exceptions import BaseError

    try:
        obstore.delete(store or open_store(folder), name)
    except BaseError as error:
        raise _os_error(error, folder) from None


def _os_error(error: Exception, uri: str) -> OSError:
    """Returns a ConnectionError if the store did not answer: the text may be too long to show that."""
    return (ConnectionError if is_outage(error) else OSError)(cause_of(error, uri))


def open_store(root: str) -> "ObjectStore":
    """Returns obstore's client for the objects below a URI. Raises what `options_of` raises."""
    from obstore.store import from_url

    options = options_of(root)
    # obstore takes this one as an option of its HTTP client.
    insecure = options.pop("aws_allow_http", "").lower() in ("true", "1")
    config: Any = options
    return from_url(root, config=config, client_options={"allow_http": insecure})


_TRIES = 20
"""How often a folder is made that another run removes. Each run removes it once, when its job ends."""


class SharedFolder:
    """A folder below the audit root, on a file system or in an object store. No instance is pickled: open it by its
    path or URI where it is used."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._store, self._path = arrow_filesystem(uri)
        self._local = isinstance(self._store, pafs.LocalFileSystem)

    def make(self) -> None:
        """Creates the folder and those above it, where they are missing. An object store has no folders."""
        if self._local:
            Path(self._path).mkdir(parents=True, exist_ok=True)

    def write_first(self, name: str, content: bytes) -> None:
        """Creates the folder with a file in it. Raises OSError.

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

    def write(self, name: str, content: bytes) -> None:
        """Writes a file. Raises OSError, also if the folder does not exist on a file system."""
        with self._store.open_output_stream(f"{self._path}/{name}") as file:
            file.write(content)

    def create_exclusively(self, name: str) -> bool:
        """Creates an empty file that does not exist yet. Returns False if it exists; of all callers, on all machines,
        one gets True. Raises OSError."""
        if not self._local:
            return create_exclusively(self.uri, name)
        try:
            # The system call is exclusive on NFS too, from version 3 on. Not synced: a marker protects from tasks of
            # this job, and a crash that loses it ends the driver, or its file server, with the job.
            os.close(os.open(f"{self._path}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    def create_first(self, name: str, content: bytes) -> bytes:
        """Creates a file with `content`, unless it exists, and the folder where it is missing.

        Returns what the file holds: of all callers, on all machines, the first one's content. Raises OSError.
        """
        existing = self.read(name)
        if existing is not None:
            return existing
        self.make()
        if not self._local:
            create_exclusively(self.uri, name, content)
        else:
            # Linked once it is whole and on the disk: no reader meets a part of it.
            beside = Path(self._path, f".{name}-{uuid.uuid4()}")
            try:
                beside.write_bytes(content)
                sync_file(beside)
                with contextlib.suppress(FileExistsError):
                    os.link(beside, f"{self._path}/{name}")
                sync_folder(Path(self._path))
            finally:
                beside.unlink(missing_ok=True)
        first = self.read(name)
        if first is None:
            raise FileNotFoundError(f"{name} was removed")
        return first

    def write_durably(self, name: str, content: bytes) -> None:
        """Writes a file, which is on the disk when this returns. Creates the folder where it is missing. Raises
        OSError."""
        self.make()
        self.write(name, content)
        if self._local:
            sync_file(Path(self._path, name))
            for folder in Path(self._path, name).parents[:4]:  # up to the audit root
                sync_folder(folder)

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if it does not exist. Raises OSError."""
        try:
            with self._store.open_input_stream(f"{self._path}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the sizes in bytes of those files that exist. Raises OSError."""
        wanted = list(names)
        infos = self._store.get_file_info([f"{self._path}/{name}" for name in wanted])
        return {name: info.size for name, info in zip(wanted, infos, strict=True) if info.is_file}

    def refresh(self, names: Iterable[str]) -> None:
        """Makes an NFS client ask its server again for the folders of these files.

        The client may remember for up to a minute that a file does not exist; to open and list the folder ends that.
        """
        if self._local:
            for folder in {os.path.dirname(f"{self._path}/{name}") for name in names}:
                with contextlib.suppress(OSError):
                    os.listdir(folder)

    def remove(self, name: str) -> None:
        """Removes a file, if it exists and can be removed."""
        with IgnoredStorageErrors():
            if self._local:
                self._store.delete_file(f"{self._path}/{name}")
            else:
                remove_object(self.uri, name, self._objects)

    @cached_property
    def _objects(self) -> "ObjectStore":
        return open_store(self.uri)

    def remove_tree(self) -> None:
        """Removes the folder with all that is in it, as far as that can be removed."""
        with IgnoredStorageErrors():
            self._store.delete_dir(self._path)

    def remove_if_empty(self) -> None:
        """Removes the folder itself, if it is empty. An object store has no empty folders."""
        if self._local:
            with contextlib.suppress(OSError):
                os.rmdir(self._path)

    def names(self) -> list[str]:
        """Returns the names of the files and folders in the folder, sorted; none if it does not exist."""
        selector = pafs.FileSelector(self._path, allow_not_found=True)
        return sorted(info.base_name for info in self._store.get_file_info(selector))
