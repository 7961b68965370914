"""`make bench`, fifth part: the time and the memory of queries of a partition with many rows.

Each query runs in a process of its own, after the same query of a small pipeline has loaded what it needs.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from rich.console import Console

from ackline.audit.queries import AuditFilter, audit_rows
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE
from ackline.tables.store import LedgerStore
from ackline.worker.files import Chunk, OutcomeFiles
from ackline.worker.records import Int64s
from tests.bench.figures import MIB, Figure, measure, show_figures, sizes_from
from tests.bench.interleaved import store_turn

ROWS, TURN_ROWS, CHUNK_ROWS = 100_000_000, 1_000_000, 100_000
FAILS_EVERY = 10_000
AIM_MIB, AIM_SECONDS = 200, 2.0
"""The seconds are an aim for ROWS rows."""
SMALL, LARGE = "small", "large"
TP = TopicPartition("orders", 0)


def main() -> None:
    options = sizes_from("queries", __doc__, rows=(ROWS, "rows of the partition"))
    figures = []
    with TemporaryDirectory(prefix="ackline-bench-") as folder:
        root = str(Path(folder) / "audit")
        os.environ |= {"ACKLINE_AUDIT": root, "AIRFLOW_HOME": str(Path(folder) / "airflow")}
        fill(root, SMALL, 1_000)
        fill(root, LARGE, options.rows)
        middle = options.rows // 2
        queries: dict[str, tuple[Callable[..., Callable[[], object]], AuditFilter]] = {
            "audit of one offset": (audit, AuditFilter(offsets=OffsetRange(middle, middle + 1))),
            "audit of one key": (audit, AuditFilter(key_hash=_hash_of(middle))),
            "audit of one error class, --limit 50": (audit, AuditFilter(error_class="KeyError", limit=50)),
            "audit of one run, --limit 50": (audit, AuditFilter(run_id=_run(middle), limit=50)),
            "audit --limit 50": (audit, AuditFilter(limit=50)),
            "audit --outcome dead --limit 50, none there": (audit, AuditFilter(outcome="dead", limit=50)),
            "the page of one offset": (page, AuditFilter(offsets=OffsetRange(middle, middle + 1), limit=200)),
        }
        for name, (prepare, criteria) in queries.items():
            cost = measure(prepare, root, criteria)
            figures.append(Figure(name, cost.seconds, "s", most=AIM_SECONDS))
            figures.append(Figure(name, cost.peak / MIB, "MiB more", most=AIM_MIB))
    show_figures(Console(), f"queries of a partition of {options.rows:,} rows", figures)


def audit(root: str, criteria: AuditFilter) -> Callable[[], object]:
    list(audit_rows(root, SMALL, criteria))
    return lambda: list(audit_rows(root, LARGE, criteria))


def page(root: str, criteria: AuditFilter) -> Callable[[], object]:
    """Returns what the page does for a pipeline, and then for one of its records."""
    from ackline.ui import failing, pages, readings
    from ackline.ui.links import ActionMaker, Addresses

    addresses = Addresses("/ackline/", "")

    def show(name: str) -> str:
        reading = readings.read_lane(name)
        actions = ActionMaker(name, LIVE, (), addresses)
        page = pages.pipeline(reading, [LIVE], failing.failures(reading), actions.of_pipeline(), addresses)
        if criteria.offsets is None:
            return page
        offset = criteria.offsets.start
        record = readings.read_record(reading, TP, offset)
        return pages.record(reading, TP, offset, record, actions.of_record(TP, offset, False), addresses)

    assert show(SMALL)
    return lambda: show(LARGE)


def fill(root: str, pipeline: str, rows: int) -> None:
    """Stores settled turns with `rows` records of one partition, as Spark tasks write them. Each has a key of its own,
    and each of a few fails and is dead."""
    store = LedgerStore(root, pipeline, LIVE)
    for n, start in enumerate(range(0, rows, TURN_ROWS), 1):
        fresh = OffsetRange(start, min(start + TURN_ROWS, rows))
        store_turn(store, n, fresh, [TP], partial(_write, fresh), run_id=_run(start), key_hashes=True)


def _write(fresh: OffsetRange, files: OutcomeFiles) -> None:
    for first in range(fresh.start, fresh.end, CHUNK_ROWS):
        offsets = np.arange(first, min(first + CHUNK_ROWS, fresh.end))
        chunk = Chunk(offsets, offsets, np.ones(len(offsets), dtype=np.int32), offsets, key_hashes=_hashes(offsets))
        fails = offsets % FAILS_EVERY == 1
        files.add(TP, Outcome.ACKED, chunk.take(np.flatnonzero(~fails)))
        failed = chunk.take(np.flatnonzero(fails))
        errors = ["KeyError"] * len(failed.offsets)
        files.add(TP, Outcome.DROPPED, replace(failed, classes=errors, messages=errors))


def _run(offset: int) -> str:
    return f"run {offset // TURN_ROWS}"


def _hashes(offsets: Int64s) -> pa.Array:
    """Returns a number for each offset, in no order, as hashes are."""
    return pa.array((offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64))


def _hash_of(offset: int) -> int:
    return int(_hashes(np.array([offset]))[0].as_py())


if __name__ == "__main__":
    main()
