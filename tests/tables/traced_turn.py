"""`python -m tests.tables.traced_turn FOLDER [MUTANT]`: two turns on real tables, to be run under strace.

Kafka is in memory. An attempt to open MARK shows where the group's offsets are committed. A mutant leaves out what
makes a commit durable.
"""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from ackline.tables import folder as storage
from ackline.tables.folder import Folder
from ackline.tables.log import DeltaLog
from ackline.tables.maintenance import maintain
from ackline.tables.table import AuditTable
from tests.bench.injected import InjectedLane

MARK = "/ackline-commits-the-group"


def _nothing(*_: object, **__: object) -> None:
    """Do nothing."""


def data_after_the_entry() -> None:
    """Sync data files only after the log entry that names them is written."""
    late: list[Callable[[], None]] = []
    sync, commit = Folder.sync, AuditTable.commit

    def sync_late(files: Folder, path: str) -> None:
        late.append(lambda: sync(files, path))

    def commit_early(table: AuditTable, *arguments: object) -> None:
        commit(table, *arguments)  # type: ignore[arg-type]
        while late:
            late.pop()()

    Folder.sync, AuditTable.commit = sync_late, commit_early  # type: ignore[method-assign, assignment]


def no_folder() -> None:
    """Sync no folder."""
    for module in (storage, sys.modules[DeltaLog.__module__]):
        module.sync_folder = _nothing  # type: ignore[attr-defined]


def no_entry() -> None:
    """Sync no log entry."""
    DeltaLog.secure = _nothing  # type: ignore[method-assign]


def no_data() -> None:
    """Sync no data file."""
    Folder.sync = _nothing  # type: ignore[method-assign]


MUTANTS = {mutant.__name__: mutant for mutant in (data_after_the_entry, no_folder, no_entry, no_data)}


def main(folder: str, mutant: str = "") -> None:
    """Runs two turns, the second with a retry, and compacts the tables between them."""
    MUTANTS.get(mutant, _nothing)()
    lane = InjectedLane(Path(folder), 1)
    for failed in (1, 0):
        lane.grow(10)
        lane.inject(lane.plan(), failed)
        lane.strike("commit", _mark, "before")
        lane.settle()
        maintain(lane.root)


def _mark() -> None:
    with contextlib.suppress(FileNotFoundError):
        Path(MARK).read_bytes()


if __name__ == "__main__":
    main(*sys.argv[1:])
