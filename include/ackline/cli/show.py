"""Tables and progress for a person; plain text where the output is no terminal."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ackline.audit.store import LedgerStore
from ackline.commit_rule import Committed
from ackline.offsets import TopicPartition, count
from ackline.planning import NO_LEADER
from ackline.steps.parts import Progress as OnProgress
from ackline.steps.run import Ran
from ackline.steps.status import PartitionStatus, TopicStatus
from ackline.turns import Plan, Settlement, TurnKind


def console(stderr: bool = False) -> Console:
    """A console as wide as its content needs where nobody reads it on a screen."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, width=None if stream.isatty() else 200, highlight=False, soft_wrap=not stream.isatty()
    )


def missing(name: str) -> str:
    """That a topic, or a partition, which a file names is not there."""
    return f"The {'partition' if name.endswith(']') else 'topic'} {name} does not exist (yet)"


def missing_json(names: Iterable[str]) -> dict[str, list[str]]:
    """The same for a program."""
    absent = list(names)
    return {
        "missing_topics": [name for name in absent if not name.endswith("]")],
        "missing_partitions": [name for name in absent if name.endswith("]")],
    }


def print_json(value: object) -> None:
    """One line of JSON."""
    print(json.dumps(value))


def table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """A table with numbers to the right; None is a dash, and a thousand has its comma."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    cells = [["–" if cell is None else cell for cell in row] for row in rows]
    for number, name in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[number], int | float) or row[number] == "–" for row in cells)
        shown.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        shown.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    return shown


def plan_table(plan: Plan, adopted: bool, stored: bool) -> Table:
    """What a turn reads of each partition, and why one gets nothing."""
    state = "open, adopted" if adopted else "planned" if stored else "would be planned; nothing is stored"
    rows = (
        [
            str(tp),
            str(one.fresh) if one.fresh else None,
            len(one.fresh),
            count(one.retries),
            one.floor,
            one.log.end,
            one.why or plan.reason,
        ]
        for tp, one in sorted(plan.partitions.items())
    )
    act = "" if plan.kind is TurnKind.RUN else f"{plan.kind}, "
    title = f"Turn {plan.turn.n} of {plan.turn.pipeline}: {act}{state}"
    return table(title, ["partition", "fresh", "offsets", "retries", "floor", "log end", ""], rows)


def plan_json(plan: Plan, adopted: bool) -> dict[str, Any]:
    """The same for a program. An act's reason is why its partitions get nothing."""
    return {
        "pipeline": plan.turn.pipeline,
        "lane": plan.turn.lane,
        "epoch": plan.turn.epoch,
        "turn": plan.turn.n,
        "kind": plan.kind.value,
        "adopted": adopted,
        "planned_at": plan.planned_at.isoformat(),
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "start": one.fresh.start,
                "end": one.fresh.end,
                "retries": count(one.retries),
                "floor": one.floor,
                "complete_to": one.complete_to,
                "log_start": one.log.start,
                "log_end": one.log.end,
                "why": one.why or plan.reason or None,
            }
            for tp, one in sorted(plan.partitions.items())
        ],
    }


