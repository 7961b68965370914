"""Runs the command `ackline` on a lane in memory: everything but the adapters is real."""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from ackline.ledger.turns import LIVE
from ackline.pipeline.pipeline import Pipeline
from tests.support.command import run_main
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import MemoryLane


class Finished(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        """The object on the last line."""
        assert self.status == 0, self.errors
        return json.loads(self.output.splitlines()[-1])

    @property
    def error(self) -> Any:
        """The error that `--json` prints, which is all that is printed."""
        assert (self.status != 0, self.output) == (True, ""), self
        return json.loads(self.errors)


class MemoryCommand:
    """The command, whose pipeline `lane` is the given lane."""

    def __init__(self, lane: MemoryLane, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lane, self.answers = lane, list[bool]()
        """Answers to the questions at the terminal; without any there is no terminal."""
        monkeypatch.setenv("ACKLINE_PIPELINES", str(folder))
        monkeypatch.setenv("ACKLINE_AUDIT", str(folder / "audit"))
        (folder / "lane.yaml").write_text(
            "name: lane\nhandler: tests.support.journal:handle\ndead_letter: none\n"
            "kafka: {bootstrap_servers: 'memory:1', group_id: g, topics: [orders]}\n"
            "backfill: {handlers: ['tests.support.journal:handle'], confirm_above: 5}\n"
        )
        monkeypatch.setattr("ackline.cli.options.open_adapters", self._open_adapters)
        monkeypatch.setattr("ackline.cli.options.typer.confirm", lambda *_, **__: self.answers.pop(0))

    @contextlib.contextmanager
    def _open_adapters(
        self, pipeline: Pipeline, *_: Any, actor: str, now: Any = None, lane: str = LIVE, **__: Any
    ) -> Iterator[MemoryAdapters]:
        adapters = self.lane.adapters()
        if lane != LIVE:  # the settings of the lane in memory, with what the command has changed
            changed = {name: getattr(pipeline, name) for name in ("handler", "dead_letter", "max_rate", "backfill")}
            own = adapters.pipeline.model_copy(update=changed)
            adapters = self.lane.adapters_of(own, lane)
        yield replace(adapters, actor=actor, fixed_now=now)

    def __call__(self, *arguments: str, piped: str = "") -> Finished:
        """Run the command with these arguments, and with `piped` on its standard input."""
        stdin = io.StringIO(piped)
        with patch.object(sys, "stdin", stdin), patch.object(stdin, "isatty", lambda: bool(self.answers)):
            return Finished(*run_main(arguments))
