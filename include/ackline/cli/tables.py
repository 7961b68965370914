"""The tables and the progress bar that commands print for a person; plain text if the output is not a terminal."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ackline.commit_rule import Committed
from ackline.offsets import TopicPartition, count
from ackline.steps.parts import Progress as OnProgress
from ackline.steps.status import PartitionStatus
from ackline.turns import Plan, Settlement, TurnKind, worst_partitions

WORST = 10
"""How many partitions the table of a turn lists."""
_TURN_OUTCOMES = ("acked", "failed", "skipped", "dead", "expired")


def console(stderr: bool = False) -> Console:
    """Returns a console as wide as the terminal, or wide enough for any table if the output is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, width=None if stream.isatty() else 200, highlight=False, soft_wrap=not stream.isatty()
    )


def missing_text(name: str) -> str:
    """Returns the sentence for a topic or partition that the file names and the broker does not have."""
    return f"The {'partition' if name.endswith(']') else 'topic'} {name} does not exist (yet)"


def table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """Returns a table with numbers on the right, commas at the thousands, and a dash for None."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    cells = [["–" if cell is None else cell for cell in row] for row in rows]
    for number, name in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[number], int | float) or row[number] == "–" for row in cells)
        shown.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        shown.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    return shown


def plan_table(plan: Plan, adopted: bool, stored: bool) -> Table:
    """Returns the table of what a turn reads of each partition, or why it reads nothing."""
    state = "open, adopted" if adopted else "planned" if stored else "would be planned; nothing is stored"
    rows = (
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
    )
    kind = "" if plan.kind is TurnKind.RUN else f"{plan.kind}, "
    title = f"Turn {plan.turn.n} of {plan.turn.pipeline}: {kind}{state}"
    return table(title, ["partition", "fresh", "offsets", "retries", "floor", "log end", ""], rows)


def turn_table(plan: Plan, settlement: Settlement, committed: Mapping[TopicPartition, Committed]) -> Table:
    """Returns the table of what a turn did to the partitions, at most WORST of them: those with the most offsets that
    are not settled. `committed` was read back from the broker."""
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
                (planned.why if planned else None) or "",
            ]
        )
    columns = ["partition", "read", "retries", *_TURN_OUTCOMES, "pending", "floor", "committed", "lag", ""]
    title = f"Turn {plan.turn.n}: {settlement.kind}"
    if len(worst) < len(settlement.partitions):
        rows.append(_totals(settlement))
        title += f", {len(worst)} of {len(settlement.partitions)} partitions, those furthest behind"
    return table(title, columns, rows)


def _totals(settlement: Settlement) -> list[Any]:
    """Returns the row of `turn_table` that adds up all partitions."""
    settled = settlement.partitions.values()
    counts = [sum(each.counts.get(name, 0) for each in settled) for name in _TURN_OUTCOMES]
    pending = sum(sum(each.state.pending_by_kind().values()) for each in settled)
    return ["all", None, None, *counts, pending, None, None, sum(each.unsettled for each in settled), ""]


def status_table(pipeline: str, partitions: Iterable[PartitionStatus]) -> Table:
    """Returns the table that `ackline status` prints."""
    columns = [
        "partition",
        "log",
        "committed",
        "floor",
        "complete to",
        "retry",
        "dead letter",
        "due",
        "next due",
        "lag",
        "seconds",
        "acked",
        "dead",
        "",
    ]
    rows = (
        [
            f"{status.topic}[{status.partition}]",
            f"[{status.log_start}, {status.log_end})" if status.log_end is not None else None,
            status.committed,
            status.floor,
            status.complete_to,
            *(number for kind, number in status.pending.items() if kind != "in_flight"),
            status.due,
            status.next_due.isoformat(timespec="seconds") if status.next_due else None,
            status.lag,
            status.lag_seconds,
            status.totals["acked"],
            status.totals["dead"],
            status.why or "",
        ]
        for status in partitions
    )
    return table(f"Pipeline {pipeline}", columns, rows)


@contextmanager
def progress(quiet: bool) -> Iterator[OnProgress]:
    """Shows a progress bar over the tasks of a Spark job, on standard error if that is a terminal."""
    shown = Progress(
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with shown:
        task = shown.add_task("replay", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