def leaderless_json(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Partitions that are left out of a plan and have not joined the lane: nothing is known of them but why."""
    unknown = dict.fromkeys(("start", "end", "floor", "complete_to", "committed", "log_start", "log_end", "lag"))
    none: dict[str, Any] = {**unknown, "retries": 0, "outcomes": {}, "pending": {}, "why": NO_LEADER}
    return [{"topic": tp.topic, "partition": tp.partition, **none} for tp in partitions]


def turn_table(plan: Plan, settlement: Settlement, committed: Mapping[TopicPartition, Committed]) -> Table:
    """What a turn did to each partition; `committed` was read back from the broker."""
    rows = []
    for tp, one in sorted(settlement.partitions.items()):
        planned = plan.partitions.get(tp)
        fresh = planned.fresh if planned and planned.fresh else None
        floor = one.state.floor
        rows.append(
            [
                str(tp),
                str(fresh) if fresh else None,
                count(planned.retries) if planned else 0,
                *(one.counts.get(name, 0) for name in ("acked", "failed", "skipped", "dead", "expired")),
                sum(one.state.pending_by_kind().values()),
                floor,
                committed[tp].offset if tp in committed else None,
                planned.log.end - floor if planned else None,
                (planned.why if planned else None) or "",
            ]
        )
    words = ["acked", "failed", "skipped", "dead", "expired"]
    columns = ["partition", "read", "retries", *words, "pending", "floor", "committed", "lag", ""]
    return table(f"Turn {plan.turn.n}: {settlement.kind}", columns, rows)


def run_json(ran: Ran, store: LedgerStore) -> dict[str, Any]:
    """The closing line of `ackline run --json`."""
    last = ran.plans[-1] if ran.plans else None
    settlement = store.settlement(last.turn) if last else None
    committed = ran.settled.committed if ran.settled else {}
    partitions = []
    for tp, one in sorted(settlement.partitions.items() if settlement else ()):
        planned = [plan.partitions[tp] for plan in ran.plans if tp in plan.partitions]
        partitions.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "start": planned[0].fresh.start if planned else one.state.complete_to,
                "end": planned[-1].fresh.end if planned else one.state.complete_to,
                "retries": sum(count(p.retries) for p in planned),
                "outcomes": dict(one.counts),
                "pending": {kind.value: number for kind, number in one.state.pending_by_kind().items()},
                "floor": one.state.floor,
                "complete_to": one.state.complete_to,
                "committed": committed[tp].offset if tp in committed else None,
                "log_end": planned[-1].log.end if planned else None,
                "lag": planned[-1].log.end - one.state.floor if planned else None,
                "why": planned[-1].why if planned else None,
            }
        )
    return {
        "pipeline": store.pipeline,
        "turn": last.turn.n if last else None,
        "records": ran.calls,
        "outcomes": dict(ran.outcomes),
        "partitions": partitions + leaderless_json(ran.leaderless),
        "missing_topics": list(ran.missing),
    }


def status_json(one: PartitionStatus) -> dict[str, Any]:
    """A partition as `ackline status --json` prints it."""
    return {
        "lane": one.lane,
        "epoch": one.epoch,
        "topic": one.topic,
        "partition": one.partition,
        "log_start": one.log_start,
        "log_end": one.log_end,
        "committed": one.committed,
        "floor": one.floor,
        "complete_to": one.complete_to,
        "pending": {kind.value: number for kind, number in one.pending.items()},
        "next_due": one.next_due.isoformat() if one.next_due else None,
        "lag": one.lag,
        "lag_seconds": one.lag_seconds,
        "read": one.read,
        "due": one.due,
        "oldest_pending_offset": one.oldest_pending_offset,
        "oldest_pending_at": one.oldest_pending_at.isoformat() if one.oldest_pending_at else None,
        **one.totals,
        "fetches": one.fetches,
        "fetch_seconds_mean": one.fetch_seconds_mean,
        "fetch_seconds_max": one.fetch_seconds_max,
        "why": one.why,
    }


def topic_json(one: TopicStatus) -> dict[str, Any]:
    """A topic, the same way."""
    return {
        "topic": one.topic,
        "partitions": one.partitions,
        "log_start": one.log_start,
        "log_end": one.log_end,
        "committed": one.committed,
        "floor": one.floor,
        "read": one.read,
        "pending": {kind.value: number for kind, number in one.pending.items()},
        "due": one.due,
        "oldest_pending_at": one.oldest_pending_at.isoformat() if one.oldest_pending_at else None,
        "lag": one.lag,
        "lag_seconds": one.lag_seconds,
        **one.totals,
        "fetches": one.fetches,
        "fetch_seconds_max": one.fetch_seconds_max,
    }


def status_table(pipeline: str, partitions: Iterable[PartitionStatus]) -> Table:
    """The same for a person."""
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
            f"{one.topic}[{one.partition}]",
            f"[{one.log_start}, {one.log_end})" if one.log_end is not None else None,
            one.committed,
            one.floor,
            one.complete_to,
            *(number for kind, number in one.pending.items() if kind != "in_flight"),
            one.due,
            one.next_due.isoformat(timespec="seconds") if one.next_due else None,
            one.lag,
            one.lag_seconds,
            one.totals["acked"],
            one.totals["dead"],
            one.why or "",
        ]
        for one in partitions
    )
    return table(f"Pipeline {pipeline}", columns, rows)


@contextmanager
def progress(quiet: bool) -> Iterator[OnProgress]:
    """A progress bar over Spark's tasks, on a terminal's standard error."""
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
