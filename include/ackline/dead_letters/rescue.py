"""Rescue pending records from retention: copy them to the rescue topic before it takes them.

Settle copies what the forecast of `ackline.lane.turn_metrics` says retention takes within `rescue.before`, and stores
the places of the copies with settlement n. The order matters: a copy is read only once a settlement names it, and a
settlement names it only after all replicas have it. A process that is killed in between leaves copies that nobody
reads, and the next settle copies the records again. Two processes that settle the same turn may both copy: only the
places in the settlement that was stored count.

With `rescue.release` the same settlement marks the live lane's pending records with copies as released: they do not
hold its floor any more. The copy comes first, then the settlement that names it, and the group is committed last, so at
no time does the group pass a record whose copy the ledger can't name (S89). What is stored decides: a process that is
killed before the settlement has released nothing, and `release: false` later takes nothing back.

No error here stops the turn. What is at risk is still in its topic, and a turn that stayed open would keep back the
outcomes that it has, and rescue no record either. So settle logs a warning and goes on without these copies. The
partition is shown as losing, and the next turn tries again.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain, islice

from ackline.errors import AcklineError, ConfigError, counted
from ackline.kafka.copies import copy_of
from ackline.kafka.exact import Found
from ackline.kafka.produce import Row
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import LostCopies, logs_as_read, lost_copies
from ackline.lane.turn_metrics import expiries_of, first_times
from ackline.ledger.copies import Copies, CopyLog, CopyRun
from ackline.ledger.offsets import (
    LogBounds,
    OffsetRange,
    Ranges,
    TopicPartition,
    arrays_of,
    clipped,
    intersect,
    subtract,
)
from ackline.ledger.turns import LIVE, Plan, SettledPartition

log = logging.getLogger(__name__)

_BATCH = 500
_BATCH_BYTES = 16 << 20
_PORTION = 10_000
_PROGRESS = 200
"""After so many batches of a partition, a line is logged."""

Lane = dict[TopicPartition, SettledPartition]


def rescue(adapters: Adapters, plan: Plan, lane: Lane) -> Lane:
    """Returns the lane's partitions after the turn with the places of all copies, those that this process has made now
    included. Copies each pending record that has no copy and that retention may take within `rescue.before`. With
    `rescue.release`, what has a copy that is there holds no floor of the live lane.

    The cost is that of the records at risk, with a few of them in memory. Raises nothing of Kafka.
    """
    block = adapters.pipeline.rescue
    pending = {tp: row for tp, row in lane.items() if row.state.pending and not row.let_go}
    if block is None or not pending:
        return lane
    try:
        pending = {tp: row for tp, row in pending.items() if adapters.is_subscribed(tp)}
        topic = _topic(adapters, block.topic)
        logs = logs_as_read(adapters, pending)
        # A copy that is gone protects nothing. As long as its original is there, the record is copied once more.
        lost = lost_copies(adapters, {tp: pending[tp].state.copies for tp in logs})
        kept = _without_lost_copies({tp: pending[tp] for tp in logs}, lost, logs)
        risky = _at_risk(adapters, kept, logs, block.before)
        copied = {tp: _copied(adapters, plan, tp, kept[tp], ranges, topic) for tp, ranges in risky.items()}
        # Checked again after reading and sending: another log has given other records, and in another rescue topic the
        # places mean nothing.
        still = logs_as_read(adapters, {tp: kept[tp] for tp in copied})
        if any(copied.values()) and _topic(adapters, block.topic) != topic:
            raise ConfigError(f"the topic {block.topic} was created again", key="rescue.topic")
    except AcklineError as error:
        log.warning(
            "%s: no pending record was rescued from retention, and the next turn tries again: %s", plan.turn, error
        )
        return lane
    found, releases = dict(kept), block.release and plan.turn.lane == LIVE  # a backfill lane commits nothing
    for tp, row in kept.items() if releases else [(tp, kept[tp]) for tp in copied]:
        copies, made = row.state.copies, Copies.of(copied.get(tp, ()) if tp in still else ())
        # What is gone with its copy goes on holding the floor: the next plan stops there, and an operator decides.
        there = copies.minus(lost[tp].offsets) if tp in lost else copies
        release = there.plus(made).ranges if releases else None
        found[tp] = replace(row, state=row.state.with_copies(copies.plus(made), release))
    return {**lane, **found}


def needs_rescue(adapters: Adapters, lane: Lane) -> bool:
    """Returns whether a turn of the lane would copy a record now. False if the broker does not say."""
    block = adapters.pipeline.rescue
    if block is None:
        return False
    try:
        logs = logs_as_read(adapters, {tp: row for tp, row in lane.items() if adapters.is_subscribed(tp)})
        found = {tp: lane[tp] for tp in logs}
        lost = lost_copies(adapters, {tp: row.state.copies for tp, row in found.items()})
        return bool(_at_risk(adapters, _without_lost_copies(found, lost, logs), logs, block.before))
    except AcklineError:
        return False


@dataclass(frozen=True, slots=True)
class _RescueTopic:
    """The rescue topic as it is now: its id, and the partitions that have a leader."""

    name: str
    topic_id: str
    partitions: tuple[int, ...] = field(compare=False)

    def log_of(self, tp: TopicPartition) -> CopyLog:
        """Returns the partition for the copies of `tp`. One for all of them, so that neighbouring records have
        neighbouring copies: the ledger stores one run for them."""
        return CopyLog(self.name, self.topic_id, self.partitions[tp.partition % len(self.partitions)])


def _topic(adapters: Adapters, name: str) -> _RescueTopic:
    # Looked up before it is written to: a broker may create a topic for a producer, with any retention.
    info = adapters.cluster.topics([name]).get(name)
    if info is None:
        raise ConfigError(f"the rescue topic {name} does not exist", key="rescue.topic")
    led = tuple(number for number, has_leader in sorted(info.partitions.items()) if has_leader)
    if not led:
        raise ConfigError(f"no partition of the rescue topic {name} has a leader", key="rescue.topic")
    return _RescueTopic(name, info.topic_id, led)


def _without_lost_copies(
    lane: Lane, lost: Mapping[TopicPartition, LostCopies], logs: Mapping[TopicPartition, LogBounds]
) -> Lane:
    """Returns the partitions without the places of copies that are gone and whose originals are still there.

    Of a record that is gone from its topic the place stays: the lane then stops with an error that names it, and the
    record is never `expired`.
    """
    kept = dict(lane)
    for tp, of_tp in lost.items():
        state, span = lane[tp].state, arrays_of([OffsetRange(logs[tp].start, logs[tp].end)])
        there = intersect(of_tp.offsets, span)[:2]
        kept[tp] = replace(lane[tp], state=replace(state, copies=state.copies.minus(there)))
    return kept


def _at_risk(
    adapters: Adapters, lane: Lane, logs: Mapping[TopicPartition, LogBounds], before: timedelta
) -> dict[TopicPartition, Ranges]:
    """Returns the pending offsets without a copy that retention may take within `before`, by partition.

    Kafka removes a segment once its newest record is older than `retention.ms`, and the lowest segment first. So what
    is at or above the first record that is young enough stays until that record is old: Kafka's answer for the time
    bounds what is at risk, and no record has to be read for it.
    """
    first = {tp: row.state.first_without_copy for tp, row in lane.items()}
    open_tps = {tp: offset for tp, offset in first.items() if offset < lane[tp].state.complete_to}
    if not open_tps:
        return {}
    times = first_times(adapters, {tp: logs[tp] for tp in open_tps}, open_tps).unsettled
    limit, by_time = adapters.now() + before, dict[datetime, list[TopicPartition]]()
    for tp, expiry in expiries_of(adapters, times).items():
        time = times[tp]
        if time is not None and expiry <= limit:
            # The first record that is young enough is stamped after that, by a millisecond at least.
            by_time.setdefault(limit - (expiry - time) + timedelta(milliseconds=1), []).append(tp)
    risky = {}
    for time, tps in by_time.items():
        for tp, bound in adapters.cluster.offsets_at(tps, time).items():
            state, log_bounds = lane[tp].state, logs[tp]
            span = arrays_of(clipped(None, log_bounds.start, log_bounds.end if bound is None else bound))
            starts, ends, _ = subtract(state.pending.within(span).ranges, state.copies.ranges)
            if len(starts):
                risky[tp] = starts, ends
    return risky


def _copied(
    adapters: Adapters, plan: Plan, tp: TopicPartition, row: SettledPartition, ranges: Ranges, topic: _RescueTopic
) -> list[CopyRun]:
    """Copies records of one partition. Returns the places of those that all replicas have.

    An error of one partition keeps no other one from its copies: a batch that can't be decoded stays as it is.
    """
    copy_log, runs, count = topic.log_of(tp), list[CopyRun](), int((ranges[1] - ranges[0]).sum())
    log.info(
        "%s: copying %s of %s to %s before retention takes them", plan.turn, counted(count, "record"), tp, topic.name
    )
    sender = adapters.copy_sender()
    try:
        for done, batch in enumerate(_batches(adapters, plan, tp, row.topic_id, ranges, copy_log), 1):
            sender.send(list(batch.values()))
            _add_runs(runs, copy_log, batch)
            refused = [offset for offset, copy in batch.items() if copy.offset < 0]
            if refused:
                log.warning(
                    "%s: %s refuses copies of %s, the first one of offset %d", plan.turn, topic.name, tp, refused[0]
                )
            if not done % _PROGRESS:
                log.info("%s: %d batches of %s are copied", plan.turn, done, tp)
    except AcklineError as error:
        log.warning("%s: not every record of %s that retention is about to take is copied: %s", plan.turn, tp, error)
    finally:
        sender.close()
    return runs


def _batches(
    adapters: Adapters, plan: Plan, tp: TopicPartition, topic_id: str, ranges: Ranges, copy_log: CopyLog
) -> Iterator[dict[int, Row]]:
    """Yields the copies of the records at these offsets, by offset. What the log does not hold any more is left out."""
    batch, size = dict[int, Row](), 0
    with adapters.reader() as reader:
        for wanted in _portions(ranges):
            for found in reader.read({tp: wanted}):
                if isinstance(found, Found):
                    batch[found.offset] = row = copy_of(found, topic_id, copy_log, plan.turn)
                    size += len(row.value or b"") + len(row.key or b"")
                if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                    yield batch
                    batch, size = {}, 0
    if batch:
        yield batch


def _portions(ranges: Ranges) -> Iterator[Sequence[int]]:
    """Yields the offsets, some at a time: the reader takes a list of them."""
    every = chain.from_iterable(range(*pair) for pair in zip(*(column.tolist() for column in ranges), strict=True))
    while portion := list(islice(every, _PORTION)):
        yield portion


def _add_runs(runs: list[CopyRun], copy_log: CopyLog, batch: Mapping[int, Row]) -> None:
    """Adds the places of the copies that all replicas have. Neighbours with neighbouring copies become one run."""
    for offset, copy in batch.items():
        if copy.offset < 0:
            continue
        last = runs[-1] if runs else None
        if last is not None and last.end == offset and last.first + offset - last.start == copy.offset:
            runs[-1] = last._replace(end=offset + 1)
        else:
            runs.append(CopyRun(offset, offset + 1, copy_log, copy.offset))
