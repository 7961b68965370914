"""A test that takes too long fails, and a run shows where its seconds went."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_test_without_a_mark_fails_if_it_takes_too_long_and_a_run_ends_with_its_slowest_files(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.support import seconds\nseconds.MOST_SECONDS = 0.0\n")
    for number in range(11):
        (tmp_path / f"test_{number}.py").write_text("def test() -> None: ...\n" if number else MARKED)
    options = ["-p", "tests.support.seconds", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert "10 failed, 1 passed" in done.stdout
    assert "make it quicker, or give it the mark `slow`" in done.stdout
    assert "the 10 slowest of 11 files" in done.stdout


MARKED = "import pytest\npytestmark = pytest.mark.slow\ndef test() -> None: ...\n"
