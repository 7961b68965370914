"""`ackline maintain` keeps the tables quick. The DAG `ackline_maintenance` does the same every six hours."""

from dataclasses import asdict

import typer

from ackline.cli import json_output, tables
from ackline.cli.options import Json


def maintain(as_json: Json = False) -> None:
    """Compact, checkpoint and vacuum the tables of all pipelines. This is safe at any time, also beside runs.

    No row changes. It removes unused files after a week, and never those of an open turn.

    Example: `ackline maintain`
    """
    from ackline.audit import maintenance
    from ackline.paths import audit_root

    maintained = maintenance.maintain(audit_root())
    if as_json:
        json_output.print_json([asdict(table) for table in maintained])
        return
    columns = ["pipeline", "lane", "table", "files before", "files", "compacted", "busy days", "removed", "version"]
    rows = (
        [
            done.pipeline,
            done.lane,
            done.table,
            done.files_before,
            done.files,
            done.compacted,
            done.busy,
            done.removed,
            done.version,
        ]
        for done in maintained
    )
    tables.console().print(tables.table(None, columns, rows) if maintained else "There are no tables yet.")


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(maintain)
