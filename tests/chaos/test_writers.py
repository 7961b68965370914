"""Eight writers to one table on a local path, two of them delta-spark JVMs (fault 30).

Each number has one winner, and no row is lost.
"""

import json
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.chaos.victims import SECONDS, ended, process

RUST, JVMS, NUMBERS = 6, 2, 4


@pytest.mark.deep
@pytest.mark.real
def test_eight_writers_of_two_kinds_lose_nothing_and_each_number_has_one_winner(tmp_path: Path) -> None:
    def writer(kind: str, name: str) -> subprocess.Popen[str]:
        return stack.enter_context(ended(process("tests.chaos.writer", kind, str(tmp_path), name, str(NUMBERS))))

    with ExitStack() as stack:
        jvms = {f"jvm{n}": writer("delta-spark", f"jvm{n}") for n in range(JVMS)}
        for jvm in jvms.values():
            assert jvm.stdout is not None
            assert jvm.stdout.readline() == "ready\n", jvm.communicate(timeout=SECONDS)[1]
        rust = {f"rust{n}": writer("delta-rs", f"rust{n}") for n in range(RUST)}
        won: dict[str, list[int]] = {}
        for jvm in jvms.values():
            assert jvm.stdin is not None
            jvm.stdin.write("\n")
            jvm.stdin.flush()
        for name, each in {**jvms, **rust}.items():
            output, errors = each.communicate(timeout=SECONDS)
            assert each.returncode == 0, errors
            won[name] = json.loads(output.splitlines()[-1])
    rows = DeltaTable(str(tmp_path / "outcomes")).to_pyarrow_table().to_pylist()
    contested = [(row["turn"], row["run_id"]) for row in rows if row["lane"] == "contest"]
    assert sorted(contested) == sorted((number, name) for name, numbers in won.items() for number in numbers)
    assert sorted(number for number, _ in contested) == list(range(1, NUMBERS + 1))
    own = Counter(row["run_id"] for row in rows if row["lane"] != "contest")
    assert own == dict.fromkeys(won, NUMBERS)
