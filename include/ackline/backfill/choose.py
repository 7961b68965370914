"""Which offsets a new backfill reads: by its ranges, times and outcomes, in the logs as they are now.

The rules at the top are pure: they take the logs as they are. `choose_offsets` reads the logs and the tables for them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial

import numpy as np

from ackline.errors import ConfigError, did_you_mean
from ackline.forms.arguments import LAST, BackfillArguments, RangeArgument, parse_range
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import lost_copies
from ackline.lane.rights import check_rights_to_read
from ackline.lane.times import OfTimes, notes_of, of_times
from ackline.ledger.account import Chosen, chosen_of
from ackline.ledger.copies import NO_COPIES, Copies
from ackline.ledger.offsets import (
    NO_RANGES,
    LogBounds,
    OffsetRange,
    Ranges,
    TopicPartition,
    arrays_of,
    clipped,
    count,
    intersect,
    joined,
    ranges_of,
    subtract,
    union,
)
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, TurnId, is_backfill
from ackline.outputs.newest_rows import Related, rows_to_replace
from ackline.tables.chosen import OutcomeFilter, RangesByPartition


def asked_ranges(
    arguments: Iterable[RangeArgument], logs: Mapping[TopicPartition, LogBounds]
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """Returns the ranges of each partition; without arguments, every partition from its log start to its log end.

    Explicit offsets stay below the log start as they were written: what retention took is settled as `expired`. Raises
    ConfigError for a partition that is not in `logs`, and for offsets beyond the log end.
    """
    asked: dict[TopicPartition, list[OffsetRange]] = {}
    wanted = list(arguments)
    for argument in wanted:
        partitions = [tp for tp in logs if argument.includes(tp)]
        if not partitions:
            where = argument.topic if argument.partition is None else f"{argument.topic}[{argument.partition}]"
            near = did_you_mean(argument.topic, {tp.topic for tp in logs})
            raise ConfigError(f"range {where}: the pipeline reads no such partition{near}", key="RANGE")
        for tp in partitions:
            asked.setdefault(tp, []).append(_in_log(tp, argument.offsets, logs[tp]))
    if not wanted:
        asked = {tp: [OffsetRange(log.start, log.end)] for tp, log in logs.items()}
    return {tp: ranges for tp, of_tp in sorted(asked.items()) if (ranges := joined(of_tp))}


def _in_log(tp: TopicPartition, offsets: OffsetRange | None, log: LogBounds) -> OffsetRange:
    if offsets is None:
        return OffsetRange(log.start, log.end)
    if offsets.end > log.end:
        raise ConfigError(
            f"range {tp.topic}:{tp.partition}:{offsets.start}-{offsets.end}: the log of {tp} ends at {log.end}; end "
            f"the range at {log.end} or below",
            key="RANGE",
        )
    return offsets


def narrowed_by_time(
    asked: Mapping[TopicPartition, Sequence[OffsetRange]],
    logs: Mapping[TopicPartition, LogBounds],
    bounds: Mapping[TopicPartition, LogBounds],
    of_times: Mapping[TopicPartition, Sequence[OffsetRange]],
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """Returns the part of the ranges that `of_times` holds of each log, and what is outside of the log in `bounds`: the
    time of a record that is gone is unknown."""
    narrowed = {}
    for tp, ranges in asked.items():
        log, bound = logs[tp], bounds[tp]
        allowed = [OffsetRange(bound.start, log.start), *of_times[tp], OffsetRange(log.end, bound.end)]
        narrowed[tp] = ranges_of(intersect(arrays_of(joined(ranges)), arrays_of(joined(allowed)))[:2])
    return {tp: ranges for tp, ranges in narrowed.items() if ranges}


def _looked_up(
    adapters: Adapters,
    asked: Mapping[TopicPartition, Sequence[OffsetRange]],
    logs: "Logs",
    since: datetime | None,
    until: datetime | None,
) -> dict[TopicPartition, OfTimes]:
    """Returns which of the asked offsets in the logs are of the times."""
    check_rights_to_read(adapters, {tp.topic for tp in asked})
    in_logs = {tp: clipped(ranges, logs[tp].start, logs[tp].end) for tp, ranges in asked.items()}
    return of_times(adapters, in_logs, since, until)


def newest_outcomes(epochs: Iterable[tuple[Ranges, Ranges]]) -> list[Ranges]:
    """Returns for each epoch the offsets whose newest terminal outcome is of that epoch, and is wanted.

    `epochs` holds, from the newest epoch to the oldest, the offsets with a wanted outcome and those with any.
    """
    chosen, covered = list[Ranges](), NO_RANGES
    for wanted, every in epochs:
        chosen.append(subtract(wanted, covered)[:2])
        covered = union(covered, every)
    return chosen


Logs = Mapping[TopicPartition, LogBounds]
MOST_RANGES = 16
"""Ranges of a partition that a choice by time reads whole. More are read offset by offset, as one by outcome is."""

BY_RETENTION, IN_OLDER_TOPIC, BEYOND_END = "retention", "an older topic", "beyond the log end"
"""Why an offset is gone: it is below the log start; the topic was created again; the log was truncated."""


@dataclass(frozen=True, slots=True)
class GoneRange:
    """Offsets that match the arguments and can't be read any more, and why."""

    tp: TopicPartition
    offsets: OffsetRange
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The offsets of a new backfill, and the logs and topics in which they were chosen.

    `gone` are offsets that match and can't be read. Those below the log start are part of the lane, and become
    `expired`; the others are no part of it. `open_ends` are the log ends at which partitions stop that have no record
    at or after `--to` yet. `acked_before` returns how many of the offsets an earlier backfill has acked; it reads the
    tables of these at its first call, and only a preview shows it.
    """

    partitions: Mapping[TopicPartition, Chosen]
    topic_ids: Mapping[str, str]
    logs: Logs
    gone: Sequence[GoneRange]
    open_ends: Mapping[TopicPartition, int]
    acked_before: Callable[[], int]
    replaced: Callable[[], Mapping[str, int]]
    """Returns how many rows of which output table are of these offsets alone, without those that are gone. They go
    where the records are acked, or their handler skips them. It reads the files with such rows at its first call."""
    related: Callable[[], Mapping[str, Related]]
    """Returns by output table the records, not among these offsets, that rows of these name too. It reads what
    `replaced` does."""
    of_epochs: Mapping[int, int]
    """How many of the offsets are chosen by an outcome of which epoch, the newest first; empty without outcomes."""
    copies: Mapping[TopicPartition, Copies] = field(default_factory=dict)
    """Where copies of chosen records are that the live lane has rescued: what is gone is read from there."""
    notes: tuple[str, ...] = ()
    """Sentences about a choice by time in logs that are out of order, or too long to be looked at whole."""

    @property
    def offsets(self) -> int:
        """How many offsets are chosen."""
        return sum(count(chosen.every) for chosen in self.partitions.values())


def choose_offsets(adapters: Adapters, arguments: BackfillArguments) -> Choice:
    """Returns what the arguments choose. Raises ConfigError for arguments that do not fit the pipeline or its logs."""
    arguments.check()
    since, until = arguments.times(adapters.now())
    topic_ids, logs = _readable_logs(adapters)
    ranges = [parse_range(text) for text in arguments.ranges]
    bounds = logs
    if arguments.by_outcome:
        # An offset that retention took has a row all the same. It is chosen, and becomes `expired`, unless a time
        # excludes it: the time of a record that is gone is unknown.
        low, high = {"start": 0} if since is None else {}, {"end": LAST} if until is None else {}
        bounds = {tp: log._replace(**low, **high) for tp, log in logs.items()}
    asked, looked_up = asked_ranges(ranges, bounds), dict[TopicPartition, OfTimes]()
    if since is not None or until is not None:
        looked_up = _looked_up(adapters, asked, logs, since, until)
        asked = narrowed_by_time(asked, logs, bounds, {tp: of.chosen for tp, of in looked_up.items()})
    open_ends = {tp: logs[tp].end for tp, of in looked_up.items() if of.open_end}
    older: RangesByPartition = {}
    by_epoch: dict[int, RangesByPartition] = {}
    if arguments.by_outcome:
        matching, older, by_epoch = _by_outcome(adapters, arguments, topic_ids, asked)
        partitions = {tp: Chosen((), tuple(clipped(runs, 0, logs[tp].end))) for tp, runs in matching.items()}
    else:
        matching = {tp: list(of_tp) for tp, of_tp in asked.items()}
        # A turn reads one range of a partition, so many short ones would cost a Spark job each.
        scattered = looked_up and any(len(of_tp) > MOST_RANGES for of_tp in asked.values())
        partitions = {tp: Chosen((), of_tp) if scattered else Chosen(of_tp) for tp, of_tp in asked.items()}
    chosen = {tp: of for tp, of in sorted(partitions.items()) if of.every}
    copies = copies_of_chosen(adapters, chosen, topic_ids, logs)
    # Copies are read one by one, so such a partition is: Spark's source reads one topic.
    chosen |= {tp: Chosen((), chosen[tp].every) for tp in copies}
    gone = list(gone_of(matching, older, logs, copies))
    open_ends = {tp: end for tp, end in open_ends.items() if tp in chosen}
    if arguments.with_related:
        chosen = _with_related(adapters, chosen, topic_ids, logs)
    acked_before = acked_before_of(adapters, chosen, topic_ids)
    replaced, related = looks_at_rows(adapters, chosen, topic_ids, gone)
    of_epochs = {epoch: _count_in(chosen, ranges) for epoch, ranges in by_epoch.items()}
    of_epochs = {epoch: number for epoch, number in of_epochs.items() if number}
    notes = notes_of(looked_up)
    return Choice(chosen, topic_ids, logs, gone, open_ends, acked_before, replaced, related, of_epochs, copies, notes)


def looks_at_rows(
    adapters: Adapters, chosen: Mapping[TopicPartition, Chosen], topic_ids: Mapping[str, str], gone: Iterable[GoneRange]
) -> tuple[Callable[[], Mapping[str, int]], Callable[[], Mapping[str, Related]]]:
    """Returns `Choice.replaced` and `Choice.related` of these offsets. A shadow replaces no row itself."""
    lost: dict[TopicPartition, list[OffsetRange]] = {}
    for each in gone:
        if each.why != IN_OLDER_TOPIC:  # there the same offset is another record
            lost.setdefault(each.tp, []).append(each.offsets)
    every = {tp: subtract(arrays_of(of.every), union(arrays_of(lost.get(tp, ()))))[:2] for tp, of in chosen.items()}
    found = cache(partial(rows_to_replace, adapters, every, topic_ids))
    is_shadow = adapters.pipeline.shadow is not None
    return (
        lambda: {table: of.rows for table, of in found().items() if of.rows and not is_shadow},
        lambda: {table: of.related for table, of in found().items() if of.related},
    )


def _with_related(
    adapters: Adapters, chosen: Mapping[TopicPartition, Chosen], topic_ids: Mapping[str, str], logs: Logs
) -> dict[TopicPartition, Chosen]:
    """Returns the chosen offsets and those that rows of output tables name beside them, as single offsets, which one
    turn reads together. Raises ConfigError if one of these can't be read any more, or a turn takes less."""
    every = {tp: arrays_of(of.every) for tp, of in chosen.items()}
    while True:  # a row that comes along may name others in turn
        found = rows_to_replace(adapters, every, topic_ids).values()
        related = [(tp, offsets) for of_table in found for tp, offsets in of_table.related.items()]
        if not related:
            break
        for tp, offsets in related:
            log, ranges = logs.get(tp), (np.array(offsets), np.array(offsets) + 1)
            if log is None or not log.start <= offsets[0] <= offsets[-1] < log.end:
                raise ConfigError(
                    f"--with-related: rows of an output table are of {tp}@{offsets[0]} too, which can't be read any "
                    f"more, so these rows can't be replaced. Choose offsets whose rows are not of it",
                    key="--with-related",
                )
            every[tp] = union(every.get(tp, NO_RANGES), ranges)
    number, most = _count(every.values()), adapters.pipeline.max_records_per_run
    if number > most:
        raise ConfigError(
            f"--with-related: one turn has to handle {number:,} offsets together, and `max_records_per_run` of "
            f"{adapters.pipeline.name} is {most:,}. Choose fewer offsets, or raise it",
            key="--with-related",
        )
    return {tp: Chosen((), ranges_of(ranges)) for tp, ranges in sorted(every.items())}


