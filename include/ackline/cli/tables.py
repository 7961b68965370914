"""The tables and the progress bar that commands print for a person; plain text if the output is not a terminal."""

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ackline.answers.status import PartitionStatus, Unreachable, all_open
from ackline.lane.ways_out import StandsStill
from ackline.ledger.commit_rule import Committed
from ackline.ledger.metrics import StepFigures, mean_and_max
from ackline.ledger.offsets import TopicPartition, count
from ackline.ledger.turns import Plan, Settlement, TurnId, worst_partitions

if TYPE_CHECKING:
    from ackline.spark.progress import Handled

WORST = 10
"""How many partitions the table of a turn lists."""
_TURN_OUTCOMES = ("acked", "failed", "skipped", "dead", "expired")
_TURN_FIRST = ("partition", "acked", "failed", "pending", "floor", "lag", "why", "dead", "skipped", "committed",
               "retries", "read", "expired")  # fmt: skip
_WRAPPED = 24
"""A text of more characters may wrap."""


def console(stderr: bool = False) -> Console:
    """Returns a console as wide as the terminal, or wide enough for any table if the output is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    # No markup and no emoji: error messages, reasons and names of topics may hold "[/b]" or ":key:" as text.
    return Console(
        stderr=stderr, width=None if stream.isatty() else 1_000, highlight=False, soft_wrap=not stream.isatty(),
        markup=False, emoji=False,
    )  # fmt: skip


def missing_text(name: str) -> str:
    """Returns the sentence for a topic or partition that the file names and the broker does not have."""
    return f"The {'partition' if name.endswith(']') else 'topic'} {name} does not exist (yet)"


def table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """Returns a table with numbers on the right, commas at the thousands, times in UTC, and a dash for None."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    cells = [list(row) for row in rows]
    for number, name in enumerate(columns):
        column = [row[number] for row in cells]
        numeric = bool(column) and all(cell is None or isinstance(cell, int | float) for cell in column)
        # A number that is broken over two lines would be read as two numbers. Short texts stay whole beside long ones.
        whole = numeric or max(len(_cell(cell)) for cell in (name, *column)) <= _WRAPPED
        shown.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
    for row in cells:
        shown.add_row(*(_cell(cell) for cell in row))
    return shown


def print_table(
    out: Console, title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]], keep: Sequence[str] = ()
) -> None:
    """Prints a table with as many columns as fit into the terminal, and the names of those that do not.

    `keep` names columns by importance, before all others. What is not printed to a terminal has all columns.
    """
    shown, left_out = _fitting(title, columns, list(rows), keep, out.width if out.file.isatty() else sys.maxsize)
    out.print(shown)
    if left_out:
        out.print(f"Not shown in {out.width} columns: {left_out}. A wider terminal shows more.")


def _fitting(
    title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Any]], keep: Sequence[str], width: int
) -> tuple[Table, str]:
    """Returns a table with the columns that fit into `width`, and the names of those with a value that do not."""
    chosen = fitting_columns(columns, rows, keep, width)
    shown = table(title, [columns[index] for index in chosen], [[row[index] for index in chosen] for row in rows])
    left_out = [name for index, name in enumerate(columns) if index not in chosen and _has_value(rows, index)]
    return shown, ", ".join(left_out)


def print_list(columns: Sequence[str], rows: Sequence[Sequence[Any]], keep: Sequence[str], empty: str) -> None:
    """Prints a table without a title as `print_table` does; `empty` where it has no row."""
    if rows:
        print_table(console(), None, columns, rows, keep)
    else:
        console().print(empty)


def print_standstill(out: Console, standing: StandsStill | None, away: Unreachable | None = None) -> None:
    """Prints as the first lines what a lane stands still for, and why its broker was not read."""
    lines = [] if standing is None else [standing.line]
    print_lines(out, lines if away is None else [*lines, away.text], "red")


