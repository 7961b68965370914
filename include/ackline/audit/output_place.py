"""Whether an output table that does not exist yet can be created where the pipeline file puts it."""

import uuid
from pathlib import Path

from ackline.audit.conditional_put import create_exclusively, remove_object
from ackline.audit.object_store import is_remote, unusable
from ackline.scrub import scrub_address


def check_place(uri: str) -> None:
    """Writes a small file where a table is to be created, a path or URI, and removes it. Raises FatalError if that
    fails, and TransientError if an object store does not answer.

    On a file system it tries the nearest folder that exists of the table and those above it, and of those above it
    alone: the lock of a table is in a folder beside it. So the check creates no folder, and removes none that another
    process may have created.
    """
    probe = f".probe-{uuid.uuid4()}"
    try:
        if is_remote(uri):
            create_exclusively(uri, probe)
            remove_object(uri, probe)
            return
        above = Path(uri).parents
        for folders in (Path(uri), *above), above:
            folder = next(path for path in folders if path.is_symlink() or path.exists())
            (folder / probe).touch()
            (folder / probe).unlink()
    except OSError as error:
        raise unusable(f"the table at {scrub_address(uri)} does not exist, and its place", error, uri) from None
