"""The commands. Each opens the parts of a pipeline, calls a step, and shows what came of it."""

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ackline.cli import actions, dev, maintain, show
from ackline.cli.options import LAST, Json, Name, Now, opened, pipeline_named, range_of
from ackline.errors import AcklineError
from ackline.steps.parts import Parts
from ackline.turns import Plan

app = typer.Typer(
    name="ackline",
    help="Replay Kafka in bounded batches without losing track of a single record.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def main() -> None:
    """Entry point: exit status 0, 1 for a run that failed, 2 for bad usage or configuration; no traceback, unless
    ACKLINE_DEBUG is set."""
    if not os.environ.get("ACKLINE_DEBUG"):  # the error that comes of what Kafka's client says quotes it
        logging.getLogger("ackline.kafka.client").addHandler(logging.NullHandler())
    try:
        app()
    except AcklineError as error:
        _say(str(error))
        sys.exit(error.exit_status)
    except SystemExit as ended:
        if ended.code == INTERRUPTED and sys.argv[1:2] != ["demo"]:  # whose tables go with it
            _say("stopped. Nothing is lost: the next run goes on with the open turn.")
        raise
    except Exception as error:
        if os.environ.get("ACKLINE_DEBUG"):
            raise
        _say(f"{type(error).__name__}: {error} (ACKLINE_DEBUG=1 shows where)")
        sys.exit(1)


INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def _say(text: str) -> None:
    print(f"ackline: {text}", file=sys.stderr)


def _warner(parts: Parts) -> Callable[[Plan, bool], None]:
    """Says on standard error, at the first plan, what should be known of the settings."""
    from ackline.steps.topic_warnings import warnings

    told: set[str] = set()

    def warn(plan: Plan, _adopted: bool) -> None:
        for text in [] if told else warnings(parts, {tp.topic for tp in plan.partitions}):
            _say(f"warning: {text}")
        told.add("once")

    return warn


@app.command()
def run(
    name: Name,
    as_json: Json = False,
    now: Now = None,
    no_breaker: Annotated[
        bool, typer.Option("--no-breaker", help="Settle the turn however many records failed.")
    ] = False,
) -> None:
    """Plan, replay and settle: one run of a pipeline.

    A run where records failed still succeeds: they wait for their retry. Run it again when they are due.

    Examples: `ackline run orders`, `ackline run orders --json | tail -1`
    """
    from ackline.spark.session import open_session
    from ackline.steps import run as runs
    from ackline.steps.effective_settings import in_force

    with opened(name, now, no_breaker) as parts, show.progress(as_json) as on_progress:
        print(f"settings in force: {in_force(parts)}", file=sys.stderr)
        ran = runs.run(parts, open_session, _warner(parts), on_progress)
        store = parts.store
    if as_json:
        show.print_json(show.run_json(ran, store))
        return
    out = show.console()
    for absent in ran.missing:
        out.print(f"{show.missing(absent)}; it will be read from its start once it does.", markup=False)
    for reason in ran.voided:
        out.print(f"A turn was void: {reason}")
    for one in ran.plans:
        out.print(show.turn_table(one, store.settlement(one.turn), ran.settled.committed if ran.settled else {}))
    out.print(
        f"{ran.calls:,} handler calls; "
        + (", ".join(f"{n:,} {word}" for word, n in sorted(ran.outcomes.items())) or "no outcomes")
    )


@app.command()
def plan(name: Name, as_json: Json = False, now: Now = None) -> None:
    """Print what a run would do now; stores nothing.

    Example: `ackline plan orders`
    """
    from ackline.steps.plan import preview

    with opened(name, now) as parts:
        found = preview(parts)
        if found.plan:
            _warner(parts)(found.plan, found.adopted)
    if as_json:
        body = (
            show.plan_json(found.plan, found.adopted)
            if found.plan
            else {"pipeline": name, "turn": None, "partitions": []}
        )
        body["partitions"] += show.leaderless_json(found.leaderless)
        show.print_json({**body, **show.missing_json(found.missing)})
        return
    out = show.console()
    for absent in found.missing:
        out.print(f"{show.missing(absent)}.", markup=False)
    for tp in found.leaderless:
        out.print(f"The partition {tp} has no leader; it is left out.", markup=False)
    if found.plan:
        out.print(show.plan_table(found.plan, found.adopted, stored=False))


@app.command()
def status(name: Name, as_json: Json = False, now: Now = None) -> None:
    """Where each partition stands: log, committed offset, floor, pending, lag, read live from the broker.

    Example: `ackline status orders --json`
    """
    from ackline.steps.status import status_and_missing, topics_of

    with opened(name, now) as parts:
        found, missing = status_and_missing(parts)
    if as_json:
        partitions, topics = (
            [show.status_json(one) for one in found],
            [show.topic_json(one) for one in topics_of(found)],
        )
        body = {"pipeline": name, "partitions": partitions, "topics": topics}
        show.print_json({**body, **show.missing_json(missing)})
        return
    out = show.console()
    for absent in missing:
        out.print(f"{show.missing(absent)}.", markup=False)
    out.print(show.status_table(name, found))


SHOWN = 50
"""Rows that `ackline audit` prints for a person who gave no --limit."""


@app.command()
def audit(
    name: Name,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    partition: Annotated[int | None, typer.Option(help="Only this partition.", min=0, max=2**31 - 1)] = None,
    offsets: Annotated[str | None, typer.Option(help="Only offsets A:B, B exclusive; or a single one.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only this outcome, e.g. failed.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Only rows that this run wrote.")] = None,
    turn: Annotated[int | None, typer.Option(help="Only this turn.", min=0, max=LAST)] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many rows.", min=0, max=2**53)] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also rows that do not count (open or void turns).")
    ] = False,
    as_json: Json = False,
) -> None:
    """What happened to each record: the effective rows of the audit table.

    Examples: `ackline audit orders --offsets 1041`, `ackline audit orders --outcome dead --json`
    """
    from ackline.audit.queries import AuditFilter, audit_rows, json_rows
    from ackline.audit.store import LedgerStore
    from ackline.errors import ConfigError
    from ackline.outcome import Outcome
    from ackline.paths import audit_root
    from ackline.pipeline import topic_name
    from ackline.steps.effective_settings import rows_are_off
    from ackline.turns import LIVE

    pipeline_named(name)
    try:
        topic = topic_name(topic) if topic is not None else None
    except ValueError as error:
        raise ConfigError(f"--topic: {error}", key="--topic") from None
    if outcome is not None and outcome not in list(Outcome):
        raise ConfigError(f"--outcome {outcome}: one of {', '.join(Outcome)}", key="--outcome")
    shown = limit if limit is not None or as_json else SHOWN + 1
    asked = AuditFilter(topic, partition, range_of(offsets), outcome, run_id, turn, shown, everything)
    rows = list(json_rows(audit_rows(audit_root(), name, asked)))
    if not rows and rows_are_off(LedgerStore(audit_root(), name, LIVE)):
        _say("the newest turn kept no rows (`record_outcomes: false`); its counts are in `ackline status`")
    if as_json:
        print("[" + ",\n".join(json.dumps(row) for row in rows) + "]")
        return
    _print_rows(rows, limit)


