"""Options that several commands share, and the parsing of their values."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

import typer

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

LAST = 2**63 - 1
"""The exclusive upper bound of offsets."""

Name = Annotated[str, typer.Argument(help="The pipeline: the `name` in its file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of tables.")]
Now = Annotated[
    str | None,
    typer.Option("--now", help="Use this time instead of the clock, e.g. 2026-01-31T12:00:00Z.", show_default=False),
]


def time_of(now: str | None) -> datetime | None:
    """Returns `--now` as an aware time. Raises ConfigError for a text that is not a time, or has no zone."""
    try:
        return None if now is None else parse_time(now)
    except ValueError as error:
        raise ConfigError(f"--now: {error}", key="--now") from None


def range_of(text: str | None) -> OffsetRange | None:
    """Returns `A:B`, `A:`, `:B` or a single `A` as a range. Raises ConfigError for any other text."""
    if text is None:
        return None
    try:
        start, colon, end = text.partition(":")
        if not start and not end:
            raise ValueError("empty")
        first = offset_of(start or "0")
        return OffsetRange(first, offset_of(end) if end else first + 1 if not colon else LAST)
    except ValueError as error:
        raise ConfigError(
            f"--offsets {text}: write A:B with 0 <= A <= B, B exclusive ({error})", key="--offsets"
        ) from None


def offset_of(text: str) -> int:
    """Returns a text as an offset. Raises ValueError if Kafka can have no such offset."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LAST)) and int(text) < LAST):
        raise ValueError(f"{text[:30]} is not an offset")
    return int(text)


def pipeline_named(name: str) -> Pipeline:
    """Returns the pipeline of that name, and makes the folder of its handlers importable."""
    pipeline = find_pipeline(pipelines_folder(), name)
    make_handlers_importable()
    return pipeline


@contextmanager
def opened(
    name: str, now: str | None = None, no_breaker: bool = False, lane: str = LIVE, handler: bool = True
) -> Iterator[Parts]:
    """Opens a pipeline for one command. Imports its handler first, so that no turn is planned that can't be handled;
    without `handler`, a handler that does not import is no obstacle."""
    time = time_of(now)
    pipeline = pipeline_named(name)
    if handler:
        check_functions(pipeline.handler, pipeline.translation, pipeline.isolated)
    actor = os.environ.get("USER", "")
    connection = connection_of(pipeline)
    with open_parts(
        pipeline, connection, run_id=new_run_id("cli"), actor=actor, now=time, no_breaker=no_breaker, lane=lane
    ) as parts:
        yield parts
