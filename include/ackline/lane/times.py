"""Which offsets a time means, by the timestamps of the records themselves.

Kafka answers a time with the first offset whose record has that timestamp or a later one. The answer is exact, so each
record below it has an earlier timestamp. It says nothing about the records above it. A producer sets timestamps: one
record that is ahead of its time hides, behind it, all those that come later in the log and are stamped earlier.

So a choice by time takes Kafka's answers as bounds, and looks at the timestamps of the records where the bounds prove
nothing: from the answer for the end of the times up to the log end, and then between both answers. It looks at
MOST_LOOKED_AT offsets of each at most, for MOST_SECONDS, because Kafka hands out no timestamp without its record.
Beyond that it takes the log as ordered, and says which offsets it has not looked at. The first limit depends on the log
alone, so that a dry run and the backfill after it choose the same.

A broker that stamps records itself (LogAppendTime) stamps them in order, but for the difference between the clocks of
two leaders. One such record, a minute beyond the bound, ends the look.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice

from ackline.errors import AcklineError, FatalError, MissingRights, counted
from ackline.forms.arguments import LAST
from ackline.kafka.cluster import milliseconds_of
from ackline.kafka.exact import Found
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import listed
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, clipped, joined

MOST_LOOKED_AT = 1_000_000
"""Offsets of all partitions whose timestamps are read, behind the times and again between them."""
MOST_SECONDS = 60.0
"""How long timestamps are read."""


@dataclass(slots=True)
class _Part:
    """The asked offsets of a part of a log, which are looked at, and which of them belong to the times. What is chosen
    may contain offsets between them."""

    offsets: Sequence[OffsetRange]
    ordered: bool
    """Whether the offsets belong to the times if the log is in order."""
    next: int
    chosen: list[OffsetRange] = field(default_factory=list)
    misplaced: int = 0
    """How many records are on the other side of the time than an ordered log would have them."""
    began: int | None = None

    def add(self, offset: int, belongs: bool) -> None:
        """Takes the next record. An offset without a record goes with the record before it."""
        self.misplaced += belongs is not self.ordered
        self.next = offset + 1
        if belongs and self.began is None:
            self.began = offset
        elif not belongs:
            self._end(offset)

    def finish(self) -> None:
        """Takes what was not looked at as ordered."""
        self._end(self.next)
        if self.ordered:
            self.chosen += self.left()

    def left(self) -> list[OffsetRange]:
        """Returns the offsets that were not looked at."""
        return clipped(self.offsets, self.next, self.end)

    @property
    def end(self) -> int:
        """The end of the last range; 0 without one."""
        return self.offsets[-1].end if self.offsets else 0

    def _end(self, offset: int) -> None:
        if self.began is not None:
            self.chosen.append(OffsetRange(self.began, offset))
            self.began = None


@dataclass(frozen=True, slots=True)
class OfTimes:
    """What a choice by time means in one partition."""

    chosen: tuple[OffsetRange, ...]
    misplaced: int
    """How many records have a timestamp that an ordered log would not have at their offset."""
    not_looked_at: tuple[OffsetRange, ...]
    """Offsets that are chosen, or left out, as in an ordered log."""
    open_end: bool
    """Whether the log has no record at or after the end of the times yet."""


def notes_of(found: Mapping[TopicPartition, OfTimes]) -> tuple[str, ...]:
    """Returns what a user has to know of a choice by time; nothing if all timestamps were looked at and in order."""
    notes, misplaced = [], {tp: of.misplaced for tp, of in sorted(found.items()) if of.misplaced}
    if misplaced:
        notes.append(
            f"Records are not in the order of their timestamps in {listed(map(str, misplaced))}: "
            f"{sum(misplaced.values()):,} out of place. Each was chosen, or left out, by its own timestamp."
        )
    left = [f"{tp} {part}" for tp, of in sorted(found.items()) for part in of.not_looked_at]
    if left:
        notes.append(
            f"Timestamps were not looked at in {listed(left)}: at most {MOST_LOOKED_AT:,} offsets are, for "
            f"{MOST_SECONDS:.0f} s. A record there that is out of the order of time is left out, or read, wrongly. "
            f"Ranges of offsets leave nothing open."
        )
    return tuple(notes)


def of_times(
    adapters: Adapters,
    asked: Mapping[TopicPartition, Sequence[OffsetRange]],
    since: datetime | None,
    until: datetime | None,
) -> dict[TopicPartition, OfTimes]:
    """Returns which of the asked offsets have a timestamp from `since` on and before `until`; None is no bound.

    `asked` are ranges of each log, ascending and apart. Only their records are looked at; what is chosen may contain
    offsets between them. Raises what `Cluster.bounds` and the exact reader raise.
    """
    firsts = adapters.cluster.offsets_at(asked, since) if since is not None else None
    ends = adapters.cluster.offsets_at(asked, until) if until is not None else None
    low = milliseconds_of(since) if since is not None else None
    high = milliseconds_of(until) if until is not None else None
    between, behind = dict[TopicPartition, _Asked](), dict[TopicPartition, _Asked]()
    for tp, ranges in asked.items():
        first = _or_last(firsts[tp]) if firsts is not None else 0
        end = max(first, _or_last(ends[tp])) if ends is not None else LAST
        between[tp], behind[tp] = clipped(ranges, first, end), clipped(ranges, end, LAST)
    deadline = time.monotonic() + MOST_SECONDS
    # What is behind comes first: what is missed there is not read at all, what is too much between is read in vain.
    parts = [
        _looked_at(adapters, behind, low, high, deadline, ordered=False),
        # Below the answer for `until` each record is stamped before it, so without `since` all of them belong.
        _looked_at(adapters, between, low, high, deadline, ordered=True) if low is not None else _all_of(between),
    ]
    return {tp: _of_parts([each[tp] for each in parts], ends is not None and ends[tp] is None) for tp in asked}


def stamped_before(
    adapters: Adapters, logs: Mapping[TopicPartition, LogBounds], at: datetime
) -> dict[TopicPartition, str]:
    """Returns a sentence for each of `logs` that holds records stamped before `at`, or may. Each begins at Kafka's
    answer for that time. Raises no error: a way out of a damaged log must stay one."""
    try:
        found = of_times(adapters, {tp: [OffsetRange(log.start, log.end)] for tp, log in logs.items()}, at, None)
    except AcklineError as error:
        return dict.fromkeys(logs, f"whether records from there on are stamped before the time is not known: {error}")
    return {tp: text for tp, of in found.items() if (text := _from_start(logs[tp], of, at))}


def _from_start(log: LogBounds, of: OfTimes, at: datetime) -> str:
    notes = []
    if of.misplaced:
        last = of.chosen[-1].start if of.chosen and of.chosen[-1].end == log.end else log.end
        from_there = "" if of.not_looked_at else f". From {last} on each is stamped then or later"
        verb = "is" if of.misplaced == 1 else "are"
        notes.append(
            f"{counted(of.misplaced, 'record')} of the {counted(log.end - log.start, 'offset')} from {log.start} on "
            f"{verb} stamped before {at.isoformat()}, and {verb} read too: the log is not in the order of its "
            f"timestamps{from_there}"
        )
    if of.not_looked_at:
        notes.append(f"timestamps were not looked at in {', '.join(map(str, of.not_looked_at))}")
    return "; ".join(notes)


_Asked = Sequence[OffsetRange]


def _or_last(offset: int | None) -> int:
    return LAST if offset is None else offset


def _all_of(asked: Mapping[TopicPartition, _Asked]) -> dict[TopicPartition, _Part]:
    return {tp: _Part(ranges, ordered=True, next=LAST, chosen=list(ranges)) for tp, ranges in asked.items()}


def _of_parts(parts: Sequence[_Part], open_end: bool) -> OfTimes:
    for part in parts:
        part.finish()
    return OfTimes(
        joined(each for part in parts for each in part.chosen),
        sum(part.misplaced for part in parts),
        tuple(sorted(each for part in parts for each in part.left())),
        open_end,
    )


def _shares(sizes: Mapping[TopicPartition, int], most: int) -> dict[TopicPartition, int]:
    """Returns how much of each partition is looked at: all of the short ones, and the same of each other one."""
    shares, left = dict[TopicPartition, int](), most
    for done, (tp, size) in enumerate(sorted(sizes.items(), key=lambda item: (item[1], item[0]))):
        shares[tp] = min(size, left // (len(sizes) - done))
        left -= shares[tp]
    return shares


def _looked_at(
    adapters: Adapters,
    asked: Mapping[TopicPartition, _Asked],
    low: int | None,
    high: int | None,
    deadline: float,
    *,
    ordered: bool,
) -> dict[TopicPartition, _Part]:
    parts = {tp: _Part(ranges, ordered, next=0) for tp, ranges in asked.items()}
    shares = _shares({tp: sum(map(len, ranges)) for tp, ranges in asked.items() if ranges}, MOST_LOOKED_AT)
    wanted = {tp: _first_of(asked[tp], share) for tp, share in shares.items() if share}
    open_tps = set(wanted)
    if not wanted or (low is None and high is None):
        return parts
    # What can't be read, as a damaged batch, may lie outside of the choice: the rest is not looked at, and named.
    with _unreadable_ends(), adapters.reader() as reader, closing(reader.read(wanted)) as answers:
        for answer in answers:
            tp, part = answer.topic_partition, parts[answer.topic_partition]
            if tp not in open_tps:
                continue
            part.next = answer.offset + 1
            if isinstance(answer, Found):
                stamp, by_broker = answer.timestamp
                belongs = (low is None or stamp >= low) and (high is None or stamp < high)
                part.add(answer.offset, belongs)
                if by_broker and _proves_rest(stamp, low, high, ordered):
                    part.next = part.end
                    open_tps.discard(tp)
            if not open_tps or time.monotonic() > deadline:
                break
    return parts


def _first_of(ranges: _Asked, most: int) -> Sequence[int]:
    """Returns the first `most` offsets; those of one range without a list of them."""
    first = range(ranges[0].start, ranges[0].end)[:most]
    every = chain.from_iterable(range(each.start, each.end) for each in ranges)
    return first if len(first) == most else list(islice(every, most))


@contextmanager
def _unreadable_ends() -> Iterator[None]:
    try:
        yield
    except MissingRights:
        raise
    except FatalError:
        pass


def _proves_rest(stamp: int, low: int | None, high: int | None, ordered: bool) -> bool:
    """Returns whether all records after one with this timestamp are as an ordered log has them, if a broker stamps
    each."""
    bound = low if ordered else high
    return (ordered and bound is None) or (bound is not None and stamp >= bound + _CLOCKS_DIFFER_MS)


_CLOCKS_DIFFER_MS = 60_000
"""By how much the clock of a partition's next leader may be behind that of the one before, which has stamped some."""
