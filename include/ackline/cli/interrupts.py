"""How a command ends without success: by an error, or by Ctrl-C, with 130 and no traceback wherever it is.

An error is one line on standard error for a person, and with `--json` one object. The module is loaded before all other
modules of the command, so it imports little.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from ackline.errors import AcklineError, ConfigError

if TYPE_CHECKING:
    import typer

INTERRUPTED = 130
"""Exit status after Ctrl-C, the same as shells use."""
GRACE_SECONDS = 10.0
"""For so long after Ctrl-C a command may clean up."""

_pressed = threading.Event()
_printed = threading.Event()
_SHOW_CURSOR = "\x1b[?25h"


def end_on_ctrl_c() -> None:
    """Has Ctrl-C raise KeyboardInterrupt in the main thread, and end this process ten seconds later if it still runs.

    KeyboardInterrupt alone is not enough: libraries catch it, or wait in their clean-up for a process that the same
    Ctrl-C has ended. A second Ctrl-C ends this process at once. Both lose nothing, because a run may stop at any line,
    and the JVM ends with this process.
    """
    # The thread starts here: a signal handler that starts one can meet a lock that its own thread holds.
    threading.Thread(target=_end_after_grace, name="ctrl-c", daemon=True).start()
    signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = partial(_end_if_dropped, os.getpid(), sys.unraisablehook)


def is_interrupted() -> bool:
    """Returns whether Ctrl-C was pressed. An error of this command is then a consequence of it."""
    return _pressed.is_set()


def print_stopped() -> None:
    """Prints on standard error, once, that Ctrl-C has stopped the command, and what the next run does."""
    if _printed.is_set():
        return
    _printed.set()
    goes_on = "run" in sys.argv[1:] or "backfill" in sys.argv[1:]
    print_error("stopped." + " Nothing is lost: the next run goes on with the open turn." * goes_on)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    if _pressed.is_set():
        _end()
    _pressed.set()
    raise KeyboardInterrupt


def _end_if_dropped(pid: int, report: Callable[[Any], object], dropped: Any) -> None:
    """Ends this process if Python drops a KeyboardInterrupt, as in a finalizer or in a callback of a fork.

    Python would print its traceback, and the command would go on. Any other exception is reported as ever.
    """
    if dropped.exc_type is not KeyboardInterrupt:
        report(dropped)
    elif os.getpid() == pid:  # a process that is forked and not yet replaced gets the signal as well
        print_stopped()
        _end()


def _end_after_grace() -> None:
    _pressed.wait()
    time.sleep(GRACE_SECONDS)
    print_stopped()
    _end()


def _end() -> NoReturn:
    if sys.stderr.isatty():  # a progress bar hides the cursor
        sys.stderr.write(_SHOW_CURSOR)
        sys.stderr.flush()
    os._exit(INTERRUPTED)


def wants_json() -> bool:
    """Returns whether the command line has `--json`. It is read before the command is parsed, which may fail itself."""
    return "--json" in sys.argv[1:]


def call(app: "typer.Typer") -> None:
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
        sys.stderr.write(f"ackline: {text}\n")  # in one write: this process may end beside it
        return
    kind = error.kind if isinstance(error, AcklineError) else "UsageError" if error is not None else "Error"
    body: dict[str, Any] = {"error": text, "kind": kind, "exit_status": status}
    body |= {name: getattr(error, name, None) for name in ("topic", "partition", "offset")}
    if isinstance(error, ConfigError):
        body |= {"key": error.key, "file": str(error.file) if error.file is not None else None}
    print(json.dumps(body), file=sys.stderr)
