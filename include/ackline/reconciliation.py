"""The account of a backfill: every offset that was asked for is settled, a gap, or pending. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ackline.chosen_ranges import clipped, count_offsets
from ackline.ledger import PartitionState, PendingKind
from ackline.offsets import OffsetRange, TopicPartition
from ackline.outcome import Outcome
from ackline.pending import PendingRuns, ranges_of

UNREAD = "unread"
"""The key of offsets that no turn has read yet, beside the kinds of what is pending."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a lane was asked to read of one partition: ranges that are read whole, and single offsets."""

    ranges: tuple[OffsetRange, ...]
    offsets: tuple[OffsetRange, ...] = ()
    """Offsets that were chosen by their outcome, as joined runs: pending from the start, and read exactly."""

    @property
    def every(self) -> tuple[OffsetRange, ...]:
        """All offsets that were asked for. A lane has either ranges or single offsets."""
        return self.ranges or self.offsets


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the offsets that a backfill lane was asked to read."""

    asked: Mapping[TopicPartition, tuple[OffsetRange, ...]]
    outcomes: Mapping[str, int]
    """Offsets by terminal outcome."""
    gaps: int
    pending: Mapping[str, int]
    """Offsets by kind of what is pending, and those that are unread."""
    next_due: datetime | None

    @property
    def offsets(self) -> int:
        """How many offsets were asked for."""
        return sum(map(count_offsets, self.asked.values()))

    @property
    def settled(self) -> bool:
        """Whether no offset is left to read or pending."""
        return not any(self.pending.values())

    @property
    def balanced(self) -> bool:
        """Whether each offset that was asked for is counted exactly once. False means an error in Ackline."""
        return self.offsets == sum(self.outcomes.values()) + self.gaps + sum(self.pending.values())


def account_of(
    chosen: Mapping[TopicPartition, Chosen],
    states: Mapping[TopicPartition, PartitionState],
    counts: Mapping[str, int],
    gaps: int,
) -> Account:
    """Returns the account after a turn. `counts` and `gaps` are the sums over all turns of the epoch.

    Unread are offsets from `complete_to` on, and offsets that are pending without an attempt.
    """
    pending: Counter[str] = Counter({kind.value: 0 for kind in PendingKind} | {UNREAD: 0})
    for tp, state in states.items():
        runs = PendingRuns.of(state.pending)
        unread = int((runs.ends - runs.starts)[runs.attempts == 0].sum())
        pending.update({kind.value: number for kind, number in state.pending_by_kind().items()})
        pending[PendingKind.RETRY] -= unread
        left = clipped(chosen[tp].ranges, state.complete_to, max((r.end for r in chosen[tp].ranges), default=0))
        pending[UNREAD] += unread + count_offsets(left)
    outcomes = {word: number for word, number in counts.items() if number and Outcome(word).terminal}
    dues = [state.next_due for state in states.values() if state.next_due is not None]
    return Account({tp: of.every for tp, of in chosen.items()}, outcomes, gaps, pending, min(dues, default=None))


def chosen_of(ranges: tuple[OffsetRange, ...], state: PartitionState) -> Chosen:
    """Returns what a genesis has stored of one partition."""
    return Chosen(ranges, tuple(ranges_of(state.pending)))
