"""The metrics of a turn and of its steps: what it did to a partition, and in which state it left it. Pure.

Most numbers follow from the plan, the state and the outcome rows. Only the Spark tasks can count how long they waited
for records, what the steps did (counts, execute times, latency of trees) and, if outcomes are not kept as rows, how
many records had which outcome. They report it as a `TurnReport`, whose text replay stores in the commit of outcomes n.
settle stores what these functions compute in the columns `metrics` and `totals` of `settlements`. A turn has one
settlement, so a turn that is settled twice counts once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from ackline.handler import SOURCE, Durations, StepCounts
from ackline.ledger.commit_rule import Committed
from ackline.ledger.fold import OutcomeRow, PartitionState
from ackline.ledger.offsets import LogBounds, TopicPartition, count
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.states import OPEN_TRANSACTION
from ackline.stored import decode_or_none, encode

_MILLISECOND = 1_000_000


@dataclass(slots=True)
class StepFigures:
    """The figures of all steps, by name: `source` first, the others in the order of the pipeline file."""

    steps: dict[str, StepCounts] = field(default_factory=dict)
    latency: Durations = field(default_factory=Durations)
    """From the call of a record's own handler to the end of its tree, of the records that were acked."""
    turns: int = 1
    """Of how many turns the figures are the sum."""

    @classmethod
    def of_steps(cls, names: Iterable[str]) -> "StepFigures":
        """Returns the figures of no turn, with these steps after `source`."""
        return cls({name: StepCounts() for name in (SOURCE, *names)}, turns=0)

    @property
    def tuples_a_record(self) -> float | None:
        """How many tuples the busiest step got for each record; None if no record was handled."""
        others = dict(self.steps)
        source = others.pop(SOURCE, None)
        if source is None or not source.executed:
            return None
        return max((counts.executed for counts in others.values()), default=0) / source.executed

    def add(self, other: "StepFigures") -> None:
        """Adds the figures of other turns. A step that is not among these steps is left out: the file has changed."""
        for name, counts in self.steps.items():
            if name in other.steps:
                counts.add(other.steps[name])
        self.latency.add(other.latency)
        self.turns += other.turns

    def encode(self) -> str:
        """Returns the figures as the text that the tables hold: JSON of about 150 bytes a step. Times are in ms."""
        steps = {name: done.numbers() | _encoded(done.execute, "execute_ms") for name, done in self.steps.items()}
        return encode(_StoredFigures(steps, _encoded(self.latency, "latency_ms")))

    @classmethod
    def decode(cls, text: str | None) -> "StepFigures | None":
        """Returns the figures of one turn in a text of the tables; None without a text, and if it is damaged."""
        stored = decode_or_none(text, _StoredFigures)
        if stored is None:
            return None
        names = StepCounts().numbers()
        steps = {
            step: StepCounts(**{name: int(done.get(name, 0)) for name in names}, execute=_decoded(done, "execute_ms"))
            for step, done in stored.steps.items()
        }
        return cls(steps, _decoded(stored.complete, "latency_ms"))


@dataclass(frozen=True, slots=True)
class _StoredFigures:
    """Figures as the tables hold them: numbers by name, of each step and of the complete trees."""

    steps: dict[str, dict[str, float]]
    complete: dict[str, float]


def figures_over(stored: Iterable[str | None], names: Sequence[str] | None = None) -> StepFigures:
    """Returns the sum of the figures of several turns, oldest first, as the tables hold them.

    It has the steps `names` after `source`; without them, the steps of the newest turn, none if there is no turn.
    """
    decoded = [figures for text in stored if (figures := StepFigures.decode(text)) is not None]
    total = StepFigures({}, turns=0) if names is None else StepFigures.of_steps(names)
    if names is None and decoded:
        total.steps = {name: StepCounts() for name in decoded[-1].steps}
    for figures in decoded:
        total.add(figures)
    return total


def steps_json(figures: StepFigures) -> dict[str, Any]:
    """Returns the figures as `ackline status --json` prints them. Times are in milliseconds; null without a call."""
    steps = [
        {"step": name, **done.numbers(), "execute_ms": mean_and_max(done.execute)}
        for name, done in figures.steps.items()
    ]
    return {"steps": steps, "complete_latency_ms": mean_and_max(figures.latency)}


