"""The health of a partition and of a pipeline, as the page colours it. Pure.

Everything is judged by the newest settlement and the turns before it, so the page needs no broker.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from ackline.errors import GroupMoved, NewerCommit
from ackline.ledger.commit_rule import CommitMetadata, check_commit_allowed
from ackline.ledger.explain import HeldBy, held_by
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.pending import PendingKind
from ackline.ledger.planning import PARKED, PAUSED, RUN_FULL, WAITING, WINDOW_FULL
from ackline.ledger.turns import SettledPartition

STUCK_TURNS = 3
"""After so many turns without a step of the floor, an overdue retry counts as stuck."""
OPEN_TOO_LONG = timedelta(hours=1)
"""After this time a plan that is not settled, and that no process replays, counts as stuck."""
SOON = timedelta(days=1)
"""If retention reaches the floor within this time, the partition counts as losing."""
_HARMLESS = (PARKED, PAUSED, RUN_FULL, WAITING, WINDOW_FULL)
"""Reasons to read nothing that pass by themselves, or that an operator chose."""


class Health(StrEnum):
    """How a partition or a pipeline is, the best first."""

    GREEN = "green"
    """Every record that was there is settled."""
    WAITING = "waiting"
    """Records wait: for a retry that is not due yet, or for the next run. Or a commit of another client has stayed."""
    STUCK = "stuck"
    """The floor does not move, and no later run alone will move it."""
    LOSING = "losing"
    """Retention has taken records that were not settled, or takes them soon."""

    @property
    def label(self) -> str:
        """The words that the page shows."""
        return _LABELS[self]


_LABELS = {Health.GREEN: "Up to date", Health.WAITING: "Waiting", Health.STUCK: "Stuck",
           Health.LOSING: "Losing to retention"}  # fmt: skip


@dataclass(frozen=True, slots=True)
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
    """How many turns lie between the newest one and that earlier one."""
    settled_at: datetime
    now: datetime
    own: CommitMetadata | None = None
    """With what the newest turn commits its floor; None if it commits nothing: a backfill, or rows that wait for their
    output table."""
    found: int | None = None
    """What the open turn has found committed, after the newest one; None without an open turn."""

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
    def lag(self) -> int:
        """The offsets from the floor to the log end that hold the lane back."""
        return self.settled.unsettled

    @property
    def held_by(self) -> HeldBy | None:
        """The pending offset that holds the floor."""
        return held_by(self.settled.state)

    @property
    def pending(self) -> int:
        """How many offsets are pending, of all kinds."""
        runs = self.settled.state.pending
        return runs.offsets if runs else 0  # most of a thousand partitions have none

    @property
    def reached_by_retention(self) -> datetime | None:
        """When the log start reaches the floor at its pace since the earlier turn; None if it does not move."""
        start, earlier = self.log_start, self.earlier_log_start
        if start is None or earlier is None or start <= earlier or self.elapsed <= timedelta() or self.lag <= 0:
            return None
        offsets_a_second = (start - earlier) / self.elapsed.total_seconds()
        seconds = max(0, self.floor - start) / offsets_a_second
        return self.settled_at + timedelta(seconds=min(seconds, 3e9))

    @property
    def health(self) -> Health:
        """How the partition is."""
        if self._loses:
            return Health.LOSING
        if self._is_stuck:
            return Health.STUCK
        return Health.WAITING if self.lag > 0 or self.pending or self.commit_stayed else Health.GREEN

    @property
    def _loses(self) -> bool:
        start, reached = self.log_start, self.reached_by_retention
        if (start is not None and start > self.floor) or self.settled.counts.get("expired"):
            return True
        return reached is not None and reached <= self.now + SOON

    @property
    def _is_stuck(self) -> bool:
        holder = self.held_by
        if holder is not None and holder.kind is PendingKind.DEAD_LETTER:
            return True  # settle sent it, and the broker has not acknowledged it
        if self.why is not None and self.why not in _HARMLESS and self.lag > 0 and holder is None:
            return self.settled.old_floor == self.floor and self.still_turns >= STUCK_TURNS
        overdue = holder is not None and holder.due is not None and holder.due < self.settled_at - OPEN_TOO_LONG
        return overdue and self.settled.old_floor == self.floor and not self.settled.paused


def worst(healths: Iterable[Health]) -> Health:
    """Returns the worst of these; GREEN if there is none."""
    order = list(Health)
    return max(healths, key=order.index, default=Health.GREEN)


def worst_first(partitions: Iterable[PartitionReading]) -> Sequence[PartitionReading]:
    """Returns the partitions, the worst health first, then the largest lag."""
    order = list(Health)
    return sorted(partitions, key=lambda part: (-order.index(part.health), -part.lag, part.tp))
