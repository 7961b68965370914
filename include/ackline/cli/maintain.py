"""`ackline maintain` keeps the tables quick, and removes what a power cut has torn.

The DAG `ackline_maintenance` does every six hours what `ackline maintain` does.
"""

from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from ackline.cli import formats, options, tables
from ackline.cli.options import Json
from ackline.errors import ConfigError, FatalError
from ackline.pipeline.folder import audit_root

if TYPE_CHECKING:
    from ackline.actions.maintain import TornFile

Repair = Annotated[bool, typer.Option("--repair", help="Only remove torn files of the tables' logs.")]


def maintain(
    as_json: Json = False, repair: Repair = False, yes: options.Yes = False, dry_run: options.DryRun = False
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
    from ackline.actions.maintain import maintain as maintain_all

    maintained = maintain_all(audit_root())
    if as_json:
        formats.print_json([asdict(table) for table in maintained])
        return
    columns = ["pipeline", "lane", "table", "files before", "files", "compacted", "busy", "removed", "version"]
    shown = attrgetter("pipeline", "lane", "table", "files_before", "files", "compacted", "busy", "removed", "version")
    keep = ("pipeline", "lane", "table", "files before", "files", "removed")
    tables.print_list(columns, list(map(shown, maintained)), keep, "There are no tables yet.")


def _repair(as_json: bool, yes: bool, dry_run: bool) -> None:
    from ackline.actions import maintain as maintenance

    torn = maintenance.torn_files(audit_root())
    removable = [file for file in torn if file.removable]
    if not as_json and (dry_run or not yes or not removable):
        _print_torn(torn, "may be removed")
    done = bool(removable) and options.is_confirmed(f"Remove {len(removable)} torn files?", yes, dry_run)
    if done:
        torn = maintenance.repair(audit_root())
    if as_json:
        files = [{**asdict(file), "removed": done and file.removable} for file in torn]
        formats.print_json({"torn": files, "dry_run": dry_run})
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


COMMANDS = {"maintain": maintain}
