"""What the demo prints: what each run did, and the proof of its output tables.

It reads the tables of the ledger and, with a client of its own, the broker. The proof compares what the output tables
hold with what was produced.
"""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from deltalake import DeltaTable
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from ackline.errors import FatalError
from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import OffsetRange, TopicPartition, count
from ackline.ledger.turns import LIVE, Settlement
from ackline.local.events import OUTPUTS, OrderCounts, OrderEvent, OrderKind, expected_rows
from ackline.pipeline.pipeline import Pipeline
from ackline.tables.store import LedgerStore


@dataclass(slots=True)
class PartitionView:
    """One partition after a run: what the run read, the outcomes, and the state that it left."""

    state: PartitionState
    committed: int | None
    log_end: int
    read: OffsetRange | None = None
    retries: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def settled(self) -> bool:
        """Whether nothing is pending, and the log end is the floor and is committed."""
        return not self.state.pending and self.state.floor == self.log_end == self.committed


@dataclass(frozen=True, slots=True)
class RunView:
    """All partitions after a run, and the numbers of the turns that the run took."""

    turns: list[int]
    partitions: dict[TopicPartition, PartitionView]

    @property
    def settled(self) -> bool:
        """Whether all partitions are settled."""
        return all(view.settled for view in self.partitions.values())

    @property
    def next_due(self) -> datetime | None:
        """When the next retry is due; None if there is none."""
        return min((due for view in self.partitions.values() if (due := view.state.next_due)), default=None)


class RunReader:
    """Reads the runs of one pipeline, one after the other."""

    def __init__(self, bootstrap: str, audit: str, pipeline: Pipeline) -> None:
        self.bootstrap = bootstrap
        self.audit = audit
        self.pipeline = pipeline
        self._last_turn = 0

    def next_run(self) -> RunView:
        """Returns what the turns since the last call did. Raises FatalError if there is no settlement."""
        store = LedgerStore(self.audit, self.pipeline.name, LIVE)
        newest = store.newest()
        if newest is None:
            raise FatalError("the run stored no settlement")
        turns = range(self._last_turn + 1, newest.turn.n + 1)
        self._last_turn = newest.turn.n
        committed, ends = self._committed_and_log_ends(newest)
        views = {
            tp: PartitionView(settled.state, committed.get(tp), ends[tp])
            for tp, settled in sorted(newest.partitions.items())
        }
        for n in turns:
            _add_turn(views, store, store.settlement(newest.turn._replace(n=n)))
        return RunView(list(turns), views)

    def _committed_and_log_ends(
        self, newest: Settlement
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.pipeline.kafka.group_id})
        try:
            answers = consumer.committed([ClientPartition(*tp) for tp in newest.partitions], timeout=30)
            ends = {tp: consumer.get_watermark_offsets(ClientPartition(*tp), timeout=30)[1] for tp in newest.partitions}
        finally:
            consumer.close()
        committed = {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}
        return {tp: offset for tp, offset in committed.items() if offset >= 0}, ends


def _add_turn(views: dict[TopicPartition, PartitionView], store: LedgerStore, settlement: Settlement) -> None:
    if not settlement.kind.replays:
        return
    plan = store.plan(settlement.turn)
    for tp, settled in settlement.partitions.items():
        view, planned = views[tp], plan.partitions.get(tp)
        if planned is not None:
            if planned.fresh:
                view.read = OffsetRange(view.read.start if view.read else planned.fresh.start, planned.fresh.end)
            view.retries += count(planned.retries)
        view.outcomes.update({str(outcome): number for outcome, number in settled.counts.items()})


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
        read = [str(partition.read)] if partition.read else []
        read += [f"{partition.retries:,} retries"] if partition.retries else []
        state, committed = partition.state, partition.committed if partition.committed is not None else -1
        numbers = [partition.outcomes[word] for word in ("acked", "failed", "skipped", "dead")]
        numbers += [sum(state.pending_by_kind().values()), state.floor, committed, partition.log_end - state.floor]
        table.add_row(str(tp), " + ".join(read) or "–", *(f"{number:,}" for number in numbers))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))


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


def kept(url: str, username: str, password: str, folder: Path, pipelines: Path) -> str:
    """Returns the addresses, the login and the commands for a demo that is left running."""
    return (
        f"\nAll of it is left running.\n"
        f"  page      {url}\n"
        f"  login     {username} / {password}\n"
        f"  look      ACKLINE_AUDIT={folder / 'audit'} ACKLINE_PIPELINES={pipelines} ackline status orders\n"
        f"  stop      ackline dev down"
    )


_SHOWN = 3


def prove_outputs(audit: str, pipeline: str, produced: Sequence[OrderEvent]) -> tuple[dict[str, int], list[str]]:
    """Compares the output tables of a settled pipeline with the rows that `produced` must give. Returns how many rows
    each table has, and a sentence for each difference.

    It reads the tables as any user can, and computes the expected rows without the pipeline's handlers.
    """
    expected = expected_rows(produced)
    found = {table: _rows_of(f"{audit}/{pipeline}/outputs/{table}", columns) for table, columns in OUTPUTS.items()}
    differences = [text for table, rows in found.items() for text in _differences(table, expected[table], rows)]
    return {table: rows.total() for table, rows in found.items()}, differences


def _rows_of(folder: str, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """Returns how often each row is in a table; no rows if the table does not exist."""
    if not DeltaTable.is_deltatable(folder):
        return Counter()
    table = DeltaTable(folder).to_pyarrow_table(columns=list(columns))
    return Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))


def _differences(table: str, expected: Counter[tuple[Any, ...]], found: Counter[tuple[Any, ...]]) -> list[str]:
    """Returns a sentence for the rows that are missing, and one for those that are wrong or there twice."""
    return [
        f"{table}: {rows.total():,} rows {what}, such as {', '.join(map(str, list(rows)[:_SHOWN]))}"
        for what, rows in (("are missing", expected - found), ("should not be there", found - expected))
        if rows
    ]
