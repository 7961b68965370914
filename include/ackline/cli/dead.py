"""`ackline dead`: the records that were given up, by error class, and another try for them."""

from typing import Annotated

import typer

from ackline.backfill_arguments import BackfillArguments, lane_of
from ackline.cli import json_output, tables
from ackline.cli.backfill import Request, new_id, perform
from ackline.cli.backfill_options import Id, MaxRate, MaxRecords, Reason, Wait
from ackline.cli.confirm import DryRun, Yes
from ackline.cli.options import ErrorClass, From, Json, Lane, Name, Now, Until, opened, time_of
from ackline.errors import ConfigError
from ackline.outcome import Outcome
from ackline.steps.dead_records import dead_classes
from ackline.turns import LIVE

Ranges = Annotated[
    list[str] | None,
    typer.Argument(help="With --redrive: TOPIC, TOPIC:PARTITION or TOPIC:PARTITION:A-B.", show_default=False),
]
Redrive = Annotated[bool, typer.Option("--redrive", help="Handle them again: a backfill by outcome.")]


def dead(
    name: Name,
    ranges: Ranges = None,
    error_class: ErrorClass = None,
    redrive: Redrive = False,
    since: From = None,
    until: Until = None,
    lane: Lane = LIVE,
    backfill_id: Id = None,
    max_records: MaxRecords = None,
    max_rate: MaxRate = None,
    wait: Wait = False,
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """List the dead records of a lane by error class; with `--redrive`, handle them again.

    A redrive is a backfill by outcome (`ackline backfill NAME --outcome dead`), so it is a dry run until `--yes`, and
    `ackline backfill NAME --id ID` goes on with it.

    Examples: `ackline dead orders`, `ackline dead orders --redrive --error-class HTTPError --yes --wait`
    """
    if redrive:
        arguments = BackfillArguments(
            tuple(ranges or ()), False, since, until, Outcome.DEAD.value, error_class, None, lane
        )
        new_lane = lane_of(backfill_id or new_id(time_of(now)))
        request = Request(name, new_lane, max_records, max_rate, wait, reason, False, yes, dry_run, now, as_json)
        perform(request, arguments, begun=backfill_id is not None)
        return
    if ranges or since or until:
        raise ConfigError("RANGE, --from and --to choose what is redriven: add --redrive", key="--redrive")
    _list(name, lane, error_class, as_json)


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(dead)


def _list(name: str, lane: str, error_class: str | None, as_json: bool) -> None:
    with opened(name, lane=lane, handler=False) as parts:
        found = dead_classes(parts.store)
    shown = [each for each in found if error_class in (None, each.error_class)]
    if as_json:
        classes = [
            {
                "error_class": each.error_class,
                "count": each.count,
                "first": each.first.isoformat(),
                "last": each.last.isoformat(),
            }
            for each in shown
        ]
        json_output.print_json({"pipeline": name, "lane": lane, "dead": classes, "total": sum(e.count for e in shown)})
        return
    columns = ["error class", "records", "first", "last"]
    out = tables.console()
    if shown:
        rows = [[each.error_class, each.count, each.first, each.last] for each in shown]
        tables.print_table(out, None, columns, rows)
    else:
        out.print("No record is dead.")
