"""Begins or resumes a backfill for the commands `backfill` and `dead`, and runs what is due of it."""

import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ackline.backfill_arguments import BackfillArguments, check_same, id_of
from ackline.backfill_pipeline import backfill_pipeline
from ackline.cli import json_output, tables
from ackline.cli.confirm import is_confirmed, is_confirmed_by_number, show_preview
from ackline.cli.options import opened, pipeline_named
from ackline.errors import ConfigError
from ackline.pending import PendingKind
from ackline.reconciliation import Account
from ackline.spark_master import master_of_environment
from ackline.steps.backfill import (
    Backfill,
    account_of_choice,
    begin,
    check_epoch_before_is_settled,
    find_backfill,
    run_backfill,
)
from ackline.steps.backfill_report import account_json, account_text, choice_json, choice_text
from ackline.steps.choose_offsets import Choice, choose_offsets
from ackline.steps.parts import Parts
from ackline.turns import Plan

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
    with opened(request.name, request.now, request.no_breaker, request.lane, pipeline=pipeline) as parts:
        if _may_run(parts, request, arguments):
            _run(parts, request)


def stored_backfill(request: Request) -> Backfill | None:
    """Returns the backfill as its tables have it; needs no handler and no broker."""
    with opened(request.name, request.now, lane=request.lane, handler=False) as parts:
        return find_backfill(parts.store)


def _may_run(parts: Parts, request: Request, arguments: BackfillArguments) -> bool:
    """Shows what the backfill would do, and begins it once that is confirmed. Returns whether it is to run."""
    stored, name, backfill_id = find_backfill(parts.store), request.name, request.backfill_id
    begun = stored if stored is not None and request.epoch <= stored.newest.turn.epoch else None
    if begun is not None and begun.account.settled and not request.dry_run:
        return True  # nothing is left to confirm: the run finds nothing to read, and prints the account
    if begun is not None:
        show_preview(account_text(name, request.lane, begun.account, parts.now()), *request.modes)
        if is_confirmed(f"Go on with backfill {backfill_id}?", request.yes, request.dry_run):
            return True
        print_unchanged(request, begun.account, None, begun.newest.turn.epoch)
        return False
    check_epoch_before_is_settled(parts.store, request.epoch)
    choice = choose_offsets(parts, arguments)
    above = parts.pipeline.backfill.confirm_above
    show_preview(choice_text(name, backfill_id, choice, above), *request.modes)
    if not choice.partitions or not _is_wanted(request, choice, above):
        print_unchanged(request, account_of_choice(choice), choice, request.epoch)
        return False
    genesis = begin(parts, arguments, choice, request.reason, request.epoch)
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
        json_output.print_json(body | (choice_json(choice) if choice is not None else {"gone": []}))
    else:
        print("Nothing was changed.")


def _run(parts: Parts, request: Request) -> None:
    """Runs what is due, with `--wait` until the lane is settled, and prints its account."""
    from ackline.spark.session import open_session

    left = request.max_records
    while True:
        with tables.progress(request.as_json) as on_progress:
            run_backfill(
                parts,
                lambda: open_session(f"ackline-{request.name}-{request.backfill_id}", parts.pipeline.spark),
                left,
                _note_plan,
                on_progress,
                request.reason,
            )
        found = find_backfill(parts.store)
        assert found is not None
        if found.account.settled or not request.wait:
            break
        left = None  # --max-records bounds the first run; --wait is for all the rest
        _sleep_until_due(found.account, parts.now(), time.sleep)
    if request.as_json:
        json_output.print_json(account_json(request.lane, found.newest.turn.epoch, found.account))
    else:
        print(account_text(request.name, request.lane, found.account, parts.now()))


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
