"""`ackline explain` and `ackline diff`: what holds a floor, what became of a record, and what another lane made of
it."""

from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console

from ackline.actions.objects import JsonObject
from ackline.answers.dead import diff_lanes, diff_object
from ackline.answers.explain import (
    ExplanationsObject,
    OffsetExplanationObject,
    PartitionExplanationObject,
    explain_partitions,
    explain_record,
)
from ackline.answers.status import OpenTurn, OpenTurnObject, UnreachableObject, open_turn_of
from ackline.backfill.run import standstill_of
from ackline.cli import formats, tables
from ackline.cli.dead import check_may_show, printable
from ackline.cli.options import Json, Lane, Name, Now, end_unreachable, opened, opened_to_read
from ackline.cli.status import open_turn_lines
from ackline.errors import ConfigError, counted
from ackline.forms.arguments import LAST
from ackline.ledger.account import Result
from ackline.ledger.explain import OffsetExplanation, PartitionExplanation, attempt_sentence
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE

Topic = Annotated[str | None, typer.Argument(help="The topic.", show_default=False)]
Partition = Annotated[int | None, typer.Argument(help="The partition.", min=0, max=2**31 - 1, show_default=False)]
Offset = Annotated[int | None, typer.Argument(help="The offset.", min=0, max=LAST - 1, show_default=False)]
MOST = 20
"""How many partitions are explained without a topic: those with the largest lag."""


def explain(
    name: Name,
    topic: Topic = None,
    partition: Partition = None,
    offset: Offset = None,
    lane: Lane = LIVE,
    now: Now = None,
    as_json: Json = False,
) -> None:
    """Explain in a sentence what holds the floor of a partition, or what became of one offset.

    Of a partition it also prints what retention takes next, and the open turn of the lane with the process that replays
    it. Without a topic it explains the partitions with the largest lag.

    Examples: `ackline explain orders`, `ackline explain orders orders 3`, `ackline explain orders orders 3 1041`
    """
    if topic is not None and partition is None:
        raise ConfigError("explain: give a partition after the topic, e.g. `orders 3`", key="PARTITION")
    tp = None if topic is None or partition is None else TopicPartition(topic, partition)
    found: OffsetExplanation | list[PartitionExplanation]
    open_turn: OpenTurn | None = None
    with opened_to_read(name, now, lane) as (adapters, away):
        standing = standstill_of(adapters, away is None)
        if tp is not None and offset is not None:
            found = explain_record(adapters, tp, offset, standing, away is None)
        else:
            found, open_turn = explain_partitions(adapters, tp, standing, away is None), open_turn_of(adapters)
        time_now = adapters.now()
    of_lane: dict[str, Any] = {"stands_still": standing, "unreachable": UnreachableObject.of(away)}
    if open_turn is not None:
        of_lane["open_turn"] = OpenTurnObject.of(open_turn)
    if as_json:
        formats.print_json(_object(name, found, tp is not None, of_lane))
    else:
        out = tables.console()
        tables.print_standstill(out, standing, away)
        if isinstance(found, OffsetExplanation):
            _print_record(out, found, adapters.pipeline.steps is not None)
        else:
            _print_partitions(out, found, tp is not None)
            tables.print_lines(out, open_turn_lines(open_turn, time_now) if open_turn is not None else [])
    end_unreachable(away, as_json)


def _object(
    name: str, found: OffsetExplanation | list[PartitionExplanation], single: bool, of_lane: dict[str, Any]
) -> JsonObject:
    if isinstance(found, OffsetExplanation):
        return OffsetExplanationObject.model_validate(found).model_copy(update=of_lane)
    every = tuple(PartitionExplanationObject.of(explanation, **of_lane) for explanation in found)
    return every[0] if single else ExplanationsObject(pipeline=name, partitions=every, **of_lane)


def _print_record(out: Console, record: OffsetExplanation, has_steps: bool) -> None:
    tables.print_lines(out, [record.sentence])
    if has_steps:
        tables.print_lines(out, filter(None, map(attempt_sentence, record.events)))
    if record.events:
        columns = ["epoch", "turn", "attempt", "outcome", "error_class", "at", "error_place", "run_id"]
        rows = [
            [e.epoch, e.turn, e.attempt or None, e.outcome.value, e.error_class, e.at, e.error_place, e.run_id]
            for e in record.events
        ]
        tables.print_table(out, None, columns, rows, columns[1:7])


