"""Options that several commands share, the parsing of their values, and the question before a change.

A command that changes something goes on by `--yes`, or by the answer at a terminal; `--dry-run` wins over both.
"""

import getpass
import inspect
import keyword
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ackline.actions.form import LANE, OFFSETS
from ackline.answers.status import Unreachable
from ackline.cli.notices import notice
from ackline.cli.tables import RunProgress
from ackline.delta.errors import check_temporary_folder
from ackline.errors import AcklineError, ConfigError
from ackline.forms.arguments import PartitionChoice, id_of, parse_moment, parse_offsets
from ackline.forms.form import (
    ERROR_CLASS,
    MAX_RECORDS,
    ONLY_RETRIES,
    PARTITIONS,
    TABLE_GONE,
    TOPICS,
    Entered,
    Field,
    FieldType,
    RunRequest,
    run_request,
)
from ackline.lane.adapters import Adapters, new_run_id, open_adapters
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.turns import LIVE
from ackline.local.connection import connection_of
from ackline.pipeline.field_types import parse_time
from ackline.pipeline.folder import find_pipeline, make_handlers_importable, pipelines_folder
from ackline.pipeline.functions import check_functions
from ackline.pipeline.pipeline import Pipeline
from ackline.spark.master import chosen_master, connect_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Yes = Annotated[bool, typer.Option("--yes", help="Do it without a question.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do; --yes changes nothing then.")]


