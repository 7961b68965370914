"""Tables can't be written, and checkpoints are torn or lost (fault 32): a run stops, or it goes on correctly.

What is committed stays. After the repair no record is handled twice, and none is forgotten.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ackline.errors import AcklineError
from tests.chaos import victims
from tests.chaos.test_kills import UNDISTURBED, prepared
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row


@pytest.mark.parametrize(
    "step", [pytest.param("plan", marks=pytest.mark.deep), pytest.param("replay", marks=pytest.mark.deep), "settle"]
)
def test_fault_32_a_full_disk_stops_the_step_and_loses_nothing(lab: MakeLab, step: str) -> None:
    """No file of the process may be larger than 200 bytes, so neither data files nor log entries can be written."""
    lane = prepared(lab, step)
    tables = {name: lane.table(name) for name in ("plans", "outcomes", "settlements")}
    with victims.ended(victims.start(lane, step, largest=200)) as victim:
        _, errors = victim.communicate(timeout=victims.SECONDS)
    assert victim.returncode == 1, errors
    assert "FatalError: the table " in errors
    assert "\x1b" not in errors
    assert "Traceback" not in errors
    assert {name: lane.table(name) for name in tables} == tables
    assert lane.committed() is None
    lane.judge()
    lane.run()
    assert lane.rows() == UNDISTURBED
    lane.judge(settled=True)


def _error_of_run(lane: Lab) -> str:
    """Returns the error of a run; empty if it succeeds."""
    try:
        lane.run()
    except AcklineError as error:
        return str(error)
    return ""


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [pytest.param(Path.unlink, marks=pytest.mark.deep), _torn], ids=["lost", "torn"])
def test_fault_32_a_lost_or_torn_checkpoint_is_said_or_does_not_matter(
    lab: MakeLab, damage: Callable[[Path], None]
) -> None:
    """Damages the newest checkpoint of each of the three tables, and a pointer to it, which only other tools write."""
    lane = lab(retry={"initial_delay": "1h"})
    lane.produce_records(4, {1: {"fail": 1}})
    for _ in range(11):
        lane.run()
    assert (lane.new_offsets(), lane.committed(), lane.pending()) == ([0, 1, 2, 3], 1, [1])
    for name in ("_last_checkpoint", "*.checkpoint.parquet"):
        for table in ("plans", "outcomes", "settlements"):
            log = Path(lane.tables, table, "_delta_log")
            checkpoint = max(log.glob("*.checkpoint.parquet"))
            file = checkpoint if name.startswith("*") else log / name
            if file != checkpoint:
                file.write_text(json.dumps({"version": int(checkpoint.name[:20]), "size": 1}))
            whole = file.read_bytes()
            damage(file)
            error = _error_of_run(lane)
            assert not error or f"the table {table} at " in error
            assert (lane.new_offsets(), lane.committed()) == ([], 1), f"{table}/{file.name}"
            file.unlink(missing_ok=True)
            if file == checkpoint:
                file.write_bytes(whole)
    lane.advance_clock(3600)
    lane.run()  # ends a turn that a failed run may have left open
    lane.run()
    assert lane.rows() == [
        Row(0, 1, "acked"),
        Row(1, 1, "failed"),
        Row(1, 2, "acked"),
        Row(2, 1, "acked"),
        Row(3, 1, "acked"),
    ]
    assert lane.committed() == 4
    lane.judge(settled=True)
