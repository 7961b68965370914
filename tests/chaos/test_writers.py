"""Eight writers to one table on a local path, two of them delta-spark JVMs (fault 30).

Each number has one winner, and no row is lost.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.chaos.victims import SECONDS, ended
from tests.e2e.lab import ROOT

RUST, JVMS, NUMBERS = 6, 2, 4


def writer(kind: str, root: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.writer", kind, str(root), name, str(NUMBERS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.deep
@pytest.mark.real
def test_eight_writers_of_two_kinds_lose_nothing_and_each_number_has_one_winner(tmp_path: Path) -> None:
    with ExitStack() as stack:
        jvms = {f"jvm{n}": stack.enter_context(ended(writer("delta-spark", tmp_path, f"jvm{n}"))) for n in range(JVMS)}
        for process in jvms.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=SECONDS)[1]
        rust = {f"rust{n}": stack.enter_context(ended(writer("delta-rs", tmp_path, f"rust{n}"))) for n in range(RUST)}
        won: dict[str, list[int]] = {}
        for process in jvms.values():
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for name, process in {**jvms, **rust}.items():
            output, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, errors
            won[name] = json.loads(output.splitlines()[-1])
    rows = DeltaTable(str(tmp_path / "outcomes")).to_pyarrow_table().to_pylist()
    contested = [(row["turn"], row["run_id"]) for row in rows if row["lane"] == "contest"]
    assert sorted(contested) == sorted((number, name) for name, numbers in won.items() for number in numbers)
    assert sorted(number for number, _ in contested) == list(range(1, NUMBERS + 1))
    own = Counter(row["run_id"] for row in rows if row["lane"] != "contest")
    assert own == dict.fromkeys(won, NUMBERS)
