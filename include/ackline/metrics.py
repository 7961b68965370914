"""Figures: what a turn did to a partition, and where it left it, as numbers. Pure.

What only the tasks know of a turn (how long they waited for records; how many had which outcome, where outcomes are not
kept as rows) comes with the commit of outcomes, as text (`Report`). The rest follows from the plan, the state and the
rows. What settle keeps of it is in the settlement's columns `metrics` and `totals`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from time import perf_counter
from typing import TypeVar

from ackline.commit_rule import Committed
from ackline.ledger import OutcomeRow, PartitionState, PendingKind
from ackline.offsets import LogBounds, TopicPartition
from ackline.outcome import Outcome

T = TypeVar("T")

Counts = Mapping[str, int]
"""Rows of `outcomes`, by outcome; a row that speaks of a range is one."""

TOTALS = (*(outcome.value for outcome in Outcome if outcome is not Outcome.IN_FLIGHT), "retries")
"""The keys of `totals`: effective rows of the lane's epoch so far by outcome, and attempts after the first."""

FETCHES, FETCH_MEAN, FETCH_MAX = "fetches", "fetch_seconds_mean", "fetch_seconds_max"
LAST_FETCH = (FETCHES, FETCH_MEAN, FETCH_MAX)
"""Keys of `metrics` that stay as they are until a turn reads from the partition again."""


@dataclass(frozen=True, slots=True)
class Fetches:
    """How often tasks waited for the next batch of a partition's records, and how many seconds: in all, at most."""

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def __add__(self, other: "Fetches") -> "Fetches":
        return Fetches(self.count + other.count, self.seconds + other.seconds, max(self.longest, other.longest))


def waited(source: Iterable[T]) -> Iterator[tuple[T, Fetches]]:
    """All that `source` brings, each with how long it took to come; the time that its taker takes does not count."""
    iterator = iter(source)
    while True:
        begun = perf_counter()
        try:
            one = next(iterator)
        except StopIteration:
            return
        seconds = perf_counter() - begun
        yield one, Fetches(1, seconds, seconds)


@dataclass(frozen=True, slots=True)
class Report:
    """What the tasks of a turn say of it. `recorded`: each outcome is a row of the table as well."""

    counts: Mapping[TopicPartition, Counts] = field(default_factory=dict)
    fetches: Mapping[TopicPartition, Fetches] = field(default_factory=dict)
    recorded: bool = True

    def encode(self) -> str:
        """The text that goes with the commit of outcomes: JSON, some sixty bytes a partition."""
        topics: dict[str, dict[str, object]] = {}
        for tp in sorted({*self.counts, *self.fetches}):
            waits = self.fetches.get(tp, Fetches())
            topics.setdefault(tp.topic, {})[str(tp.partition)] = {
                "counts": {str(word): number for word, number in self.counts.get(tp, {}).items()},
                "fetches": waits.count,
                "fetch_seconds": round(waits.seconds, 6),
                "fetch_seconds_max": round(waits.longest, 6),
            }
        return json.dumps({"recorded": self.recorded, "topics": topics}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "Report | None":
        """The report in `text`, or None for what is none: another version may have written it."""
        counts: dict[TopicPartition, Counts] = {}
        fetches: dict[TopicPartition, Fetches] = {}
        try:
            said = json.loads(text)
            for topic, partitions in said["topics"].items():
                for number, one in partitions.items():
                    tp = TopicPartition(topic, int(number))
                    counts[tp] = {str(word): int(rows) for word, rows in one["counts"].items()}
                    seconds, longest = float(one["fetch_seconds"]), float(one["fetch_seconds_max"])
                    fetches[tp] = Fetches(int(one["fetches"]), seconds, longest)
            return cls(counts, fetches, bool(said["recorded"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def totals_after(before: Counts | None, counts: Counts, retries: int) -> dict[str, int]:
    """Totals n: totals n - 1 and what turn n adds. An epoch begins at 0, as does a ledger that kept none before."""
    added = Counter(counts)
    added["retries"] = retries
    return {word: (before or {}).get(word, 0) + added[word] for word in TOTALS}


def retries_in(rows: Iterable[OutcomeRow]) -> int:
    """How many attempts were not the first at their record."""
    return sum(row.attempt > 1 for row in rows)


def due_retries(state: PartitionState, now: datetime) -> int:
    """How many retries wait for nothing but the next turn."""
    return sum(
        len(run)
        for run in state.pending
        if run.value.kind is PendingKind.RETRY and run.value.due is not None and run.value.due <= now
    )


def oldest_pending(state: PartitionState) -> int | None:
    """The lowest pending offset, or None where nothing is pending."""
    return state.pending[0].start if state.pending else None


def last_fetch(before: Mapping[str, float] | None, fetches: Fetches | None = None) -> dict[str, float]:
    """The fetch figures of the last turn that read from the partition: this one, or those that `before` holds."""
    if fetches and fetches.count:
        mean = round(fetches.seconds / fetches.count, 6)
        return dict(zip(LAST_FETCH, (fetches.count, mean, fetches.longest), strict=True))
    return {name: before[name] for name in LAST_FETCH if before and name in before}


def metrics_of(
    state: PartitionState,
    log: LogBounds | None,
    committed: Committed | None,
    rows: Iterable[OutcomeRow],
    now: datetime,
    lag_seconds: float | None = None,
) -> dict[str, float]:
    """A partition after a turn, by name; what is not known is not there. `log` is the plan's.

    Of rows that speak of ranges `NAME_offsets` says how many offsets they speak of, records or not.
    """
    found = list(rows)
    metrics: dict[str, float | None] = {
        "log_start": log.start if log else None,
        "log_end": log.end if log else None,
        "committed": committed.offset if committed else None,
        "read": state.complete_to,
        "lag": max(0, log.end - state.floor) if log else None,
        "lag_seconds": lag_seconds,
        **{f"pending_{kind.value}": number for kind, number in state.pending_by_kind().items()},
        "due": due_retries(state, now),
        "oldest_pending": oldest_pending(state),
        "retries": retries_in(found),
    }
    for row in found:
        if row.end_offset is not None:
            name = f"{row.outcome.value}_offsets"
            metrics[name] = (metrics.get(name) or 0) + row.end - row.offset
    return {name: float(value) for name, value in metrics.items() if value is not None}