def _count(every: Iterable[Ranges]) -> int:
    return sum(int((ends - starts).sum()) for starts, ends in every)


def copies_of_chosen(
    adapters: Adapters, chosen: Mapping[TopicPartition, Chosen], topic_ids: Mapping[str, str], logs: Logs
) -> dict[TopicPartition, Copies]:
    """Returns where copies of chosen records are whose originals retention has taken, and of chosen single records.

    A copy that is gone, too, is left out: its record was settled, and its place is no promise any more.
    """
    may_be_single = adapters.pipeline.rescue is not None or adapters.pipeline.shadow is not None  # which sends nothing
    wanted = {
        tp: arrays_of(of.offsets or clipped(of.ranges, 0, logs[tp].start))
        for tp, of in chosen.items()
        if clipped(of.every, 0, logs[tp].start) or (of.offsets and may_be_single)
    }
    stored = adapters.store.other_lane(LIVE).copies_of(topic_ids) if wanted else {}
    copies = {tp: stored[tp].within(ranges) for tp, ranges in wanted.items() if tp in stored}
    for tp, lost in lost_copies(adapters, copies).items():
        copies[tp] = copies[tp].minus(lost.offsets)
    return {tp: of for tp, of in copies.items() if len(of)}


def _count_in(chosen: Mapping[TopicPartition, Chosen], ranges: RangesByPartition) -> int:
    """Returns how many of the offsets are chosen."""
    common = (intersect(arrays_of(chosen[tp].every), of_tp) for tp, of_tp in ranges.items() if tp in chosen)
    return sum(int((ends - starts).sum()) for starts, ends, _ in common)


