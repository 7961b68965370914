"""Runs the command `ackline`, in this process or as one of its own."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from ackline.cli import app

ROOT = Path(__file__).parents[2]
Finished = subprocess.CompletedProcess[str]


def run_here(arguments: tuple[str, ...], environment: Mapping[str, str]) -> Finished:
    """Run the command in this process; a run uses the Spark session of this process."""
    output, errors, status = io.StringIO(), io.StringIO(), None
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", ["ackline", *arguments]),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            app.main()
        except SystemExit as ended:
            status = ended.code
    return Finished(arguments, int(status or 0), output.getvalue(), errors.getvalue())


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
