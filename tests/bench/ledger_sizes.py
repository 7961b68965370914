"""`make bench`, third part: what other files and other pipelines cost a turn, and how long maintenance holds a lock.

The steps and the tables are real; Kafka is in memory. The files of other pipelines and of other days are log entries
without data files, because no step of a turn may open them. Turns of a lane beside few files and of one beside many
alternate, so the ratio does not depend on what else the machine does.
"""

import contextlib
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from deltalake.transaction import AddAction
from rich.console import Console

from ackline.actions.maintain import maintain
from ackline.ledger.turns import LIVE, TurnKind
from ackline.pipeline.folder import lane_folder
from ackline.tables.audit_table import AuditTable
from ackline.tables.schemas import TABLES
from tests.bench.figures import MIB, Figure, memory, show_figures, sizes_from
from tests.bench.injected import NAME, InjectedLane

PARTITIONS, RECORDS = 4, 1_000
FEW, MANY = 10, 10_000
"""Files of the two sides."""
BESIDE = (
    ("in each table of another pipeline", "other", tuple(TABLES)),
    ("of other days in outcomes", NAME, ("outcomes",)),
    ("of other days in each table", NAME, tuple(TABLES)),
)
"""Where the files are: the pipeline and its tables. The lock of maintenance is measured in the last one."""
DAYS = 100
"""The days over which the files are spread."""
APPENDING = 10
"""Pipelines that append meanwhile."""
EVERY_SECONDS = 0.1
"""The time between two of their commits."""
ROUNDS, WARM_UP = 21, 2
AIM = 1.2
LARGE_FILE = 1 << 30
"""The size that the log entries claim, in bytes: so large that maintenance does not compact the files."""


@dataclass(slots=True)
class Lane:
    """A lane beside other files, and the seconds of plan and settle of each of its turns."""

    injected: InjectedLane
    plan: list[float] = field(default_factory=list)
    settle: list[float] = field(default_factory=list)

    def turn(self) -> None:
        """Does a turn: all records succeed but one of each partition, which is retried."""
        self.injected.grow(RECORDS)
        begun = time.perf_counter()
        plan = self.injected.plan()
        self.plan.append(time.perf_counter() - begun)
        self.injected.inject(plan, failed=1)
        begun = time.perf_counter()
        self.injected.settle()
        self.settle.append(time.perf_counter() - begun)


def main() -> None:
    sizes = {"files": (MANY, "files of the large side"), "rounds": (ROUNDS, "turns of each side")}
    options = sizes_from("ledger_sizes", __doc__, **sizes)
    console, figures = Console(), list[Figure]()
    with TemporaryDirectory(prefix="ackline-bench-") as temporary:
        folder = Path(temporary)
        for number in range(len(BESIDE)):
            figures.append(_beside_files(folder, number, options.files, options.rounds))
        figures.append(_beside_others(folder, options.rounds))
        figures += _locks(folder / f"many-{len(BESIDE) - 1}", options.files)
    figures.append(Figure("memory of this process", memory("VmHWM") / MIB, "MiB, peak"))
    show_figures(console, f"plan + settle of a turn of {PARTITIONS * RECORDS:,} records, and maintenance", figures)


def _beside_files(folder: Path, number: int, files: int, rounds: int) -> Figure:
    """Returns the ratio of turns beside `files` files, to turns beside FEW; `number` is the place in BESIDE."""
    name, pipeline, tables = BESIDE[number]
    few = _lane(folder / f"few-{number}", rounds, pipeline, tables, FEW)
    many = _lane(folder / f"many-{number}", rounds, pipeline, tables, files)
    for _ in range(WARM_UP + rounds):
        few.turn()
        many.turn()
    return _ratio(f"{FEW} → {files:,} files {name}", few, many)


def _lane(folder: Path, rounds: int, pipeline: str, tables: tuple[str, ...], files: int) -> Lane:
    """Returns a lane that has settled a turn, after which so many files were added to these tables of a pipeline."""
    lane = Lane(InjectedLane(folder, PARTITIONS, WARM_UP + rounds + 1))
    lane.turn()
    lane.plan.clear()
    lane.settle.clear()
    for name in tables:
        table = AuditTable(lane_folder(lane.injected.root, pipeline, LIVE), name)
        assert table.append(other_days(pipeline, files, name), "ackline/bench", 1)
        table.checkpoint()
    return lane


