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
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console

from ackline.actions.maintain import maintain
from ackline.audit.queries import AuditFilter, audit_pages
from ackline.audit.scan import LaneScanner
from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, Plan, PlannedPartition, SettledPartition, Settlement, TurnId, TurnKind
from ackline.spark.job import ReplayResult
from ackline.steps.replay import add_actions
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
    scanner = LaneScanner(LedgerStore(root, NAME, LIVE))
    criteria = AuditFilter("orders", 1, OffsetRange(offset, offset + 1))
    assert sum(page.num_rows for page in audit_pages(root, NAME, criteria, [scanner]))
    return scanner.files_opened


def fill(root: str, rows: int, turns: int) -> int:
    """Stores settled turns with so many rows, about; returns how many they are."""
    store, each = LedgerStore(root, NAME, LIVE), rows // turns // PARTITIONS
    tps = [TopicPartition("orders", partition) for partition in range(PARTITIONS)]
    written = 0

    def write(files: OutcomeFiles) -> None:
        nonlocal written
        offsets = np.arange(start, start + each)
        failed = offsets % FAILED_EVERY == 0
        retried = np.arange(start - each, start)[failed] if n > 1 else offsets[:0]
        for tp in tps:
            for outcome, chosen, attempt in (
                (Outcome.ACKED, offsets[~failed], 1), (Outcome.FAILED, offsets[failed], 1), (Outcome.ACKED, retried, 2)
            ):  # fmt: skip
                if len(chosen):
                    files.add(tp, outcome, _chunk(chosen, attempt, outcome is Outcome.FAILED))
                    written += len(chosen)

    for n in range(1, turns + 1):
        start = (n - 1) * each
        store_turn(store, n, OffsetRange(start, start + each), tps, write, run_id=f"run-{n}")
    return written


def store_turn(
    store: LedgerStore,
    n: int,
    fresh: OffsetRange,
    tps: Iterable[TopicPartition],
    write: Callable[[OutcomeFiles], object],
    *,
    run_id: str,
    key_hashes: bool = False,
) -> None:
    """Stores turn n, settled, of a range of each partition, with the outcomes that `write` adds; before turn 1 also the
    genesis of the lane."""
    now, tps, turn = datetime.now(UTC), list(tps), TurnId(store.pipeline, LIVE, 0, n)

    def settlement(turn: TurnId, kind: TurnKind, floor: int) -> Settlement:
        settled = SettledPartition("id", 0, PartitionState(floor))
        return Settlement(turn, kind, run_id, now, dict.fromkeys(tps, settled))

    if n == 1:
        store.store_settlement(settlement(turn._replace(n=0), TurnKind.GENESIS, 0))
    planned = PlannedPartition("id", fresh, (), 0, fresh.start, LogBounds(0, fresh.end))
    plan = Plan(turn, TurnKind.RUN, run_id, now, dict.fromkeys(tps, planned), "read_committed", {})
    assert store.store_plan(plan)
    files = OutcomeFiles(OutcomeTarget(store.outcomes.uri, turn, now.date(), run_id), key_hashes=key_hashes)
    write(files)
    result = ReplayResult(tuple(files.close()), {}, fresh.end - fresh.start, 0)
    assert store.store_outcomes(turn, add_actions(plan, result))
    assert store.store_settlement(settlement(turn, TurnKind.RUN, fresh.end), plan)


def _chunk(offsets: np.ndarray, attempt: int, failed: bool) -> Chunk:
    times = offsets.astype(np.int64)
    classes = [CLASSES[offset // FAILED_EVERY % len(CLASSES)] for offset in offsets.tolist()] if failed else None
    messages = ["the service did not answer"] * len(offsets) if failed else None
    return Chunk(offsets, times, np.full(len(offsets), attempt, dtype=np.int32), times, classes, messages)


if __name__ == "__main__":
    main()
