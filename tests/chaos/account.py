"""The oracle's own account of a lane: what it knows of each partition and turn, from the rows alone."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, NoReturn

from ackline.offsets import TopicPartition as At


class Violation(AssertionError):
    """An invariant does not hold."""


def broken(rule: str, said: str) -> NoReturn:
    """Raise a Violation."""
    raise Violation(f"{rule}: {said}")


class Waiting(NamedTuple):
    """A pending offset: what it waits for, after how many attempts, and until when."""

    kind: str
    attempts: int
    due: datetime | None


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that the invariants depend on."""

    group: str
    isolation: str
    max_retries: int
    initial_delay: timedelta
    period: timedelta
    max_delay: timedelta
    dead_letter_topic: str | None

    def delay(self, attempts: int) -> timedelta:
        """How long to wait after so many attempts; the multiplier is 2."""
        wait = self.initial_delay if attempts == 1 else self.period * 2 ** (attempts - 1)
        return min(wait, self.max_delay)


@dataclass(slots=True)
class Place:
    """What the rows say of a partition."""

    topic_id: str
    start: int
    complete_to: int
    attempts: Counter[int] = field(default_factory=Counter)
    fates: dict[int, str] = field(default_factory=dict)
    pending: dict[int, Waiting] = field(default_factory=dict)
    seen: int | None = None
    ours_found: int | None = None
    """Where in the history a plan first found a commit of ours."""
    floors: dict[int, int] = field(default_factory=dict)

    @property
    def floor(self) -> int:
        return min(self.pending, default=self.complete_to)


@dataclass(slots=True)
class Turn:
    """What is stored of a turn."""

    plan: Any = None
    proved_by: str = ""
    outcomes: Any = None
    decisions: Any = None
    settlement: Any = None


def spread(runs: Iterable[Any]) -> dict[int, Any]:
    """Runs, offset by offset."""
    return {offset: run.value for run in runs for offset in range(run.start, run.end)}


def rows_of(files: Any) -> Iterable[tuple[At, Any]]:
    """The rows of a commit to `outcomes`."""
    for file in files or ():
        found: Mapping[At, Any] = file.rows
        for at, rows in found.items():
            for row in rows:
                yield at, row