def _readable_logs(adapters: Adapters) -> tuple[dict[str, str], dict[TopicPartition, LogBounds]]:
    """Returns the ids of the subscribed topics, and the bounds of their partitions. Raises TransientError if one has no
    leader."""
    adapters.cluster.reachable()
    block = adapters.pipeline.kafka
    names = adapters.cluster.names() if block.named_topics is None else block.named_topics
    # Topic ids before bounds: if a topic is created again in between, its bounds are stored under the old id, and the
    # first turn stops there.
    topics = adapters.cluster.topics([name for name in names if block.subscribes_to_topic(name)])
    tps = [TopicPartition(name, number) for name, info in topics.items() for number in info.partitions]
    bounds = adapters.cluster.bounds([tp for tp in tps if adapters.is_subscribed(tp)])
    return {name: info.topic_id for name, info in topics.items()}, dict(sorted(bounds.items()))


def _by_outcome(
    adapters: Adapters,
    arguments: BackfillArguments,
    topic_ids: Mapping[str, str],
    asked: Mapping[TopicPartition, Sequence[OffsetRange]],
) -> tuple[dict[TopicPartition, Sequence[OffsetRange]], RangesByPartition, dict[int, RangesByPartition]]:
    """Returns the asked offsets with a wanted outcome, and those of older topics, by partition; and the first ones by
    the epoch of that outcome, the newest first. Raises ConfigError if the lane of `--of` has not begun, or has no turn
    of `--code`."""
    store = adapters.store.other_lane(arguments.of)
    newest = store.newest()
    if newest is None:
        raise ConfigError(f"--of {arguments.of}: {adapters.pipeline.name} has no such lane yet", key="--of")
    wanted = OutcomeFilter(arguments.outcome, arguments.error_class, arguments.run, arguments.code)
    if wanted.code is not None and not store.turns_of_code(wanted.code):
        raise ConfigError(
            f"--code {wanted.code[:200]}: no turn of {arguments.of} ran it; `ackline history {adapters.pipeline.name}` "
            f"shows the code of each turn",
            key="--code",
        )
    epochs: dict[TopicPartition, dict[int, tuple[Ranges, Ranges]]] = {}
    older: RangesByPartition = {}
    for epoch in range(newest.turn.epoch, -1, -1):
        matching, in_older = store.terminal_offsets(epoch, topic_ids, wanted)
        # What any outcome covers matters only to older epochs: the first epoch has none.
        every = store.terminal_offsets(epoch, topic_ids, None)[0] if epoch else {}
        for tp in {*matching, *every}:
            epochs.setdefault(tp, {})[epoch] = matching.get(tp, NO_RANGES), every.get(tp, NO_RANGES)
        for tp in in_older.keys() & asked.keys():
            of_asked = intersect(in_older[tp], arrays_of(asked[tp]))[:2]
            older = {**older, tp: union(older.get(tp, NO_RANGES), of_asked)}
    by_epoch: dict[int, RangesByPartition] = {epoch: {} for epoch in range(newest.turn.epoch, -1, -1)}
    for tp, of_tp in epochs.items():
        for epoch, ranges in zip(of_tp, newest_outcomes(of_tp.values()), strict=True) if tp in asked else ():
            by_epoch[epoch][tp] = intersect(ranges, arrays_of(asked[tp]))[:2]
    every_tp = {tp: union(*(of[tp] for of in by_epoch.values() if tp in of)) for tp in epochs if tp in asked}
    chosen = {tp: ranges_of(ranges) for tp, ranges in every_tp.items()}
    return {tp: runs for tp, runs in chosen.items() if runs}, older, by_epoch