def _print_rows(rows: list[dict[str, Any]], limit: int | None) -> None:
    columns = [
        "topic",
        "partition",
        "offset",
        "end_offset",
        "attempt",
        "outcome",
        "turn",
        "error_class",
        "error_message",
        "handled_at",
    ]
    out = show.console()
    cut = len(rows) if limit is not None else SHOWN
    out.print(show.table(None, columns, ([row[name] for name in columns] for row in rows[:cut])))
    if not rows:
        out.print("No rows.")
    if len(rows) > cut:
        out.print("… more; see them all with --limit N or --json.")


@app.command()
def doctor(
    name: Annotated[str | None, typer.Argument(help="Also check this pipeline against its broker.")] = None,
    as_json: Json = False,
) -> None:
    """Check what a run needs: Java, JARs, pipeline files, handler, broker, topics, group, tables.

    Examples: `ackline doctor`, `ackline doctor orders`
    """
    from ackline.cli.doctor import examine

    found = list(examine(name))
    if as_json:
        show.print_json([{"check": one.name, "ok": one.ok, "detail": one.detail} for one in found])
    else:
        out = show.console()
        for one in found:
            out.print(f"{'[green]ok  [/]' if one.ok else '[red]FAIL[/]'} {one.name}: ", end="")
            out.print(one.detail, markup=False)
    if not all(one.ok for one in found):
        sys.exit(1)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option(help="Leave broker and Airflow running at the end.")] = False,
) -> None:
    """The main job on a broker, Spark and an Airflow of its own: 20,000 orders until all is settled, then proved.

    Examples: `ackline demo`, `ackline demo --keep` and afterwards `ackline dev down`
    """
    from ackline.local.demo import main as demo_main

    sys.exit(demo_main(keep))


actions.add_to(app)
maintain.add_to(app)
app.add_typer(dev.app, name="dev")
