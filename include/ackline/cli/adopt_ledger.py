"""`ackline adopt-ledger`: go on from a group that another ledger of the pipeline has committed."""

from typing import Annotated

import typer

from ackline.cli import json_output
from ackline.cli.confirm import DryRun, Yes, is_confirmed, show_preview
from ackline.cli.options import Json, Name, Now, opened, reason_of
from ackline.steps.action_report import adoption_json, adoption_text
from ackline.steps.adopt_ledger import adopt_ledger, prepare_adoption

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
        show_preview(adoption_text(adoption, done=False), yes, dry_run, as_json)
        if not is_confirmed(f"Adopt the ledger of {name}?", yes, dry_run):
            if as_json:
                json_output.print_json(adoption_json(parts, adoption, reason, dry_run=True))
            else:
                print("Nothing was changed.")
            return
        done = adopt_ledger(parts, reason)
    if as_json:
        json_output.print_json(adoption_json(parts, done, reason, dry_run=False))
        return
    print(adoption_text(done, done=True))
    if done.not_committed is not None:
        print(f"It is stored; {done.not_committed}")


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command("adopt-ledger")(adopt)
