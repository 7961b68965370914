"""The options of `ackline run` and `ackline plan` that make a run read less, as the form of `replay__NAME` does."""

from collections.abc import Sequence
from typing import Annotated

import typer

from ackline.cli.options import choice_of
from ackline.run_request import RunRequest, parse_request
from ackline.steps.parts import Parts

MaxRecords = Annotated[
    int | None,
    typer.Option("--max-records", help="Read at most so many offsets in a turn, fresh ones and retries.", min=1),
]
OnlyRetries = Annotated[bool, typer.Option("--only-retries", help="Read the retries that are due, and no new record.")]


def request_of(
    parts: Parts,
    topics: Sequence[str] | None,
    partitions: Sequence[int] | None,
    max_records: int | None,
    only_retries: bool,
) -> RunRequest:
    """Returns what the options ask of a run. Without `--topic` and `--partition` it reads no broker.

    The partitions are those of the lane, and those that the run would let join it. Raises ConfigError for more records
    than the file allows in a turn, and for an option that names no partition.
    """
    choice = choice_of(topics, partitions)
    asked = parse_request(
        {"max_records": max_records, "only_retries": only_retries}, parts.pipeline.max_records_per_run
    )
    if not (topics or partitions):
        return asked
    from ackline.steps.observe import observe_kafka
    from ackline.steps.plan import preview_lane

    newest = parts.store.newest()
    lane = preview_lane(parts, newest, observe_kafka(parts, newest))
    subscribed = [tp for tp in lane if parts.is_subscribed(tp)]
    return RunRequest(asked.max_records, only_retries, frozenset(choice.chosen(subscribed, parts.pipeline.name)))
