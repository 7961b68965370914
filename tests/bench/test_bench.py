"""Each part of `make bench` at a small part of its size: it ends well and prints its figures. No aim is judged here."""

import re
import subprocess
import sys

import pytest

from tests.e2e.commands import ROOT

RELEASE = [pytest.mark.real, pytest.mark.release]
PARTS = [
    pytest.param("turns", "--turns 16 --every 8 --large 2000 4000 --failed 4000 --wide 20", id="turns"),
    pytest.param("ledger_sizes", "--files 20 --rounds 2", id="ledger_sizes"),
    pytest.param("queries", "--rows 20000", id="queries"),
    pytest.param("interleaved", "--rows 20000 --turns 3", id="interleaved"),
    pytest.param("pipelines", "--files 10", id="pipelines"),
    pytest.param("overview", "--pipelines 2 --partitions 2 --turns 2", id="overview"),
    pytest.param("newest", "--records 200 --turns 1 --rows 40000", id="newest"),
    pytest.param("waiting", "--records 400", id="waiting"),
    pytest.param("run", "--records 2000 --rounds 1 --warm-up 0", id="run", marks=[pytest.mark.real, pytest.mark.deep]),
    pytest.param("partitions", "--partitions 2 --runs 1", id="partitions", marks=RELEASE),
    pytest.param("trees", "--records 1000 --rounds 1 --warm-up 0 --edges 10000", id="trees", marks=RELEASE),
    pytest.param("dag_run", "--runs 1", id="dag_run", marks=RELEASE),
]


def test_each_part_of_make_bench_runs_here() -> None:
    parts = re.findall(r"python -m tests\.bench\.(\w+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(parts) == sorted(str(part.values[0]) for part in PARTS)


@pytest.mark.parametrize(("part", "sizes"), PARTS)
def test_a_part_measures_and_prints_its_figures(part: str, sizes: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{part}", *sizes.split()],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"│.*\d.*│", done.stdout), done.stdout