def print_lines(out: Console, lines: Iterable[str], style: str | None = None) -> None:
    """Prints lines of text. At a terminal a line that is too long goes on below, indented by two more characters."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        parts = _wrapped(line, out.width, indent) if out.file.isatty() else [line]
        for part in parts or [""]:
            out.print(part, style=style)


def _wrapped(line: str, width: int, indent: str) -> list[str]:
    # A command or a path is whole on its line wherever it fits, so that it can be copied.
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def print_plan(out: Console, plan: Plan, adopted: bool) -> None:
    """Prints what a turn would read of each partition, or why it reads nothing."""
    state = "open, adopted" if adopted else "would be planned; nothing is stored"
    rows = [
        [
            str(tp),
            str(planned.fresh) if planned.fresh else None,
            len(planned.fresh),
            count(planned.retries),
            planned.floor,
            planned.log.end,
            planned.why or plan.reason,
        ]
        for tp, planned in sorted(plan.partitions.items())
    ]
    kind = "" if plan.kind.replays else f"{plan.kind}, "
    title = f"{turn_text(plan.turn)} of {plan.turn.pipeline}: {kind}{state}"
    columns = ["partition", "fresh", "offsets", "retries", "floor", "log end", "why"]
    shown = columns if _has_value(rows, -1) else columns[:-1]
    print_table(out, title, shown, rows, ("partition", "offsets", "retries", "why", "fresh"))


def turn_text(turn: TurnId) -> str:
    """Returns the number of a turn for a person, with its epoch if that is not the first."""
    return f"Turn {turn.n}" + (f" of epoch {turn.epoch}" if turn.epoch else "")


def print_turn(out: Console, plan: Plan, settlement: Settlement, committed: Mapping[TopicPartition, Committed]) -> None:
    """Prints what a turn did to the partitions, at most WORST of them: those with the most offsets that are not
    settled. `committed` was read back from the broker."""
    rows = []
    worst = worst_partitions({tp: settled.unsettled for tp, settled in settlement.partitions.items()}, WORST)
    for tp in worst:
        settled = settlement.partitions[tp]
        planned = plan.partitions.get(tp)
        fresh = planned.fresh if planned and planned.fresh else None
        floor = settled.state.floor
        rows.append(
            [
                str(tp),
                str(fresh) if fresh else None,
                count(planned.retries) if planned else 0,
                *(settled.counts.get(name, 0) for name in _TURN_OUTCOMES),
                sum(settled.state.pending_by_kind().values()),
                floor,
                committed[tp].offset if tp in committed else None,
                planned.log.end - floor if planned else None,
                (planned.why if planned else None) or None,
            ]
        )
    columns = ["partition", "read", "retries", *_TURN_OUTCOMES, "pending", "floor", "committed", "lag", "why"]
    title = f"{turn_text(plan.turn)}: {settlement.kind}"
    if len(worst) < len(settlement.partitions):
        rows.append(_totals(settlement))
        title += f", {len(worst)} of {len(settlement.partitions)} partitions, those furthest behind"
    print_table(out, title, columns if _has_value(rows, -1) else columns[:-1], rows, _TURN_FIRST)


def _totals(settlement: Settlement) -> list[Any]:
    """Returns the row of `print_turn` that adds up all partitions."""
    settled = settlement.partitions.values()
    counts = [sum(each.counts.get(name, 0) for each in settled) for name in _TURN_OUTCOMES]
    pending = sum(sum(each.state.pending_by_kind().values()) for each in settled)
    return ["all", None, None, *counts, pending, None, None, sum(each.unsettled for each in settled), None]


def fitting_columns(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], keep: Sequence[str], width: int
) -> list[int]:
    """Returns the indexes of the columns that a line of `width` characters can show, in their order.

    `keep` names columns by importance, before all others; columns without a value are the least important, and none
    of them is shown in place of one with a value. A long text may wrap, so it counts as 24 characters at most.
    """
    needed = [
        max(
            len(_cell(cell)) if isinstance(cell, int | float) else min(len(_cell(cell)), _WRAPPED)
            for cell in (name, *(row[index] for row in rows))
        )
        for index, name in enumerate(columns)
    ]
    rank = {name: number for number, name in enumerate(keep)}

    def importance(index: int) -> tuple[bool, int, int]:
        return not _has_value(rows, index), rank.get(columns[index], len(rank)), index

    chosen: list[int] = []
    is_whole = True
    for index in sorted(range(len(columns)), key=importance):
        has_value = _has_value(rows, index)
        # The last column needs no gap behind it.
        if (has_value or is_whole) and sum(needed[other] + 2 for other in [*chosen, index]) - 2 <= width:
            chosen.append(index)
        elif has_value:
            is_whole = False
    return sorted(chosen)


def _has_value(rows: Sequence[Sequence[Any]], index: int) -> bool:
    """Returns whether a column has a value in any row; True if there are no rows."""
    return not rows or any(row[index] not in (None, "") for row in rows)


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}" if value.tzinfo is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return "–" if value is None else f"{value:,}" if type(value) is int else str(value)


def fitting_table(
    title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Any]], keep: Sequence[str], width: int
) -> Table:
    """Returns a table with as many columns as fit into `width`; `keep` names them by importance. Below it stands which
    columns with a value are left out."""
    fitting, left_out = _fitting(title, columns, rows, keep, width)
    if rows and left_out:
        fitting.caption = f"Not shown in {width} columns: {left_out}. --json shows all."
        fitting.caption_justify = "left"
    return fitting


def print_folded(
    out: Console,
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    keep: Sequence[str],
    notes: Sequence[str] = (),
) -> None:
    """Prints a table in which the columns that do not fit fold into a second line of each row, with their names.

    `keep` names columns by importance. `notes` has a text for each row, which follows the row if it is not empty.
    """
    width = out.width if out.file.isatty() else sys.maxsize
    chosen = fitting_columns(columns, rows, keep, width)
    rank = {name: number for number, name in enumerate(keep)}
    folded = [index for index in range(len(columns)) if index not in chosen and _has_value(rows, index)]
    folded.sort(key=lambda index: rank.get(columns[index], len(rank)))
    names, shown = [columns[index] for index in chosen], [[row[index] for index in chosen] for row in rows]
    widths = [max(len(_cell(cell)) for cell in column) for column in zip(names, *shown, strict=True)]
    # A name that is longer than what the other columns leave folds.
    widths[0] = min(widths[0], max(_WRAPPED, width - sum(each + 2 for each in widths[1:])))
    every = table(None, names, shown).columns
    print_lines(out, [] if title is None else [title])
    for number, row in enumerate(shown):
        line = Table(box=None, pad_edge=False, show_header=not number, header_style="bold")
        for column, fixed in zip(every, widths, strict=True):
            line.add_column(column.header, justify=column.justify, overflow="fold", width=fixed)
        line.add_row(*map(_cell, row))
        out.print(line)
        values = [f"{columns[at]} {_cell(rows[number][at])}" for at in folded if rows[number][at] not in (None, "")]
        print_lines(out, [f"  {text}" for text in (", ".join(values), *notes[number : number + 1]) if text])


def short_time(at: datetime | None) -> str | None:
    """Returns a time near now, in UTC and without the year; None for None."""
    return None if at is None else f"{at.astimezone(UTC):%m-%d %H:%M:%S}"


_SELDOM = _OPEN, _HELD_BACK = "open transaction", "held back"
"""The columns that are shown only if a partition has a value, and not 0."""
STATUS_COLUMNS = ("partition", "log start", "log end", "committed", "floor", "complete to", "retry", "dead letter",
                  "in flight", _HELD_BACK, "due", "next due", "lag", _OPEN, "seconds", "acked", "dead",
                  "state")  # fmt: skip
_STATUS_FIRST = ("partition", "floor", "lag", _OPEN, "state", "retry", "seconds", "dead letter", "log end",
                 "committed", "acked", "dead", "next due", "due", "in flight", _HELD_BACK, "complete to",
                 "log start")  # fmt: skip
MOST_PARTITIONS = 20
"""How many partitions `ackline status` lists: the worst ones."""


def print_status(out: Console, pipeline: str, partitions: Sequence[PartitionStatus], by_name: bool = False) -> None:
    """Prints the table of `ackline status`: the worst partitions, and the totals of all.

    The worst comes first; `by_name` sorts the listed ones by name.
    """
    worst = worst_first(partitions)[:MOST_PARTITIONS]
    if by_name:
        worst.sort(key=lambda status: (status.topic, status.partition))
    rows = [_status_row(status) for status in worst]
    title = f"Pipeline {pipeline}"
    if epoch := max((status.epoch for status in partitions), default=0):
        title += f", epoch {epoch}"
    if len(worst) < len(partitions):
        title += f", {len(worst)} of {len(partitions)} partitions, the worst ones"
    if len(partitions) > 1:
        rows.append(_status_totals(partitions))
    shown = [at for at, name in enumerate(STATUS_COLUMNS) if name not in _SELDOM or any(row[at] for row in rows)]
    columns = [STATUS_COLUMNS[at] for at in shown]
    print_folded(out, title, columns, [[row[at] for at in shown] for row in rows], _STATUS_FIRST)


def worst_first(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Returns the partitions, the worst state first, then the largest lag."""
    return sorted(partitions, key=lambda p: (p.state.rank, -(p.lag or 0), p.topic, p.partition))


