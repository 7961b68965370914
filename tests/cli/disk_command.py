"""Runs the command `ackline` on a lane whose tables are on disk: only Kafka and Spark are in memory."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ackline.ledger.turns import LIVE
from ackline.pipeline.pipeline import Pipeline
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_adapters import MemoryAdapters
from tests.worker.disk_lane import DiskLane


class DiskCommand(MemoryCommand):
    """The command, whose pipeline `lane` is the given lane; `file` is added to its pipeline file."""

    lane: DiskLane

    def __init__(self, lane: DiskLane, folder: Path, monkeypatch: pytest.MonkeyPatch, file: dict[str, Any]) -> None:
        super().__init__(lane, folder, monkeypatch)
        kafka = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders"]}
        whole = {"name": "lane", "dead_letter": {"topic": "dead"}, "kafka": kafka, **file}
        (folder / "lane.yaml").write_text(json.dumps(whole))  # which is YAML

    @contextlib.contextmanager
    def _open_adapters(
        self, pipeline: Pipeline, *_: Any, actor: str, now: Any = None, lane: str = LIVE, **__: Any
    ) -> Iterator[MemoryAdapters]:
        found = self.lane.adapters_of(pipeline, lane)
        yield replace(found, actor=actor, fixed_now=now or found.fixed_now)
