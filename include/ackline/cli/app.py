"""The commands. Each opens a pipeline, calls a step, and prints the result."""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, NoReturn

import typer

import ackline
from ackline.actions.objects import plan_object, run_object
from ackline.backfill.form import FIELDS as BACKFILL_FIELDS
from ackline.cli import (
    actions,
    audit,
    backfill,
    dead,
    doctor,
    explain,
    formats,
    init,
    interrupts,
    maintain,
    status,
    tables,
)
from ackline.cli.account import account_lines, failure_lines
from ackline.cli.options import (
    Json,
    Name,
    Now,
    Verbosity,
    is_quiet,
    notice,
    opened,
    request_of,
    set_verbosity,
    start_spark,
    with_fields,
)
from ackline.lane.adapters import Adapters
from ackline.ledger.answers import counts_text
from ackline.ledger.turns import LIVE, Plan
from ackline.local.connection import uses_dev_broker
from ackline.pipeline.form import RUN_FIELDS
from ackline.pipeline.pipeline import Pipeline
from ackline.spark.master import chosen_master

app = typer.Typer(
    name="ackline",
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
        interrupts.print_error(f"{type(error).__name__}: {error} (ACKLINE_DEBUG=1 shows where)")
        sys.exit(1)


def _exit_interrupted() -> NoReturn:
    interrupts.print_stopped()
    sys.exit(interrupts.INTERRUPTED)


def note_dev_broker(pipeline: Pipeline, kafka: Mapping[str, Any]) -> None:
    """Print the address of the broker, if that of `ackline dev` stands for a connection that is not defined."""
    if uses_dev_broker(pipeline):
        name, address = pipeline.kafka.connection, kafka["bootstrap.servers"]
        notice(f"the connection {name} is not defined here: using the broker of `ackline dev` at {address}")


def _warn_once(adapters: Adapters) -> Callable[[Plan, bool], None]:
    """Returns a function that prints the warnings about the settings at the first plan, on standard error."""
    from ackline.lane.adapters import run_warnings

    warned = False

    def warn(plan: Plan, _adopted: bool) -> None:
        nonlocal warned
        for text in [] if warned else run_warnings(adapters, {tp.topic for tp in plan.partitions}):
            notice(f"warning: {text}")
        warned = True

    return warn


def run(
    values: Mapping[str, Any],
    name: Name,
    as_json: Json = False,
    now: Now = None,
    no_breaker: Annotated[
        bool, typer.Option("--no-breaker", help="Settle the turn no matter how many records failed.")
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Do not wait for another run that replays the same turn.")
    ] = False,
) -> None:
    """Run a pipeline once: plan, replay and settle.

    A run in which records failed still succeeds, because they wait for their retry. Run it again when they are due. If
    another run replays the open turn, this one waits until that ends, or has not renewed its lease for a minute.

    `--topic`, `--partition`, `--max-records` and `--only-retries` let it read less. A turn that is open already keeps
    what it was planned for.

    Examples: `ackline run orders`, `ackline run orders --json | tail -1`, `ackline run orders --partition 3`
    """
    from ackline.lane.adapters import effective_settings
    from ackline.lane.lease import WhenHeld
    from ackline.steps import run as runs
    from ackline.tables.layout import noted_stop

    chosen_master()  # a master that is refused is refused before anything is planned
    with opened(name, now, no_breaker) as adapters, tables.progress(as_json or is_quiet()) as on_progress:
        note_dev_broker(adapters.pipeline, adapters.kafka)
        notice(f"settings in force: {effective_settings(adapters)}", Verbosity.VERBOSE)
        adapters = replace(adapters, request=request_of(adapters, values))
        if take_over and adapters.lease is not None:
            adapters = replace(adapters, lease=replace(adapters.lease, when_held=WhenHeld.TAKE_OVER))
        store, run_id = adapters.store, adapters.run_id
        with noted_stop(store.folder, name, run_id, adapters.now):
            ran = runs.run(adapters, lambda: start_spark(adapters, on_progress), _warn_once(adapters), on_progress)
    if as_json:
        formats.print_json(run_object(ran, store).dump())
        return
    out = tables.console()
    for absent in ran.missing:
        out.print(f"{tables.missing_text(absent)}; it is read from its start once it does.")
    for reason in ran.voided:
        out.print(f"A turn was void: {reason}")
    for plan in ran.plans:
        tables.print_turn(out, plan, store.settlement(plan.turn), ran.commit.committed if ran.commit else {})
    tables.print_lines(out, [*account_lines(ran, store.newest()), *failure_lines(ran, store, name, run_id)])
    if ran.answers:
        out.print(f"Answers from outside: {counts_text(ran.answers)}")


def plan(values: Mapping[str, Any], name: Name, as_json: Json = False, now: Now = None) -> None:
    """Print what a run with the same options would do now, and store nothing.

    Examples: `ackline plan orders`, `ackline plan orders --only-retries`
    """
    from ackline.steps.plan import preview

    chosen_master()
    with opened(name, now) as adapters:
        note_dev_broker(adapters.pipeline, adapters.kafka)
        adapters = replace(adapters, request=request_of(adapters, values))
        found = preview(adapters)
        if found.plan:
            _warn_once(adapters)(found.plan, found.adopted)
    if as_json:
        formats.print_json(plan_object(name, LIVE, found).dump())
        return
    out = tables.console()
    for absent in found.missing:
        out.print(f"{tables.missing_text(absent)}.")
    for tp in found.leaderless:
        out.print(f"The partition {tp} has no leader; it is left out.")
    if found.plan:
        tables.print_plan(out, found.plan, found.adopted)


COMMANDS: tuple[Callable[..., None], ...] = (
    with_fields(RUN_FIELDS, run), with_fields(RUN_FIELDS, plan), status.status, status.history, explain.explain,
    explain.diff, audit.audit, audit.sql, *actions.commands(), actions.ack, actions.fail, actions.renew,
    with_fields(BACKFILL_FIELDS, backfill.backfill), with_fields(dead.FIELDS, dead.dead), init.init, init.adopt,
    doctor.doctor, maintain.maintain, init.demo,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)
app.add_typer(init.dev, name="dev")
