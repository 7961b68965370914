"""The demo, as `make demo` runs it: a broker, Airflow, Spark and Delta, and the proof of each record."""

import os
from pathlib import Path

import pytest

from ackline.local.processes import wait_until
from tests.airflow.project import processes
from tests.e2e.commands import ROOT, run_in_session


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_proves_each_record_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """It exits with 0 only if the checker has proved both of its pipelines."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = run_in_session(["ackline", "demo"], environment, ROOT, seconds=840)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not list(tmp_path.glob("ackline-demo-*"))
    assert wait_until(lambda: not any(str(tmp_path) in argv for _, argv, _ in processes()), 20)
