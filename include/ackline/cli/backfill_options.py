"""The options of `ackline backfill`, some of which `ackline dead --redrive` shares."""

from typing import Annotated

import typer

Ranges = Annotated[
    list[str] | None,
    typer.Argument(help="TOPIC, TOPIC:PARTITION or TOPIC:PARTITION:A-B, B exclusive.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="Everything that the logs hold now.")]
OfOutcome = Annotated[
    str | None, typer.Option("--outcome", help="Only records that ended so, e.g. dead.", show_default=False)
]
OfRun = Annotated[str | None, typer.Option("--run", help="Only records that this run settled.", show_default=False)]
OfLane = Annotated[str, typer.Option("--of", help="The lane of --outcome, --error-class and --run.")]
Id = Annotated[
    str | None,
    typer.Option("--id", help="The backfill's id: a-z 0-9 -. Alone it resumes that backfill.", show_default=False),
]
Epoch = Annotated[
    int | None,
    typer.Option(
        "--epoch", help="With --id: begin this epoch of a settled backfill.", min=0, max=10**6, show_default=False
    ),
]
Handler = Annotated[
    str | None,
    typer.Option("--handler", help="Another handler, from `backfill.handlers` of the file.", show_default=False),
]
MaxRecords = Annotated[
    int | None, typer.Option("--max-records", help="Read at most so many offsets now.", min=1, show_default=False)
]
MaxRate = Annotated[
    int | None,
    typer.Option("--max-rate", help="Handle at most so many records a second.", min=1, max=10**9, show_default=False),
]
DeadLetterTopic = Annotated[
    str | None, typer.Option("--dead-letter", help="Another topic of dead letters, or none.", show_default=False)
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for retries until every offset is settled.")]
Reason = Annotated[
    str, typer.Option("--reason", help="Why: stored with each turn that this run plans.", show_default=False)
]
NoBreaker = Annotated[bool, typer.Option("--no-breaker", help="Settle turns no matter how many records failed.")]
List = Annotated[bool, typer.Option("--list", help="List the backfills of the pipeline, and start none.")]
Cancel = Annotated[
    str | None, typer.Option("--cancel", help="End this backfill: the rest is skipped.", show_default=False)
]
