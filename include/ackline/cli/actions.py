"""`ackline retry | skip | reset | pause | resume`: operator actions. Each is a turn, stored and audited as a run is."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from ackline.arguments import parse_destination, parse_distance
from ackline.cli import json_output
from ackline.cli.confirm import DryRun, Yes, is_confirmed, show_preview
from ackline.cli.options import (
    ErrorClass,
    Json,
    Lane,
    Name,
    Now,
    Offsets,
    Partitions,
    Topics,
    choice_of,
    opened,
    range_of,
    reason_of,
    time_of,
)
from ackline.errors import ConfigError
from ackline.steps import action_plans
from ackline.steps.action_report import action_json, action_text
from ackline.steps.action_targets import ActionRequest, check_request, choose_targets
from ackline.steps.operator_actions import PreparedAction, perform_action, prepare_action
from ackline.turns import LIVE, Settlement, TurnKind

Reason = Annotated[str, typer.Option("--reason", help="Why, for readers of the audit table.", show_default=False)]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="An offset, `earliest`, `latest`, `committed`, `floor`, or a time: 2026-01-31T12:00:00Z, `2h ago`.",
        show_default=False,
    ),
]
By = Annotated[
    str | None, typer.Option("--by", help="So many offsets from the floor, e.g. -100 or +5.", show_default=False)
]
AllPartitions = Annotated[bool, typer.Option("--all-partitions", help="Move several partitions to the same offset.")]


def retry(
    name: Name,
    topic: Topics = None,
    partition: Partitions = None,
    offsets: Offsets = None,
    error_class: ErrorClass = None,
    lane: Lane = LIVE,
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Make pending retries due now: the next run handles them. It counts as no attempt.

    Example: `ackline retry orders --error-class ConnectionError --yes`
    """
    chosen = choice_of(topic, partition)
    request = ActionRequest(TurnKind.RETRY, chosen, offsets=range_of(offsets), error_class=error_class)
    _perform(name, request, reason, yes, dry_run, now, as_json, lane)


def skip(
    name: Name,
    reason: Reason,
    to: To = None,
    offsets: Offsets = None,
    error_class: ErrorClass = None,
    topic: Topics = None,
    partition: Partitions = None,
    all_partitions: AllPartitions = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Settle records without handling them: `skipped`. All below an offset, or single pending ones.

    `--to` settles everything below it, pending records too. `--offsets` and `--error-class` settle only pending records
    that they select.

    Examples: `ackline skip orders --partition 3 --to 1042 --reason "poison batch"`,
    `ackline skip orders --offsets 1041 --reason "poison record" --yes`
    """
    request = ActionRequest(
        TurnKind.SKIP,
        choice_of(topic, partition),
        to=_destination(to, now),
        all_partitions=all_partitions,
        offsets=range_of(offsets),
        error_class=error_class,
    )
    _perform(name, request, reason_of(reason), yes, dry_run, now, as_json)


def reset(
    name: Name,
    reason: Reason,
    to: To = None,
    by: By = None,
    topic: Topics = None,
    partition: Partitions = None,
    all_partitions: AllPartitions = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Begin a new epoch at an offset: everything from there on is handled again, and nothing is pending.

    What the new epoch does not read is recorded as `skipped`. Partitions that are not chosen begin at their floor.

    Examples: `ackline reset orders --to earliest --reason "handler was wrong"`,
    `ackline reset orders --to "2h ago" --reason "replay the outage" --yes`
    """
    request = ActionRequest(
        TurnKind.RESET, choice_of(topic, partition), _destination(to, now), _distance(by), all_partitions
    )
    _perform(name, request, reason_of(reason), yes, dry_run, now, as_json)


def pause(
    name: Name,
    topic: Topics = None,
    partition: Partitions = None,
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Read nothing from these partitions until they are resumed. Pending records stay pending.

    Example: `ackline pause orders --topic orders --partition 3 --reason "schema change" --yes`
    """
    _perform(name, ActionRequest(TurnKind.PAUSE, choice_of(topic, partition)), reason, yes, dry_run, now, as_json)


def resume(
    name: Name,
    topic: Topics = None,
    partition: Partitions = None,
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Resume reading paused partitions.

    Example: `ackline resume orders --yes`
    """
    _perform(name, ActionRequest(TurnKind.RESUME, choice_of(topic, partition)), reason, yes, dry_run, now, as_json)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (retry, skip, reset, pause, resume):
        app.command()(command)


def _destination(to: str | None, now: str | None) -> str | int | datetime | None:
    try:
        return None if to is None else parse_destination(to, time_of(now) or datetime.now(UTC))
    except ValueError as error:
        raise ConfigError(f"--to {to}: {error}", key="--to") from None


def _distance(by: str | None) -> int | None:
    try:
        return None if by is None else parse_distance(by)
    except ValueError as error:
        raise ConfigError(f"--by {by}: {error}", key="--by") from None


def _perform(
    name: str,
    request: ActionRequest,
    reason: str,
    yes: bool,
    dry_run: bool,
    now: str | None,
    as_json: bool,
    lane: str = LIVE,
) -> None:
    check_request(request)
    # Without the handler: one that does not import may be why an operator acts.
    with opened(name, now, lane=lane, handler=False) as parts:

        def choose(newest: Settlement) -> action_plans.Targets:
            return choose_targets(parts, request, newest)

        prepared = prepare_action(parts, request.kind, choose, reason)
        show_preview(action_text(prepared, done=False), yes, dry_run, as_json)
        if not is_confirmed(f"{request.kind.capitalize()} {name}?", yes, dry_run):
            if as_json:
                json_output.print_json(action_json(prepared, dry_run=True))
            else:
                print("Nothing was changed.")
            return
        # A user at a terminal confirms what was shown, and no other turn; with --yes it may be a later turn.
        turn = None if yes else prepared.plan.turn
        performed = perform_action(parts, request.kind, choose, reason, turn)
    done = PreparedAction(performed.plan, performed.before)
    if as_json:
        json_output.print_json(action_json(done, dry_run=False, not_committed=performed.not_committed))
        return
    print(action_text(done, done=True))
    if performed.not_committed is not None:
        print(f"It is stored; {performed.not_committed}")
