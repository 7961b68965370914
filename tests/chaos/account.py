"""The oracle's own account of a lane: what it knows of each partition and turn, from the rows alone."""

import re
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
    """A pending offset: what it waits for, after how many attempts, and until when; with jitter, `latest` at most."""

    kind: str
    attempts: int
    due: datetime | None
    latest: datetime | None = None


class Policy(NamedTuple):
    """Retries of one class of errors; the multiplier is 2."""

    max_retries: int
    initial_delay: timedelta
    period: timedelta
    max_delay: timedelta
    jitter: float = 0.0

    def delay(self, attempts: int) -> timedelta:
        """How long to wait after so many attempts, at least."""
        wait = self.initial_delay if attempts == 1 else self.period * 2 ** (attempts - 1)
        return min(wait, self.max_delay)


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that the invariants depend on, and that no world changes."""

    group: str
    pipeline: str
    isolation: str
    on_external_reset: str
    policy: Policy
    by_error: Mapping[str, Policy | None]
    """None: never again."""
    dead_letter_topic: str | None
    lost_after: timedelta
    breaker: tuple[float, int] | None
    """(failure ratio, least number of records)"""

    def policy_of(self, error_class: str | None) -> Policy | None:
        """The policy of a class of errors."""
        return self.by_error.get(error_class or "", self.policy)

    @property
    def most_attempts(self) -> int:
        """What no record is ever tried more often than."""
        return 1 + max(one.max_retries for one in (self.policy, *self.by_error.values()) if one is not None)


@dataclass(slots=True)
class Place:
    """What the rows say of a partition, in one epoch."""

    topic_id: str
    start: int
    complete_to: int
    paused: bool = False
    attempts: Counter[int] = field(default_factory=Counter)
    fates: dict[int, str] = field(default_factory=dict)
    pending: dict[int, Waiting] = field(default_factory=dict)
    answers: dict[int, int | None] = field(default_factory=dict)
    """For each turn, the foreign value that its genesis or the last act has answered, and that may be overwritten."""
    found_at: dict[int, int] = field(default_factory=dict)
    """Turns whose plan found a commit of ours, and how long the history was."""
    floors: dict[int, int] = field(default_factory=dict)
    """What each settlement lets be committed."""
    claims: dict[int, int] = field(default_factory=dict)
    """What each claim does: its settlement may pass it, over what retention took first."""
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Handler calls under at most once, by topic id and offset."""

    @property
    def floor(self) -> int:
        return min(self.pending, default=self.complete_to)

    def allowed(self, n: int) -> set[int]:
        """What may be committed in the name of turn n."""
        return {known[n] for known in (self.floors, self.claims) if n in known}


@dataclass(slots=True)
class Turn:
    """What is stored of a turn, and by whom."""

    plan: Any = None
    claim: Any = None
    start: Any = None
    outcomes: Any = None
    decisions: Any = None
    settlement: Any = None
    by: dict[str, str] = field(default_factory=dict)
    started: datetime | None = None
    """When its records were handed out; None where that is not known."""
    planned_at: int = 0
    """How long the history was when it was planned."""
    committed: set[At] = field(default_factory=set)
    """Where the group was committed in this turn's name."""
    strangers: set[tuple[str, At]] = field(default_factory=set)
    """Who read another topic than the one that was planned, and where."""

    @property
    def once(self) -> bool:
        """Whether it was planned under at most once."""
        return self.plan is not None and self.plan.settings["guarantee"] == "at_most_once"

    def failures(self) -> tuple[int, int]:
        """(first attempts that failed, first attempts)"""
        first = [row.outcome for _, row in rows_of(self.outcomes) if row.attempt == 1]
        return first.count("failed") + first.count("dropped"), len(first)


def spread(runs: Iterable[Any]) -> dict[int, Any]:
    """Runs, offset by offset."""
    return {offset: run.value for run in runs for offset in range(run.start, run.end)}


def rows_of(files: Any) -> Iterable[tuple[At, Any]]:
    """The rows of a commit to `outcomes`."""
    for file in files or ():
        found: Mapping[At, Any] = file.rows
        for tp, rows in found.items():
            for row in rows:
                yield tp, row


def subscribed(settings: Mapping[str, Any], topic: str) -> bool:
    """Whether the file, as a plan has stored it, subscribes to a topic."""
    block = settings["kafka"]
    if block["pattern"] is not None:
        return re.fullmatch(block["pattern"], topic) is not None
    return topic in block["topics"]
