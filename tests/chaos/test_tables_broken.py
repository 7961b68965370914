"""Tables that can't be written, and checkpoints that are torn or lost (fault 32): a run stops, or goes on rightly.

What is committed stays; nothing is handled twice or forgotten once the disk is mended.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from ackline.errors import AcklineError
from tests.chaos import victims
from tests.chaos.test_kills import UNDISTURBED, prepared
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row


@pytest.mark.parametrize("step", ["plan", "replay", "settle"])
def test_fault_32_a_full_disk_stops_the_step_and_loses_nothing(lab: MakeLab, step: str) -> None:
    """No file of the process may hold more than a few hundred bytes: neither data nor the log's entries fit."""
    one = prepared(lab, step)
    tables = {name: one.table(name) for name in ("plans", "outcomes", "settlements")}
    with victims.ended(victims.start(one, step, largest=200)) as victim:
        _, said = victim.communicate(timeout=victims.SECONDS)
    assert victim.returncode == 1, said
    assert "FatalError: the table " in said
    assert "\x1b" not in said
    assert "Traceback" not in said
    assert {name: one.table(name) for name in tables} == tables
    assert one.committed() is None
    one.judge()
    one.run()
    assert one.rows() == UNDISTURBED
    one.judge(settled=True)


def _refused(one: Lab) -> str:
    """Why a run stops; nothing where it goes on."""
    try:
        one.run()
    except AcklineError as error:
        return str(error)
    return ""


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [Path.unlink, _torn], ids=["lost", "torn"])
def test_fault_32_a_lost_or_torn_checkpoint_is_said_or_does_not_matter(
    lab: MakeLab, damage: Callable[[Path], None]
) -> None:
    """The pointer to it, and then the checkpoint itself, of each of the three tables."""
    one = lab(retry={"initial_delay": "1h"})
    one.records(4, {1: {"fail": 1}})
    for _ in range(11):
        one.run()
    assert (one.offsets(), one.committed(), one.pending()) == ([0, 1, 2, 3], 1, [1])
    for name in ("_last_checkpoint", "*.checkpoint.parquet"):
        for table in ("plans", "outcomes", "settlements"):
            [*_, file] = sorted(Path(one.audit, table, "_delta_log").glob(name))
            whole = file.read_bytes()
            damage(file)
            refused = _refused(one)
            assert not refused or f"the table {table} at " in refused
            assert (one.offsets(), one.committed()) == ([], 1), f"{table}/{file.name}"
            file.write_bytes(whole)
    one.wait(3600)
    one.run()  # ends the turn that a refused run may have left open
    one.run()
    assert one.rows() == [
        Row(0, 1, "acked"),
        Row(1, 1, "failed"),
        Row(1, 2, "acked"),
        Row(2, 1, "acked"),
        Row(3, 1, "acked"),
    ]
    assert one.committed() == 4
    one.judge(settled=True)
