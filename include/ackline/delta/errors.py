"""The one place that turns what delta-rs, Arrow, obstore and the file system raise into Ackline's errors.

Each operation on a table runs in `TableHandle.errors`, and each one on a folder below the audit root in
`folder_errors`. The error names the table or the folder, and what to do. It is a TransientError if an object store does
not answer, because the same step may succeed later, and a FatalError otherwise. Other modules catch such an error only
where it is an expected answer: no such file, no such table, a number that a rival has taken.
"""

import contextlib
import os
import pwd
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from deltalake.exceptions import DeltaError

from ackline.delta.object_store import is_remote, options_of
from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.scrub import MASK, scrub_address

_PUBLIC = ("aws_region", "aws_endpoint_url", "aws_allow_http")
"""Options that are no secret; all others are masked in messages."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""delta-rs colours its error texts even when no terminal shows them."""
_OUTAGE = re.compile(
    r"after \d+ retries|error sending request|HTTP status (?:5\d\d|429)|"
    r"AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|REQUEST_TIMEOUT|THROTTLING)"
)
"""Texts of errors after which a request may succeed later. Both clients raise a plain OSError for every cause; delta-rs
and obstore try again only if no connection was made, or if the store answered with 429 or 5xx."""
_DENIED = re.compile(r"[Pp]ermission denied|os error 13\b")
"""Texts of errors of a file system that does not let this user do it."""
_BACKTRACE = re.compile(r" 0: <unknown>.*")
"""The backtrace that Delta's kernel appends to its error texts."""


def cause_of(error: BaseException, uri: str) -> str:
    """Returns the text of an error of delta-rs or Arrow as one line of at most 300 characters, without secrets: an
    object store may quote the key or the token that it refuses."""
    text = _BACKTRACE.sub("", " ".join(_COLOURS.sub("", str(error)).split()))
    with contextlib.suppress(ConfigError):
        for name, value in options_of(uri).items():
            if name not in _PUBLIC:
                text = text.replace(value, MASK)
    return scrub_address(text[:300])


def is_outage(error: BaseException) -> bool:
    """Returns whether an error of delta-rs, obstore or Arrow means that the object store did not answer, or that it
    could not serve the request now."""
    return isinstance(error, ConnectionError) or _OUTAGE.search(_COLOURS.sub("", str(error))) is not None


def unusable(what: str, cause: BaseException, uri: str) -> FatalError | TransientError:
    """Returns the error to raise if `what`, which is at `uri`, can't be used: TransientError if its object store does
    not answer, because the same step may succeed later."""
    text = f"{what} can't be used: {cause_of(cause, uri)}"
    if not is_remote(uri) and _DENIED.search(text):
        text += f". {_right_advice(Path(uri))}"
    if not is_remote(uri) or not is_outage(cause):
        return FatalError(text)
    return TransientError(
        f"{text}. The object store does not answer: run this again when it does. If it has never answered, check its "
        f"endpoint and the network"
    )


def user_name(number: int) -> str:
    """Returns the name of a user of this machine, as sudo and chown take it; the number if it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"


def chown(user: int, folder: Path) -> str:
    """Returns the command that gives a folder to a user, with all that is in it."""
    return f"sudo chown -R {user_name(user).removeprefix('#')} {shlex.quote(str(folder))}"


def _right_advice(folder: Path) -> str:
    """Returns the sentence that names the way out of a folder that this user may not use."""
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    owner, me = existing.lstat().st_uid, os.geteuid()
    give = f"`{chown(me, existing)}`"
    if owner == me:
        return f"If another user has written there, {give} gives all of it to {user_name(me)}"
    return (
        f"{existing} belongs to {user_name(owner)}, and this process runs as {user_name(me)}: run it as "
        f"{user_name(owner)}, or give the folder over with {give}"
    )


_RAISED = (DeltaError, OSError, ValueError, NotImplementedError, pa.ArrowException)
"""The classes that delta-rs, Arrow and the file system raise. ValueError and NotImplementedError are delta-rs's too.
DamagedError is a ValueError."""
_LIBRARIES = ("obstore", "pyo3_runtime")
"""Modules whose classes count too: obstore, which is imported only where it is needed, and the module of a panic in
delta-rs, which is no Exception."""


def is_storage_error(error: BaseException) -> bool:
    """Returns whether delta-rs, Arrow, obstore or the file system may have raised an error. delta-rs raises a bare
    Exception for an error that it has no class for."""
    if isinstance(error, AcklineError):
        return False
    return isinstance(error, _RAISED) or type(error) is Exception or type(error).__module__.startswith(_LIBRARIES)


@contextlib.contextmanager
def storage_errors(uri: str, error_of: Callable[[BaseException], Exception]) -> Iterator[None]:
    """A context manager that raises `error_of(error)` in place of an error of the storage at `uri`."""
    try:
        yield
    except BaseException as error:
        if not is_storage_error(error):
            raise
        # An object store may quote the login that it refuses, and a traceback would show that text.
        raise error_of(error) from (None if is_remote(uri) else error)


class IgnoredStorageErrors(contextlib.AbstractContextManager[None, bool]):
    """A context manager that ignores an error of the storage. The block ends at that error."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        return error is not None and is_storage_error(error)


def folder_errors(uri: str) -> contextlib.AbstractContextManager[None]:
    """A context manager that raises `unusable_folder(uri, error)` in place of an error of the storage at `uri`."""
    return storage_errors(uri, lambda error: unusable_folder(uri, error))


def unusable_folder(uri: str, error: BaseException) -> FatalError | TransientError:
    """Returns the error to raise if this machine can't use a folder below the audit root. It names the folder."""
    return unusable(f"the folder {scrub_address(uri)} below ACKLINE_AUDIT", error, uri)


_FULL = re.compile("No space left on device|Disk quota exceeded|Read-only file system|No usable temporary directory")
"""Texts of errors of a disk that takes no more."""


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Creates a folder for temporary files, and removes it at the end of the context. Raises FatalError if its disk
    takes no more: the error of a table that is written there would name the disk of the table."""
    try:
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            yield Path(folder)
    except BaseException as error:
        if (full := _FULL.search(str(error))) is None or not is_storage_error(error):
            raise
        folder = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
        raise FatalError(
            f"the folder for temporary files can't be written ({full[0]}): free some space in {folder}, or name "
            f"another folder in TMPDIR"
        ) from None


def check_temporary_folder() -> str:
    """Returns the folder for temporary files. Raises FatalError if a file of 1 MiB can't be written there."""
    try:
        with temporary_folder("ackline-") as folder:
            (folder / "file").write_bytes(bytes(1 << 20))
            return str(folder.parent)
    except OSError as error:
        raise FatalError(f"the folder for temporary files can't be written: {error}; name another in TMPDIR") from None
