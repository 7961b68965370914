"""`make bench`, part of the queries: the time of questions to a table that many turns have written, in cold processes.

Each turn appends rows of every partition: first attempts, failures with an error class, and retries of the turn before.
So after maintenance each file holds rows of many turns and of all partitions. The commands run as a user runs them, so
their time includes the start of Python.
"""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console

from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, Plan, PlannedPartition, SettledPartition, Settlement, TurnId, TurnKind
from ackline.spark.job import ReplayResult
from ackline.steps.replay import add_actions
from ackline.tables.maintenance import maintain
from ackline.tables.queries import AuditFilter, audit_pages
from ackline.tables.scan import LaneScanner
from ackline.tables.store import LedgerStore
from ackline.worker.files import Chunk, OutcomeFiles, OutcomeTarget
from tests.bench.figures import Figure, show_figures, sizes_from

ROWS, TURNS, PARTITIONS = 10_000_000, 500, 4
FAILED_EVERY = 50
"""One record in so many fails at its first attempt, and is acked by the next turn."""
CLASSES = ("HTTPError", "Timeout", "KeyError", "ValueError", "builtins.ConnectionResetError")
OFFSET_SECONDS, SUMMARY_SECONDS = 3.0, 6.0
NAME = "interleaved"
COMMAND = "from ackline.cli import main; main()"
PIPELINE = f"""
name: {NAME}
kafka: {{bootstrap_servers: "127.0.0.1:1", group_id: {NAME}, topics: [orders]}}
handler: handlers.orders:handle
dead_letter: none
"""


def main() -> None:
    """Fills a table, maintains it, measures the commands and prints the figures."""
    options = sizes_from("interleaved", __doc__, rows=(ROWS, "rows of the table"), turns=(TURNS, "turns of them"))
    with TemporaryDirectory(prefix="ackline-bench-") as folder:
        root, pipelines = str(Path(folder) / "audit"), Path(folder) / "pipelines"
        pipelines.mkdir()
        (pipelines / f"{NAME}.yaml").write_text(PIPELINE)
        rows = fill(root, options.rows, options.turns)
        files = next(done.files for done in maintain(root) if done.table == "outcomes")
        figures = measured(root, pipelines, rows, files)
    title = f"{rows:,} rows of {options.turns} interleaved turns, in {files} files after maintenance, cold processes"
    show_figures(Console(), title, figures)


def measured(root: str, pipelines: Path, rows: int, files: int) -> list[Figure]:
    """Returns the time of each command, and how many files it opens."""
    environment = {**os.environ, "ACKLINE_AUDIT": root, "ACKLINE_PIPELINES": str(pipelines)}
    offset = rows // PARTITIONS // 2
    commands = (
        ("audit of one offset", ["audit", NAME, "--topic", "orders", "--partition", "1", "--offsets", str(offset)],
         OFFSET_SECONDS, f"{files_opened(root, offset)} of {files} files opened"),
        ("sql: attempts by error class", ["sql", "SELECT error_class, count(*) AS n FROM outcomes GROUP BY ALL"],
         SUMMARY_SECONDS, f"{files} of {files} files opened"),
        ("sql: one offset", ["sql", "SELECT * FROM outcomes WHERE topic = 'orders' AND partition = 1 "
                             f'AND "offset" = {offset}'], None, ""),
        ("audit: the newest 50", ["audit", NAME, "--limit", "50"], None, ""),
    )  # fmt: skip
    return [
        Figure(name, seconds_of([*arguments, "--json"], environment), "s", most=aim, note=note)
        for name, arguments, aim, note in commands
    ]


def seconds_of(arguments: list[str], environment: dict[str, str]) -> float:
    """Returns how long a command takes as a process of its own. Exits if it finds nothing."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begun
    if done.returncode or not json.loads(done.stdout):
        sys.exit(f"ackline {' '.join(arguments)}: {done.stderr or 'no rows'}")
    return seconds


def files_opened(root: str, offset: int) -> int:
    """Returns how many files the audit of an offset opens."""
    scanner = LaneScanner(LedgerStore(root, NAME, LIVE))
    criteria = AuditFilter("orders", 1, OffsetRange(offset, offset + 1))
    assert sum(page.num_rows for page in audit_pages(root, NAME, criteria, [scanner]))
    return scanner.files_opened


def fill(root: str, rows: int, turns: int) -> int:
    """Stores settled turns with so many rows, about; returns how many they are."""
    store, now = LedgerStore(root, NAME, LIVE), datetime.now(UTC)
    each = rows // turns // PARTITIONS
    store.store_settlement(_settlement(0, 0, now))
    written = 0
    for n in range(1, turns + 1):
        start = (n - 1) * each
        plan = _plan(n, OffsetRange(start, start + each), now)
        assert store.store_plan(plan)
        files = OutcomeFiles(OutcomeTarget(store.outcomes.uri, plan.turn, now.date(), f"run-{n}"))
        for partition in range(PARTITIONS):
            tp, offsets = TopicPartition("orders", partition), np.arange(start, start + each)
            failed = offsets % FAILED_EVERY == 0
            retried = np.arange(start - each, start)[failed] if n > 1 else offsets[:0]
            for outcome, chosen, attempt in (
                (Outcome.ACKED, offsets[~failed], 1), (Outcome.FAILED, offsets[failed], 1), (Outcome.ACKED, retried, 2)
            ):  # fmt: skip
                if len(chosen):
                    files.add(tp, outcome, _chunk(chosen, attempt, outcome is Outcome.FAILED))
                    written += len(chosen)
        result = ReplayResult(tuple(files.close()), {}, each, 0)
        assert store.store_outcomes(plan.turn, add_actions(plan, result))
        assert store.store_settlement(_settlement(n, start + each, now), plan)
    return written


def _chunk(offsets: np.ndarray, attempt: int, failed: bool) -> Chunk:
    times = offsets.astype(np.int64)
    classes = [CLASSES[offset // FAILED_EVERY % len(CLASSES)] for offset in offsets.tolist()] if failed else None
    messages = ["the service did not answer"] * len(offsets) if failed else None
    return Chunk(offsets, times, np.full(len(offsets), attempt, dtype=np.int32), times, classes, messages)


def _plan(n: int, fresh: OffsetRange, now: datetime) -> Plan:
    planned = PlannedPartition("id", fresh, (), 0, fresh.start, LogBounds(0, fresh.end))
    partitions = {TopicPartition("orders", partition): planned for partition in range(PARTITIONS)}
    return Plan(TurnId(NAME, LIVE, 0, n), TurnKind.RUN, f"run-{n}", now, partitions, "read_committed", {})


def _settlement(n: int, floor: int, now: datetime) -> Settlement:
    kind = TurnKind.RUN if n else TurnKind.GENESIS
    settled = SettledPartition("id", 0, PartitionState(floor))
    partitions = {TopicPartition("orders", partition): settled for partition in range(PARTITIONS)}
    return Settlement(TurnId(NAME, LIVE, 0, n), kind, f"run-{n}", now, partitions)


if __name__ == "__main__":
    main()
