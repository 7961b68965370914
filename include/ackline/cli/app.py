"""The command line: which commands there are, the options of all of them, and how they end.

A command's module is imported when the command is used. Together they load pyarrow, Delta and a Kafka client, which
takes longer than anything that `ackline --help` and `--version` do.
"""

import gc
import importlib
import logging
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import ackline
from ackline.cli import interrupts
from ackline.cli.notices import set_verbosity

_SUMMARIES = {
    "run": "Run a pipeline once: plan, replay and settle.",
    "try": "Handle single records here and now, by the code of today, and store nothing.",
    "plan": "Print what a run with the same options would do now, and store nothing.",
    "status": "Show each partition live from the broker: log, committed offset, floor, pending records, lag, what "
    "holds it.",
    "history": "List the settled turns of a pipeline, newest first: runs and actions, with actors, reasons, durations "
    "and counts.",
    "explain": "Explain in a sentence what holds the floor of a partition, or what became of one offset.",
    "diff": "Compare the newest terminal outcomes of two lanes, over the offsets that both have settled.",
    "audit": "Show what happened to each record: the effective rows of the audit table.",
    "sql": "Run one SELECT over the tables and output tables of all pipelines, read-only.",
    "retry": "Make pending retries due now: the next run handles them. It counts as no attempt.",
    "skip": "Settle records without handling them: `skipped`. All below an offset, or single pending ones.",
    "reset": "Begin a new epoch at an offset: everything from there on is handled again, and nothing is pending.",
    "pause": "Read nothing from these partitions until they are resumed. Pending records stay pending.",
    "resume": "Resume reading paused partitions.",
    "void": "Close the open turn, if it can't be carried out. Nothing of it counts, and its offsets are planned again.",
    "adopt-ledger": "Go on with the ledger in ACKLINE_AUDIT, although another ledger of the pipeline has committed "
    "the group.",
    "ack": "Ack records that are in flight, by their tokens. The next run of the pipeline settles them.",
    "fail": "Fail a record that is in flight, by its token. The pipeline's retry policy applies, as after any failure.",
    "renew": "Extend the deadline of a record in flight, by its token: DURATION after the run that reads the answer.",
    "backfill": "Handle offsets again: of ranges, of a time, or of records that ended in some way. The group is left "
    "alone.",
    "dead": "List the dead records of a lane by error class and place, or show one; with `--redrive`, handle them "
    "again.",
    "init": "Write a pipeline file, a handler and its test from a topic. Overwrites nothing, and changes nothing in "
    "Kafka.",
    "adopt": "Show what taking over a consumer group means, and write the pipeline file for it. Changes nothing in "
    "Kafka.",
    "doctor": "Check what a run needs: Java, JARs, pipeline files, handler, broker, topics, group, tables.",
    "maintain": "Compact, checkpoint and vacuum the tables of all pipelines. This is safe at any time, also beside "
    "runs.",
    "demo": "Run two pipelines on a broker, Spark and Airflow of their own: 22,000 orders until all are settled, then "
    "proofs.",
    "dev": "A local broker to try pipelines on.",
}
"""Each command with the first sentences of its help. They are here as well, so that the list of commands
loads no command."""
_MODULES = {
    "run": ("run", "plan"),
    "status": ("status", "history"),
    "explain": ("explain", "diff"),
    "audit": ("audit", "sql"),
    "actions": ("retry", "skip", "reset", "pause", "resume", "void", "adopt-ledger", "ack", "fail", "renew"),
    "backfill": ("backfill",),
    "dead": ("dead",),
    "tried": ("try",),
    "init": ("init", "adopt", "demo", "dev"),
    "doctor": ("doctor",),
    "maintain": ("maintain",),
}
_PANELS = {
    "Run": ("run", "plan", "backfill"),
    "Look": ("status", "history", "explain", "diff", "audit", "sql", "dead"),
    "Act": _MODULES["actions"],
    "Set up": ("doctor", "maintain", *_MODULES["init"]),
}
"""The groups of the list of commands."""
COMMANDS = {
    name: (module, summary)
    for name, summary in _SUMMARIES.items()
    for module, names in _MODULES.items()
    if name in names
}
"""Each command, with the module of this room that has it in its COMMANDS, and its summary."""


class Command(TyperCommand):
    """A command whose module is imported once the command is parsed, completed or loaded."""

    def loaded(self) -> TyperCommand | TyperGroup:
        """Returns the command with its options; the group of commands for `dev`."""
        module, summary = COMMANDS[str(self.name)]
        gc.disable()  # what is imported stays; to look through it again and again is a tenth of the time
        try:
            found = importlib.import_module(f"ackline.cli.{module}").COMMANDS[self.name]
        finally:
            gc.enable()
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
            single.command(self.name)(found)
            found = single
        loaded = typer.main.get_command(found)
        assert isinstance(loaded, TyperCommand | TyperGroup)
        loaded.name, loaded.short_help = self.name, summary
        return loaded

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Returns the context of the loaded command, which is the one that runs."""
        return self.loaded().make_context(info_name, args, parent, **extra)


class Commands(TyperGroup):
    """The commands of COMMANDS."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, summary) in COMMANDS.items():
            panel = next((panel for panel, names in _PANELS.items() if name in names), "Run")
            self.add_command(Command(name, short_help=summary, rich_help_panel=panel))


app = typer.Typer(
    name="ackline",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ackline {ackline.__version__}")
        raise typer.Exit()


@app.callback()
def global_options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also print the settings in force.")] = False,
) -> None:
    """Replay Kafka in bounded batches without losing track of a single record."""
    set_verbosity(quiet, verbose)


def main() -> None:
    """Run the command line. Exits with 0, with 1 for a run that failed, or with 2 for bad usage or configuration.

    An error is one line on standard error; with --json it is one JSON object there. ACKLINE_DEBUG=1 shows
    its traceback.
    """
    if not os.environ.get("ACKLINE_DEBUG"):  # an AcklineError quotes what the Kafka client logs, so it is shown once
        logging.getLogger("ackline.kafka.client").addHandler(logging.NullHandler())
    try:
        interrupts.call(app)
    except SystemExit as ended:
        if not (interrupts.is_interrupted() and ended.code):
            raise
        _exit_interrupted()
    except KeyboardInterrupt:  # pressed where typer does not catch it, as between two of its own lines
        _exit_interrupted()
    except Exception as error:
        if interrupts.is_interrupted():
            _exit_interrupted()
        if (status := interrupts.report(error)) is not None:
            sys.exit(status)
        if os.environ.get("ACKLINE_DEBUG"):
            raise
        # The class alone, as in a driver: the text of an error that was not expected may quote a secret or a payload.
        interrupts.print_error(f"{type(error).__name__} (ACKLINE_DEBUG=1 shows its text and where it was raised)")
        sys.exit(1)


def _exit_interrupted() -> NoReturn:
    interrupts.print_stopped()
    sys.exit(interrupts.INTERRUPTED)
