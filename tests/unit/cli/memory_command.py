"""Runs the command `ackline` on a lane in memory: everything but the adapters is real."""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from ackline.cli import app
from ackline.testing.memory_parts import MemoryParts
from tests.memory_lane import MemoryLane


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
            "name: lane\nhandler: a:b\ndead_letter: none\n"
            "kafka: {bootstrap_servers: 'memory:1', group_id: g, topics: [orders]}\n"
        )
        monkeypatch.setattr("ackline.cli.options.open_parts", self._open_parts)
        monkeypatch.setattr("ackline.cli.confirm.typer.confirm", lambda *_, **__: self.answers.pop(0))

    @contextlib.contextmanager
    def _open_parts(self, *_: Any, actor: str, now: Any = None, lane: str = "live", **__: Any) -> Iterator[MemoryParts]:
        yield replace(self.lane.parts(), actor=actor, fixed_now=now)

    def __call__(self, *arguments: str) -> Finished:
        """Run the command with these arguments."""
        output, errors, stdin, status = io.StringIO(), io.StringIO(), io.StringIO(), None
        with (
            patch.object(sys, "argv", ["ackline", *arguments]),
            patch.object(sys, "stdin", stdin),
            patch.object(stdin, "isatty", lambda: bool(self.answers)),
            redirect_stdout(output),
            redirect_stderr(errors),
        ):
            try:
                app.main()
            except SystemExit as ended:
                status = ended.code
        return Finished(int(status or 0), output.getvalue(), errors.getvalue())
