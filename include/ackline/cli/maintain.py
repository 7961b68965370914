"""`ackline maintain`: keep the tables quick. What the DAG `ackline_maintenance` does every six hours."""

from dataclasses import asdict

import typer

from ackline.cli import show
from ackline.cli.options import Json


def maintain(as_json: Json = False) -> None:
    """Compact, checkpoint and vacuum the tables of all pipelines; safe at any time, beside runs too.

    No row changes. Files that nothing refers to are removed a week later, those of an open turn never.

    Example: `ackline maintain`
    """
    from ackline.audit import maintenance
    from ackline.paths import audit_root

    done = maintenance.maintain(audit_root())
    if as_json:
        show.print_json([asdict(one) for one in done])
        return
    columns = ["table", "files before", "files", "compacted", "busy days", "removed", "version"]
    rows = ([one.table, one.files_before, one.files, one.compacted, one.busy, one.removed, one.version] for one in done)
    show.console().print(show.table(None, columns, rows) if done else "There are no tables yet.")


def add_to(app: typer.Typer) -> None:
    """Make this command known."""
    app.command()(maintain)
