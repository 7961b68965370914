"""The command `ackline` on the lane of each test file."""

from pathlib import Path

import pytest

from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import MemoryLane


@pytest.fixture
def ackline(lane: MemoryLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCommand:
    """The command, whose pipeline `lane` is the fixture of that name."""
    return MemoryCommand(lane, tmp_path, monkeypatch)
