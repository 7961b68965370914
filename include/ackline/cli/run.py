"""`ackline run` and `ackline plan`: a pipeline's next turn, carried out or only shown."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from ackline.actions.objects import plan_object, run_object
from ackline.cli import formats, tables
from ackline.cli.account import account_lines, failure_lines, open_transaction_lines
from ackline.cli.notices import Verbosity, is_quiet, notice
from ackline.cli.options import Json, Name, Now, check_spark, opened, request_of, start_spark, with_fields
from ackline.errors import ConfigError, counted
from ackline.forms.form import EVERYTHING, RUN_FIELDS, RunRequest
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import void_advice
from ackline.ledger.answers import counts_text
from ackline.ledger.offsets import count
from ackline.ledger.turns import LIVE, Plan
from ackline.local.connection import uses_dev_broker
from ackline.pipeline.pipeline import Pipeline


def note_dev_broker(pipeline: Pipeline, kafka: Mapping[str, Any]) -> None:
    """Print the address of the broker, if that of `ackline dev` stands for a connection that is not defined."""
    if uses_dev_broker(pipeline):
        name, address = pipeline.kafka.connection, kafka["bootstrap.servers"]
        notice(f"the connection {name} is not defined here: using the broker of `ackline dev` at {address}")


def _ignored_limits(request: RunRequest, plan: Plan) -> str | None:
    """Returns which limits of a run can't apply to a plan that is open already, and what to do; None if all apply.

    The offsets of a plan are decided. A run without limits, and one that repeats those of the plan, carries it out.
    """
    planned_for = RunRequest.of_plan(plan.settings)
    if request in (EVERYTHING, planned_for):
        return None
    rows = [planned for planned in plan.partitions.values() if not planned.empty]
    offsets = sum(len(planned.fresh) + count(planned.retries) for planned in rows)
    return (
        f"{plan.turn} is open, and {request.shown()} can't apply to it: it was planned at {plan.planned_at:%FT%TZ} for "
        f"{counted(offsets, 'offset')} of {counted(len(rows), 'partition')}, "
        f"{f'with {shown}' if (shown := planned_for.shown()) else 'without limits'}. Run the turn as it was planned: "
        f"give --yes. {void_advice(plan.turn)}"
    )


def _on_plan(adapters: Adapters, yes: bool = False) -> Callable[[Plan, bool], None]:
    """Returns a function that raises ConfigError for an adopted plan to which the limits of the run can't apply, and
    prints the warnings about the settings at the first plan, on standard error. With `yes` the former are one of these.
    """
    from ackline.lane.adapters import run_warnings

    warned = False

    def warn(plan: Plan, adopted: bool) -> None:
        nonlocal warned
        ignored = _ignored_limits(adapters.request, plan) if adopted else None
        if ignored is not None and not yes:
            raise ConfigError(ignored, key=adapters.request.shown().split()[0])
        if ignored is not None:
            notice(f"warning: {adapters.request.shown()} does not apply to {plan.turn}, which was open already")
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
    yes: Annotated[
        bool, typer.Option("--yes", help="Run an open turn as it was planned, although the limits can't apply to it.")
    ] = False,
) -> None:
    """Run a pipeline once: plan, replay and settle.

    A run in which records failed still succeeds, because they wait for their retry. Run it again when they are due. If
    another run replays the open turn, this one waits until that ends, or has not renewed its lease for a minute.

    `--topic`, `--partition`, `--max-records` and `--only-retries` let it read less. They can't apply to a turn that is
    open already, which is refused without `--yes`: with it, the turn keeps what it was planned for.

    Examples: `ackline run orders`, `ackline run orders --json | tail -1`, `ackline run orders --partition 3`
    """
    from ackline.lane.adapters import effective_settings
    from ackline.lane.lease import WhenHeld
    from ackline.steps import run as runs
    from ackline.tables.layout import noted_stop

    check_spark()
    with opened(name, now, no_breaker) as adapters, tables.progress(as_json or is_quiet()) as on_progress:
        note_dev_broker(adapters.pipeline, adapters.kafka)
        notice(f"settings in force: {effective_settings(adapters)}", Verbosity.VERBOSE)
        adapters = replace(adapters, request=request_of(adapters, values))
        if take_over and adapters.lease is not None:
            adapters = replace(adapters, lease=replace(adapters.lease, when_held=WhenHeld.TAKE_OVER))
        store, run_id = adapters.store, adapters.run_id
        with noted_stop(store, run_id, adapters.now):
            ran = runs.run(adapters, lambda: start_spark(adapters, on_progress), _on_plan(adapters, yes), on_progress)
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

    check_spark()
    with opened(name, now) as adapters:
        note_dev_broker(adapters.pipeline, adapters.kafka)
        adapters = replace(adapters, request=request_of(adapters, values))
        found = preview(adapters)
        if found.plan:
            _on_plan(adapters, yes=True)(found.plan, found.adopted)
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
        tables.print_lines(out, open_transaction_lines([found.plan]))


COMMANDS = {"run": with_fields(RUN_FIELDS, run), "plan": with_fields(RUN_FIELDS, plan)}
