"""Whether a command that changes something may go on: by `--yes`, `--dry-run`, or the answer at a terminal."""

import sys
from typing import Annotated

import typer

from ackline.errors import ConfigError

Yes = Annotated[bool, typer.Option("--yes", help="Do it without a question.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do; --yes changes nothing then.")]


def show_preview(preview: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Print what a command would do, for a person.

    With `--json` only at a terminal that asks, and then on standard error: standard output holds the object alone, and
    without a terminal standard error holds the error alone.
    """
    if not as_json:
        print(preview)
    elif not yes and not dry_run and sys.stdin.isatty():
        print(preview, file=sys.stderr)


def is_confirmed(question: str, yes: bool, dry_run: bool) -> bool:
    """Returns whether to go on. Asks at a terminal. Raises ConfigError without `--yes` where there is no terminal."""
    if dry_run or yes:
        return not dry_run
    if not sys.stdin.isatty():
        raise ConfigError(
            "nothing was changed, and there is no terminal to ask at: give --yes or --dry-run", key="--yes"
        )
    return typer.confirm(question, default=False, err=True)


def is_confirmed_by_number(question: str, number: int, yes: bool, dry_run: bool) -> bool:
    """Returns whether to go on, as `is_confirmed` does. At a terminal the number of offsets has to be typed."""
    if dry_run or yes or not sys.stdin.isatty():
        return is_confirmed(question, yes, dry_run)
    typed = typer.prompt(f"{question} Type the number of offsets to go on", default="", show_default=False, err=True)
    return str(typed).replace(",", "").strip() == str(number)
