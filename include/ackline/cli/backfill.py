"""`ackline backfill`: handle chosen offsets again, in a lane of their own that never touches the consumer group."""

from dataclasses import replace

import typer

from ackline.backfill_arguments import BackfillArguments, id_of, lane_of
from ackline.backfill_pipeline import backfill_pipeline
from ackline.cli import json_output, tables
from ackline.cli.backfill_options import (
    All,
    Cancel,
    DeadLetterTopic,
    Epoch,
    Handler,
    Id,
    List,
    MaxRate,
    MaxRecords,
    NoBreaker,
    OfLane,
    OfOutcome,
    OfRun,
    Ranges,
    Reason,
    Wait,
)
from ackline.cli.backfill_run import Request, new_id, perform, print_unchanged, stored_backfill
from ackline.cli.confirm import DryRun, Yes, is_confirmed, show_preview
from ackline.cli.options import ErrorClass, From, Json, Name, Now, Until, opened, pipeline_named, time_of
from ackline.errors import ConfigError
from ackline.steps.backfill import (
    backfills,
    cancel,
    find_backfill,
)
from ackline.steps.backfill_report import account_json, account_text, backfill_json
from ackline.turns import LIVE


def backfill(
    name: Name,
    ranges: Ranges = None,
    everything: All = False,
    since: From = None,
    until: Until = None,
    outcome: OfOutcome = None,
    error_class: ErrorClass = None,
    run_id: OfRun = None,
    of: OfLane = LIVE,
    backfill_id: Id = None,
    epoch: Epoch = None,
    handler: Handler = None,
    max_records: MaxRecords = None,
    max_rate: MaxRate = None,
    dead_letter: DeadLetterTopic = None,
    wait: Wait = False,
    listed: List = False,
    cancelled: Cancel = None,
    no_breaker: NoBreaker = False,
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Handle offsets again: of ranges, of a time, or of records that ended in some way. The group is left alone.

    A backfill is a lane with retries and dead letters of its own, and runs beside live runs and other backfills. Its
    offsets are chosen once. Run it again with `--id ID` to go on. Without `--yes` it asks at a terminal, and changes
    nothing elsewhere.

    Examples: `ackline backfill orders orders:0:1000-2000`, `ackline backfill orders --from "2h ago"`,
    `ackline backfill orders --outcome dead --error-class HTTPError --yes --wait`, `ackline backfill orders --id ID`
    """
    arguments = BackfillArguments(
        tuple(ranges or ()), everything, since, until, outcome, error_class, run_id, of, handler, dead_letter
    )
    if wait and now is not None:
        raise ConfigError("--wait and --now contradict each other: a fixed clock never moves on", key="--wait")
    if listed:
        _list(name, as_json)
        return
    lane = lane_of(cancelled or backfill_id or new_id(time_of(now)))
    request = Request(
        name, lane, max_records, max_rate, wait, reason, no_breaker, yes, dry_run, now, as_json, epoch or 0
    )
    if cancelled is not None:
        _cancel(request)
    else:
        perform(request, arguments, begun=backfill_id is not None)


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(backfill)


def _cancel(request: Request) -> None:
    """Ends a backfill: what is not settled is skipped."""
    found = stored_backfill(request)
    if found is None:
        raise ConfigError(
            f"--cancel {request.backfill_id}: {request.name} has no such backfill; `ackline backfill {request.name} "
            f"--list` lists them",
            key="--cancel",
        )
    # With the lane's dead letters, for an open turn that can still be settled. No handler is called, so one that is not
    # allowed any more is no obstacle.
    pipeline = backfill_pipeline(pipeline_named(request.name), replace(found.arguments, handler=None))
    with opened(request.name, request.now, lane=request.lane, handler=False, pipeline=pipeline) as parts:
        left = sum(found.account.pending.values())
        preview = f"Backfill {request.backfill_id} of {request.name}: {left:,} offsets would be skipped."
        show_preview(preview, *request.modes)
        if not is_confirmed(f"Cancel backfill {request.backfill_id}?", request.yes, request.dry_run):
            print_unchanged(request, found.account, None, found.newest.turn.epoch)
            return
        cancel(parts, request.reason)
        found = find_backfill(parts.store)
        assert found is not None
        if request.as_json:
            json_output.print_json(account_json(request.lane, found.newest.turn.epoch, found.account))
        else:
            print(account_text(request.name, request.lane, found.account, parts.now()))


def _list(name: str, as_json: bool) -> None:
    with opened(name, handler=False) as parts:
        found = backfills(parts.store)
    if as_json:
        json_output.print_json({"pipeline": name, "backfills": [backfill_json(each) for each in found]})
        return
    columns = ["id", "began", "asked", "settled", "pending", "next due", "arguments"]
    rows = [
        [
            id_of(each.genesis.turn.lane),
            each.genesis.settled_at,
            each.account.offsets,
            "yes" if each.account.settled else "no",
            sum(each.account.pending.values()),
            each.account.next_due,
            each.arguments.shown(),
        ]
        for each in found
    ]
    out = tables.console()
    if rows:
        tables.print_table(out, None, columns, rows, ("id", "settled", "pending", "next due", "asked", "arguments"))
    else:
        out.print(f"{name} has no backfill.")
