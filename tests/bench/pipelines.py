"""`make bench`, sixth part: what a folder of many pipeline files costs the DAG processor, a task and the command.

Each function runs in a process of its own. Times are CPU seconds, so they do not depend on what else the machine does.
"""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from tests.bench.figures import MIB, Cost, Figure, measure, show_figures, sizes_from

FILES = 10_000
MAKE_DAGS_AIM, LOAD_PIPELINE_AIM = 20, 1
"""CPU seconds."""
PIPELINE = """
name: {name}
kafka:
  connection: kafka_default
  group_id: {name}-replay
  topics: [{name}]
handler: handlers.orders:handle
dead_letter: {{topic: {name}.dead}}
schedule: "*/10 * * * *"
"""


def main() -> None:
    options = sizes_from("pipelines", __doc__, files=(FILES, "pipeline files"))
    with TemporaryDirectory(prefix="ackline-bench-") as temporary:
        os.environ |= {"AIRFLOW_HOME": f"{temporary}/airflow", "ACKLINE_AUDIT": f"{temporary}/audit"}
        folder, small = Path(temporary) / "many", Path(temporary) / "small"
        write_files(folder, options.files)
        write_files(small, 1)
        # The file of the searched pipeline has another name, and is the last one: the slowest case.
        last = f"pipeline-{options.files - 1:05}"
        (folder / f"{last}.yaml").rename(folder / "zz.yaml")
        figures = [
            _figure("load_folder", measure(loading, folder, small)),
            _figure("make_dags", measure(making_dags, folder, small), MAKE_DAGS_AIM),
            _figure("load_pipeline", measure(loading_one, folder, "pipeline-00000"), LOAD_PIPELINE_AIM),
            _figure("load_pipeline, file of another name", measure(loading_one, folder, last), LOAD_PIPELINE_AIM),
        ]
    show_figures(Console(), f"a folder of {options.files:,} pipeline files", figures)


def _figure(name: str, cost: Cost, aim: float | None = None) -> Figure:
    note = f"{cost.seconds:.2f} s in all, {cost.peak / MIB:.0f} MiB more"
    return Figure(name, cost.cpu, "CPU s", most=aim, note=note)


def write_files(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        name = f"pipeline-{number:05}"
        (folder / f"{name}.yaml").write_text(PIPELINE.format(name=name))


def loading(folder: Path, small: Path) -> Callable[[], object]:
    from ackline.pipeline.folder import load_folder

    assert len(load_folder(small).pipelines) == 1
    return lambda: load_folder(folder)


def making_dags(folder: Path, small: Path) -> Callable[[], object]:
    """Returns what the DAG processor does for the DAG file, once Airflow is loaded."""
    from ackline.airflow.dags import make_dags

    assert len(make_dags(small, __file__).dags) == 1
    return lambda: make_dags(folder, __file__)


def loading_one(folder: Path, name: str) -> Callable[[], object]:
    """Returns what a task does to find its pipeline."""
    from ackline.pipeline.folder import load_pipeline

    return lambda: load_pipeline(folder, name)


if __name__ == "__main__":
    main()
