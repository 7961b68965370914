"""How the demo says what it sees."""

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from ackline.local.demo_view import PartitionView, RunView
from ackline.local.order_events import Counts, Kind

_KINDS = {
    Kind.PLAIN: "plain orders",
    Kind.FLAKY: "that fail twice and then succeed",
    Kind.REFUSED: "that always fail",
    Kind.MALFORMED: "of malformed JSON",
    Kind.TOMBSTONE: "tombstones",
}


def produced(topic: str, counts: Counts) -> str:
    """What was produced, in a sentence."""
    kinds = ", ".join(f"{counts.by_kind[kind]:,} {words}" for kind, words in _KINDS.items())
    return f"Produced {counts.records:,} records to {topic}: {kinds}."


def task_line(tasks: Mapping[str, str | None]) -> str:
    """The state of each task of a run."""
    return " >> ".join(f"{name} ({tasks.get(name) or 'waiting'})" for name in ("plan", "replay", "settle"))


def console() -> Console:
    """The terminal; where there is none, lines wide enough for every table."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)


def run_table(run: str, view: RunView, seconds: float) -> Table:
    """One run: what it read and made of each partition, and where that stands now."""
    turns = ", ".join(str(n) for n in view.turns) or "none"
    table = _table(f"{run} (turn {turns}; {seconds:.0f} s)")
    table.add_column("partition")
    table.add_column("read")
    for name in ("acked", "failed", "skipped", "dead", "pending", "floor", "committed", "lag"):
        table.add_column(name, justify="right")
    for tp, one in view.partitions.items():
        table.add_row(str(tp), _read(one), *(f"{number:,}" for number in _numbers(one)))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))


def _read(one: PartitionView) -> str:
    retries = f"{one.retries:,} retries" if one.retries else ""
    return " + ".join(filter(None, [str(one.read) if one.read else "", retries])) or "–"


def _numbers(one: PartitionView) -> list[int]:
    outcomes = [one.outcomes[word] for word in ("acked", "failed", "skipped", "dead")]
    pending = sum(one.state.pending_by_kind().values())
    committed = one.committed if one.committed is not None else -1
    return [*outcomes, pending, one.state.floor, committed, one.log_end - one.state.floor]


def wait_until(console: Console, due: datetime | None) -> None:
    """Show a bar until that time; return at once where it has passed."""
    seconds = 0.0 if due is None else (due - datetime.now(UTC)).total_seconds()
    if seconds <= 0:
        return
    if not console.is_terminal:
        console.print(f"waiting {seconds:.0f} s for retries to be due\n")
    columns = (TextColumn("waiting for retries to be due"), BarColumn(), TextColumn("{task.fields[left]:.0f} s"))
    begun = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=seconds, left=seconds)
        while (passed := time.monotonic() - begun) < seconds:
            progress.update(task, completed=passed, left=seconds - passed)
            time.sleep(min(0.2, seconds - passed))


def totals_table(wanted: Mapping[str, int], found: Mapping[str, int]) -> Table:
    """What was produced beside what the checker found."""
    names = {"records": "records on the topic", "acked": "acked", "dead": "dead", "skipped": "skipped",
             "letters": "on the dead-letter topic"}  # fmt: skip
    table = _table("Totals")
    for name in ("", "produced", "found by the checker"):
        table.add_column(name, justify="right" if name else "left")
    for name, words in names.items():
        table.add_row(words, f"{wanted[name]:,}", f"{found.get(name, 0):,}")
    return table


def proved(counts: Counts) -> str:
    """The proof in one line."""
    return (
        f"[green]Proved:[/] {counts.records:,} produced = {counts.acked:,} acked + {counts.dead:,} dead + "
        f"{counts.skipped:,} skipped, each exactly once; the dead ones are on the dead-letter topic."
    )


def kept(url: str, username: str, password: str, folder: Path) -> str:
    """What to do with a demo that is left running."""
    return (
        f"\nAll of it is left running.\n"
        f"  page      {url}\n"
        f"  login     {username} / {password}\n"
        f"  look      ACKLINE_AUDIT={folder / 'audit'} ackline status orders\n"
        f"  stop      make down"
    )
