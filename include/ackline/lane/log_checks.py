"""What Kafka shows of a lane's topics, and whether their logs are still those that were read (S42).

Plans of runs, operator actions and backfills all check their logs here, before anything is read or decided. A topic
that was created again has another topic id. A log that was truncated, and has perhaps grown again, has another leader
epoch. Its end proves nothing: new records take the offsets of those that are gone. If the leader epoch has changed, and
only then, the leader is queried for the end of the known epoch (`ackline.kafka.cluster`). Replay checks its planned
ranges again, before and after it reads.

Under `on_expired: fail`, a run stops where retention was quicker than the pipeline, and settles nothing as expired.
`expired` rows can come to count in two places, and both are checked:
- `stop_if_expired`, before plan n is stored. What the log no longer holds is neither planned nor passed over, so every
  later run stops with this error until an operator decides. The genesis, an earlier write, may be stored by then: it
  makes no row about any record, and `ackline skip` needs the lane that it begins.
- `expired_rows_error`, before decisions n are stored. It finds what retention took between plan and read, or before a
  dead letter was read again. Outcomes n are stored by then, but rows count only once a settlement names their turn, and
  this turn becomes void. After a crash before the void settlement, the next run finds the same rows and does the same.
  After a crash behind it, the first check stops the next plan. So no run repeats the turn for ever.
If a fresh range is gone when replay is about to read it, `RangeGone` makes the turn void; the next plan stops.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ackline.errors import CopyGone, RangeGone, RetentionPassed, TopicChanged, TransientError
from ackline.forms.arguments import id_of
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import Way, lost_copies_advice, reset_advice
from ackline.ledger.commit_rule import Committed
from ackline.ledger.copies import Copies
from ackline.ledger.fold import OutcomeRow, PartitionState, PendingKind
from ackline.ledger.offsets import (
    LogBounds,
    OffsetRange,
    Ranges,
    TopicPartition,
    arrays_of,
    clipped,
    joined,
    ranges_of,
    subtract,
    union,
)
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.pending import PendingRuns
from ackline.ledger.planning import PartitionView
from ackline.ledger.turns import Plan, PlannedPartition, SettledPartition, Settlement


@dataclass(frozen=True, slots=True)
class KafkaView:
    """Topic ids, readable bounds and committed offsets of the subscription; bounds are None without a leader.

    `missing` are the topics and partitions that the pipeline file names and the broker does not have.
    """

    topic_ids: Mapping[str, str]
    bounds: Mapping[TopicPartition, LogBounds | None]
    committed: Mapping[TopicPartition, Committed]
    missing: tuple[str, ...]


def observe_kafka(adapters: Adapters, newest: Settlement | None, *, stable: bool = True) -> KafkaView:
    """Returns the subscription and the lane's topics, read from the broker. The lag needs no more requests.

    `stable` is as in `ackline.kafka.group.Group.committed`.

    Topic ids are read before bounds. A topic that is created again in between is shown under its old id. Later checks
    detect that: replay compares the ids before and after it reads records, and after a plan that reads nothing, the
    next plan stops at the new id.
    """
    adapters.cluster.reachable()  # fails within seconds, with the broker's name, if the broker is away
    block = adapters.pipeline.kafka
    known = {tp.topic for tp in newest.partitions} if newest else set()
    names = adapters.cluster.names() if block.named_topics is None else block.named_topics
    topics = adapters.cluster.topics(sorted({*(name for name in names if block.subscribes_to_topic(name)), *known}))
    has_leader = {
        TopicPartition(name, number): leader
        for name, info in topics.items()
        for number, leader in info.partitions.items()
    }
    logs = adapters.cluster.bounds([tp for tp, leader in has_leader.items() if leader])
    bounds = {tp: logs.get(tp) for tp in has_leader}
    committed = adapters.group.committed(has_leader, stable=stable)
    missing = [name for name in block.named_topics or () if name not in topics]
    named = [TopicPartition(name, number) for name, numbers in (block.partitions or {}).items() for number in numbers]
    missing += [str(tp) for tp in named if tp.topic in topics and tp not in has_leader]
    return KafkaView({name: info.topic_id for name, info in topics.items()}, bounds, committed, tuple(missing))


Known = Mapping[TopicPartition, tuple[int, int | None]]
"""By partition: an offset, and the leader epoch under which everything below it was read."""
Logs = Mapping[TopicPartition, LogBounds | None]
"""Bounds of the logs as they are now; None for a partition without a leader."""


def without_leader(adapters: Adapters, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Returns which of these partitions have no leader, sorted; none if no broker answers."""
    wanted = sorted(wanted)
    try:
        topics = adapters.cluster.topics(sorted({tp.topic for tp in wanted}))
    except TransientError:
        return []
    return [tp for tp in wanted if tp.topic in topics and topics[tp.topic].partitions.get(tp.partition) is False]


