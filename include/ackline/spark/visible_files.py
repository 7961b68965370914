"""Waits until the driver sees the files of outcomes that its tasks have named.

A task syncs its files before it names them, but another machine may not see them at once: an NFS client remembers for
up to a minute that a name does not exist, and the listing of an object store may be old.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from ackline.errors import ConfigError
from ackline.spark.output.written_file import WrittenFile
from ackline.spark.shared_folder import SharedFolder

WAIT_SECONDS = 60.0
WAIT_SECONDS_ONCE = 300.0
"""At most once the tasks can't run again: what they have handled is lost if their files are given up."""
_POLL_SECONDS = 1.0


def wait_until_visible(
    root: str,
    files: Sequence[WrittenFile],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    seconds: float = WAIT_SECONDS,
) -> None:
    """Waits until each file is there below `root` with the size that its task has named.

    Call it before the commit that names the files: Delta readers fail on a file that is missing. Raises ConfigError if
    one is missing, or has another size, after `seconds`.
    """
    wait_until_sized(root, {file.path: file.size for file in files if file.path}, clock, sleep, seconds)


def wait_until_sized(
    root: str,
    sizes: Mapping[str, int],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    seconds: float = WAIT_SECONDS,
) -> None:
    """Waits until each file of `sizes` (by its path below `root`) is there with its size in bytes.

    Raises ConfigError if one is missing, or has another size, after `seconds`.
    """
    folder, until = SharedFolder(root), clock() + seconds
    while True:
        try:
            there = folder.sizes(sizes)
        except OSError:  # such as ESTALE, with which NFS answers about a folder that it must look up again
            there = {}
        missing = {path: size for path, size in sizes.items() if there.get(path) != size}
        if not missing:
            return
        if clock() >= until:
            raise _not_shared(root, missing, there, seconds)
        folder.refresh(missing)
        sleep(_POLL_SECONDS)


def _not_shared(root: str, missing: Mapping[str, int], there: Mapping[str, int], seconds: float) -> ConfigError:
    path, size = next(iter(missing.items()))
    state = f"has {there[path]:,} bytes here" if path in there else "is not here"
    return ConfigError(
        f"executors and driver do not share ACKLINE_AUDIT: a task has written {root}/{path} with {size:,} bytes, and "
        f"after {seconds:.0f} s it {state} ({len(missing)} such files). Nothing was stored. Set ACKLINE_AUDIT to "
        f"a folder that all machines mount at the same path, or to an object store",
        key="ACKLINE_AUDIT",
    )
