"""`ackline backfill`: handle chosen offsets again, in a lane of their own that never touches the consumer group.

`ackline dead --redrive` is the same with the outcome `dead`. The DAG `backfill__NAME` takes the same steps, which are
in `ackline.backfill.perform`.
"""

import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from ackline.backfill.form import FIELDS, BackfillRequest, request_of
from ackline.backfill.perform import (
    PreparedBackfill,
    backfill_object,
    backfill_pipeline,
    begin_prepared,
    lane_arguments,
    prepare,
    prepared_object,
    report_of,
)
from ackline.backfill.promote import promotions
from ackline.backfill.run import Backfill, backfills, cancel, find_backfill, run_backfill
from ackline.cli import formats, options, tables
from ackline.cli.notices import is_quiet
from ackline.errors import ConfigError, counted
from ackline.forms.arguments import LAST, BackfillArguments, PartitionChoice, id_of, lane_of
from ackline.forms.form import Entered
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import run
from ackline.ledger.account import Account
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import Plan
from ackline.tables.layout import noted_stop

Wait = Annotated[bool, typer.Option("--wait", help="Wait for retries until every offset is settled.")]
NoBreaker = Annotated[bool, typer.Option("--no-breaker", help="Settle turns no matter how many records failed.")]
List = Annotated[bool, typer.Option("--list", help="List the backfills of the pipeline, and start none.")]
Cancel = Annotated[
    str | None, typer.Option("--cancel", help="End this backfill: the rest is skipped.", show_default=False)
]

POLL_SECONDS = 30.0
"""How long `--wait` waits where nothing is due at a known time: for a leader, or for the dead-letter topic."""


@dataclass(frozen=True, slots=True)
class Session:
    """A pipeline, and how the command runs a backfill of it."""

    name: str
    wait: bool = False
    no_breaker: bool = False
    yes: bool = False
    dry_run: bool = False
    now: str | None = None
    as_json: bool = False

    @property
    def modes(self) -> tuple[bool, bool, bool]:
        """`--yes`, `--dry-run` and `--json`."""
        return self.yes, self.dry_run, self.as_json

    def print_account(self, adapters: Adapters) -> None:
        """Prints the account of a lane that has begun."""
        found = find_backfill(adapters.store)
        assert found is not None
        formats.print_result(*report_of(adapters, found), self.as_json)


def backfill(
    values: Mapping[str, Any],
    name: options.Name,
    wait: Wait = False,
    listed: List = False,
    cancelled: Cancel = None,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    offsets: options.Offsets = None,
    no_breaker: NoBreaker = False,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    now: options.Now = None,
    as_json: options.Json = False,
) -> None:
    """Handle offsets again: of ranges, of a time, or of records that ended in some way. The group is left alone.

    A backfill is a lane with retries and dead letters of its own, and runs beside live runs and other backfills. Its
    offsets are chosen once. Run it again with `--id ID` to go on. Without `--yes` it asks at a terminal, and changes
    nothing elsewhere.

    Examples: `ackline backfill orders orders:0:1000-2000`, `ackline backfill orders --from "2h ago"`,
    `ackline backfill orders --topic orders --partition 0 --offsets 1000:2000`,
    `ackline backfill orders --outcome dead --error-class HTTPError --yes --wait`, `ackline backfill orders --id ID`,
    `ackline backfill orders --from "1d ago" --where "value.currency = 'XTS'"`,
    `ackline backfill orders orders:0:7-8 --with-related`, `ackline backfill orders --from "2h ago" --shadow --id v2`,
    `ackline backfill orders --id v2 --promote`
    """
    if wait and now is not None:
        raise ConfigError("--wait and --now contradict each other: a fixed clock never moves on", key="--wait")
    session = Session(name, wait, no_breaker, yes, dry_run, now, as_json)
    if listed:
        _list(name, as_json)
    elif cancelled is not None:
        _cancel(session, lane_of(cancelled), str(values["reason"] or ""))
    else:
        chosen = [
            *(values["ranges"] or ()),
            *_ranges_of(name, options.choice_of(topic, partition), options.range_of(offsets)),
        ]
        perform(session, request_of(Entered({**values, "ranges": chosen}, True), new_id(options.time_of(now))))