def _status_row(status: PartitionStatus) -> list[Any]:
    return [
        f"{status.topic}[{status.partition}]",
        status.log_start,
        status.log_end,
        status.committed,
        status.floor,
        status.complete_to,
        *status.pending.values(),
        status.due,
        short_time(status.next_due),
        status.lag,
        None if status.open_transaction is None else status.open_transaction.records,
        None if status.lag_seconds is None else round(status.lag_seconds),
        status.totals["acked"],
        status.totals["dead"],
        f"{status.state}: {status.why}" if status.why and status.why != status.state else status.state.value,
    ]


def _status_totals(partitions: Sequence[PartitionStatus]) -> list[Any]:
    ages = [status.lag_seconds for status in partitions if status.lag_seconds is not None]
    due = min((status.next_due for status in partitions if status.next_due), default=None)
    return [
        f"all {len(partitions)}",
        *(None,) * 5,
        *(sum(status.pending[kind] for status in partitions) for kind in partitions[0].pending),
        sum(status.due for status in partitions),
        short_time(due),
        sum(lags) if (lags := [status.lag for status in partitions if status.lag is not None]) else None,
        held.records if (held := all_open(status.open_transaction for status in partitions)) else None,
        round(max(ages)) if ages else None,
        sum(status.totals["acked"] for status in partitions),
        sum(status.totals["dead"] for status in partitions),
        "",
    ]