def truncated_partitions(adapters: Adapters, known: Known, logs: Logs) -> dict[TopicPartition, int | None]:
    """Returns the partitions whose log no longer holds all records below the known offset under the known leader epoch.

    The value is the offset below which the log is unchanged; None if that is unknown. If no leader epoch is known (rows
    of an earlier version, or a broker that gives none), the log is taken as unchanged.
    """
    changed = {}
    for tp, (offset, leader_epoch) in known.items():
        log = logs.get(tp)
        if leader_epoch is not None and log is not None and log.leader_epoch not in (None, leader_epoch):
            changed[tp] = offset, leader_epoch
    return adapters.cluster.truncated_at(changed) if changed else {}


def unchanged_logs(
    adapters: Adapters, plan: Plan, wanted: Iterable[TopicPartition], states: Mapping[TopicPartition, PartitionState]
) -> list[TopicPartition]:
    """Returns the partitions of `wanted` whose log is unchanged since the plan, up to `complete_to`.

    If the topic was created again, or the log was truncated and has grown again, the record at an offset is a different
    one: a letter of it would settle a record that was never read. The log of a partition without a leader can't be
    checked, so it is none of them.
    """
    topics = adapters.cluster.topics({tp.topic for tp in wanted})
    with_leader = [
        tp
        for tp in wanted
        if (topic := topics.get(tp.topic))
        and topic.topic_id == plan.partitions[tp].topic_id
        and topic.partitions.get(tp.partition)
    ]
    known = {tp: (states[tp].complete_to, plan.partitions[tp].log.leader_epoch) for tp in with_leader}
    truncated = truncated_partitions(adapters, known, adapters.cluster.bounds(with_leader))
    return [tp for tp in with_leader if tp not in truncated]


def logs_as_read(
    adapters: Adapters, lane: Mapping[TopicPartition, SettledPartition]
) -> dict[TopicPartition, LogBounds]:
    """Returns the bounds of each partition that has a leader and whose log still has what the lane has read of it."""
    topics = adapters.cluster.topics({tp.topic for tp in lane})
    same = [
        tp
        for tp, row in lane.items()
        if (topic := topics.get(tp.topic)) and topic.topic_id == row.topic_id and topic.partitions.get(tp.partition)
    ]
    logs = adapters.cluster.bounds(same)
    known = {tp: (lane[tp].state.complete_to, lane[tp].leader_epoch) for tp in same}
    truncated = truncated_partitions(adapters, known, logs)
    return {tp: log for tp, log in logs.items() if tp not in truncated}


