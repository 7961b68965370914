"""`ackline backfill`: handles chosen offsets again, in a lane of their own that never touches the group.

The options of `ackline backfill`, some of which `ackline dead --redrive` shares.

Begins or resumes a backfill for the commands `backfill` and `dead`, and runs what is due of it.

`ackline backfill`: handle chosen offsets again, in a lane of their own that never touches the consumer group.
"""

import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ackline.backfill.choose import Choice, choose_offsets
from ackline.backfill.report import account_json, account_text, backfill_json, choice_json, choice_text
from ackline.backfill.run import (
    Backfill,
    account_of_choice,
    backfill_pipeline,
    backfills,
    begin,
    cancel,
    check_epoch_before_is_settled,
    find_backfill,
    run_backfill,
)
from ackline.cli import formats, tables
from ackline.cli.options import (
    DryRun,
    ErrorClass,
    From,
    Json,
    Name,
    Now,
    Until,
    Yes,
    is_confirmed,
    is_confirmed_by_number,
    opened,
    pipeline_named,
    show_preview,
    time_of,
)
from ackline.errors import ConfigError
from ackline.lane.adapters import Adapters
from ackline.ledger.account import Account
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import LIVE, Plan
from ackline.pipeline.arguments import BackfillArguments, check_same, id_of, lane_of
from ackline.spark.master import master_of_environment

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


POLL_SECONDS = 30.0
"""How long `--wait` waits where nothing is due at a known time: for a leader, or for the dead-letter topic."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks of one lane, beside the arguments that the lane stores."""

    name: str
    lane: str
    max_records: int | None = None
    max_rate: int | None = None
    wait: bool = False
    reason: str = ""
    no_breaker: bool = False
    yes: bool = False
    dry_run: bool = False
    now: str | None = None
    as_json: bool = False
    epoch: int = 0
    """The epoch to begin, if the lane has not begun it yet."""

    @property
    def modes(self) -> tuple[bool, bool, bool]:
        """`--yes`, `--dry-run` and `--json`."""
        return self.yes, self.dry_run, self.as_json

    @property
    def backfill_id(self) -> str:
        """The id of the backfill."""
        return id_of(self.lane)


def perform(request: Request, arguments: BackfillArguments, begun: bool) -> None:
    """Begins or resumes a backfill, and runs what is due of it. `begun`: the lane may have begun before.

    Raises ConfigError for arguments that are not those of the lane, and for a resume of a lane that has not begun.
    """
    master_of_environment()
    stored = stored_backfill(request) if begun else None
    if stored is None and not arguments.given:
        if begun:
            raise ConfigError(
                f"--id {request.backfill_id}: {request.name} has no such backfill; `ackline backfill {request.name} "
                f"--list` lists them. Give RANGE, --from, --outcome or --all to begin it",
                key="--id",
            )
        arguments.check()  # names what can be chosen
    if stored is not None and arguments.given:
        check_same(request.backfill_id, stored.arguments, arguments)
    arguments = stored.arguments if stored is not None else arguments
    arguments.check()
    pipeline = backfill_pipeline(pipeline_named(request.name), arguments, request.max_rate)
    with opened(request.name, request.now, request.no_breaker, request.lane, pipeline=pipeline) as adapters:
        if _may_run(adapters, request, arguments):
            _run(adapters, request)


def stored_backfill(request: Request) -> Backfill | None:
    """Returns the backfill as its tables have it; needs no handler and no broker."""
    with opened(request.name, request.now, lane=request.lane, handler=False) as adapters:
        return find_backfill(adapters.store)


