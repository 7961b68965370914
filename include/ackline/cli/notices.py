"""What a command prints on standard error besides errors: the options `ackline -q` and `ackline -v` set how much.

The module is loaded for each command line, so it imports little.
"""

import sys
from enum import IntEnum


class Verbosity(IntEnum):
    """What goes to standard error besides errors."""

    QUIET = 0
    """Nothing: no warnings, no progress."""
    NORMAL = 1
    """Warnings and progress."""
    VERBOSE = 2
    """Also the settings in force."""


_level = Verbosity.NORMAL


def set_verbosity(quiet: bool, verbose: bool) -> None:
    """Sets how much the command of this process prints. `verbose` wins over `quiet`."""
    global _level
    _level = Verbosity.VERBOSE if verbose else Verbosity.QUIET if quiet else Verbosity.NORMAL


def is_quiet() -> bool:
    """Returns whether only results and errors are printed."""
    return _level is Verbosity.QUIET


def notice(text: str, level: Verbosity = Verbosity.NORMAL) -> None:
    """Prints a line on standard error at once, unless `level` is above what the user wants to see."""
    if _level >= level:
        print(f"ackline: {text}", file=sys.stderr, flush=True)