def check_not_truncated(
    adapters: Adapters,
    lane: Mapping[TopicPartition, SettledPartition],
    logs: Logs,
    ends: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Raises TopicChanged if a log no longer holds what was read below `complete_to`, or below `ends`.

    Without this check, the lane would count as caught up.
    """
    known = {tp: ((ends or {}).get(tp, row.state.complete_to), row.leader_epoch) for tp, row in lane.items()}
    for tp, end in truncated_partitions(adapters, known, logs).items():
        if not adapters.commits:
            raise other_log_error(adapters, tp, f"was truncated below {known[tp][0]}: {_what_is_left(end)}")
        state, log = lane[tp].state, logs[tp]
        now = log.leader_epoch if log is not None else None
        target = "earliest" if end is None else min(end, state.floor)
        raise TopicChanged(
            f"{tp} was truncated: all below {state.complete_to} was read under leader epoch {lane[tp].leader_epoch}, "
            f"and {_what_is_left(end)} of it under epoch {now}; other records may have taken those offsets. Nothing "
            f"was read. {reset_advice(adapters.store, tp, target)}",
            tp=tp,
            offset=end,
        )


def _what_is_left(end: int | None) -> str:
    return "nothing is known to be left" if end is None else f"only what is below {end} is left"


def check_topic_not_recreated(
    adapters: Adapters, tp: TopicPartition, known_id: str, topic_id: str | None, exists: bool
) -> None:
    """Raises TopicChanged if a partition is gone, or belongs to a new topic of the same name.

    `topic_id` is the present id of the topic, None if there is no topic; `exists`: whether it has this partition.
    """
    if topic_id == known_id and exists:
        return
    gone = topic_id is None or not exists
    if not adapters.commits:
        raise other_log_error(adapters, tp, "is gone" if gone else "was deleted and created again")
    if gone:
        what = (
            f"is gone. Nothing was read. Take it out of the file, or let it go with "
            f"`{Way.LET_GO.of(adapters.store, *tp)}`, which records what it had not settled as skipped; the other "
            f"partitions go on. To let all of the topic go that is gone, leave out --partition"
        )
    else:
        what = (
            f"was deleted and created again (its topic id is another). Nothing was read; offsets of the old topic mean "
            f"nothing in a new one. Go on with `{Way.RESET.of(adapters.store, tp.topic, to='earliest')}`: a new epoch "
            f"on the new topic, in which nothing of the old one is pending. Or take it out of the file"
        )
    raise TopicChanged(f"{tp} {what}", tp=tp)


def other_log_error(adapters: Adapters, tp: TopicPartition, what: str) -> TopicChanged:
    """Returns the error of a backfill lane in whose log the offsets mean other records now. No reset opens a new epoch
    of such a lane: what was chosen is gone."""
    store = adapters.store
    return TopicChanged(
        f"{tp} {what}: it is not the log in which the offsets of backfill {id_of(store.lane)} were chosen. Nothing was "
        f"read. End it with `{Way.CANCEL.of(store)} --yes`, and begin another one",
        tp=tp,
    )


def check_planned_ranges(adapters: Adapters, plan: Plan, after: bool = False) -> None:
    """Checks that every planned range is in the log that the plan was made for. Raises RangeGone and TopicChanged.

    The check comes before reading, because Spark waits for two minutes for offsets that never come. With `after`, it
    comes after reading and compares topic ids and leader epochs alone. Leader epochs only grow: if the planned epoch is
    the leader's before and after reading, it was so in between. If the epoch has changed, the new leader must have the
    log of the planned one up to the end of the plan, retries included. A later turn plans again what was truncated
    above the settled state. If the log was truncated below it, the next plan stops the run.
    """
    wanted = {tp: planned for tp, planned in plan.partitions.items() if not planned.empty}
    _check_topic_ids(adapters, plan, wanted)
    logs = adapters.cluster.bounds(wanted)
    if not after:
        _check_bounds(wanted, logs)
    known = {tp: (planned.fresh.end, planned.log.leader_epoch) for tp, planned in wanted.items()}
    for tp, end in truncated_partitions(adapters, known, logs).items():
        raise RangeGone(
            f"{tp} was truncated below the planned end {wanted[tp].fresh.end} while {plan.turn} was under way "
            f"({_what_is_left(end)}); the turn is void",
            tp=tp,
            offset=end,
        )


def _check_topic_ids(adapters: Adapters, plan: Plan, wanted: Mapping[TopicPartition, PlannedPartition]) -> None:
    topics = adapters.cluster.topics(sorted({tp.topic for tp in wanted}))
    for tp, planned in wanted.items():
        topic = topics.get(tp.topic)
        if topic is None or topic.topic_id != planned.topic_id or tp.partition not in topic.partitions:
            raise TopicChanged(
                f"{tp} was deleted or created again while {plan.turn} was under way; the turn is void, nothing "
                f"of it counts",
                tp=tp,
            )


def _check_bounds(wanted: Mapping[TopicPartition, PlannedPartition], logs: Mapping[TopicPartition, LogBounds]) -> None:
    """Raises RangeGone or TopicChanged if a part of a fresh range is not in the log.

    Retries are not checked: each retry that retention has taken gets an `expired` outcome of its own.
    """
    for tp, log in logs.items():
        fresh = wanted[tp].fresh
        if fresh and log.end < fresh.end:
            raise TopicChanged(
                f"{tp} ends at {log.end}, below the planned end {fresh.end}: it was truncated or recreated; "
                f"the turn is void",
                tp=tp,
                offset=log.end,
            )
        if fresh and log.start > fresh.start:
            raise RangeGone(
                f"{tp}: the log starts at {log.start}, above the planned start {fresh.start}; the turn is void",
                tp=tp,
                offset=fresh.start,
            )


_NAMED = 5
"""How many partitions a message names, and how many ranges of each."""


def stop_if_expired(adapters: Adapters, views: Mapping[TopicPartition, PartitionView]) -> None:
    """Raises RetentionPassed if the log starts above an offset that a partition has not read yet or has pending."""
    if adapters.pipeline.on_expired != "fail":
        return
    lost = {tp: _lost_ranges(adapters, view) for tp, view in views.items() if view.readable}
    if any(lost.values()):
        raise _retention_passed(adapters, lost, "Nothing was planned")


def _lost_ranges(adapters: Adapters, view: PartitionView) -> tuple[OffsetRange, ...]:
    assert view.log is not None
    below, state = _gone_pending(adapters, view), view.state
    without_copy = ranges_of(subtract(below.ranges, state.copies.ranges)[:2])
    return joined([*without_copy, *clipped(None, state.complete_to, view.log.start)])


def _gone_pending(adapters: Adapters, view: PartitionView) -> PendingRuns:
    """Returns the pending records below the log start that a turn reads again."""
    # Without a dead-letter topic, a record that waits for its letter is not read again: it becomes `dead`, not expired.
    # A record in flight is not read before its attempt has failed: until then an answer may settle it.
    letters = () if adapters.pipeline.dead_letter_topic else (PendingKind.DEAD_LETTER,)
    not_read_again = (PendingKind.IN_FLIGHT, *letters)
    pending = view.state.pending.where(lambda pending: pending.kind not in not_read_again)
    return pending.within(arrays_of(clipped(None, 0, view.log.start if view.log is not None else 0)))


class LostCopies(NamedTuple):
    """Records of a partition whose copies can't be read any more, and why."""

    offsets: Ranges
    why: str


def lost_copies(adapters: Adapters, lane: Mapping[TopicPartition, Copies]) -> dict[TopicPartition, LostCopies]:
    """Returns which copies are gone, by partition: their topic was created again, or its log does not hold them.

    Costs no request without copies. A copy that compaction took is found only by whoever reads it.
    """
    lane = {tp: copies for tp, copies in lane.items() if len(copies)}
    logs = {log for copies in lane.values() for log in copies.logs}
    topics = adapters.cluster.topics({log.topic for log in logs}) if logs else {}
    known = {log: topics[log.topic] for log in logs if log.topic in topics}
    same = {log for log, topic in known.items() if topic.topic_id == log.topic_id and log.partition in topic.partitions}
    bounds = adapters.cluster.bounds([log.tp for log in same if known[log].partitions[log.partition]]) if same else {}
    lost: dict[TopicPartition, list[LostCopies]] = {}
    for tp, copies in lane.items():
        for log, runs in copies.by_log().items():
            if log not in same:
                why = "was created again" if log in known else "does not exist any more"
                lost.setdefault(tp, []).append(LostCopies(runs.ranges, f"the rescue topic {log.topic} {why}"))
            elif (found := bounds.get(log.tp)) is not None and len((gone := runs.outside(found.start, found.end))[0]):
                why = f"the log of {log.tp} is [{found.start}, {found.end})"
                lost.setdefault(tp, []).append(LostCopies(gone, why))
    return {tp: LostCopies(union(*(each.offsets for each in found)), found[0].why) for tp, found in lost.items()}


def stop_if_copies_lost(adapters: Adapters, views: Mapping[TopicPartition, PartitionView]) -> None:
    """Raises CopyGone if a pending record is gone from its topic, and its copy is gone too.

    Called before a plan is stored, so that an operator may act: no turn is open then. Without it, each turn would meet
    the record, and it could only become `expired`, which a rescued record never does.
    """
    copies = {
        tp: view.state.copies.within(_gone_pending(adapters, view).ranges)
        for tp, view in views.items()
        if view.readable and len(view.state.copies)
    }
    for tp, lost in sorted(lost_copies(adapters, copies).items()):
        offsets = ranges_of(lost.offsets)
        # One command for all of them, but for what is pending in between and not lost.
        others = subtract(views[tp].state.pending.ranges, lost.offsets)[0]
        later = int(others[others > offsets[0].start].min(initial=offsets[-1].end))
        end = max(part.end for part in offsets if part.end <= later)
        raise CopyGone(
            f"{tp}: records are gone from their topic, and so are the copies that were rescued of them: "
            f"{listed(map(str, offsets))}; {lost.why}. Nothing was planned. "
            f"{lost_copies_advice(adapters.store, tp, offsets[0].start, end)}",
            tp=tp,
            offset=offsets[0].start,
        )


def expired_rows_error(
    adapters: Adapters, plan: Plan, rows: Mapping[TopicPartition, Iterable[OutcomeRow]]
) -> RetentionPassed | None:
    """Returns the error because of which the turn becomes void, if one of `rows` would settle something as expired.

    None if the rows may be settled. A claimed turn is never void, because the group has moved over it: its expired
    rows are settled as they are.
    """
    if adapters.pipeline.on_expired != "fail":
        return None
    lost = {
        tp: ranges_of(union((expired.offsets, expired.ends)))
        for tp, found in rows.items()
        if (expired := OutcomeColumns.of(found).with_outcome(Outcome.EXPIRED))
    }
    if not lost or adapters.store.has_claim(plan.turn):
        return None
    return _retention_passed(adapters, lost, f"{plan.turn} is void: nothing of it was settled or committed")


def _retention_passed(
    adapters: Adapters, lost: Mapping[TopicPartition, Sequence[OffsetRange]], consequence: str
) -> RetentionPassed:
    lost = {tp: runs for tp, runs in sorted(lost.items()) if runs}
    tp, runs = next(iter(lost.items()))
    where_lost = [f"{tp} {listed(map(str, runs))}" for tp, runs in lost.items()]
    where = tp if len(lost) == 1 else ()
    return RetentionPassed(
        f"retention took records that were not settled: {listed(where_lost)}. {consequence}. "
        f"Go on with `{Way.SKIP.of(adapters.store, *where, to='earliest')}`, which records them as skipped, or write "
        f"`on_expired: record`",
        tp=tp,
        offset=runs[0].start,
    )


def listed(texts: Iterable[str]) -> str:
    """Returns the first texts of a list for a message, and how many more there are."""
    every = list(texts)
    more = len(every) - _NAMED
    return ", ".join(every[:_NAMED]) + (f" and {more} more" if more > 0 else "")
