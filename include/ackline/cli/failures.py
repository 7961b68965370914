"""How a command that fails reports it on standard error: one line for a person, with `--json` one object."""

import json
import sys
from typing import Any

import typer

from ackline.errors import AcklineError, ConfigError


def wants_json() -> bool:
    """Returns whether the command line has `--json`. It is read before the command is parsed, which may fail itself."""
    return "--json" in sys.argv[1:]


def call(app: typer.Typer) -> None:
    """Runs the command line. With `--json`, raises what typer would print for a person: wrong options and arguments."""
    if not wants_json():
        app()
        return
    ended = app(standalone_mode=False)  # the exit status of a command that has ended early, such as --help
    sys.exit(ended if isinstance(ended, int) else 0)


def report(error: Exception) -> int | None:
    """Print an error of Ackline or of the command's usage. Returns the exit status; None, and prints nothing, for any
    other error."""
    usage = getattr(error, "format_message", None)  # of typer's errors
    if isinstance(error, AcklineError):
        text, status = str(error), error.exit_status
    elif usage is not None:
        text, status = str(usage()), 2
    else:
        return None
    print_error(text, status, error)
    return status


def print_error(text: str, status: int = 1, error: Exception | None = None) -> None:
    """Print a message, with the place in Kafka or in a file that the error names."""
    if not wants_json():
        print(f"ackline: {text}", file=sys.stderr)
        return
    kind = type(error).__name__ if isinstance(error, AcklineError) else "UsageError" if error is not None else "Error"
    body: dict[str, Any] = {"error": text, "kind": kind, "exit_status": status}
    body |= {name: getattr(error, name, None) for name in ("topic", "partition", "offset")}
    if isinstance(error, ConfigError):
        body |= {"key": error.key, "file": str(error.file) if error.file is not None else None}
    print(json.dumps(body), file=sys.stderr)
