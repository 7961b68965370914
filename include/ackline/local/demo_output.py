"""The sentences and tables that the demo prints."""

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from ackline.local.demo_view import PartitionView, RunView
from ackline.local.order_events import OrderCounts, OrderKind

_KINDS = {
    OrderKind.PLAIN: "plain orders",
    OrderKind.FLAKY: "that fail at first and then succeed",
    OrderKind.REFUSED: "that always fail",
    OrderKind.MALFORMED: "of malformed JSON",
    OrderKind.TOMBSTONE: "tombstones",
}


def produced(topic: str, counts: OrderCounts) -> str:
    """Returns a sentence with the number of records of each kind."""
    kinds = ", ".join(f"{counts.by_kind[kind]:,} {words}" for kind, words in _KINDS.items() if counts.by_kind[kind])
    return f"Produced {counts.records:,} records to {topic}: {kinds}."


def task_line(tasks: Mapping[str, str | None]) -> str:
    """Returns the state of each task of a run, in one line."""
    return " >> ".join(f"{name} ({tasks.get(name) or 'waiting'})" for name in ("plan", "replay", "settle"))


def console() -> Console:
    """Returns the terminal as a console; without a terminal, its lines are wide enough for every table."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)


def run_table(run: str, view: RunView, seconds: float) -> Table:
    """Returns a table of one run: what it read of each partition, the outcomes, and the state after it."""
    turns = ", ".join(str(n) for n in view.turns) or "none"
    table = _table(f"{run} (turn {turns}; {seconds:.0f} s)")
    table.add_column("partition")
    table.add_column("read")
    for name in ("acked", "failed", "skipped", "dead", "pending", "floor", "committed", "lag"):
        table.add_column(name, justify="right")
    for tp, partition in view.partitions.items():
        table.add_row(str(tp), _read(partition), *(f"{number:,}" for number in _numbers(partition)))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))


def _read(view: PartitionView) -> str:
    retries = f"{view.retries:,} retries" if view.retries else ""
    return " + ".join(filter(None, [str(view.read) if view.read else "", retries])) or "–"


def _numbers(view: PartitionView) -> list[int]:
    outcomes = [view.outcomes[word] for word in ("acked", "failed", "skipped", "dead")]
    pending = sum(view.state.pending_by_kind().values())
    committed = view.committed if view.committed is not None else -1
    return [*outcomes, pending, view.state.floor, committed, view.log_end - view.state.floor]


def wait_until(console: Console, due: datetime | None) -> None:
    """Shows a progress bar until the time `due`; returns at once if it has passed or is None."""
    seconds = 0.0 if due is None else (due - datetime.now(UTC)).total_seconds()
    if seconds <= 0:
        return
    if not console.is_terminal:
        console.print(f"waiting {seconds:.0f} s for retries to be due\n")
    columns = (TextColumn("waiting for retries to be due"), BarColumn(), TextColumn("{task.fields[left]:.0f} s"))
    begun = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=seconds, left=seconds)
        while (elapsed := time.monotonic() - begun) < seconds:
            progress.update(task, completed=elapsed, left=seconds - elapsed)
            time.sleep(min(0.2, seconds - elapsed))


def totals_table(produced_totals: Mapping[str, int], checked_totals: Mapping[str, int]) -> Table:
    """Returns a table of what was produced beside what the checker found."""
    names = {"records": "records on the topic", "acked": "acked", "dead": "dead", "skipped": "skipped",
             "letters": "on the dead-letter topic"}  # fmt: skip
    table = _table("Totals")
    for name in ("", "produced", "found by the checker"):
        table.add_column(name, justify="right" if name else "left")
    for name, words in names.items():
        table.add_row(words, f"{produced_totals[name]:,}", f"{checked_totals.get(name, 0):,}")
    return table


def proved(counts: OrderCounts) -> str:
    """Returns the sentence for a demo in which every record is settled as its kind demands."""
    return (
        f"[green]Proved:[/] {counts.records:,} produced = {counts.acked:,} acked + {counts.dead:,} dead + "
        f"{counts.skipped:,} skipped, each exactly once; the dead ones are on the dead-letter topic."
    )


def proved_outputs(counts: OrderCounts, rows: Mapping[str, int]) -> str:
    """Returns the sentence for output tables that hold what was produced; `rows` has the rows of each table."""
    each = " and ".join(f"{number:,} rows in {table}" for table, number in rows.items())
    return (
        f"[green]Proved:[/] {each} equal the sums of the orders that were produced: one total for each of "
        f"{counts.acked:,} acked orders, no row of the {counts.dead:,} dead ones."
    )


def kept(url: str, username: str, password: str, folder: Path) -> str:
    """Returns the addresses, the login and the commands for a demo that is left running."""
    return (
        f"\nAll of it is left running.\n"
        f"  page      {url}\n"
        f"  login     {username} / {password}\n"
        f"  look      ACKLINE_AUDIT={folder / 'audit'} ackline status orders\n"
        f"  stop      make down"
    )
