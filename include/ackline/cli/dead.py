"""`ackline dead`: the records that were given up, by error class and place; one of them with its letter; another try
for them."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from ackline.answers.dead import (
    DeadGroup,
    DeadObject,
    DeadOfAllObject,
    DeadRecord,
    UnreadablePipeline,
    dead_groups,
    dead_record,
    dead_record_object,
    joined_groups,
    text_of,
)
from ackline.backfill.form import FROM, ID, MAX_RATE, MAX_RECORDS, REASON, TO, request_of
from ackline.cli import formats, tables
from ackline.cli.backfill import Session, Wait, new_id, perform
from ackline.cli.options import DryRun, Json, Lane, Now, Yes, opened, refused, time_of, with_fields
from ackline.errors import AcklineError, ConfigError
from ackline.forms.arguments import parse_offset
from ackline.forms.form import ERROR_CLASS, Entered
from ackline.kafka.dead_letters import FoundLetter
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome, is_of_class
from ackline.ledger.turns import LIVE
from ackline.pipeline.field_types import topic_name
from ackline.pipeline.folder import audit_root, check_folder, load_folder, pipelines_folder
from ackline.tables.store import LedgerStore

Ranges = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC PARTITION OFFSET | RANGE...]",
        help="One dead record to show; with --redrive: TOPIC, TOPIC:PARTITION or TOPIC:PARTITION:A-B.",
        show_default=False,
    ),
]
Redrive = Annotated[bool, typer.Option("--redrive", help="Handle them again: a backfill by outcome.")]

ShowValue = Annotated[
    bool, typer.Option("--show-value", help="Also print key, value and headers of the record. Needs a terminal.")
]

AnyName = Annotated[str | None, typer.Argument(help="The pipeline; none with --all.", show_default=False)]
Every = Annotated[bool, typer.Option("--all", help="The dead records of every pipeline of the folder together.")]

FIELDS = (ERROR_CLASS, FROM, TO, ID, MAX_RECORDS, MAX_RATE, REASON)
"""The fields of a redrive; the error class also chooses what is listed."""
NARROWER = tuple(field for field in FIELDS if field is not ERROR_CLASS)


def dead(
    values: Mapping[str, Any],
    name: AnyName = None,
    ranges: Ranges = None,
    every: Every = False,
    redrive: Redrive = False,
    show_value: ShowValue = False,
    lane: Lane = LIVE,
    wait: Wait = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """List the dead records of a lane by error class and place, or show one; with `--redrive`, handle them again.

    With `--all` it lists those of every pipeline together, and ends with 1 if one of them can't be read.

    `ackline dead NAME TOPIC PARTITION OFFSET` shows attempts, error and the letter in the dead-letter topic. Of the
    record it shows the names of its headers and the sizes of key and value; `--show-value` prints them on a terminal.

    A redrive is a backfill by outcome (`ackline backfill NAME --outcome dead`), so it is a dry run until `--yes`, and
    `ackline backfill NAME --id ID` goes on with it.

    Examples: `ackline dead orders`, `ackline dead orders orders 3 1041`,
    `ackline dead orders --redrive --error-class HTTPError --yes --wait`
    """
    if every:
        if name is not None or redrive or show_value or lane != LIVE or any(values[field.name] for field in NARROWER):
            raise ConfigError(
                "--all lists the dead records of every pipeline: leave out what is about one pipeline",
                key="--all",
            )
        _list_all(values[ERROR_CLASS.name], as_json)
        return
    if name is None:
        raise ConfigError("name a pipeline, or all of them by --all", key="NAME")
    if show_value and (redrive or not ranges):
        raise ConfigError(f"--show-value is about one record: {EXAMPLE}", key="--show-value")
    if redrive:
        chosen = {**values, "ranges": ranges, "outcome": Outcome.DEAD.value, "of": lane}
        session = Session(name, wait, False, yes, dry_run, now, as_json)
        perform(session, request_of(Entered(chosen, True), new_id(time_of(now))))
        return
    if values[FROM.name] or values[TO.name] or (ranges and len(ranges) != 3):
        raise ConfigError(f"RANGE, --from and --to choose what is redriven: add --redrive; {EXAMPLE}", key="--redrive")
    if ranges:
        show(name, ranges, lane, show_value, now, as_json)
        return
    _list(name, lane, values[ERROR_CLASS.name], as_json)


def _list(name: str, lane: str, error_class: str | None, as_json: bool) -> None:
    with opened(name, lane=lane, handler=False) as adapters:
        found = dead_groups(adapters.store)
    shown = [each for each in found if is_of_class(each.error_class, error_class)]
    if as_json:
        total = sum(each.count for each in shown)
        formats.print_json(DeadObject(pipeline=name, lane=lane, dead=tuple(shown), total=total))
        return
    columns = ["error class", "place", "records", "first", "last", "by epoch"]
    rows = [[each.error_class, each.error_place, each.count, each.first, each.last, _by_epoch(each)] for each in shown]
    if {epoch for each in shown for epoch in each.epochs} == {"0"}:
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    tables.print_list(columns, rows, ("error class", "records", "place", "by epoch", "last"), NONE_DEAD)


def _by_epoch(found: DeadGroup) -> str:
    return ", ".join(f"{number:,} in {epoch}" for epoch, number in found.epochs.items())


def _list_all(error_class: str | None, as_json: bool) -> None:
    """Lists the dead records of the live lanes of all pipelines. It reads the tables alone, and no broker."""
    folder = pipelines_folder()
    check_folder(folder)
    loaded, of_pipelines = load_folder(folder), dict[str, list[DeadGroup]]()
    unreadable = [UnreadablePipeline(pipeline=path.stem, error=str(error)) for path, error in loaded.broken.items()]
    for name in sorted(loaded.pipelines):
        try:
            store = LedgerStore(audit_root(), name, LIVE)
            if store.newest() is not None:  # one that has not run has no dead record
                groups = dead_groups(store)
                of_pipelines[name] = [each for each in groups if is_of_class(each.error_class, error_class)]
        except AcklineError as error:  # one broken pipeline must not hide the others
            unreadable.append(UnreadablePipeline(pipeline=name, error=str(error)))
    found = joined_groups(of_pipelines)
    if as_json:
        total = sum(each.count for each in found)
        formats.print_json(DeadOfAllObject(dead=tuple(found), total=total, unreadable=tuple(unreadable)))
    else:
        lines = [f"{each.pipeline} can't be read: {each.error}" for each in unreadable]
        tables.print_lines(tables.console(), lines, "red")
        columns = ["error class", "place", "records", "pipelines", "first", "last"]
        rows = [[e.error_class, e.error_place, e.count, ", ".join(e.pipelines), e.first, e.last] for e in found]
        tables.print_list(columns, rows, ("error class", "records", "pipelines", "place", "last"), NONE_DEAD)
    if unreadable:
        raise typer.Exit(1)


NONE_DEAD = "No record is dead."
EXAMPLE = "to show one dead record, name it as TOPIC PARTITION OFFSET, e.g. `orders 3 1041`"


def show(name: str, record: Sequence[str], lane: str, show_value: bool, now: str | None, as_json: bool) -> None:
    """Print a dead record of a lane. Raises ConfigError if it is not dead, and for `--show-value` without a
    terminal."""
    if show_value and not is_terminal():
        raise ConfigError(
            "--show-value prints the payload of a record, so it needs a terminal: standard output is not one. Nothing "
            "was read",
            key="--show-value",
        )
    tp, offset = record_of(record)
    with opened(name, now, lane=lane, handler=False) as adapters:
        dead = dead_record(adapters, tp, offset)
    if as_json:
        formats.print_json(dead_record_object(name, lane, dead, show_value))
        return
    out = tables.console()
    for line in _lines(dead, show_value):
        out.print(line, markup=False, soft_wrap=True)


def is_terminal() -> bool:
    """Returns whether standard output is a terminal."""
    return sys.stdout.isatty()


def check_may_show(option: str, is_wanted: bool, as_json: bool) -> None:
    """Raises ConfigError for an option that shows payload, with `--json` or where standard output is no terminal."""
    if is_wanted and (as_json or not is_terminal()):
        raise ConfigError(
            f"{option} shows the payload of records, so it needs a terminal: standard output is not one, or --json is "
            f"for a program. Nothing was read",
            key=option,
        )


def record_of(arguments: Sequence[str], example: str = EXAMPLE) -> tuple[TopicPartition, int]:
    """Returns the record that TOPIC, PARTITION and OFFSET name. Raises ConfigError, which ends with `example`, for
    other arguments."""
    with refused("RECORD", " ".join(arguments), f"; {example}"):
        topic, partition, offset = arguments
        number = parse_offset(partition)
        if number >= 2**31:
            raise ValueError(f"{partition} is not a partition")
        return TopicPartition(topic_name(topic), number), parse_offset(offset)


def _lines(record: DeadRecord, show_value: bool) -> list[str]:
    failure = record.failure
    lines = [record.explanation.sentence]
    lines += [
        f"  attempt {event.attempt}: {event.outcome} at {event.at.isoformat(timespec='seconds') if event.at else '?'}, "
        f"turn {event.turn}"
        + (f", {event.error_class}" if event.error_class else "")
        + (f" at {event.error_place}" if event.error_place else "")
        for event in record.explanation.events
        if event.attempt and event.epoch == record.given_up.epoch
    ]
    if failure is not None and failure.error_message:
        lines.append(f"  {printable(failure.error_message)}")
    if record.letter_topic is None:
        return [*lines, "No letter was sent: the turn was planned under `dead_letter: none`."]
    if record.letter is None:
        return [*lines, f"The topic {record.letter_topic} does not hold its letter any more."]
    return lines + _letter_lines(record.letter, show_value)


def _letter_lines(letter: FoundLetter, show_value: bool) -> list[str]:
    sent = f", sent at {letter.sent_at.isoformat(timespec='seconds')}" if letter.sent_at else ""
    lines = [f"Its letter is {letter.tp} offset {letter.offset}{sent}:"]
    lines += [f"  {printable(name)}: {printable(text)}" for name, text in letter.headers.items()]
    if not show_value:
        names = ", ".join(printable(name) for name, _ in letter.source_headers) or "none"
        lines.append(f"  headers of the record: {names}")
        lines.append(f"  key: {_size_text(letter.key)}, value: {_size_text(letter.value)} (--show-value prints them)")
        return lines
    lines += [
        f"  {printable(name)} (of the record): {printable(text_of(value))}" for name, value in letter.source_headers
    ]
    value = printable(text_of(letter.value), lines=True)
    return [*lines, f"  key: {printable(text_of(letter.key))}", f"  value: {value}"]


def printable(text: str | None, lines: bool = False) -> str:
    """Returns a text in which each character that a terminal could take as an order is written as its escape.

    Ends of lines are escaped too, so that no header looks like a line of the command; with `lines` they are kept.
    """
    if text is None:
        return "null"
    kept = "\n" if lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def _size_text(content: bytes | None) -> str:
    return "null" if content is None else f"{len(content):,} bytes"


COMMANDS = {"dead": with_fields(FIELDS, dead)}