def _ranges_of(name: str, choice: PartitionChoice, offsets: OffsetRange | None) -> list[str]:
    """Returns `--topic`, `--partition` and `--offsets` as the RANGEs that mean the same, so that a resume may give
    either. Raises ConfigError for partitions or offsets whose topic or partition is not named."""
    topics = choice.topics
    if not topics and (choice.partitions or offsets is not None):
        topics = tuple(options.pipeline_named(name).kafka.named_topics or ())
        if len(topics) != 1:
            raise ConfigError(f"{name} does not read one topic alone: give --topic too", key="--topic")
    if offsets is None:
        return [f"{topic}:{number}" for topic in topics for number in choice.partitions] or list(topics)
    if not choice.partitions:
        raise ConfigError("--offsets are those of a partition: give --partition too", key="--offsets")
    if offsets.end == LAST:
        raise ConfigError("--offsets A:B: a backfill needs both ends, B exclusive", key="--offsets")
    return [f"{topic}:{number}:{offsets.start}-{offsets.end}" for topic in topics for number in choice.partitions]


def perform(session: Session, request: BackfillRequest) -> None:
    """Begins or resumes a backfill, and runs what is due of it.

    Raises ConfigError for arguments that are not those of the lane, and for a resume of a lane that has not begun.
    """
    options.check_spark()
    with options.opened(session.name, session.now, lane=request.lane, handler=False) as adapters:
        arguments = lane_arguments(adapters.store, request)
    pipeline = backfill_pipeline(options.pipeline_named(session.name), request.lane, arguments, request.max_rate)
    with options.opened(session.name, session.now, session.no_breaker, request.lane, pipeline=pipeline) as adapters:
        if _may_run(adapters, session, prepare(adapters, request, arguments), arguments):
            _run(adapters, session, request)


def _stored(session: Session, lane: str) -> Backfill | None:
    """Returns the backfill as its tables have it; needs no handler and no broker."""
    with options.opened(session.name, session.now, lane=lane, handler=False) as adapters:
        return find_backfill(adapters.store)


def _may_run(adapters: Adapters, session: Session, prepared: PreparedBackfill, arguments: BackfillArguments) -> bool:
    """Shows what the backfill would do, and begins it once that is confirmed. Returns whether it is to run."""
    choice, backfill_id = prepared.choice, prepared.request.id
    if choice is None and prepared.account.settled and not session.dry_run:
        newest = adapters.store.newest()
        since = f" since {newest.settled_at:%Y-%m-%d %H:%M:%S} UTC" if newest is not None else ""
        _note(
            f"backfill {backfill_id} is settled{since}, so nothing is handled now. To handle its offsets again, give "
            f"another --id, or `--epoch {prepared.epoch + 1}`"
        )
        return True  # nothing is left to confirm: the run finds nothing to read, and prints the account
    options.show_preview(prepared.text, *session.modes)
    question = f"{'Go on with' if choice is None else 'Begin'} backfill {backfill_id}?"
    if choice is not None and choice.offsets > adapters.pipeline.backfill.confirm_above:
        wanted = options.is_confirmed_by_number(question, choice.offsets, session.yes, session.dry_run)
    else:
        begins = choice is None or bool(choice.partitions)
        wanted = begins and options.is_confirmed(question, session.yes, session.dry_run)
    if not wanted:
        formats.print_result(prepared.body(dry_run=True), "Nothing was changed.", session.as_json)
    elif choice is not None:
        begin_prepared(adapters, prepared, arguments)
        _note(f"backfill {backfill_id} has begun; `{run(adapters.store)} --yes` goes on with it")
    return wanted


