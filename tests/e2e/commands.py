"""Runs the command `ackline`, in this process or as one of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from tests.command import run_main

ROOT = Path(__file__).parents[2]
Finished = subprocess.CompletedProcess[str]


def run_here(arguments: tuple[str, ...], environment: Mapping[str, str]) -> Finished:
    """Run the command in this process; a run uses the Spark session of this process."""
    with patch.dict(os.environ, environment):
        ended = run_main(arguments)
    return Finished(arguments, ended.status, ended.output, ended.errors)


def run_as_process(arguments: tuple[str, ...], environment: Mapping[str, str]) -> Finished:
    """Run the command as a process, with pipes and no terminal."""
    return subprocess.run(
        [str(Path(sys.executable).parent / "ackline"), *arguments],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
        check=False,
    )
