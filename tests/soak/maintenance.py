"""A process that makes what is older than some seconds look old, and then maintains the tables of a fleet.

    python -m tests.soak.maintenance FOLDER SECONDS

Maintenance removes a file a week after the tables stopped naming it, and a log entry after a day. A soak is shorter. So
this process dates each removal that it commits a week back, less the seconds, and ages the log entries that are older
than that. All else is `ackline maintain`: the next runs of this process remove what the earlier ones have replaced.
"""

import json
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

from ackline.actions.maintain import maintain
from ackline.delta import compaction
from ackline.tables.maintenance import RETENTION
from tests.soak.fleet import reopen

LOG_AGE = timedelta(days=40)
"""Older than what the logs of the ledger and of output tables keep."""


def age(root: Path, seconds: float) -> None:
    """Dates removals a week back, and log entries that are older than `seconds` by LOG_AGE."""
    back = RETENTION.total_seconds() - seconds
    vars(compaction)["time"] = SimpleNamespace(time=lambda: time.time() - back)
    old, horizon = time.time() - LOG_AGE.total_seconds(), time.time() - seconds
    for parent, _, names in os.walk(root):
        for name in names if Path(parent).name == "_delta_log" else ():
            with suppress(FileNotFoundError):  # another process maintains the table, too
                modified = Path(parent, name).stat().st_mtime
                if old < modified < horizon:
                    os.utime(Path(parent, name), (modified - LOG_AGE.total_seconds(),) * 2)


def main(folder: Path, seconds: float) -> None:
    fleet = reopen(folder)
    age(Path(fleet.audit), seconds)
    done = maintain(fleet.audit)
    totals = {name: sum(getattr(table, name) for table in done) for name in ("compacted", "busy", "removed")}
    print(json.dumps({"tables": len(done), **totals}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