def _run(adapters: Adapters, session: Session, request: BackfillRequest) -> None:
    """Runs what is due, with `--wait` until the lane is settled, and prints its account."""
    left, noted = request.max_records, partial(noted_stop, adapters.store, adapters.run_id)
    while True:
        with noted(adapters.now), tables.progress(session.as_json or is_quiet()) as on_progress:
            start = partial(options.start_spark, adapters, on_progress)
            run_backfill(adapters, start, left, _note_plan, on_progress, request.reason)
        found = find_backfill(adapters.store)
        assert found is not None
        if found.account.settled or not session.wait:
            break
        left = None  # --max-records bounds the first run; --wait is for all the rest
        _sleep_until_due(found.account, adapters.now())
    session.print_account(adapters)


def _note_plan(plan: Plan, adopted: bool) -> None:
    offsets = sum(len(planned.fresh) + sum(map(len, planned.retries)) for planned in plan.partitions.values())
    _note(f"turn {plan.turn.n}{' (open, adopted)' * adopted}: {counted(offsets, 'offset')}")


def _sleep_until_due(account: Account, now: datetime) -> None:
    due = account.next_due
    seconds = POLL_SECONDS if due is None else max(1.0, (due - now).total_seconds())
    if account.pending[PendingKind.IN_FLIGHT]:  # an answer may come before the deadline
        seconds = min(seconds, POLL_SECONDS)
    _note(f"waiting {seconds:,.0f} s; Ctrl-C loses nothing")
    time.sleep(seconds)


def new_id(now: datetime | None) -> str:
    """Returns an id that no other backfill has: a time and four letters."""
    letters = "".join(secrets.choice("abcdefghijkmnpqrstuvwxyz") for _ in range(4))
    return f"{now or datetime.now(UTC):%Y%m%dt%H%M%S}-{letters}"


def _note(text: str) -> None:
    """Prints progress on standard error."""
    print(text, file=sys.stderr)


def _cancel(session: Session, lane: str, reason: str) -> None:
    """Ends a backfill: what is not settled is skipped."""
    found, name, backfill_id = _stored(session, lane), session.name, id_of(lane)
    if found is None:
        raise ConfigError(
            f"--cancel {backfill_id}: {name} has no such backfill; `ackline backfill {name} --list` lists them",
            key="--cancel",
        )
    # With the lane's dead letters, for an open turn that can still be settled. No handler is called, so a handler that
    # is not allowed any more is no obstacle, nor is a `--where` that does not fit other decoders.
    arguments = replace(found.arguments, handler=None, where=None)
    pipeline = backfill_pipeline(options.pipeline_named(name), lane, arguments)
    with options.opened(name, session.now, lane=lane, handler=False, pipeline=pipeline) as adapters:
        left = sum(found.account.pending.values())
        text = f"Backfill {backfill_id} of {name}: {counted(left, 'offset')} would be skipped."
        options.show_preview(text, *session.modes)
        if not options.is_confirmed(f"Cancel backfill {backfill_id}?", session.yes, session.dry_run):
            body = prepared_object(lane, found.newest.turn.epoch, found.account, None, dry_run=True)
            formats.print_result(body, "Nothing was changed.", session.as_json)
            return
        cancel(adapters, reason)
        session.print_account(adapters)


def _list(name: str, as_json: bool) -> None:
    with options.opened(name, handler=False) as adapters:
        found = backfills(adapters.store)
    promoted = promotions(found)
    if as_json:
        listed = [backfill_object(each, promoted.get(id_of(each.genesis.turn.lane))) for each in found]
        formats.print_json({"pipeline": name, "backfills": [each.dump() for each in listed]})
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
            " ".join([each.arguments.shown(), *([f"(promoted by {by})"] if by is not None else [])]),
        ]
        for each in found
        for by in [promoted.get(id_of(each.genesis.turn.lane))]
    ]
    keep = ("id", "settled", "pending", "next due", "asked", "arguments")
    tables.print_list(columns, rows, keep, f"{name} has no backfill.")


COMMANDS = {"backfill": options.with_fields(FIELDS, backfill)}
