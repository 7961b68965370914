"""`ackline diff`: what another handler, or another run, has made of the same records."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from ackline.cli import json_output, tables
from ackline.cli.options import Json, Name, opened
from ackline.errors import ConfigError
from ackline.lane_diff import ChangedRun, LaneDiff, Result
from ackline.steps.diff_lanes import diff_lanes

Before = Annotated[str, typer.Argument(metavar="LANE", help="A lane: live or backfill-ID.", show_default=False)]
After = Annotated[str, typer.Argument(metavar="LANE", help="The lane to compare with it.", show_default=False)]
Records = Annotated[bool, typer.Option("--records", help="Also list each offset that differs.")]

SHOWN = 50
"""How many runs of offsets a person is shown."""


def diff(name: Name, before: Before, after: After, records: Records = False, as_json: Json = False) -> None:
    """Compare the newest terminal outcomes of two lanes, over the offsets that both have settled.

    Example: `ackline backfill orders --from "1d ago" --handler handlers.v2:handle --dead-letter none --id v2 --yes`,
    then `ackline diff orders live backfill-v2`
    """
    if before == after:
        raise ConfigError(f"{before} is named twice: name two lanes", key="LANE")
    with opened(name, handler=False) as parts:
        found, changed = diff_lanes(parts.store, before, after)
    if as_json:
        json_output.print_json(
            diff_json(found, before, after) | ({"records": records_json(changed)} if records else {})
        )
        return
    out = tables.console()
    rows = [[shown(old), shown(new), number] for (old, new), number in found.changed.most_common()]
    out.print(f"{found.same:,} offsets have the same outcome in both lanes.")
    out.print(f"{found.only[0]:,} are settled in {before} only, {found.only[1]:,} in {after} only.")
    if rows:
        tables.print_table(out, None, [before, after, "offsets"], rows)
    if records:
        _print_records(changed)


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(diff)


def diff_json(found: LaneDiff, before: str, after: str) -> dict[str, Any]:
    """Returns the comparison as JSON; the most frequent change comes first."""
    return {
        "same": found.same,
        "changed": [
            {"from": old._asdict(), "to": new._asdict(), "count": number}
            for (old, new), number in found.changed.most_common()
        ],
        "only": {before: found.only[0], after: found.only[1]},
    }


def records_json(changed: Iterator[ChangedRun]) -> list[dict[str, Any]]:
    """Returns the offsets that differ, as runs of the same change."""
    return [
        {
            "topic": run.tp.topic,
            "partition": run.tp.partition,
            "start": run.start,
            "end": run.end,
            "from": run.before._asdict(),
            "to": run.after._asdict(),
        }
        for run in changed
    ]


def shown(result: Result) -> str:
    """Returns an outcome and its error class for a person."""
    return result.outcome if result.error_class is None else f"{result.outcome} ({result.error_class})"


def _print_records(changed: Iterator[ChangedRun]) -> None:
    for run in islice(changed, SHOWN):
        print(f"{run.tp} [{run.start}, {run.end}): {shown(run.before)} → {shown(run.after)}")
    if next(changed, None) is not None:
        print("… and more. --json shows them all.")
