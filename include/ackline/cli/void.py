"""`ackline void`: close an open turn that can't be carried out."""

import sys
from typing import Annotated, Any

import typer

from ackline.cli import json_output
from ackline.cli.confirm import DryRun, Yes, is_confirmed
from ackline.cli.options import Json, Name, Now, opened
from ackline.errors import ConfigError
from ackline.steps.operator_void import ClosedTurn, Consequence, OpenTurn, open_turn, void_open_turn
from ackline.turns import LIVE, Plan

Reason = Annotated[str, typer.Option("--reason", help="Why, for readers of the audit table.", show_default=False)]
Lane = Annotated[str, typer.Option("--lane", help="The lane whose open turn is closed.")]
Pause = Annotated[bool, typer.Option("--pause", help="Also pause the partitions that the turn reads.")]


def void(
    name: Name,
    reason: Reason,
    lane: Lane = LIVE,
    pause: Pause = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Close the open turn, if it can't be carried out. Nothing of it counts, and its offsets are planned again.

    Use it for a turn that stops every run: a batch that does not decode, a handler that kills the driver, a partition
    that lost its leader, files of outcomes that are lost. At most once, a turn that is handed out already is recorded
    as lost instead. Without `--yes` it asks at a terminal, and changes nothing elsewhere.

    Example: `ackline void orders --reason "batch at offset 1041 does not decode" --pause --yes`
    """
    if not reason.strip():
        raise ConfigError("--reason is empty: write why, for readers of the audit table", key="--reason")
    # Without the handler: one that does not import may be why no run gets on.
    with opened(name, now, lane=lane, handler=False) as parts:
        to_close = open_turn(parts)
        if not as_json or not yes:
            print(_what_would_happen(to_close, pause), file=sys.stderr if as_json else sys.stdout)
        if not is_confirmed(f"Close {to_close.plan.turn}?", yes, dry_run):
            if as_json:
                json_output.print_json({**_body(to_close.plan, to_close.consequence, reason, pause), "dry_run": True})
            else:
                print("Nothing was changed.")
            return
        closed = void_open_turn(parts, to_close.plan.turn, reason, pause)
    if as_json:
        body = _body(closed.plan, closed.consequence, reason, pause)
        body |= {"pause": bool(body["pause"]) and closed.not_paused is None, "not_paused": closed.not_paused}
        json_output.print_json({**body, "dry_run": False, "not_committed": closed.not_committed})
        return
    print(_what_happened(closed, name))


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(void)


def _body(plan: Plan, consequence: Consequence, reason: str, pause: bool) -> dict[str, Any]:
    turn = plan.turn
    partitions = [
        {"topic": tp.topic, "partition": tp.partition, "start": planned.fresh.start, "end": planned.fresh.end}
        for tp, planned in sorted(plan.partitions.items())
        if not planned.empty
    ]
    return {
        "pipeline": turn.pipeline,
        "lane": turn.lane,
        "epoch": turn.epoch,
        "turn": turn.n,
        "kind": plan.kind.value,
        "consequence": consequence.value,
        "reason": reason,
        "pause": pause and consequence is not Consequence.SETTLED,
        "partitions": partitions,
    }


def _what_would_happen(to_close: OpenTurn, pause: bool) -> str:
    plan = to_close.plan
    lines = [f"{plan.turn}, a {plan.kind} of {plan.planned_at.isoformat(timespec='seconds')} by run {plan.run_id}:"]
    for tp, planned in sorted(plan.partitions.items()):
        if not planned.empty:
            retries = sum(len(run) for run in planned.retries)
            lines.append(
                f"  {tp} [{planned.fresh.start}, {planned.fresh.end})" + (f", {retries} retries" * (retries > 0))
            )
    lines.append(_CONSEQUENCES[to_close.consequence])
    if to_close.has_outcomes and to_close.consequence is Consequence.VOID:
        lines.append(
            "Its outcomes are stored, so a run may be able to settle it. After a void they do not count; dead letters "
            "that it has sent stay."
        )
    if to_close.has_outcomes and to_close.consequence is Consequence.LOST:
        lines.append(
            "Its outcomes are stored. If a file of them is lost or damaged, all of them are replaced by the lost "
            "ranges, outcomes of acked records too. If all are whole, the command is refused: a run settles the turn."
        )
    if pause and to_close.consequence is not Consequence.SETTLED:
        lines.append("These partitions will be paused until `ackline resume`.")
    return "\n".join(lines)


_CONSEQUENCES = {
    Consequence.VOID: "It will be void: nothing of it counts, and its offsets are planned again.",
    Consequence.LOST: "It is claimed, so it can't be void: its records will be lost, and not handled again.",
    Consequence.SETTLED: "It handles no record and is never void: it will be settled.",
}


def _what_happened(closed: ClosedTurn, name: str) -> str:
    did = {
        Consequence.VOID: "is void; the next run plans its offsets again",
        Consequence.LOST: "is settled; its records are lost",
        Consequence.SETTLED: "is settled",
    }
    text = f"{closed.plan.turn} {did[closed.consequence]}."
    if closed.not_committed is not None:
        text += f"\nThe group was not committed: {closed.not_committed}. `ackline run {name}` commits it."
    if closed.not_paused is not None:
        text += f"\nIts partitions were not paused: {closed.not_paused}. Pause them with `ackline pause {name}`."
    return text