_STEP_COLUMNS = ("step", "executed", "emitted", "acked", "failed", "mean ms", "max ms")
_STEP_FIRST = ("step", "executed", "failed", "mean ms", "acked", "max ms", "emitted")


def steps_table(figures: StepFigures, width: int = 200) -> Table:
    """Returns the table of the steps that `ackline status` prints. Times are in milliseconds for one call."""
    rows = [[name, *done.numbers().values(), *mean_and_max(done.execute).values()]
            for name, done in figures.steps.items()]  # fmt: skip
    turns = "newest turn" if figures.turns == 1 else f"newest {figures.turns} turns"
    title = f"Steps, {turns} with records" if figures.turns else "Steps: no turn yet"
    latency = mean_and_max(figures.latency)
    if latency["mean"] is not None:
        title += f"; complete latency {latency['mean']:,} ms, at most {latency['max']:,} ms"
    return fitting_table(title, _STEP_COLUMNS, rows, _STEP_FIRST, width)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress bar of a run: what it does now, and once a Spark job works, how many records it has handled."""

    _shown: Progress
    _task: TaskID

    def __call__(self, handled: "Handled") -> None:
        """Shows what is handled, the rate and the time left."""
        self._show("replaying", handled.done, handled.total, handled.text())

    def begin(self, what: str) -> None:
        """Shows what the run does from now on."""
        self._show(what, 0, None, "")

    def _show(self, what: str, done: int, total: int | None, figures: str) -> None:
        self._shown.tasks[0].total = total  # `update` takes None for no change
        self._shown.update(self._task, description=what, completed=done, figures=figures)


class _ElapsedWithoutFigures(TimeElapsedColumn):
    """How long a run has worked; left out beside figures, which need the width of a narrow terminal."""

    def render(self, task: Task) -> Text:
        return Text() if task.fields["figures"] else super().render(task)


@contextmanager
def progress(quiet: bool) -> Iterator[RunProgress]:
    """Shows a progress bar over the records of a turn, on standard error if that is a terminal."""
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        TextColumn("{task.fields[figures]}"),
        _ElapsedWithoutFigures(),
        console=console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with shown:
        yield RunProgress(shown, shown.add_task("planning", total=None, figures=""))