def mean_and_max(durations: Durations) -> dict[str, float | None]:
    """Returns mean and maximum in milliseconds, to a microsecond; both None if nothing was measured."""
    if not durations.count:
        return {"mean": None, "max": None}
    mean = durations.total / durations.count
    return {"mean": round(mean / _MILLISECOND, 3), "max": round(durations.longest / _MILLISECOND, 3)}


def _encoded(durations: Durations, name: str) -> dict[str, float]:
    total, longest = (round(ns / _MILLISECOND, 6) for ns in (durations.total, durations.longest))
    return {"count": durations.count, name: total, f"{name}_max": longest}


def _decoded(stored: Mapping[str, float], name: str) -> Durations:
    total, longest = (round(stored.get(key, 0) * _MILLISECOND) for key in (name, f"{name}_max"))
    return Durations(int(stored.get("count", 0)), total, longest)


T = TypeVar("T")

CountsByOutcome = Mapping[str, int]
"""How many offsets have each outcome. A row of a range counts as all its offsets, also those that held no record:
no process has read them. `failed` and `acked` count attempts, so a record that failed twice counts twice."""

_NO_END = (Outcome.IN_FLIGHT, Outcome.HELD_BACK)
TOTALS = (*(outcome.value for outcome in Outcome if outcome not in _NO_END), "retries")
"""The keys of `totals`: the offsets of the epoch so far by outcome, and how many attempts were retries."""

FETCHES, FETCH_MEAN, FETCH_MAX = "fetches", "fetch_seconds_mean", "fetch_seconds_max"
_FETCH_METRICS = (FETCHES, FETCH_MEAN, FETCH_MAX)


@dataclass(frozen=True, slots=True)
class FetchTimes:
    """How long tasks waited for the next batch of a partition's records."""

    count: int = 0
    """How many times they waited."""
    seconds: float = 0.0
    """The sum of all waits."""
    longest: float = 0.0
    """The longest wait, in seconds."""

    def __add__(self, other: "FetchTimes") -> "FetchTimes":
        return FetchTimes(self.count + other.count, self.seconds + other.seconds, max(self.longest, other.longest))


def timed_fetches(source: Iterable[T], clock: Callable[[], float]) -> Iterator[tuple[T, FetchTimes]]:
    """Each item of `source` with how long it took to come. The time that the caller spends on an item does not count.

    `clock` returns seconds from any fixed point, such as `time.perf_counter`.
    """
    iterator = iter(source)
    while True:
        begun = clock()
        try:
            item = next(iterator)
        except StopIteration:
            return
        seconds = clock() - begun
        yield item, FetchTimes(1, seconds, seconds)


@dataclass(frozen=True, slots=True)
class _StoredPartition:
    """What a stored report has of a topic-partition. Times are in seconds."""

    counts: CountsByOutcome
    fetches: int
    fetch_seconds: float
    fetch_seconds_max: float


@dataclass(frozen=True, slots=True)
class _StoredReport:
    """A report as the commit of outcomes holds it: by topic and partition. `steps` is the text of the figures."""

    recorded: bool
    topics: dict[str, dict[int, _StoredPartition]]
    steps: str | None = None
    unacked: int = 0
    code: str = ""


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What the tasks of a turn report of it."""

    counts: Mapping[TopicPartition, CountsByOutcome] = field(default_factory=dict)
    """How many records had which outcome."""
    fetches: Mapping[TopicPartition, FetchTimes] = field(default_factory=dict)
    recorded: bool = True
    """Whether each outcome is also a row of the table `outcomes`."""
    steps: StepFigures | None = None
    """What the steps of the pipeline did; None with neither `steps` nor `outputs`."""
    unacked: int = 0
    """How many attempts ended as `Unacked`; 0 if outcomes are stored as rows, from which settle counts them."""
    code: str = ""
    """The code of the process that replayed the turn; empty if it is not known."""

    def encode(self) -> str:
        """The text that is stored in the commit of outcomes: JSON of about sixty bytes a partition."""
        topics: dict[str, dict[int, _StoredPartition]] = {}
        for tp in sorted({*self.counts, *self.fetches}):
            fetched = self.fetches.get(tp, FetchTimes())
            seconds, longest = round(fetched.seconds, 6), round(fetched.longest, 6)
            of_tp = _StoredPartition(self.counts.get(tp, {}), fetched.count, seconds, longest)
            topics.setdefault(tp.topic, {})[tp.partition] = of_tp
        steps = self.steps.encode() if self.steps else None
        return encode(_StoredReport(self.recorded, topics, steps, self.unacked, self.code))

    @classmethod
    def decode(cls, text: str | None) -> "TurnReport | None":
        """Returns the report in a text; None without a text, and if it is damaged."""
        stored = decode_or_none(text, _StoredReport)
        if stored is None:
            return None
        by_tp = {TopicPartition(topic, n): of for topic, parts in stored.topics.items() for n, of in parts.items()}
        counts = {tp: of.counts for tp, of in by_tp.items()}
        fetches = {tp: FetchTimes(of.fetches, of.fetch_seconds, of.fetch_seconds_max) for tp, of in by_tp.items()}
        return cls(counts, fetches, stored.recorded, StepFigures.decode(stored.steps), stored.unacked, stored.code)


def totals_after(before: CountsByOutcome | None, counts: CountsByOutcome, retries: int) -> dict[str, int]:
    """The totals after a turn: those before it plus what it adds. `before` is None at the start of an epoch, and for a
    settlement of a version that stored no totals; both count from 0."""
    added = Counter(counts)
    added["retries"] = retries
    return {key: (before or {}).get(key, 0) + added[key] for key in TOTALS}


def retries_in(rows: Iterable[OutcomeRow]) -> int:
    """How many of the rows are attempts after a record's first."""
    columns = OutcomeColumns.of(rows)
    return int(((columns.attempts > 1) & ~columns.answered).sum())


