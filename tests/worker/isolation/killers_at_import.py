"""A handler whose import does the deed that the environment names."""

import os

from ackline import Record
from tests.worker.isolation.killers import FOLDER, do, note

word = os.environ.get("KILLERS_IMPORT", "")
note("imports", os.getpid())
if word == "exit once":
    if not os.path.exists(os.environ[FOLDER] + "/once"):
        note("once", "")
        os._exit(4)
elif word == "missing":
    import not_there  # type: ignore[import-not-found]  # noqa: F401
else:
    do(word)


def handle(record: Record) -> None:
    note("calls", f"{record.offset} {os.getpid()}")