def _may_run(adapters: Adapters, request: Request, arguments: BackfillArguments) -> bool:
    """Shows what the backfill would do, and begins it once that is confirmed. Returns whether it is to run."""
    stored, name, backfill_id = find_backfill(adapters.store), request.name, request.backfill_id
    begun = stored if stored is not None and request.epoch <= stored.newest.turn.epoch else None
    if begun is not None and begun.account.settled and not request.dry_run:
        return True  # nothing is left to confirm: the run finds nothing to read, and prints the account
    if begun is not None:
        show_preview(account_text(name, request.lane, begun.account, adapters.now()), *request.modes)
        if is_confirmed(f"Go on with backfill {backfill_id}?", request.yes, request.dry_run):
            return True
        print_unchanged(request, begun.account, None, begun.newest.turn.epoch)
        return False
    check_epoch_before_is_settled(adapters.store, request.epoch)
    choice = choose_offsets(adapters, arguments)
    above = adapters.pipeline.backfill.confirm_above
    show_preview(choice_text(name, backfill_id, choice, above), *request.modes)
    if not choice.partitions or not _is_wanted(request, choice, above):
        print_unchanged(request, account_of_choice(choice), choice, request.epoch)
        return False
    genesis = begin(adapters, arguments, choice, request.reason, request.epoch)
    # Another process may have begun the same id meanwhile. Its choice stands.
    check_same(backfill_id, BackfillArguments.decode(genesis.arguments), arguments)
    _note(f"backfill {backfill_id} has begun; `ackline backfill {name} --id {backfill_id} --yes` goes on with it")
    return True


def _is_wanted(request: Request, choice: Choice, confirm_above: int) -> bool:
    question = f"Begin backfill {request.backfill_id}?"
    if choice.offsets > confirm_above:
        return is_confirmed_by_number(question, choice.offsets, request.yes, request.dry_run)
    return is_confirmed(question, request.yes, request.dry_run)


def print_unchanged(request: Request, account: Account, choice: Choice | None, epoch: int = 0) -> None:
    """Prints the object of a dry run, or that nothing was changed."""
    if request.as_json:
        body: dict[str, Any] = {**account_json(request.lane, epoch, account), "dry_run": True}
        formats.print_json(body | (choice_json(choice) if choice is not None else {"gone": []}))
    else:
        print("Nothing was changed.")


def _run(adapters: Adapters, request: Request) -> None:
    """Runs what is due, with `--wait` until the lane is settled, and prints its account."""
    from ackline.spark.session import open_session

    left = request.max_records
    while True:
        with tables.progress(request.as_json) as on_progress:
            run_backfill(
                adapters,
                lambda: open_session(f"ackline-{request.name}-{request.backfill_id}", adapters.pipeline.spark),
                left,
                _note_plan,
                on_progress,
                request.reason,
            )
        found = find_backfill(adapters.store)
        assert found is not None
        if found.account.settled or not request.wait:
            break
        left = None  # --max-records bounds the first run; --wait is for all the rest
        _sleep_until_due(found.account, adapters.now(), time.sleep)
    if request.as_json:
        formats.print_json(account_json(request.lane, found.newest.turn.epoch, found.account))
    else:
        print(account_text(request.name, request.lane, found.account, adapters.now()))


def _note_plan(plan: Plan, adopted: bool) -> None:
    offsets = sum(len(planned.fresh) + sum(map(len, planned.retries)) for planned in plan.partitions.values())
    _note(f"turn {plan.turn.n}{' (open, adopted)' * adopted}: {offsets:,} offsets")


def _sleep_until_due(account: Account, now: datetime, sleep: Callable[[float], None]) -> None:
    due = account.next_due
    seconds = POLL_SECONDS if due is None else max(1.0, (due - now).total_seconds())
    if account.pending[PendingKind.IN_FLIGHT]:  # an answer may come before the deadline
        seconds = min(seconds, POLL_SECONDS)
    _note(f"waiting {seconds:,.0f} s; Ctrl-C loses nothing")
    sleep(seconds)


def new_id(now: datetime | None) -> str:
    """Returns an id that no other backfill has: a time and four letters."""
    letters = "".join(secrets.choice("abcdefghijkmnpqrstuvwxyz") for _ in range(4))
    return f"{now or datetime.now(UTC):%Y%m%dt%H%M%S}-{letters}"


def _note(text: str) -> None:
    """Prints progress on standard error."""
    print(text, file=sys.stderr)


