"""`ackline dead`: the records that were given up, by error class, and another try for them."""

from typing import Annotated

import typer

from ackline.backfill_arguments import BackfillArguments, lane_of
from ackline.cli import json_output, tables
from ackline.cli.backfill_options import Id, MaxRate, MaxRecords, Reason, Wait
from ackline.cli.backfill_run import Request, new_id, perform
from ackline.cli.confirm import DryRun, Yes
from ackline.cli.dead_letter import EXAMPLE, show
from ackline.cli.options import ErrorClass, From, Json, Lane, Name, Now, Until, opened, time_of
from ackline.errors import ConfigError
from ackline.outcome import Outcome
from ackline.steps.dead_records import dead_classes
from ackline.turns import LIVE

Ranges = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC PARTITION OFFSET | RANGE...]",
        help="One dead record to show; with --redrive: TOPIC, TOPIC:PARTITION or TOPIC:PARTITION:A-B.",
        show_default=False,
    ),
]
Redrive = Annotated[bool, typer.Option("--redrive", help="Handle them again: a backfill by outcome.")]

ShowValue = Annotated[
    bool, typer.Option("--show-value", help="Also print key, value and headers of the record. Needs a terminal.")
]


def dead(
    name: Name,
    ranges: Ranges = None,
    error_class: ErrorClass = None,
    redrive: Redrive = False,
    show_value: ShowValue = False,
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
    """List the dead records of a lane by error class, or show one; with `--redrive`, handle them again.

    `ackline dead NAME TOPIC PARTITION OFFSET` shows attempts, error and the letter in the dead-letter topic. Of the
    record it shows the names of its headers and the sizes of key and value; `--show-value` prints them on a terminal.

    A redrive is a backfill by outcome (`ackline backfill NAME --outcome dead`), so it is a dry run until `--yes`, and
    `ackline backfill NAME --id ID` goes on with it.

    Examples: `ackline dead orders`, `ackline dead orders orders 3 1041`,
    `ackline dead orders --redrive --error-class HTTPError --yes --wait`
    """
    if show_value and (redrive or not ranges):
        raise ConfigError(f"--show-value is about one record: {EXAMPLE}", key="--show-value")
    if redrive:
        arguments = BackfillArguments(
            tuple(ranges or ()), False, since, until, Outcome.DEAD.value, error_class, None, lane
        )
        new_lane = lane_of(backfill_id or new_id(time_of(now)))
        request = Request(name, new_lane, max_records, max_rate, wait, reason, False, yes, dry_run, now, as_json)
        perform(request, arguments, begun=backfill_id is not None)
        return
    if since or until or (ranges and len(ranges) != 3):
        raise ConfigError(f"RANGE, --from and --to choose what is redriven: add --redrive; {EXAMPLE}", key="--redrive")
    if ranges:
        show(name, ranges, lane, show_value, now, as_json)
        return
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
