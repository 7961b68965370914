"""`ackline retry | skip | reset | pause | resume | void | adopt-ledger`: operator actions.

`ackline retry | skip | reset | pause | resume`: operator actions. Each is a turn, stored and audited as a run is.

`ackline void`: close an open turn that can't be carried out.

`ackline adopt-ledger`: go on from a group that another ledger of the pipeline has committed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from ackline.actions.actions import PreparedAction, perform_action, prepare_action
from ackline.actions.adopt_ledger import adopt_ledger, prepare_adoption
from ackline.actions.report import (
    action_json,
    action_text,
    adoption_json,
    adoption_text,
    dropped_text,
    unpublished_preview,
    void_json,
    void_preview,
    void_text,
)
from ackline.actions.targets import ActionRequest, check_request, choose_targets
from ackline.actions.void import drop_outputs, open_turn, unpublished_turn, void_open_turn
from ackline.cli import formats
from ackline.cli.options import (
    DryRun,
    ErrorClass,
    Json,
    Lane,
    Name,
    Now,
    Offsets,
    Partitions,
    Topics,
    Yes,
    choice_of,
    is_confirmed,
    opened,
    range_of,
    reason_of,
    show_preview,
    time_of,
)
from ackline.errors import ConfigError
from ackline.lane import action_plans
from ackline.ledger.turns import LIVE, Settlement, TurnKind
from ackline.pipeline.arguments import parse_destination, parse_distance

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
    with opened(name, now, lane=lane, handler=False) as adapters:

        def choose(newest: Settlement) -> action_plans.Targets:
            return choose_targets(adapters, request, newest)

        prepared = prepare_action(adapters, request.kind, choose, reason)
        show_preview(action_text(prepared, done=False), yes, dry_run, as_json)
        if not is_confirmed(f"{request.kind.capitalize()} {name}?", yes, dry_run):
            if as_json:
                formats.print_json(action_json(prepared, dry_run=True))
            else:
                print("Nothing was changed.")
            return
        # A user at a terminal confirms what was shown, and no other turn; with --yes it may be a later turn.
        turn = None if yes else prepared.plan.turn
        performed = perform_action(adapters, request.kind, choose, reason, turn)
    done = PreparedAction(performed.plan, performed.before)
    if as_json:
        formats.print_json(action_json(done, dry_run=False, not_committed=performed.not_committed))
        return
    print(action_text(done, done=True))
    if performed.not_committed is not None:
        print(f"It is stored; {performed.not_committed}")


Pause = Annotated[bool, typer.Option("--pause", help="Also pause the partitions that the turn reads.")]

GiveUp = Annotated[
    list[str] | None,
    typer.Option(
        "--give-up",
        metavar="TABLE",
        help="Give up the rows that the newest settled turn has for this output table. May repeat.",
    ),
]


def void(
    name: Name,
    reason: Reason,
    lane: Lane = LIVE,
    pause: Pause = False,
    give_up: GiveUp = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Close the open turn, if it can't be carried out. Nothing of it counts, and its offsets are planned again.

    Use it for a turn that stops every run: a batch that does not decode, a handler that kills the driver, a partition
    that lost its leader, files of outcomes that are lost. At most once, a turn that is handed out already is recorded
    as lost instead. Without `--yes` it asks at a terminal, and changes nothing elsewhere.

    With `--give-up TABLE` it closes no turn. It tries once more to publish the newest settled turn, and gives up the
    rows for that table if that fails: the staged rows are lost, or the table can never be used again.

    Examples: `ackline void orders --reason "batch at offset 1041 does not decode" --pause --yes`,
    `ackline void orders --give-up order_totals --reason "the bucket was deleted"`
    """
    reason_of(reason)
    if give_up:
        _drop_outputs(name, lane, now, give_up, reason, pause, yes, dry_run, as_json)
        return
    # Without the handler: one that does not import may be why no run gets on.
    with opened(name, now, lane=lane, handler=False) as adapters:
        to_close = open_turn(adapters)
        show_preview(void_preview(to_close, pause), yes, dry_run, as_json)
        if not is_confirmed(f"Close {to_close.plan.turn}?", yes, dry_run):
            if as_json:
                formats.print_json({**void_json(to_close.plan, to_close.consequence, reason, pause), "dry_run": True})
            else:
                print("Nothing was changed.")
            return
        closed = void_open_turn(adapters, to_close.plan.turn, reason, pause)
    if as_json:
        body = void_json(closed.plan, closed.consequence, reason, pause)
        body |= {"pause": bool(body["pause"]) and closed.not_paused is None, "not_paused": closed.not_paused}
        formats.print_json({**body, "dry_run": False, "not_committed": closed.not_committed})
        return
    print(void_text(closed, name))


def _drop_outputs(
    name: str,
    lane: str,
    now: str | None,
    tables: Sequence[str],
    reason: str,
    pause: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    if pause:
        raise ConfigError(
            "--pause can't be combined with --give-up, which closes no turn; leave out --pause", key="--pause"
        )
    with opened(name, now, lane=lane, handler=False) as adapters:
        to_drop = unpublished_turn(adapters, tables)
        turn = to_drop.turn
        body = {"pipeline": name, "lane": lane, "epoch": turn.epoch, "turn": turn.n, "reason": reason}
        show_preview(unpublished_preview(to_drop), yes, dry_run, as_json)
        if not is_confirmed(f"Give up the rows of {turn} that can't be published?", yes, dry_run):
            if as_json:
                formats.print_json({**body, "rows_at_most": dict(to_drop.rows), "dry_run": True})
            else:
                print("Nothing was changed.")
            return
        dropped = drop_outputs(adapters, turn, tables, reason)
    if as_json:
        found = {"rows_at_most": dict(dropped.rows), "why": dict(dropped.lost), "not_committed": dropped.not_committed}
        formats.print_json({**body, **found, "dry_run": False})
        return
    print(dropped_text(dropped))


def add_void_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(void)


def adopt(
    name: Name,
    reason: Reason,
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Go on with the ledger in ACKLINE_AUDIT, although another ledger of the pipeline has committed the group.

    If ACKLINE_AUDIT holds no ledger, a new one begins at the group's commits, whatever `start` is. If it holds one,
    that one goes on from its own floors with what is pending there; at most once it skips to the commits.

    Example: `ackline adopt-ledger orders --reason "the audit folder is lost" --yes`
    """
    reason_of(reason)
    with opened(name, now, handler=False) as adapters:
        adoption = prepare_adoption(adapters, reason)
        show_preview(adoption_text(adoption, done=False), yes, dry_run, as_json)
        if not is_confirmed(f"Adopt the ledger of {name}?", yes, dry_run):
            if as_json:
                formats.print_json(adoption_json(adapters, adoption, reason, dry_run=True))
            else:
                print("Nothing was changed.")
            return
        done = adopt_ledger(adapters, reason)
    if as_json:
        formats.print_json(adoption_json(adapters, done, reason, dry_run=False))
        return
    print(adoption_text(done, done=True))
    if done.not_committed is not None:
        print(f"It is stored; {done.not_committed}")


def add_adopt_ledger_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command("adopt-ledger")(adopt)
