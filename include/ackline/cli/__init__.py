"""The command `ackline`: everything the DAGs do, without Airflow, on the same three steps."""

import contextlib
import io
import signal
import sys

from ackline.cli.interrupts import INTERRUPTED, end_on_ctrl_c

__all__ = ["main"]


def main() -> None:
    """Runs the command line. Exits with 0, with 1 for a run that failed, with 2 for bad usage or configuration, or with
    130 after Ctrl-C.

    The commands are imported here, so that Ctrl-C while Python imports them prints no traceback either.
    """
    end_on_ctrl_c()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may lack a letter of an error message or of a reason
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from ackline.cli.app import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # What is left is the exit of Python: a second Ctrl-C would only interrupt clean-up, with a traceback.
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
