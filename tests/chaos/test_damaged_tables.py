"""Files of the tables that no log entry names, and checkpoints that are lost or torn (faults 31 and 32)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ackline.errors import AcklineError
from tests.chaos import drill_handlers
from tests.chaos.drill import Drill
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import FAILS_ONCE, OK


def outcomes(drill: Drill) -> list[tuple[int, int, str]]:
    """Returns (offset, attempt, outcome) of each row."""
    return sorted((row["offset"], row["attempt"], row["outcome"]) for row in drill.evidence().outcomes.to_pylist())


def test_data_files_that_no_log_entry_names_are_invisible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 31: a copy of an outcome file under another name is neither read, settled nor shown."""
    drill = Drill(tmp_path, monkeypatch)
    drill.lane.produce(OK, OK, OK)
    drill.lane.run()
    [file] = [path for path in (drill.live / "outcomes").rglob("*.parquet") if "_delta_log" not in path.parts]
    file.with_name(f"orphan-{file.name}").write_bytes(file.read_bytes())
    drill.lane.produce(OK, OK)
    drill.lane.run()
    assert outcomes(drill) == [(offset, 1, "acked") for offset in range(5)]
    shown = MemoryCommand(drill.lane, tmp_path, monkeypatch)("audit", "lane", "--json")
    assert (shown.status, "orphan" in shown.output, len(json.loads(shown.output))) == (0, False, 5), shown.errors
    assert drill.violations() == []


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [Path.unlink, torn], ids=["lost", "torn"])
def test_fault_32_a_lost_or_torn_checkpoint_is_said_or_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    """Damages the newest checkpoint of each of the three tables, and a pointer to it, which only other tools write."""
    drill = Drill(tmp_path, monkeypatch)
    lane = drill.lane
    lane.settings["retry"] = {"initial_delay": "1m", "max_retries": 1}
    lane.produce(OK, FAILS_ONCE, OK, OK)
    for _ in range(11):
        lane.run()
    assert (len(drill_handlers.CALLS), lane.committed(), lane.pending()) == (4, 1, [(1, 2)])
    for name in ("_last_checkpoint", "*.checkpoint.parquet"):
        for table in ("plans", "outcomes", "settlements"):
            log = drill.live / table / "_delta_log"
            checkpoint = max(log.glob("*.checkpoint.parquet"))
            file = checkpoint if name.startswith("*") else log / name
            if file != checkpoint:
                file.write_text(json.dumps({"version": int(checkpoint.name[:20]), "size": 1}))
            whole = file.read_bytes()
            damage(file)
            error = ""
            try:
                lane.run()
            except AcklineError as raised:
                error = str(raised)
            assert not error or f"the table {table} at " in error
            assert (len(drill_handlers.CALLS), lane.committed()) == (4, 1), f"{table}/{file.name}"
            file.unlink(missing_ok=True)
            if file == checkpoint:
                file.write_bytes(whole)
    drill.later()
    lane.run()  # ends a turn that a failed run may have left open
    lane.run()
    acked = [(offset, 1, "acked") for offset in (0, 2, 3)]
    assert outcomes(drill) == sorted([*acked, (1, 1, "failed"), (1, 2, "acked")])
    assert (lane.committed(), drill.violations()) == (4, [])
