"""A handler whose import does what the environment says."""

import os

from ackline import Record
from tests.unit.killers import FOLDER, note, obey

word = os.environ.get("KILLERS_IMPORT", "")
note("imports", os.getpid())
if word == "exit once":
    if not os.path.exists(os.environ[FOLDER] + "/once"):
        note("once", "")
        os._exit(4)
elif word == "missing":
    import not_there  # type: ignore[import-not-found]  # noqa: F401
else:
    obey(word)


def handle(record: Record) -> None:
    """Write the call down."""
    note("calls", f"{record.offset} {os.getpid()}")
