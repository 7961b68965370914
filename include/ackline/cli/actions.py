"""`ackline retry | skip | reset | pause | resume | void | adopt-ledger`: operator actions.

The commands are made of the table `ackline.actions.form.ACTIONS`, and do what the DAG `operate__NAME` does.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import typer

from ackline.actions.form import ACTIONS, LANE, REASON, Action
from ackline.actions.perform import entered_action
from ackline.cli import formats
from ackline.cli.options import DryRun, Json, Name, Now, Yes, is_confirmed, opened, show_preview, time_of, with_fields
from ackline.pipeline.form import Entered


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for action in ACTIONS.values():
        required = (REASON,) if action.needs_reason else ()
        app.command(action.name, help=action.help)(with_fields(action.fields, _command(action), required))


def _command(action: Action) -> Callable[..., None]:
    def command(
        values: Mapping[str, Any],
        name: Name,
        yes: Yes = False,
        dry_run: DryRun = False,
        now: Now = None,
        as_json: Json = False,
    ) -> None:
        requested = entered_action(action, name, Entered(values, True), time_of(now) or datetime.now(UTC))
        # Without the handler: one that does not import may be why an operator acts.
        with opened(name, now, lane=values.get(LANE.name) or LANE.empty, handler=False) as adapters:
            shown = requested.preview(adapters)
            show_preview(shown.text, yes, dry_run, as_json)
            if not is_confirmed(requested.question, yes, dry_run):
                formats.print_result(shown.body, "Nothing was changed.", as_json)
                return
            # A user at a terminal confirms what was shown, and no other turn; with --yes it may be a later turn.
            done = requested.perform(adapters, as_shown=not yes)
        formats.print_result(done.body, done.text, as_json)

    return command