def show_preview(preview: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Print what a command would do, for a person.

    With `--json` only at a terminal that asks, and then on standard error: standard output holds the object alone, and
    without a terminal standard error holds the error alone.
    """
    if not as_json:
        print(preview)
    elif not yes and not dry_run and sys.stdin.isatty():
        print(preview, file=sys.stderr)


def is_confirmed(question: str, yes: bool, dry_run: bool) -> bool:
    """Returns whether to go on. Asks at a terminal. Raises ConfigError without `--yes` where there is no terminal."""
    if dry_run or yes:
        return not dry_run
    if not sys.stdin.isatty():
        raise ConfigError(
            "nothing was changed, and there is no terminal to ask at: give --yes or --dry-run", key="--yes"
        )
    return typer.confirm(question, default=False, err=True)


def is_confirmed_by_number(question: str, number: int, yes: bool, dry_run: bool) -> bool:
    """Returns whether to go on, as `is_confirmed` does. At a terminal the number of offsets has to be typed."""
    if dry_run or yes or not sys.stdin.isatty():
        return is_confirmed(question, yes, dry_run)
    typed = typer.prompt(f"{question} Type the number of offsets to go on", default="", show_default=False, err=True)
    return str(typed).replace(",", "").strip() == str(number)


def check_spark() -> None:
    """Raises ConfigError for a master that is refused, and without Java or the JARs where Spark starts on this machine:
    before a plan is stored that nothing can handle. Raises FatalError if temporary files can't be written."""
    check_temporary_folder()
    if connect_server(chosen_master().url) is None:
        from ackline.spark.jars import jar_settings, java

        java()
        jar_settings()


def notice_start_of_spark() -> None:
    """Prints where Spark starts, or which server it is: before pyspark is imported, which takes a second itself."""
    master = chosen_master()
    notice(f"{'starting Spark on' if connect_server(master.url) is None else 'using'} {master} …")


def start_spark(adapters: Adapters, progress: RunProgress) -> "SparkSession":
    """Returns the Spark session of a run, and says that it starts: that takes several seconds."""
    notice_start_of_spark()
    progress.begin("starting Spark")
    from ackline.spark.session import open_session

    # py4j logs the traceback of each request that Ctrl-C ends early, and raises the error as well.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: not str(record.msg).endswith("while sending command."))
    lane = "" if adapters.commits else f"-{id_of(adapters.store.lane)}"
    return open_session(f"ackline-{adapters.pipeline.name}{lane}", adapters.pipeline.spark)


Name = Annotated[str, typer.Argument(help="The pipeline: the `name` in its file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of tables.")]
Now = Annotated[
    str | None,
    typer.Option(
        "--now",
        help="Use this time instead of the clock, e.g. 2026-01-31T12:00:00Z.",
        show_default=False,
        rich_help_panel="For tests",
    ),
]


def option_of(field: Field) -> Any:
    """Returns the option of a field for typer; an argument for a field whose `option` has no dashes."""
    if not field.option.startswith("-"):
        return typer.Argument(help=field.help, show_default=False)
    several = field.type in (FieldType.TEXTS, FieldType.NUMBERS)
    numeric = field.type in (FieldType.NUMBER, FieldType.NUMBERS)
    help_ = f"{field.help}; may be given several times." if several else field.help
    return typer.Option(
        *filter(None, (field.option, field.also)), help=help_, show_default=field.default is not None,
        min=field.minimum if numeric else None, max=field.maximum if numeric else None,
    )  # fmt: skip


Topics = Annotated[list[str] | None, option_of(TOPICS)]
Partitions = Annotated[list[int] | None, option_of(PARTITIONS)]
Offsets = Annotated[str | None, option_of(OFFSETS)]
ErrorClass = Annotated[str | None, option_of(ERROR_CLASS)]
Lane = Annotated[str, option_of(LANE)]
AnyLane = Annotated[str | None, typer.Option("--lane", help="Only this lane: live, or that of a backfill.")]


def with_fields(fields: Iterable[Field], command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command for typer that takes the fields of a form as options, and passes their values to `command` as
    its argument `values`, by the names of the fields.

    The fields come after the argument `name`, before the other options of `command`.
    """
    chosen = [field for field in fields if field.in_command]
    own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "values"]
    options = [
        inspect.Parameter(
            _parameter(field),
            inspect.Parameter.KEYWORD_ONLY,
            default=field.empty,
            annotation=Annotated[str if field.default is not None else _TYPES[field.type], option_of(field)],
        )
        for field in chosen
    ]

    def filled_in(**given: Any) -> None:
        values = {field.name: given.pop(_parameter(field)) for field in chosen}
        command(values=values, **given)

    every = [own[0], *options, *own[1:]]
    every = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in every]
    filled_in.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    filled_in.__name__, filled_in.__doc__ = command.__name__, command.__doc__
    filled_in.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return filled_in


def _parameter(field: Field) -> str:
    return field.name + "_" * keyword.iskeyword(field.name)


_TYPES: Mapping[FieldType, Any] = {
    FieldType.TEXT: str | None,
    FieldType.FLAG: bool,
    FieldType.NUMBER: int | None,
    FieldType.TEXTS: list[str] | None,
    FieldType.NUMBERS: list[int] | None,
}


@contextmanager
def refused(option: str, shown: str | None = None, ending: str = "") -> Iterator[None]:
    """Raises ConfigError that names an option, or `shown`, for a ValueError about its value."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{shown or option}: {error}{ending}", key=option) from None


def time_of(now: str | None) -> datetime | None:
    """Returns `--now` as an aware time. Raises ConfigError for a text that is not a time, or has no zone."""
    with refused("--now"):
        return None if now is None else parse_time(now)


def moment_of(text: str | None, option: str, now: str | None = None) -> datetime | None:
    """Returns the time that an option such as `--from` names, in UTC; `now` is the text of `--now`.

    Raises ConfigError for a text that is neither an ISO 8601 time with a zone nor a duration such as `2h ago`.
    """
    with refused(option):
        return None if text is None else parse_moment(text, time_of(now) or datetime.now(UTC))


def range_of(text: str | None) -> OffsetRange | None:
    """Returns `--offsets`, as `A:B` or `A-B`, `A:`, `:B` or a single `A`. Raises ConfigError for any other text."""
    try:
        return None if text is None else parse_offsets(text)
    except ValueError as error:
        raise ConfigError(
            f"--offsets {text}: write A:B with 0 <= A <= B, B exclusive ({error})", key="--offsets"
        ) from None


def choice_of(topics: Sequence[str] | None, partitions: Sequence[int] | None) -> PartitionChoice:
    """Returns the partitions that `--topic` and `--partition` name. Raises ConfigError for what is no topic's name."""
    with refused("--topic"):
        return PartitionChoice(tuple(dict.fromkeys(topics or ())), tuple(dict.fromkeys(partitions or ())))


def actor() -> str:
    """Returns the user who acts: that of the environment, or else the system's; `uid-N` if neither has a name."""
    try:
        return getpass.getuser() or f"uid-{os.getuid()}"
    except (KeyError, OSError, ImportError):  # a container may run under a number that has no name
        return f"uid-{os.getuid()}"


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
) -> Iterator[Adapters]:
    """Opens a pipeline for one command. Imports its handler first, so that no turn is planned that can't be handled;
    without `handler`, a handler that does not import is no obstacle. `pipeline` takes the place of the file's settings.
    """
    time = time_of(now)
    pipeline = pipeline or pipeline_named(name)
    if handler:
        check_functions(*pipeline.functions)
    with open_adapters(
        pipeline, connection_of(pipeline), run_id=new_run_id("cli"), actor=actor(), now=time, no_breaker=no_breaker,
        lane=lane,
    ) as adapters:  # fmt: skip
        yield adapters