def backfill(
    name: Name,
    ranges: Ranges = None,
    everything: All = False,
    since: From = None,
    until: Until = None,
    outcome: OfOutcome = None,
    error_class: ErrorClass = None,
    run_id: OfRun = None,
    of: OfLane = LIVE,
    backfill_id: Id = None,
    epoch: Epoch = None,
    handler: Handler = None,
    max_records: MaxRecords = None,
    max_rate: MaxRate = None,
    dead_letter: DeadLetterTopic = None,
    wait: Wait = False,
    listed: List = False,
    cancelled: Cancel = None,
    no_breaker: NoBreaker = False,
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Handle offsets again: of ranges, of a time, or of records that ended in some way. The group is left alone.

    A backfill is a lane with retries and dead letters of its own, and runs beside live runs and other backfills. Its
    offsets are chosen once. Run it again with `--id ID` to go on. Without `--yes` it asks at a terminal, and changes
    nothing elsewhere.

    Examples: `ackline backfill orders orders:0:1000-2000`, `ackline backfill orders --from "2h ago"`,
    `ackline backfill orders --outcome dead --error-class HTTPError --yes --wait`, `ackline backfill orders --id ID`
    """
    arguments = BackfillArguments(
        tuple(ranges or ()), everything, since, until, outcome, error_class, run_id, of, handler, dead_letter
    )
    if wait and now is not None:
        raise ConfigError("--wait and --now contradict each other: a fixed clock never moves on", key="--wait")
    if listed:
        _list(name, as_json)
        return
    lane = lane_of(cancelled or backfill_id or new_id(time_of(now)))
    request = Request(
        name, lane, max_records, max_rate, wait, reason, no_breaker, yes, dry_run, now, as_json, epoch or 0
    )
    if cancelled is not None:
        _cancel(request)
    else:
        perform(request, arguments, begun=backfill_id is not None)


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(backfill)


def _cancel(request: Request) -> None:
    """Ends a backfill: what is not settled is skipped."""
    found = stored_backfill(request)
    if found is None:
        raise ConfigError(
            f"--cancel {request.backfill_id}: {request.name} has no such backfill; `ackline backfill {request.name} "
            f"--list` lists them",
            key="--cancel",
        )
    # With the lane's dead letters, for an open turn that can still be settled. No handler is called, so one that is not
    # allowed any more is no obstacle.
    pipeline = backfill_pipeline(pipeline_named(request.name), replace(found.arguments, handler=None))
    with opened(request.name, request.now, lane=request.lane, handler=False, pipeline=pipeline) as adapters:
        left = sum(found.account.pending.values())
        preview = f"Backfill {request.backfill_id} of {request.name}: {left:,} offsets would be skipped."
        show_preview(preview, *request.modes)
        if not is_confirmed(f"Cancel backfill {request.backfill_id}?", request.yes, request.dry_run):
            print_unchanged(request, found.account, None, found.newest.turn.epoch)
            return
        cancel(adapters, request.reason)
        found = find_backfill(adapters.store)
        assert found is not None
        if request.as_json:
            formats.print_json(account_json(request.lane, found.newest.turn.epoch, found.account))
        else:
            print(account_text(request.name, request.lane, found.account, adapters.now()))


def _list(name: str, as_json: bool) -> None:
    with opened(name, handler=False) as adapters:
        found = backfills(adapters.store)
    if as_json:
        formats.print_json({"pipeline": name, "backfills": [backfill_json(each) for each in found]})
        return
    columns = ["id", "began", "asked", "settled", "pending", "next due", "arguments"]
    rows = [
        [
            id_of(each.genesis.turn.lane),
            each.genesis.settled_at,
            each.account.offsets,
            "yes" if each.account.settled else "no",
            sum(each.account.pending.values()),
            each.account.next_due,
            each.arguments.shown(),
        ]
        for each in found
    ]
    out = tables.console()
    if rows:
        tables.print_table(out, None, columns, rows, ("id", "settled", "pending", "next due", "asked", "arguments"))
    else:
        out.print(f"{name} has no backfill.")
