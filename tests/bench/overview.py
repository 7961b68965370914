"""`make bench`, seventh part: what a view of the list of all pipelines costs. Each open page asks for it four times a
minute.

Times are CPU seconds of the whole view: tables, files and HTML, without Airflow's login. Each pipeline has a history,
failing records and dead ones.
"""

import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from ackline.ledger.offsets import TopicPartition
from tests.bench.figures import Figure, in_a_process, show_figures, sizes_from
from tests.bench.pipelines import write_files
from tests.ui.stored_lanes import StoredLane, StoredPartition, write_lane

PIPELINES, PARTITIONS, TURNS, VIEWS = 40, 6, 24, 5
UNCHANGED_AIM, CHANGED_AIM = 0.2, 1.0
"""CPU seconds of a view of PIPELINES pipelines: if no table has a new commit, and if every pipeline has a new turn."""


def main() -> None:
    options = sizes_from(
        "overview", __doc__, pipelines=(PIPELINES, "pipelines"), partitions=(PARTITIONS, "partitions of each pipeline"),
        turns=(TURNS, "settled turns of each pipeline"),
    )  # fmt: skip
    first, unchanged, changed, size = in_a_process(costs, options.pipelines, options.partitions, options.turns)
    figures = [
        Figure("the first view of a process", first, "CPU s"),
        Figure("a view, nothing changed", unchanged, "CPU s", most=UNCHANGED_AIM),
        Figure("a view, each pipeline with a new turn", changed, "CPU s", most=CHANGED_AIM),
        Figure("the view", size / 1024, "KiB"),
    ]
    title = f"the page's list of {options.pipelines} pipelines with {options.partitions} partitions each"
    show_figures(Console(), title, figures)


def costs(pipelines: int, partitions: int, turns: int) -> tuple[float, float, float, int]:
    """Returns CPU seconds of the first view, of one without and of one with changes, and the characters of a view."""
    with TemporaryDirectory(prefix="ackline-bench-") as temporary:
        folder = Path(temporary)
        os.environ |= {"AIRFLOW_HOME": f"{folder}/airflow", "ACKLINE_AUDIT": f"{folder}/audit"}
        os.environ["ACKLINE_PIPELINES"] = f"{folder}/pipelines"
        write_files(folder / "pipelines", pipelines)
        names = [f"pipeline-{number:05}" for number in range(pipelines)]
        lanes = [written(f"{folder}/audit", name, partitions, turns) for name in names]
        from ackline.ui import app
        from ackline.ui.filters import Filters

        def view() -> str:
            return app.index({f"replay__{name}" for name in names}, Filters())

        first, size = cpu_of(view), len(view())
        unchanged = statistics.median(cpu_of(view) for _ in range(VIEWS))
        changed = []
        for _ in range(VIEWS):
            for lane in lanes:
                add_turn(lane)
            changed.append(cpu_of(view))
        return first, unchanged, statistics.median(changed), size


def written(root: str, name: str, partitions: int, turns: int) -> StoredLane:
    """Stores a lane in which one partition has failing records, and another dead ones."""
    parts = {TopicPartition(name, number): StoredPartition() for number in range(partitions)}
    parts[TopicPartition(name, 0)] = StoredPartition(fail_every=37)
    parts[TopicPartition(name, partitions - 1)] = StoredPartition(die_every=50)
    return write_lane(root, name, parts, turns, whole=False)


def add_turn(lane: StoredLane) -> None:
    """Stores one more turn of a lane, as a run stores it."""
    lane.turns += 1
    lane.now += timedelta(seconds=10)
    lane._write_turn(lane.turns, lane.now)


def cpu_of(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