NO_BROKER = "127.0.0.1:9"
"""The address of clients that are never used, where none is known."""


@contextmanager
def opened_to_read(
    name: str, now: str | None = None, lane: str = LIVE, needs_state: bool = True
) -> Iterator[tuple[Adapters, Unreachable | None]]:
    """Opens a lane for a command that shows its state, with the reason for which its broker can't be read, and then
    nothing of Kafka is to be read; None if it can. Imports no handler.

    Raises ConfigError for the lane of a backfill that has not begun. If `needs_state`, raises what keeps the broker
    from being read where the lane has not begun: there is nothing else to show.
    """
    time, pipeline = time_of(now), pipeline_named(name)
    connection: Mapping[str, Any] | None
    away: AcklineError | None = None
    try:
        connection = connection_of(pipeline)
    except ConfigError as error:  # such as after `ackline dev down`
        connection, away = {"bootstrap.servers": NO_BROKER}, error
    with open_adapters(pipeline, connection, run_id=new_run_id("cli"), actor=actor(), now=time, lane=lane) as adapters:
        lanes = [] if lane == LIVE else adapters.store.lanes()
        if lane not in (LIVE, *lanes):
            raise _no_such_lane(name, lane, lanes)
        try:
            if away is None:
                adapters.cluster.reachable()
        except AcklineError as error:
            away = error
        unreachable = None if away is None else Unreachable.of(adapters, away)
        if needs_state and away is not None and (unreachable is None or unreachable.turn is None):
            raise away
        yield adapters, unreachable


def end_unreachable(away: Unreachable | None, as_json: bool) -> None:
    """Ends the command with the exit status of the error for which its broker was not read, if there is one.

    What it has printed names that error already; with `--json` the error goes to standard error, too, as any other.
    """
    if away is None:
        return
    if as_json:
        raise away.error
    sys.exit(away.error.exit_status)


def _no_such_lane(name: str, lane: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(f"--lane {lane}: {name} has the lanes {', '.join(known) or '(none yet)'}", key="--lane")


def check_lane(name: str, lane: str) -> None:
    """Raises ConfigError with the lanes of a pipeline if `lane` has no tables."""
    from ackline.pipeline.folder import audit_root
    from ackline.tables.layout import lanes_of

    known = [found.lane for found in lanes_of(audit_root(), name)]
    if lane not in known:
        raise _no_such_lane(name, lane, known)


def request_of(adapters: Adapters, values: Mapping[str, Any]) -> RunRequest:
    """Returns what the options ask of a run. Without `--topic` and `--partition` it reads no broker.

    The partitions are those of the lane, and those that the run would let join it. Raises ConfigError for more records
    than the file allows in a turn, and for an option that names no partition.
    """
    topics, partitions = values[TOPICS.name], values[PARTITIONS.name]
    choice = choice_of(topics, partitions)
    bounds = {field.name: values[field.name] for field in (MAX_RECORDS, ONLY_RETRIES, TABLE_GONE)}
    asked = run_request(Entered(bounds, by_option=True), adapters.pipeline.max_records_per_run)
    if not (topics or partitions):
        return asked
    from ackline.lane.log_checks import observe_kafka
    from ackline.steps.plan import preview_lane

    newest = adapters.store.newest()
    lane = preview_lane(adapters, newest, observe_kafka(adapters, newest))
    subscribed = [tp for tp in lane if adapters.is_subscribed(tp)]
    return replace(asked, partitions=frozenset(choice.chosen(subscribed, adapters.pipeline.name)))
