"""`ackline maintain` keeps the tables quick. The DAG `ackline_maintenance` does the same every six hours."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ackline.cli import confirm, json_output, tables
from ackline.cli.options import Json
from ackline.errors import ConfigError, FatalError

if TYPE_CHECKING:
    from ackline.audit.repair import TornFile


Repair = Annotated[bool, typer.Option("--repair", help="Only remove torn files of the tables' logs.")]


def maintain(
    as_json: Json = False, repair: Repair = False, yes: confirm.Yes = False, dry_run: confirm.DryRun = False
) -> None:
    """Compact, checkpoint and vacuum the tables of all pipelines. This is safe at any time, also beside runs.

    No row changes. It removes unused files after a week, and never those of an open turn. Output tables below
    ACKLINE_AUDIT are maintained too; those that a pipeline file names by a URI are not.

    With `--repair` it only removes what a power cut has torn: the newest log entry of a table, on which no process has
    acted, and a checkpoint that the log does not need. The next run makes the commit again.

    Example: `ackline maintain`
    """
    if repair:
        _repair(as_json, yes, dry_run)
        return
    if dry_run:
        raise ConfigError(
            "--dry-run belongs to --repair: without that, no row changes. Nothing was done", key="--dry-run"
        )
    from ackline.audit import maintenance
    from ackline.paths import audit_root

    maintained = maintenance.maintain(audit_root())
    if as_json:
        json_output.print_json([asdict(table) for table in maintained])
        return
    columns = ["pipeline", "lane", "table", "files before", "files", "compacted", "busy", "removed", "version"]
    rows = [
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
    ]
    out = tables.console()
    if rows:
        tables.print_table(out, None, columns, rows, ("pipeline", "lane", "table", "files before", "files", "removed"))
    else:
        out.print("There are no tables yet.")


def _repair(as_json: bool, yes: bool, dry_run: bool) -> None:
    from ackline.audit import repair
    from ackline.paths import audit_root

    torn = repair.torn_files(audit_root())
    removable = [file for file in torn if file.removable]
    if not as_json:
        _print_torn(torn, "may be removed")
    done = bool(removable) and confirm.is_confirmed(f"Remove {len(removable)} torn files?", yes, dry_run)
    if done:
        torn = repair.repair(audit_root())
    if as_json:
        files = [{**asdict(file), "removed": done and file.removable} for file in torn]
        json_output.print_json({"torn": files, "dry_run": dry_run})
    elif done:
        _print_torn(torn, "removed")
    if any(not file.removable for file in torn):
        raise FatalError(
            "later commits build on a torn file that stays: restore the folder of that table from a backup"
        )


def _print_torn(torn: list["TornFile"], fate: str) -> None:
    if not torn:
        tables.console().print("No file of the tables' logs is torn.")
    for file in torn:
        tables.console().print(f"{file.what} {file.file}: {fate if file.removable else 'later commits build on it'}")


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(maintain)
