"""What the oracle remembers of a lane: the settings it judges by, each partition of an epoch, and each turn."""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, NoReturn

from ackline.ledger.offsets import TopicPartition


class Violation(AssertionError):
    """An invariant does not hold."""


def broken(rule: str, what: str) -> NoReturn:
    raise Violation(f"{rule}: {what}")


class Waiting(NamedTuple):
    """The state of a pending offset: its kind, its attempts and its due time. With jitter, due is `latest` at most."""

    kind: str
    attempts: int
    due: datetime | None
    latest: datetime | None = None

    def allows(self, pending: "Waiting") -> bool:
        if self.latest and self.due and pending.due:
            return pending[:2] == self[:2] and self.due <= pending.due <= self.latest
        return pending[:3] == self[:3]

    def due_by(self, time: datetime) -> "Waiting":
        """Returns the state after an operator has made a retry due at `time` at the latest."""
        return self._replace(due=None if self.due is None else min(self.due, time), latest=None)


class Policy(NamedTuple):
    """How often and when records of one error class are retried. The multiplier is 2."""

    max_retries: int
    initial_delay: timedelta
    period: timedelta
    max_delay: timedelta
    jitter: float = 0.0

    def delay(self, attempts: int) -> timedelta:
        """Returns the shortest time between this attempt, counted from 1, and the next."""
        wait = self.initial_delay if attempts == 1 else self.period * 2 ** (attempts - 1)
        return min(wait, self.max_delay)


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings by which a world is judged. They never change in it."""

    group: str
    pipeline: str
    isolation: str
    on_external_reset: str
    policy: Policy
    by_error: Mapping[str, Policy | None]
    """The policies of error classes; None: such a record is never retried."""
    dead_letter_topic: str | None
    lost_after: timedelta
    breaker: tuple[float, int] | None
    """The failure ratio and the least number of records."""

    @property
    def max_retries(self) -> int | None:
        """The limit of retries of every record; None if it depends on the error class."""
        return None if self.by_error else self.policy.max_retries

    @property
    def most_attempts(self) -> int:
        policies = (self.policy, *self.by_error.values())
        return 1 + max(policy.max_retries for policy in policies if policy is not None)

    def after_failure(self, row: Any) -> Waiting:
        """Returns the state of an offset after a failed attempt (I5): a retry, or a dead letter if none is left."""
        policy = self.by_error.get(row.error_class or "", self.policy)
        if row.error_class == "Dead" or policy is None or row.attempt > policy.max_retries:
            return Waiting("dead_letter", row.attempt, None)
        delay = policy.delay(row.attempt)
        due, latest = row.handled_at + delay, row.handled_at + delay * (1 + policy.jitter)
        return Waiting("retry", row.attempt, due, latest if policy.jitter else None)


@dataclass(slots=True)
class PartitionAccount:
    """One partition in one epoch: its state by the newest settlement, and what its turns have stored."""

    topic_id: str
    complete_to: int
    paused: bool = False
    pending: dict[int, Waiting] = field(default_factory=dict)
    failures: dict[int, Waiting] = field(default_factory=dict)
    """For each offset that has failed, its state after the last failure."""
    acknowledged: dict[int, int | None] = field(default_factory=dict)
    """For each turn, the foreign offset that the genesis or the last action has acknowledged; commits may overwrite
    it."""
    own_commit_found: dict[int, int] = field(default_factory=dict)
    """The turns whose plan found a commit of this ledger, with the length of the history at that time."""
    floors: dict[int, int] = field(default_factory=dict)
    """The floor after each settlement."""
    cut: int | None = None
    """The first offset below complete_to at which the log is another one than the one that was read; None if it is
    whole. No run may go on there (S42)."""
    claims: dict[int, int] = field(default_factory=dict)
    """The offset of each claim. A settlement may raise the floor above it, over records that retention took first."""
    start: int = field(init=False)
    """Where the epoch begins."""
    settled: set[int] = field(default_factory=set)
    """The offsets to which the turns of the epoch have given a terminal outcome."""

    def __post_init__(self) -> None:
        self.start = self.complete_to

    @property
    def floor(self) -> int:
        return min(self.pending, default=self.complete_to)

    @property
    def first_in_flight(self) -> int:
        """The first offset in flight; where nothing is, the end of all offsets."""
        return min((offset for offset, waiting in self.pending.items() if waiting.kind == "in_flight"), default=2**62)

    @property
    def first_behind(self) -> int:
        """The first offset that counts for `max_offset_behind`: a record in flight is read, and is not behind."""
        others = (offset for offset, waiting in self.pending.items() if waiting.kind != "in_flight")
        return min(others, default=self.complete_to)

    def allowed_commits(self, n: int) -> set[int]:
        """Returns the offsets that may be committed for turn n: its floor, and its claim."""
        return {offsets[n] for offsets in (self.floors, self.claims) if n in offsets}


@dataclass(slots=True)
class Turn:
    """What is stored of a turn, and which process has stored it."""

    plan: Any = None
    claim: Any = None
    waiver: Any = None
    start: Any = None
    outcomes: Any = None
    decisions: Any = None
    settlement: Any = None
    stored_by: dict[str, str] = field(default_factory=dict)
    """The run id of the process that stored each part, by the name of the part."""
    answers: str | None = None
    """What decisions n hold about the answers from outside."""
    outcomes_at: int = 0
    """The length of the history when outcomes n were stored."""
    started: datetime | None = None
    """When its records were handed out; None if that is not known."""
    planned_at: int = 0
    """The length of the history when it was planned."""
    committed: set[TopicPartition] = field(default_factory=set)
    """The partitions that were committed for this turn."""
    misread: set[tuple[str, TopicPartition]] = field(default_factory=set)
    """The processes (by run id) that read another topic than the planned one, with the partition."""
    handed_out: set[tuple[TopicPartition, int]] = field(default_factory=set)
    """The offsets for which the handler was called."""
    calls: list[tuple[str, TopicPartition, int]] = field(default_factory=list)
    """Each call of the handler in order, with the process that made it."""

    @property
    def order(self) -> str:
        """What may not overtake in the turn. At most once, nothing is held back."""
        ordered = self.plan is not None and self.plan.settings["guarantee"] == "at_least_once"
        return str(self.plan.settings["order"]) if ordered else "none"

    @property
    def once(self) -> bool:
        return self.plan is not None and self.plan.settings["guarantee"] == "at_most_once"

    def copy(self) -> "Turn":
        names = ("stored_by", "committed", "misread", "handed_out", "calls")
        changing = {name: getattr(self, name).copy() for name in names}
        return replace(self, **changing)

    def failures(self) -> tuple[int, int]:
        first = [row.outcome for _, row in rows_of(self.outcomes) if row.attempt == 1]
        return first.count("failed") + first.count("dropped"), len(first)


TERMINAL = ("acked", "skipped", "dropped", "dead", "expired", "compacted", "lost")


@dataclass(slots=True)
class Coverage:
    """Which offsets have a terminal outcome in any epoch of the lane, and from where on each record must have one
    (I15). A key names the topic by its id: in another topic of the same name the same offsets are of other records."""

    starts: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    """The lowest start of any epoch."""
    settled: dict[tuple[str, TopicPartition], set[int]] = field(default_factory=dict)

    def begin(self, topic_id: str, tp: TopicPartition, start: int) -> None:
        key = topic_id, tp
        self.starts[key] = min(self.starts.get(key, start), start)

    def add(self, topic_id: str, tp: TopicPartition, row: Any) -> None:
        if row.outcome in TERMINAL:
            self.settled.setdefault((topic_id, tp), set()).update(range(row.offset, row.end))

    def cut(self, topic_id: str, tp: TopicPartition, at: int) -> None:
        """Notes that the log holds other records from an offset on that is below complete_to. Nothing is judged until
        an epoch has begun in that log."""
        self.starts.pop((topic_id, tp), None)
        self.settled[topic_id, tp] = {o for o in self.settled.get((topic_id, tp), ()) if o < at}

    def check(self, topic_id: str, tp: TopicPartition, floor: int, existing: Iterable[int], what: str) -> None:
        """I15: each record from the lowest start to the newest floor has a terminal outcome in some epoch."""
        start, settled = self.starts.get((topic_id, tp), floor), self.settled.get((topic_id, tp), set())
        left = [offset for offset in existing if start <= offset < floor and offset not in settled]
        if left:
            broken("I15", f"after {what} the floor of {tp} is {floor}, and no epoch since {start} has settled {left}")


class Cut(NamedTuple):
    """A log that was set back to a copy: from the offset `at` on it holds other records. `since` is the length of the
    history then."""

    since: int
    topic_id: str
    tp: TopicPartition
    at: int


@dataclass(slots=True)
class OfAllEpochs:
    """What the oracle knows beside the account of each epoch."""

    letters: set[tuple[int, TopicPartition, int]] = field(default_factory=set)
    """The acknowledged dead letters, as (epoch, tp, offset)."""
    coverage: Coverage = field(default_factory=Coverage)
    cuts: list[Cut] = field(default_factory=list)
    """All cuts of logs, also those of which a copy of the tables knows nothing."""

    def copy(self) -> "OfAllEpochs":
        return OfAllEpochs(set(self.letters), deepcopy(self.coverage), self.cuts)

    def cut_since(self, index: int, topic_id: str, tp: TopicPartition) -> int:
        """Returns the lowest offset from which on a log holds other records than it did; 2**62 if it holds the same."""
        cuts = (cut.at for cut in self.cuts if cut.since >= index and (cut.topic_id, cut.tp) == (topic_id, tp))
        return min(cuts, default=2**62)


def spread(ranges: Iterable[Any]) -> dict[int, Any]:
    """Returns the value of each offset of valued ranges."""
    return {offset: valued.value for valued in ranges for offset in range(valued.start, valued.end)}


def rows_of(files: Any) -> Iterable[tuple[TopicPartition, Any]]:
    """Yields the rows of a commit to `outcomes`, each with its topic-partition."""
    for file in files or ():
        for tp, rows in file.rows.items():
            for row in rows:
                yield tp, row


def subscribed(settings: Mapping[str, Any], topic: str) -> bool:
    """Returns whether the pipeline file, as a plan has stored it, subscribes to a topic."""
    block = settings["kafka"]
    if block["pattern"] is not None:
        return re.fullmatch(block["pattern"], topic) is not None
    return topic in block["topics"]