def gone_of(
    matching: Mapping[TopicPartition, Sequence[OffsetRange]],
    older: RangesByPartition,
    logs: Logs,
    copies: Mapping[TopicPartition, Copies],
) -> Iterable[GoneRange]:
    """Yields what matches and can't be read any more; `older` are offsets of older topics of the same names."""
    for tp, ranges in sorted(matching.items()):
        below = arrays_of(clipped(ranges, 0, logs[tp].start))
        left = ranges_of(subtract(below, copies.get(tp, NO_COPIES).ranges)[:2])
        yield from (GoneRange(tp, part, BY_RETENTION) for part in left)
        yield from (GoneRange(tp, part, BEYOND_END) for part in clipped(ranges, logs[tp].end, LAST))
    for tp, arrays in sorted(older.items()):
        yield from (GoneRange(tp, part, IN_OLDER_TOPIC) for part in ranges_of(arrays))


def acked_before_of(
    adapters: Adapters, chosen: Mapping[TopicPartition, Chosen], topic_ids: Mapping[str, str]
) -> Callable[[], int]:
    """Returns the function of `Choice.acked_before`."""
    return cache(partial(_acked_before, adapters, chosen, topic_ids))


def _acked_before(adapters: Adapters, chosen: Mapping[TopicPartition, Chosen], topic_ids: Mapping[str, str]) -> int:
    """Returns how many chosen offsets an earlier backfill of the pipeline has acked. Reads the rows of those backfills
    alone that have read a chosen offset. A shadow is none of them: what it has acked changed nothing."""
    acked: dict[TopicPartition, list[Ranges]] = {}
    for lane in adapters.store.lanes() if chosen else ():
        if not is_backfill(lane) or lane == adapters.store.lane:
            continue
        store = adapters.store.other_lane(lane)
        newest = store.newest()
        for epoch in range(newest.turn.epoch + 1) if newest else ():
            genesis = store.settlement(TurnId(store.pipeline, lane, epoch, 0))
            if (arguments := BackfillArguments.decode_or_none(genesis.arguments)) and arguments.shadow:
                break
            of_lane = genesis.partitions
            read = {tp: chosen_of(of.ranges or (), of.state).every for tp, of in of_lane.items() if tp in chosen}
            if not any(len(intersect(arrays_of(chosen[tp].every), arrays_of(of_tp))[0]) for tp, of_tp in read.items()):
                continue
            for tp, ranges in store.terminal_offsets(epoch, topic_ids, OutcomeFilter(Outcome.ACKED.value))[0].items():
                acked.setdefault(tp, []).append(ranges)
    return _count_in(chosen, {tp: union(*ranges) for tp, ranges in acked.items()})
