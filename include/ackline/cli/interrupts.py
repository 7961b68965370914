"""Ctrl-C: a command ends with 130 wherever it is, and prints no traceback."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NoReturn

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
    from ackline.cli.formats import print_error

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
