"""Runs the command `ackline` in this process."""

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch

from ackline.cli import app


class Ended(NamedTuple):
    """The exit status of a command, and what it has printed."""

    status: int
    output: str
    errors: str


def run_main(arguments: Sequence[str]) -> Ended:
    output, errors, status = io.StringIO(), io.StringIO(), None
    with patch.object(sys, "argv", ["ackline", *arguments]), redirect_stdout(output), redirect_stderr(errors):
        try:
            app.main()
        except SystemExit as ended:
            status = ended.code
    return Ended(int(status or 0), output.getvalue(), errors.getvalue())