def other_days(pipeline: str, files: int, table: str = "outcomes") -> list[AddAction]:
    """Returns log entries of files of the last DAYS days, with the statistics of turns of an epoch before the first.

    So no read may open one of them, the search for the last failure of a retry and that for void turns included.
    """
    today, now = datetime.now(UTC).date(), int(time.time() * 1000)
    actions = []
    for number in range(files):
        day = {"plan_date": (today - timedelta(days=1 + number % DAYS)).isoformat()}
        same = {"pipeline": pipeline, "lane": LIVE, "epoch": -1, "turn": number, "topic": "orders", "partition": 0}
        if table != "outcomes":
            same["kind"] = TurnKind.RUN
        low, high = {**same, "offset": number * 1_000}, {**same, "offset": number * 1_000 + 999}
        stats = {"numRecords": 1_000, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}
        path = f"plan_date={day['plan_date']}/live-0-{number}.parquet"
        actions.append(AddAction(path, LARGE_FILE, dict(day), now, True, json.dumps(stats)))
    return actions


def _ratio(name: str, few: Lane, many: Lane) -> Figure:
    """Returns the ratio of the medians of plan + settle, without the turns to warm up."""
    before, after = (
        [plan + settle for plan, settle in zip(lane.plan, lane.settle, strict=True)][WARM_UP:] for lane in (few, many)
    )
    ratio = statistics.median(after) / statistics.median(before)
    parts = [
        f"{statistics.median(lane.plan[WARM_UP:]) * 1000:.0f} + {statistics.median(lane.settle[WARM_UP:]) * 1000:.0f}"
        for lane in (few, many)
    ]
    means = statistics.mean(after) / statistics.mean(before)
    return Figure(name, ratio, "×", most=AIM, note=f"{parts[0]} → {parts[1]} ms; means {means:.2f}×")


def _beside_others(folder: Path, rounds: int) -> Figure:
    """Returns the ratio of turns while APPENDING other pipelines of the same root append, to turns while they rest."""
    alone = Lane(InjectedLane(folder / "beside", PARTITIONS, WARM_UP + rounds))
    beside = Lane(alone.injected)
    context = multiprocessing.get_context("spawn")
    append, stop = context.Event(), context.Event()
    others = context.Process(target=_append, args=(alone.injected.root, append, stop))
    others.start()
    try:
        for _ in range(WARM_UP + rounds):
            append.clear()
            alone.turn()
            append.set()
            beside.turn()
    finally:
        stop.set()
        append.set()
        others.join()
    return _ratio(f"0 → {APPENDING} other pipelines append, {1 / EVERY_SECONDS:g} commits/s", alone, beside)


def _append(root: str, append: Event, stop: Event) -> None:
    """Commits to the outcomes of the other pipelines in turn, while `append` is set."""
    names = [f"other-{number}" for number in range(APPENDING)]
    tables = [AuditTable(lane_folder(root, name, LIVE), "outcomes") for name in names]
    number = 0
    while not stop.is_set():
        append.wait()
        assert tables[number % APPENDING].append([], "ackline/bench", number)
        number += 1
        stop.wait(EVERY_SECONDS)


def _locks(folder: Path, files: int) -> list[Figure]:
    """Returns for how long maintenance holds the lock of a table, each time and in all."""
    with _lock_times() as held:
        begun = time.perf_counter()
        maintain(str(folder / "audit"))
        seconds = time.perf_counter() - begun
    return [
        Figure(f"maintenance holds a lock, {files:,} files a table", max(held), "s at a time"),
        Figure("maintenance holds locks, all tables", sum(held), "s", note=f"{len(held)} times in {seconds:.2f} s"),
    ]


@contextlib.contextmanager
def _lock_times() -> Iterator[list[float]]:
    """Collects for how many seconds each lock of a table is held in the block."""
    times: list[float] = []
    original = AuditTable.lock

    @contextlib.contextmanager
    def lock(table: AuditTable) -> Iterator[None]:
        with original(table):
            begun = time.perf_counter()
            try:
                yield
            finally:
                times.append(time.perf_counter() - begun)

    with patch.object(AuditTable, "lock", lock):
        yield times


if __name__ == "__main__":
    main()
