"""A partition as the page shows it. Pure.

Everything is judged by the newest settlement and the turns before it, so the page needs no broker.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from ackline.errors import GroupMoved, NewerCommit
from ackline.ledger.commit_rule import CommitMetadata, check_commit_allowed
from ackline.ledger.explain import Apart, HeldBy, OpenTransaction, PartitionEvidence, apart, held_by
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.pending import PendingKind
from ackline.ledger.planning import HELD_BACK, PARKED, PAUSED, RUN_FULL, WAITING, WINDOW_FULL
from ackline.ledger.planning import OPEN_TRANSACTION as NOT_READABLE
from ackline.ledger.states import OPEN_SINCE, OPEN_TRANSACTION, PartitionFacts, Signals, State, is_behind, state_of
from ackline.ledger.turns import SettledPartition

STUCK_TURNS = 3
"""How many turns must lie before the newest one, so that a partition which it could not read counts as stuck."""
OPEN_TOO_LONG = timedelta(hours=1)
"""After this time an open plan that no process replays, an overdue retry or a stopped run counts as stuck."""
_HARMLESS = (HELD_BACK, NOT_READABLE, PARKED, PAUSED, RUN_FULL, WAITING, WINDOW_FULL)
"""Reasons to read nothing that pass by themselves, or that an operator chose."""


@dataclass(frozen=True)  # without slots, which a cached property can not have
class PartitionReading:
    """A partition as the tables show it. Offsets that are not known are None."""

    tp: TopicPartition
    settled: SettledPartition
    why: str | None
    """Why the newest turn read nothing of it."""
    earlier_log_start: int | None
    """The log start `elapsed` before the newest turn was settled."""
    elapsed: timedelta
    still_turns: int
    """How many turns lie before the newest one, from that of `earlier_log_start` on."""
    settled_at: datetime
    now: datetime
    own: CommitMetadata | None = None
    """The metadata with which the newest turn commits its floor; None if it commits nothing: a backfill, or rows that
    wait for their output table."""
    found: int | None = None
    """The offset that the open turn has found committed; None without an open turn."""
    is_overdue: bool = False
    """Whether nothing ran for three intervals of the schedule."""

    @property
    def floor(self) -> int:
        """The floor after the newest turn."""
        return self.settled.state.floor

    @property
    def complete_to(self) -> int:
        """The end of what is proved to have been read."""
        return self.settled.state.complete_to

    def figure(self, name: str) -> int | None:
        """Returns an offset or a count that the settlement stored; None if it is not known."""
        value = (self.settled.metrics or {}).get(name)
        return None if value is None else int(value)

    @property
    def log_start(self) -> int | None:
        """The log start when the newest turn was planned."""
        return self.figure("log_start")

    @property
    def log_end(self) -> int | None:
        """The log end when the newest turn was planned."""
        return self.figure("log_end")

    @property
    def committed(self) -> int | None:
        """What the group holds after the newest turn: its floor, or an older or foreign commit that stayed.

        A later plan has read it. Without one it follows from the rule of commits: a turn commits its floor once it is
        settled, and where it may not, its run fails and the commit that was there stays.
        """
        if self.found is not None:
            return self.found
        before = self.settled.committed.offset if self.settled.committed else self.figure("committed")
        return before if self.own is None or self.commit_stayed else self.floor

    @property
    def commit_stayed(self) -> bool:
        """Whether the newest turn may not commit over what the group held: another client or ledger committed that."""
        if self.own is None:
            return False
        row = self.settled
        try:
            check_commit_allowed(self.tp, row.committed, self.own, row.acknowledged_foreign_offset)
        except (GroupMoved, NewerCommit):
            return True
        return False

    @property
    def lag(self) -> int | None:
        """How many offsets between the floor and the log end hold the lane back; None if the log end is not known."""
        return self.figure("lag")

    @property
    def open_transaction(self) -> int:
        """How many offsets an open transaction held back above the log end when the newest turn was planned."""
        return self.figure(OPEN_TRANSACTION) or 0

    @property
    def evidence(self) -> PartitionEvidence:
        """What the tables tell of what holds the partition."""
        since, held = self.figure(OPEN_SINCE), None
        if self.open_transaction:
            held = OpenTransaction(None if since is None else datetime.fromtimestamp(since, UTC), self.open_transaction)
        return PartitionEvidence(
            self.tp, self.floor, self.held_by, self.log_start, self.log_end, None, self.now, self.why,
            open_transaction=held, first_at_risk=self.settled.state.first_without_copy,
            apart=self.apart,
        )  # fmt: skip

    @property
    def is_behind(self) -> bool:
        """Whether offsets may wait above the floor."""
        return is_behind(self.lag, self.open_transaction) is not False

    @property
    def held_by(self) -> HeldBy | None:
        """The pending offset that holds the floor."""
        return held_by(self.settled.state)

    @property
    def apart(self) -> Apart | None:
        """The pending offsets that do not hold the floor."""
        return apart(self.settled.state)

    @property
    def pending(self) -> int:
        """How many offsets are pending, of all kinds."""
        runs = self.settled.state.pending
        return runs.offsets if runs else 0  # most of a thousand partitions have none

    @property
    def signals(self) -> Signals:
        """What the past of the partition says about its state."""
        signals = Signals.of(self.settled.metrics)
        soonest = [time for time in (signals.retention_at, self._reached_at_pace) if time is not None]
        waits = self.is_behind or self.pending
        return replace(signals, retention_at=min(soonest, default=None) if waits else None)

    @property
    def _reached_at_pace(self) -> datetime | None:
        """When the log start reaches what has no copy, at its pace since `earlier_log_start`; None if it stays."""
        start, earlier = self.log_start, self.earlier_log_start
        if start is None or earlier is None or start <= earlier or self.elapsed <= timedelta():
            return None
        offsets_a_second = (start - earlier) / self.elapsed.total_seconds()
        seconds = max(0, self.settled.state.first_without_copy - start) / offsets_a_second
        return self.settled_at + timedelta(seconds=min(seconds, 3e9))

    @cached_property
    def state(self) -> State:
        """How the partition is, by its newest settlement and the turns before it."""
        pending = self.settled.state.pending_by_kind()
        facts = PartitionFacts(
            self.settled.state.first_without_copy, self.lag, self.log_start, sum(pending.values()) + self.commit_stayed,
            undelivered=pending[PendingKind.DEAD_LETTER],
            paused=self.settled.paused or self.settled.let_go or self.why in (PAUSED, PARKED),
            stands_still=self._is_stuck, expired=bool(self.settled.counts.get("expired")), signals=self.signals,
            is_overdue=self.is_overdue, open_transaction=self.open_transaction,
        )  # fmt: skip
        return state_of(facts, self.now)

    @property
    def _is_stuck(self) -> bool:
        holder = self.held_by
        if self.why is not None and self.why not in _HARMLESS and self.is_behind and holder is None:
            return self.settled.old_floor == self.floor and self.still_turns >= STUCK_TURNS
        waiting = [self.apart.first] if self.apart is not None else []
        dues = [each.due for each in (holder, *waiting) if each is not None and each.due is not None]
        overdue = min(dues, default=self.settled_at) < self.settled_at - OPEN_TOO_LONG
        return overdue and self.settled.old_floor == self.floor and not self.settled.paused


def worst_first(partitions: Iterable[PartitionReading]) -> Sequence[PartitionReading]:
    """Returns the partitions, the worst state first, then the largest lag."""
    return sorted(partitions, key=lambda part: (part.state.rank, -(part.lag or 0), part.tp))
