"""`ackline adopt-ledger`: go on from a group that another ledger of the pipeline has committed."""

from typing import Annotated, Any

import typer

from ackline.cli import json_output
from ackline.cli.action_output import action_json, action_text, turn_json
from ackline.cli.confirm import DryRun, Yes, is_confirmed, show_preview
from ackline.cli.options import Json, Name, Now, opened, reason_of
from ackline.steps.adopt_ledger import Adoption, adopt_ledger, prepare_adoption
from ackline.steps.parts import Parts
from ackline.turns import LIVE, TurnId, TurnKind

Reason = Annotated[str, typer.Option("--reason", help="Why, for readers of the audit table.", show_default=False)]


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
    with opened(name, now, handler=False) as parts:
        adoption = prepare_adoption(parts, reason)
        show_preview(_text(adoption, done=False), yes, dry_run, as_json)
        if not is_confirmed(f"Adopt the ledger of {name}?", yes, dry_run):
            if as_json:
                json_output.print_json(_json(parts, adoption, reason, dry_run=True))
            else:
                print("Nothing was changed.")
            return
        done = adopt_ledger(parts, reason)
    if as_json:
        json_output.print_json(_json(parts, done, reason, dry_run=False))
        return
    print(_text(done, done=True))
    if done.not_committed is not None:
        print(f"It is stored; {done.not_committed}")


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command("adopt-ledger")(adopt)


def _json(parts: Parts, adoption: Adoption, reason: str, dry_run: bool) -> dict[str, Any]:
    turn = TurnId(parts.pipeline.name, LIVE, 0, 0)
    body: dict[str, Any] = {**turn_json(turn, TurnKind.GENESIS, reason, parts.actor), "partitions": []}
    if adoption.action is not None:
        body = action_json(adoption.action, dry_run)
    joins = [
        {"topic": tp.topic, "partition": tp.partition, "floor": row.state.floor, "evidence": row.evidence}
        for tp, row in sorted(adoption.begins.items())
    ]
    rest = {"dry_run": dry_run, "not_committed": adoption.not_committed}
    return {**body, "ledgers": list(adoption.ledgers), "begins": joins, **rest}


def _text(adoption: Adoption, done: bool) -> str:
    others = ", ".join(adoption.ledgers)
    lines = [f"The group was committed by the ledger {others}." if others else "No ledger has committed the group."]
    if adoption.begins:
        lines.append("Partitions that begin in this ledger:" if done else "Partitions that would begin in this ledger:")
        lines += [f"  {tp}: at {row.state.floor:,} ({row.evidence})" for tp, row in sorted(adoption.begins.items())]
    if adoption.action is not None:
        lines.append(action_text(adoption.action, done))
    return "\n".join(lines)