def _print_partitions(out: Console, explanations: list[PartitionExplanation], single: bool) -> None:
    tables.print_lines(out, [explanation.sentence for explanation in (explanations if single else explanations[:MOST])])
    if not explanations:
        out.print("The lane has no partition yet.")
    if not single and len(explanations) > MOST:
        out.print(f"… and {len(explanations) - MOST} more partitions with less lag. --json shows them all.")


Before = Annotated[str, typer.Argument(metavar="LANE", help="A lane: live or backfill-ID.", show_default=False)]
After = Annotated[str, typer.Argument(metavar="LANE", help="The lane to compare with it.", show_default=False)]
Records = Annotated[bool, typer.Option("--records", help="Also list each offset that differs.")]

Rows = Annotated[
    str | None,
    typer.Option("--rows", metavar="TABLE", help="Compare the rows of this output table instead.", show_default=False),
]
ShowValues = Annotated[
    bool, typer.Option("--show-values", help="With --rows, also print values of the examples. Needs a terminal.")
]

SHOWN = 50
"""How many runs of offsets a person is shown."""


def diff(
    name: Name,
    before: Before,
    after: After,
    records: Records = False,
    rows: Rows = None,
    show_values: ShowValues = False,
    as_json: Json = False,
) -> None:
    """Compare the newest terminal outcomes of two lanes, over the offsets that both have settled.

    With `--rows TABLE` it compares the rows that both have for the same records in an output table: how many records
    have the same rows, others, or rows in one lane only, and which columns differ.

    Examples: `ackline backfill orders --from "1d ago" --handler handlers.v2:handle --shadow --id v2 --yes`, then
    `ackline diff orders live backfill-v2` and `ackline diff orders live backfill-v2 --rows totals`
    """
    if before == after:
        raise ConfigError(f"{before} is named twice: name two lanes", key="LANE")
    if rows is not None:
        _diff_rows(name, before, after, rows, records, show_values, as_json)
        return
    if show_values:
        raise ConfigError("--show-values shows the values of rows: add --rows TABLE", key="--show-values")
    with opened(name, handler=False) as adapters:
        found, changed = diff_lanes(adapters.store, before, after)
    if as_json:
        formats.print_json(diff_object(found, before, after, changed if records else None))
        return
    out = tables.console()
    listed = [[shown(old), shown(new), number] for (old, new), number in found.changed.most_common()]
    have = "has" if found.same == 1 else "have"
    out.print(f"{counted(found.same, 'offset')} {have} the same outcome in both lanes.")
    out.print(f"{found.only[0]:,} are settled in {before} only, {found.only[1]:,} in {after} only.")
    if listed:
        tables.print_table(out, None, [before, after, "offsets"], listed)
    if records:
        for run in islice(changed, SHOWN):
            print(f"{run.tp} [{run.start}, {run.end}): {shown(run.before)} → {shown(run.after)}")
        if next(changed, None) is not None:
            print("… and more. --json shows them all.")


def _diff_rows(name: str, before: str, after: str, table: str, records: bool, show_values: bool, as_json: bool) -> None:
    if records:
        raise ConfigError("--records lists outcomes, and --rows compares rows: give one of them", key="--records")
    check_may_show("--show-values", show_values, as_json)
    with opened(name, handler=False) as adapters:
        from ackline.answers.row_diff import diff_rows, row_diff_object

        found = diff_rows(adapters, table, before, after)
    if as_json:
        formats.print_json(row_diff_object(found, before, after))
        return
    out = tables.console()
    have = "has" if found.same == 1 else "have"
    out.print(f"{counted(found.same, 'record')} {have} the same rows in both lanes, {found.changed:,} other ones.")
    out.print(f"{found.only[0]:,} have rows in {before} only, {found.only[1]:,} in {after} only.")
    if found.columns:
        tables.print_table(out, None, ["column", "records"], [[*each] for each in found.columns.most_common()])
    for each in found.examples:
        print(f"{each.tp} {each.offset}: {', '.join(each.columns)}")
        for lane, of_lane in ((before, each.before), (after, each.after)) if show_values else ():
            for row in of_lane:
                values = ", ".join(f"{column}={row[column]!r}" for column in each.columns)
                print(f"  {lane}: {printable(values)}")


def shown(result: Result) -> str:
    """Returns an outcome and its error class for a person."""
    return result.outcome if result.error_class is None else f"{result.outcome} ({result.error_class})"


COMMANDS = {"explain": explain, "diff": diff}