def due_retries(state: PartitionState, now: datetime) -> int:
    """How many pending retries are due at `now`."""
    return state.pending.due_at(now).offsets


def oldest_pending(state: PartitionState) -> int | None:
    """The lowest pending offset, or None if nothing is pending."""
    return state.pending[0].start if state.pending else None


def lag_seconds(is_behind: bool, first_at: datetime | None, now: datetime) -> float | None:
    """The age in seconds of the first record that is not settled, whose time is `first_at`.

    0 if the partition is not behind; None if the record's time is unknown.
    """
    if not is_behind:
        return 0.0
    return None if first_at is None else max(0.0, round((now - first_at).total_seconds(), 3))


def fetch_metrics(before: Mapping[str, float] | None, fetches: FetchTimes | None = None) -> dict[str, float]:
    """The metrics of the last turn that read from the partition: from `fetches` if this turn did, else as in `before`,
    the metrics of the settlement before."""
    if fetches and fetches.count:
        mean = round(fetches.seconds / fetches.count, 6)
        return dict(zip(_FETCH_METRICS, (fetches.count, mean, fetches.longest), strict=True))
    return {name: before[name] for name in _FETCH_METRICS if before and name in before}


def partition_metrics(
    state: PartitionState,
    log: LogBounds | None,
    committed: Committed | None,
    rows: Iterable[OutcomeRow],
    now: datetime,
    lag_seconds: float | None = None,
) -> dict[str, float]:
    """The metrics of a partition after a turn, by name. Leaves out what is not known.

    `log` is the log as the plan saw it, `rows` are the turn's. `OUTCOME_in_ranges` is the part of that outcome's count
    which comes from rows of ranges: these offsets may hold no record. `answered` is how many rows end or renew an
    attempt in flight, and are no attempt themselves.
    """
    turn_rows = OutcomeColumns.of(rows)
    metrics: dict[str, float | None] = {
        "committed": committed.offset if committed else None,
        "read": state.complete_to,
        "lag": max(0, log.end - state.floor) if log else None,
        "lag_seconds": lag_seconds,
        **{f"pending_{kind.value}": number for kind, number in state.pending_by_kind().items()},
        "rescued": state.copies.offsets or None,
        "released": count(state.released) or None,
        "due": due_retries(state, now),
        "oldest_pending": oldest_pending(state),
        "retries": retries_in(turn_rows),
        "answered": int(turn_rows.answered.sum()) or None,
    }
    for row in turn_rows.of_ranges():
        name = f"{row.outcome.value}_in_ranges"
        metrics[name] = (metrics.get(name) or 0) + row.end - row.offset
    return log_metrics(log) | {name: float(value) for name, value in metrics.items() if value is not None}


def log_metrics(log: LogBounds | None) -> dict[str, float]:
    """The metrics that say where a log was; empty if that is not known."""
    if log is None:
        return {}
    held = {OPEN_TRANSACTION: float(log.open_transaction)} if log.open_transaction else {}
    return {"log_start": float(log.start), "log_end": float(log.end)} | held
