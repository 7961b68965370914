"""Options that several commands share, and the parsing of their values."""

import getpass
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from ackline.arguments import LAST, PartitionChoice, parse_moment, parse_offsets
from ackline.cli.connection import connection_of
from ackline.errors import ConfigError
from ackline.field_types import parse_time
from ackline.offsets import OffsetRange
from ackline.paths import make_handlers_importable, pipelines_folder
from ackline.pipeline import Pipeline
from ackline.pipeline_folder import find_pipeline
from ackline.steps.parts import Parts, new_run_id, open_parts
from ackline.stream_functions import check_functions
from ackline.turns import LIVE

__all__ = [
    "LAST",
    "ErrorClass",
    "From",
    "Json",
    "Lane",
    "Name",
    "Now",
    "Offsets",
    "Partitions",
    "Topics",
    "Until",
    "actor",
    "choice_of",
    "moment_of",
    "opened",
    "pipeline_named",
    "range_of",
    "reason_of",
    "time_of",
]

Name = Annotated[str, typer.Argument(help="The pipeline: the `name` in its file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of tables.")]
Now = Annotated[
    str | None,
    typer.Option("--now", help="Use this time instead of the clock, e.g. 2026-01-31T12:00:00Z.", show_default=False),
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only this topic; may be given several times.", show_default=False)
]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        help="Only partitions with this number; may be given several times.",
        min=0,
        max=2**31 - 1,
        show_default=False,
    ),
]
Offsets = Annotated[
    str | None,
    typer.Option("--offsets", help="Only offsets A:B, B exclusive, or the single offset A.", show_default=False),
]
ErrorClass = Annotated[
    str | None,
    typer.Option("--error-class", help="Only records whose last attempt failed with it.", show_default=False),
]
From = Annotated[
    str | None,
    typer.Option("--from", help="Only from this time on: 2026-01-31T12:00:00Z, or `2h ago`.", show_default=False),
]
Until = Annotated[
    str | None,
    typer.Option("--to", help="Only before this time: 2026-01-31T12:00:00Z, or `2h ago`.", show_default=False),
]
Lane = Annotated[str, typer.Option("--lane", help="The lane: live, or that of a backfill.")]


def time_of(now: str | None) -> datetime | None:
    """Returns `--now` as an aware time. Raises ConfigError for a text that is not a time, or has no zone."""
    try:
        return None if now is None else parse_time(now)
    except ValueError as error:
        raise ConfigError(f"--now: {error}", key="--now") from None


def moment_of(text: str | None, option: str, now: str | None = None) -> datetime | None:
    """Returns the time that an option such as `--from` names, in UTC; `now` is the text of `--now`.

    Raises ConfigError for a text that is neither an ISO 8601 time with a zone nor a duration such as `2h ago`.
    """
    try:
        return None if text is None else parse_moment(text, time_of(now) or datetime.now(UTC))
    except ValueError as error:
        raise ConfigError(f"{option}: {error}; a time ago is written as in `2h ago`", key=option) from None


def range_of(text: str | None) -> OffsetRange | None:
    """Returns `--offsets`, as `A:B`, `A:`, `:B` or a single `A`. Raises ConfigError for any other text."""
    try:
        return None if text is None else parse_offsets(text)
    except ValueError as error:
        raise ConfigError(
            f"--offsets {text}: write A:B with 0 <= A <= B, B exclusive ({error})", key="--offsets"
        ) from None


def choice_of(topics: Sequence[str] | None, partitions: Sequence[int] | None) -> PartitionChoice:
    """Returns the partitions that `--topic` and `--partition` name. Raises ConfigError for what is no topic's name."""
    try:
        return PartitionChoice(tuple(dict.fromkeys(topics or ())), tuple(dict.fromkeys(partitions or ())))
    except ValueError as error:
        raise ConfigError(f"--topic: {error}", key="--topic") from None


def reason_of(reason: str) -> str:
    """Returns a `--reason` that is required. Raises ConfigError if it is blank."""
    if not reason.strip():
        raise ConfigError("--reason is empty: write why, for readers of the audit table", key="--reason")
    return reason


def actor() -> str:
    """Returns the user who acts: that of the environment, or else the system's; `unknown` if neither has a name."""
    try:
        return getpass.getuser() or "unknown"
    except (KeyError, OSError, ImportError):  # a container may run under a number that has no name
        return "unknown"


def pipeline_named(name: str) -> Pipeline:
    """Returns the pipeline of that name, and makes the folder of its handlers importable."""
    pipeline = find_pipeline(pipelines_folder(), name)
    make_handlers_importable()
    return pipeline


@contextmanager
def opened(
    name: str,
    now: str | None = None,
    no_breaker: bool = False,
    lane: str = LIVE,
    handler: bool = True,
    pipeline: Pipeline | None = None,
) -> Iterator[Parts]:
    """Opens a pipeline for one command. Imports its handler first, so that no turn is planned that can't be handled;
    without `handler`, a handler that does not import is no obstacle. `pipeline` takes the place of the file's settings.
    """
    time = time_of(now)
    pipeline = pipeline or pipeline_named(name)
    if handler:
        check_functions(*pipeline.functions)
    connection = connection_of(pipeline)
    with open_parts(
        pipeline, connection, run_id=new_run_id("cli"), actor=actor(), now=time, no_breaker=no_breaker, lane=lane
    ) as parts:
        yield parts


def check_lane(name: str, lane: str) -> None:
    """Raises ConfigError with the lanes of a pipeline if `lane` has no tables."""
    from ackline.audit.layout import lanes_of
    from ackline.paths import audit_root

    known = [found.lane for found in lanes_of(audit_root(), name)]
    if lane not in known:
        raise ConfigError(f"--lane {lane}: {name} has the lanes {', '.join(known) or '(none yet)'}", key="--lane")
