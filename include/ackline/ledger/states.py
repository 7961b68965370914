"""How a partition and a pipeline are, in one list of words. Pure.

The command, the page, the metrics and the alerts all ask `state_of`, so that none of them shows a partition as better
than another does (I20). What it needs of the past is stored with each settlement (`signals_after`), so that the answer
costs no read of earlier turns.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import Outcome, OutcomeColumns

STUCK_AFTER = timedelta(hours=2)
"""A floor that has not moved for this long, though records wait above it, is stuck. The alert AcklineFloorStuck has the
same limit."""
SOON = timedelta(days=1)
"""If retention reaches the floor within this time, the partition is losing."""
LONGEST_TRANSACTION = timedelta(minutes=15)
"""The longest time for which a broker lets a transaction be open, unless its `transaction.max.timeout.ms` is raised."""
RECENT = timedelta(hours=1)
"""A record that died this long ago still makes its partition failing."""
FAILING_SHARE = 0.02
"""From this share of new records that fail, a partition is failing. Ordinary retries stay below it."""
MISSED_SCHEDULES = 3
"""After this many intervals of the schedule without a turn, the state of a pipeline is unknown."""


class State(StrEnum):
    """How a partition or a pipeline is, the worst first."""

    LOSING = "losing"
    """Retention has taken records that were not settled, or takes some within a day."""
    STUCK = "stuck"
    """The floor has not moved for two hours though the log has more, or a turn stands still."""
    FAILING = "failing"
    """Too many of the new records fail, or a record died in the last hour."""
    UNKNOWN = "unknown"
    """The end of the log is not known, or nothing ran for three intervals of the schedule."""
    PAUSED = "paused"
    """An operator has paused it, or it is not subscribed any more."""
    WAITING = "waiting"
    """Records wait for a retry that is in time, for an answer or for a lower record, or an open transaction holds back
    all that is not read."""
    WORKING = "working"
    """Records are not read yet, and the floor moves."""
    UP_TO_DATE = "up to date"
    """Every record that is in the log is settled."""

    @property
    def rank(self) -> int:
        """Its place in this list: 0 is the worst."""
        return _RANKS[self]


_RANKS = {state: rank for rank, state in enumerate(State)}

FLOOR_SINCE, NEW_RECORDS, NEW_FAILED, DEAD_AT, RETENTION_AT = (
    "floor_since", "new_records", "new_failed", "dead_at", "retention_at",
)  # fmt: skip
"""The metrics of a settlement that `state_of` is made of. Times are in seconds since 1970."""
_LAST_RECORDS, _LAST_FAILED = "last_new_records", "last_new_failed"
"""What a turn without new records keeps of NEW_RECORDS and NEW_FAILED: so that sums over turns count each record once,
only the turn that has handled new records has these two."""


OPEN_TRANSACTION, OPEN_SINCE = "open_transaction", "open_transaction_since"
"""The metrics of a settlement that say what an open transaction holds back: how many offsets above the log end, and the
time of its first record in seconds since 1970. Neither is stored without an open transaction."""
_LOG = ("log_start", "log_end", OPEN_TRANSACTION, OPEN_SINCE)


def is_behind(lag: int | None, open_transaction: int) -> bool | None:
    """Returns whether records wait above the floor: readable ones, or those that an open transaction holds back. None
    if the lag is not known.

    Only a partition of which this is False may be called up to date, settled or without lag (I20).
    """
    return True if open_transaction else None if lag is None else lag > 0


@dataclass(frozen=True, slots=True)
class Signals:
    """What the past of a partition says about its state. What is not known is None."""

    floor_since: datetime | None = None
    """Since when the floor is where it is, though records wait above it."""
    new_records: int | None = None
    """How many records the last turn that met new ones has handled for the first time."""
    new_failed: int | None = None
    """How many of these failed."""
    dead_at: datetime | None = None
    """When a record of it died last."""
    retention_at: datetime | None = None
    """When retention may take the first record that is not settled."""

    @classmethod
    def of(cls, metrics: Mapping[str, float] | None) -> "Signals":
        """Returns the signals that a settlement has stored with its metrics."""
        stored = metrics or {}
        names = (NEW_RECORDS, NEW_FAILED) if NEW_RECORDS in stored else (_LAST_RECORDS, _LAST_FAILED)
        new, failed = (None if name not in stored else int(stored[name]) for name in names)
        return cls(_time(stored, FLOOR_SINCE), new, failed, _time(stored, DEAD_AT), _time(stored, RETENTION_AT))

    @property
    def failing_share(self) -> float | None:
        """The share of the last new records that failed; None if no turn has met any."""
        if not self.new_records or self.new_failed is None:
            return None
        return self.new_failed / self.new_records


def _time(stored: Mapping[str, float], name: str) -> datetime | None:
    return datetime.fromtimestamp(stored[name], UTC) if name in stored else None


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition as a reader has found it. What is not known is None."""

    first_at_risk: int
    """The lowest offset that is not settled and has no copy in the rescue topic. The floor, if nothing is rescued."""
    lag: int | None
    """How many offsets lie between the floor and the readable end of the log."""
    log_start: int | None
    pending: int
    undelivered: int = 0
    """How many dead letters the broker has not acknowledged."""
    paused: bool = False
    """Whether no run reads it: it is paused, parked, or an operator has let it go."""
    stands_still: bool = False
    """Whether each run stops at it, or at the turn of its lane."""
    expired: bool = False
    """Whether the newest turn has settled records of it as expired."""
    signals: Signals = Signals()
    is_overdue: bool = False
    """Whether nothing ran for `MISSED_SCHEDULES` intervals of the schedule."""
    open_transaction: int = 0
    """How many offsets an open transaction holds back above the readable end."""


