"""Whether a command that changes something may go on: by `--yes`, `--dry-run`, or the answer at a terminal."""

import sys
from typing import Annotated

import typer

from ackline.errors import ConfigError

Yes = Annotated[bool, typer.Option("--yes", help="Do it without a question.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do; --yes changes nothing then.")]


def is_confirmed(question: str, yes: bool, dry_run: bool) -> bool:
    """Returns whether to go on. Asks at a terminal. Raises ConfigError without `--yes` where there is no terminal."""
    if dry_run or yes:
        return not dry_run
    if not sys.stdin.isatty():
        raise ConfigError(
            "nothing was changed, and there is no terminal to ask at: give --yes or --dry-run", key="--yes"
        )
    return typer.confirm(question, default=False, err=True)
