"""`ackline history`: the turns of a pipeline, who took them and why."""

from typing import Annotated, Any

import typer

from ackline.cli import json_output, tables
from ackline.cli.options import Json, Name, check_lane, pipeline_named

AnyLane = Annotated[str | None, typer.Option("--lane", help="Only this lane: live, or that of a backfill.")]
Limit = Annotated[int, typer.Option(help="At most this many turns.", min=1, max=2**31)]
Acts = Annotated[bool, typer.Option("--acts", help="Only the acts of operators.")]
_FIRST = ("end", "turn", "kind", "records", "outcomes", "actor", "reason", "seconds", "run")
"""The columns by importance, for a terminal that is too narrow for all."""


def history(name: Name, lane: AnyLane = None, limit: Limit = 20, acts: Acts = False, as_json: Json = False) -> None:
    """List the settled turns of a pipeline, newest first: runs and acts, with actors, reasons, durations and counts.

    Examples: `ackline history orders`, `ackline history orders --acts --limit 5`
    """
    from ackline.audit.history import settled_turns
    from ackline.paths import audit_root

    pipeline_named(name)
    if lane is not None:
        check_lane(name, lane)
    turns = settled_turns(audit_root(), name, lane, limit, acts)
    if as_json:
        json_output.print_json({"pipeline": name, "turns": [_as_json(turn) for turn in turns]})
        return
    columns = ["end", "turn", "kind", "seconds", "records", "outcomes", "actor", "run", "reason"]
    out = tables.console()
    tables.print_table(out, None, columns, map(_row, turns), _FIRST)
    if not turns:
        out.print("No turn is settled yet.")


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(history)


def _as_json(turn: Any) -> dict[str, Any]:
    return {
        "lane": turn.lane,
        "epoch": turn.epoch,
        "turn": turn.turn,
        "kind": turn.kind,
        "run_id": turn.run_id,
        "actor": turn.actor,
        "reason": turn.reason,
        "start": turn.start.isoformat() if turn.start else None,
        "end": turn.end.isoformat(),
        "duration": turn.duration,
        "partitions": turn.partitions,
        "records": turn.records,
        "outcomes": turn.outcomes,
    }


def _row(turn: Any) -> list[Any]:
    outcomes = ", ".join(f"{number:,} {word}" for word, number in turn.outcomes.items())
    number = f"{turn.epoch}.{turn.turn}" if turn.lane == "live" else f"{turn.lane} {turn.epoch}.{turn.turn}"
    seconds = None if turn.duration is None else round(turn.duration, 1)
    return [turn.end, number, turn.kind, seconds, turn.records, outcomes or None, turn.actor, turn.run_id, turn.reason]
