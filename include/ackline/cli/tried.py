"""`ackline try`: what the code of today makes of single records, in this process, without a trace."""

import contextlib
import pdb  # noqa: T100 - the option --pdb
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ackline.answers.dead import text_of
from ackline.cli import formats, interrupts
from ackline.cli.dead import check_may_show, printable, record_of
from ackline.cli.options import ErrorClass, Json, Name, Now, opened, pipeline_named, refused
from ackline.errors import ConfigError, did_you_mean
from ackline.forms.arguments import parse_offset
from ackline.lane.adapters import Adapters

if TYPE_CHECKING:
    from ackline.answers.tried import Tried, Wanted

Records = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC PARTITION OFFSET... | N]",
        help="The records to try; with --failing: how many.",
        show_default=False,
    ),
]
Failing = Annotated[
    bool,
    typer.Option("--failing", help="Up to N records of the live lane that are pending or dead; N is 10 if left out."),
]
HandlerPath = Annotated[
    str | None,
    typer.Option("--handler", metavar="M:F", help="Call this handler instead of the file's.", show_default=False),
]
ShowValues = Annotated[
    bool, typer.Option("--show-values", help="Also print records, emitted values and messages. Needs a terminal.")
]
Pdb = Annotated[bool, typer.Option("--pdb", help="Open the debugger where each record fails. Needs a terminal.")]
EXAMPLE = "name records of one partition as TOPIC PARTITION OFFSET..., e.g. `orders 3 1041 1042`, or give --failing"


def try_(
    name: Name,
    records: Records = None,
    failing: Failing = False,
    error_class: ErrorClass = None,
    handler: HandlerPath = None,
    show_values: ShowValues = False,
    debug: Pdb = False,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Handle single records here and now, by the code of today, and store nothing.

    Each record is read exactly, and passes decoders, filter, handler and steps in this process, without Spark. Printed
    are its outcome, the error with its lines, and what was emitted to steps and outputs. Nothing is stored, committed
    or produced; what the handler itself does, as a request to a server, it does. A record that fails ends the command
    with 0.

    Examples: `ackline try orders orders 3 1041 1042`, `ackline try orders --failing 5 --error-class KeyError`,
    `ackline try orders orders 3 1041 --handler handlers.v2:handle --show-values`
    """
    for option, is_wanted in (("--show-values", show_values), ("--pdb", debug)):
        check_may_show(option, is_wanted, as_json)
    if error_class is not None and not failing:
        raise ConfigError("--error-class chooses among failing records: add --failing", key="--error-class")
    pipeline = pipeline_named(name)
    if handler is not None:
        pipeline = pipeline.model_copy(update={"handler": handler, "streams": None})
    found = []
    # What a handler prints is not part of the answer.
    with opened(name, now, pipeline=pipeline) as adapters, contextlib.redirect_stdout(sys.stderr):
        from ackline.answers.tried import try_offsets

        chosen = _failing(adapters, records or (), error_class) if failing else _named(adapters, records or ())
        for each in try_offsets(adapters, chosen):
            if interrupts.is_interrupted():  # the handler has met Ctrl-C, and made it the outcome of its record
                raise KeyboardInterrupt
            found.append(each)
    if as_json:
        formats.print_json_list(map(_object, found))
        return
    for each in found:
        for line in _lines(each, show_values):
            print(line)
        if debug and each.error is not None:
            pdb.post_mortem(each.error.__traceback__)
    if not found:
        print("No record of the live lane is failing" + (f" with {error_class}." if error_class else "."))


def _failing(adapters: Adapters, given: Sequence[str], error_class: str | None) -> "Wanted":
    from ackline.answers.tried import MOST, failing

    if len(given) > 1:
        raise ConfigError(
            f"--failing chooses the records itself, so it takes a number alone; {EXAMPLE}", key="--failing"
        )
    with refused("--failing", ending="; e.g. `--failing 5`"):
        most = parse_offset(given[0]) if given else MOST
        if not most:
            raise ValueError("0 records can't be tried")
    return failing(adapters, most, error_class)


def _named(adapters: Adapters, given: Sequence[str]) -> "Wanted":
    from ackline.answers.tried import attempts_of

    if len(given) < 3:
        raise ConfigError(EXAMPLE, key="RECORD")
    named = [record_of([*given[:2], offset], EXAMPLE) for offset in given[2:]]
    tp = named[0][0]
    if not adapters.is_subscribed(tp):
        names = adapters.pipeline.kafka.named_topics or ()
        advice = did_you_mean(tp.topic, names) or "; `ackline status` lists those that it reads"
        raise ConfigError(f"{adapters.pipeline.name} does not read {tp}{advice}", key="RECORD")
    return {tp: attempts_of(adapters, tp, {offset for _, offset in named})}


def _object(tried: "Tried") -> dict[str, Any]:
    """Returns the answer for a program, which holds no payload."""
    return {
        **{name: getattr(tried, name) for name in ("topic", "partition", "offset", "outcome")},
        "error_class": tried.error_class,
        "error_place": tried.error_place,
        "emitted": [{"step": each.step, "stream": each.stream} for each in tried.emitted],
        "traceback": tried.traceback,
    }


def _lines(tried: "Tried", show_values: bool) -> Iterator[str]:
    failure = f", {tried.error_class}" if tried.error_class else ""
    failure += f" at {tried.error_place}" if tried.error_place else ""
    yield f"{tried.topic}/{tried.partition} offset {tried.offset}: {tried.outcome}{failure}"
    if show_values and tried.record is not None:
        record = tried.record
        yield from (f"  {printable(name)}: {printable(text_of(value))}" for name, value in record.headers)
        yield f"  key: {printable(text_of(record.key))}"
        yield f"  value: {printable(text_of(record.value), lines=True)}"
    for each in tried.emitted:
        value = f": {printable(repr(each.value))}" if show_values else ""
        yield f"  emitted to {each.step}.{each.stream}{value}"
    if tried.error is not None and show_values:
        text = "".join(traceback.format_exception(tried.error))
        yield from (f"  {printable(line)}" for line in text.splitlines())
    elif tried.traceback is not None:
        yield from (f"  {printable(line)}" for line in tried.traceback.splitlines())
    elif tried.error_message:
        yield f"  {printable(tried.error_message)}"


COMMANDS = {"try": try_}