def state_of(partition: PartitionFacts, now: datetime) -> State:
    """Returns the worst state that holds for a partition at `now`."""
    signals, behind = partition.signals, is_behind(partition.lag, partition.open_transaction) is not False
    # A released record waits below the floor, where the lag does not count it.
    waits = behind or bool(partition.pending)
    gone = partition.log_start is not None and partition.log_start > partition.first_at_risk and waits
    if gone or partition.expired or (waits and _by(signals.retention_at, now + SOON)):
        return State.LOSING
    still = behind and not partition.paused and _by(signals.floor_since, now - STUCK_AFTER)
    if partition.stands_still or partition.undelivered or still:
        return State.STUCK
    if (signals.failing_share or 0) >= FAILING_SHARE:
        return State.FAILING
    if signals.dead_at is not None and signals.dead_at > now - RECENT:
        return State.FAILING
    if partition.paused:
        return State.PAUSED
    if partition.lag is None or partition.is_overdue:
        return State.UNKNOWN
    if partition.pending or (partition.open_transaction and not partition.lag):
        return State.WAITING
    return State.WORKING if behind else State.UP_TO_DATE


def _by(time: datetime | None, limit: datetime) -> bool:
    return time is not None and time <= limit


def worst_state(states: Iterable[State]) -> State:
    """Returns the worst of these states; UNKNOWN without one: nothing is known of a lane without a partition."""
    return min(states, key=lambda state: state.rank, default=State.UNKNOWN)


def metrics_of_start(metrics: Mapping[str, float] | None, start: int, now: datetime) -> dict[str, float]:
    """Returns the metrics of a partition that a reset has put to `start`, from those that the reset has stored.

    The log is as long as it was, so what lies above the start waits (I20). Empty if its end is not known.
    """
    stored = metrics or {}
    kept = {name: stored[name] for name in _LOG if name in stored}
    if "log_end" not in kept:
        return {}
    lag = max(0.0, kept["log_end"] - start)
    waits = is_behind(int(lag), int(kept.get(OPEN_TRANSACTION, 0)))
    return kept | {"lag": lag} | ({FLOOR_SINCE: now.timestamp()} if waits else {})


def signals_after(
    before: Mapping[str, float] | None,
    rows: Iterable[OutcomeRow],
    *,
    moved: bool,
    behind: bool | None,
    new_records: int,
    retention_at: datetime | None,
    now: datetime,
    without_row: int = 0,
) -> dict[str, float]:
    """Returns the signals of a partition after a turn, as metrics.

    `before` are the metrics after the turn before, `rows` the turn's outcomes, `behind` is as `is_behind` says it,
    `new_records` how many records the turn has handled for the first time; `without_row` of them failed and have no
    row. A turn without new records keeps the share
    of the last turn that had some: otherwise a pipeline would look mended as soon as its topic is silent.
    """
    earlier, metrics = before or {}, dict[str, float]()
    waited = FLOOR_SINCE in earlier and not moved
    if behind or (behind is None and waited):
        metrics[FLOOR_SINCE] = earlier[FLOOR_SINCE] if waited else now.timestamp()
    columns = OutcomeColumns.of(rows)
    failed = without_row + sum(
        int(((columns.codes == code) & (columns.attempts == 1) & ~columns.answered).sum())
        for code, (outcome, _) in enumerate(columns.results)
        if outcome in (Outcome.FAILED, Outcome.DROPPED)
    )
    if new_records:
        metrics |= {NEW_RECORDS: float(new_records), NEW_FAILED: float(min(failed, new_records))}
    elif (last := Signals.of(earlier)).new_records is not None and last.new_failed is not None:
        metrics |= {_LAST_RECORDS: float(last.new_records), _LAST_FAILED: float(last.new_failed)}
    if len(columns.with_outcome(Outcome.DEAD)):
        metrics[DEAD_AT] = now.timestamp()
    elif DEAD_AT in earlier:
        metrics[DEAD_AT] = earlier[DEAD_AT]
    if retention_at is not None:
        metrics[RETENTION_AT] = retention_at.timestamp()
    return metrics
