"""`ackline void`: close an open turn that can't be carried out."""

from collections.abc import Sequence
from typing import Annotated

import typer

from ackline.cli import json_output
from ackline.cli.confirm import DryRun, Yes, is_confirmed, show_preview
from ackline.cli.options import Json, Lane, Name, Now, opened, reason_of
from ackline.errors import ConfigError
from ackline.steps.action_report import dropped_text, unpublished_preview, void_json, void_preview, void_text
from ackline.steps.drop_outputs import drop_outputs, unpublished_turn
from ackline.steps.operator_void import open_turn, void_open_turn
from ackline.turns import LIVE

Reason = Annotated[str, typer.Option("--reason", help="Why, for readers of the audit table.", show_default=False)]
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
    with opened(name, now, lane=lane, handler=False) as parts:
        to_close = open_turn(parts)
        show_preview(void_preview(to_close, pause), yes, dry_run, as_json)
        if not is_confirmed(f"Close {to_close.plan.turn}?", yes, dry_run):
            if as_json:
                json_output.print_json(
                    {**void_json(to_close.plan, to_close.consequence, reason, pause), "dry_run": True}
                )
            else:
                print("Nothing was changed.")
            return
        closed = void_open_turn(parts, to_close.plan.turn, reason, pause)
    if as_json:
        body = void_json(closed.plan, closed.consequence, reason, pause)
        body |= {"pause": bool(body["pause"]) and closed.not_paused is None, "not_paused": closed.not_paused}
        json_output.print_json({**body, "dry_run": False, "not_committed": closed.not_committed})
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
    with opened(name, now, lane=lane, handler=False) as parts:
        to_drop = unpublished_turn(parts, tables)
        turn = to_drop.turn
        body = {"pipeline": name, "lane": lane, "epoch": turn.epoch, "turn": turn.n, "reason": reason}
        show_preview(unpublished_preview(to_drop), yes, dry_run, as_json)
        if not is_confirmed(f"Give up the rows of {turn} that can't be published?", yes, dry_run):
            if as_json:
                json_output.print_json({**body, "rows_at_most": dict(to_drop.rows), "dry_run": True})
            else:
                print("Nothing was changed.")
            return
        dropped = drop_outputs(parts, turn, tables, reason)
    if as_json:
        found = {"rows_at_most": dict(dropped.rows), "why": dict(dropped.lost), "not_committed": dropped.not_committed}
        json_output.print_json({**body, **found, "dry_run": False})
        return
    print(dropped_text(dropped))


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(void)
