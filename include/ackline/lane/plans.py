"""What all plans share (turn, run, time, the settings in force, the ranges of the lane), and the plans of actions.

Guarantee and isolation level change between turns only, and only while nothing is pending; the ack topic changes only
while nothing is in flight. Records under way were planned under the old values. Under other values, a record that was
handed out at most once could be handed out again (I7), or a failure that was to be retried could be dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ackline.errors import ConfigError, counted
from ackline.lane.adapters import Adapters
from ackline.lane.commit import commit_metadata_of
from ackline.lane.log_checks import check_not_truncated, check_topic_not_recreated
from ackline.lane.ways_out import Way, start_over, void_advice
from ackline.ledger.commit_rule import Committed, is_of_ledger, still_acknowledged
from ackline.ledger.offsets import (
    ChosenRanges,
    LogBounds,
    OffsetRange,
    TopicPartition,
    ValuedRanges,
    arrays_of,
    clipped,
    count,
)
from ackline.ledger.order import Order
from ackline.ledger.pending import PendingKind, PendingRuns, join_attempts
from ackline.ledger.turns import (
    Plan,
    PlannedPartition,
    SettledPartition,
    Settlement,
    TurnId,
    TurnKind,
    is_backfill,
    let_go_id,
)
from ackline.pipeline.pipeline import TurnSettings
from ackline.pipeline.properties import SECRET, key_hash


def new_plan(
    adapters: Adapters,
    newest: Settlement,
    kind: TurnKind,
    partitions: Mapping[TopicPartition, PlannedPartition],
    reason: str = "",
    of_run: Mapping[str, Any] | None = None,
) -> Plan:
    """Returns a plan for the turn after `newest`, with the settings in force.

    `of_run` is what only the plan of a run stores beside them. `ackline.steps.run_plan.new_run_plan` gives it.
    """
    of_secret = {SECRET: _id_of_secret(adapters)} if adapters.pipeline.order is Order.KEY else {}
    return Plan(
        newest.turn._replace(n=newest.turn.n + 1),
        kind,
        adapters.run_id,
        adapters.now(),
        partitions,
        adapters.pipeline.kafka.isolation,
        adapters.pipeline.settings() | of_secret | dict(of_run or {}),
        adapters.actor,
        reason,
        adapters.code() if kind.replays else "",
    )


def _id_of_secret(adapters: Adapters) -> str | None:
    """Returns what tells the secret of the keys' hashes from another one, for the plan of a turn with `order: key`. The
    ledger stores the hashes, and under another secret a record would not wait for the one before it."""
    secret = adapters.key_hash_secret
    return None if secret is None else f"{key_hash(secret)(b'') % (1 << 64):016x}"


def check_clock(adapters: Adapters, last: datetime | None) -> None:
    """Raises ConfigError for a fixed clock behind the last turn: due times and grace periods would run backwards."""
    if adapters.fixed_now and last and adapters.fixed_now < last:
        raise ConfigError(
            f"--now {adapters.fixed_now.isoformat()} is before the last turn, of {last.isoformat()}", key="--now"
        )


LaneRanges = Mapping[TopicPartition, tuple[OffsetRange, ...]] | None
"""The ranges of each partition; None for the live lane, which holds every offset."""


def lane_ranges(adapters: Adapters, epoch: int) -> LaneRanges:
    """Returns the ranges that the lane reads whole in an epoch; None for the live lane. Reads the genesis."""
    if not is_backfill(adapters.store.lane):
        return None
    genesis = adapters.store.settlement(TurnId(adapters.store.pipeline, adapters.store.lane, epoch, 0))
    return {tp: settled.ranges or () for tp, settled in genesis.partitions.items()}


def chosen_in(ranges: LaneRanges, tp: TopicPartition) -> ChosenRanges:
    """Returns the ranges of one partition; None for the live lane."""
    return None if ranges is None else ranges[tp]


def check_settings_unchanged(adapters: Adapters, newest: Settlement) -> None:
    """Raises ConfigError if guarantee or isolation level changed while records are pending under the old one, and if
    the ack topic changed while records are in flight.

    Checked before every turn but a reset, against the settings of the last turn's plan.
    """
    if newest.turn.n == 0 or not any(settled.state.pending for settled in newest.partitions.values()):
        return
    settings = TurnSettings(adapters.store.plan(newest.turn).settings)
    changes = _changes(adapters, settings)
    if adapters.pipeline.order is Order.KEY:
        changes += _change_of_secret(adapters, settings)
    if any(settled.state.pending_by_kind()[PendingKind.IN_FLIGHT] for settled in newest.partitions.values()):
        # Answers to the tokens that were handed out come to the old topic, and no turn would read them there.
        old, new = settings.ack_topic, adapters.pipeline.ack_topic
        changes += [("ack_topic", str(old), str(new))] if old != new else []
    for key, old, new in changes:
        raise ConfigError(
            f"{key} was changed from {old} to {new} while records are pending; change it back until nothing is, or "
            f"{start_over(newest.turn)}",
            key=key,
        )


def check_open_plan_settings(adapters: Adapters, plan: Plan) -> None:
    """Raises ConfigError if an open plan would be handed out under another guarantee or isolation level than its own,
    without the ack topic in which it reads the answers, or with handlers that belong to other steps.

    A plan that was made at most once may have been handed out already. The turn runs by the steps of its plan and the
    handlers of the file: a source that emits to a stream that no step of the plan takes would fail or drop its records.
    """
    before, ack_topic = TurnSettings(plan.settings), adapters.pipeline.ack_topic
    changes = [*_changes(adapters, before), *_change_of_secret(adapters, before)]
    steps = [settings.wiring for settings in (before, TurnSettings(adapters.pipeline.settings()))]
    if steps[0] != steps[1]:
        old, new = (", ".join(step["name"] for step in each) or "none" for each in steps)
        changes.append(("steps", old, new))
    if plan.ack_position is not None and plan.ack_position.topic != ack_topic:
        changes.append(("ack_topic", plan.ack_position.topic, str(ack_topic)))
    for key, old, new in changes:
        raise ConfigError(
            f"{key} was changed from {old} to {new} while {plan.turn} is open; change it back until it is settled. "
            f"{void_advice(plan.turn)}",
            key=key,
        )


def _changes(adapters: Adapters, before: TurnSettings) -> list[tuple[str, str, str]]:
    """Returns key, old and new value of each of the two settings that differs."""
    now = adapters.pipeline
    values = (
        ("guarantee", before.guarantee, now.guarantee),
        ("kafka.isolation", before.isolation, now.kafka.isolation),
    )
    return [(key, old, new) for key, old, new in values if old != new]


def _change_of_secret(adapters: Adapters, before: TurnSettings) -> list[tuple[str, str, str]]:
    known, now = before.stored.get(SECRET), _id_of_secret(adapters)
    return [(SECRET, f"one with the id {known}", f"one with the id {now}")] if known not in (None, now) else []


@dataclass(frozen=True, slots=True)
class LetGo:
    """The target of a partition that its topic does not have any more. All that is pending, and all up to `end` that is
    not read, is skipped; `end` is the end of the log as the lane has seen it last."""

    end: int


Target = int | PendingRuns | LetGo
"""The offset that a partition is moved to; or the pending runs that an action is about, and then it moves nothing; or
that the lane lets the partition go."""
Targets = Mapping[TopicPartition, Target]


def action_plan(
    adapters: Adapters, newest: Settlement, kind: TurnKind, targets: Targets, reason: str, inside: bool = False
) -> Plan:
    """Returns the plan of an action: a row for each partition that it moves, with the foreign commit it acknowledges.

    A reset begins a new epoch of the whole lane. Partitions without a row begin it at their floor, in the known log.
    Raises TopicChanged; ConfigError for an unknown partition, and, with `inside`, for a target outside its log.
    """
    unknown = [str(tp) for tp in targets if tp not in newest.partitions]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: not a partition of {adapters.pipeline.name}")
    moves = {tp: target for tp, target in targets.items() if isinstance(target, int)}
    logs = _action_logs(adapters, newest, kind, moves)
    if kind.opens_epoch:
        _check_rescued_are_kept(adapters, newest, moves, logs)
    committed = adapters.group.committed(list(targets), stable=kind.moves_floor)
    partitions = {}
    for tp, target in targets.items():
        settled = newest.partitions[tp]
        offset = target.end if isinstance(target, LetGo) else moves.get(tp, settled.state.floor)
        known_id = let_go_id(settled.topic_id) if isinstance(target, LetGo) else settled.topic_id
        topic_id, log = logs.get(tp, (known_id, LogBounds(offset, offset)))
        if inside and not log.start <= offset <= log.end:
            raise ConfigError(f"{tp}: offset {offset} is outside the log [{log.start}, {log.end})")
        acknowledges = kind.moves_floor and tp in moves
        retries: ValuedRanges[int] = ()
        if isinstance(target, PendingRuns):
            retries = join_attempts(target.starts, target.ends, target.attempts + 1)
        row = action_row(adapters, newest, settled, committed.get(tp), offset, log, acknowledges)
        partitions[tp] = replace(row, topic_id=topic_id, retries=retries)
    return new_plan(adapters, newest, kind, partitions, reason)


def _check_rescued_are_kept(
    adapters: Adapters,
    newest: Settlement,
    targets: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, tuple[str, LogBounds]],
) -> None:
    """Raises ConfigError if a new epoch would begin below the log start where records have copies alone, or above
    records that do not hold the floor because they have copies.

    The epoch begins with nothing pending, so without copies: it would settle the first as `expired` (S88), and no turn
    of it would read the second (S89). A topic that was created again is left out: an operator has to begin anew there,
    and its records are skipped by name.
    """
    for tp, row in newest.partitions.items():
        start = targets.get(tp, row.state.floor)
        behind = row.state.released.within(arrays_of(clipped(None, 0, start)))
        if len(behind) and logs.get(tp, (row.topic_id,))[0] == row.topic_id:
            first, end = int(behind.starts[0]), int(behind.ends[-1])
            raise ConfigError(
                f"{tp}: a new epoch that begins at offset {start} would leave behind "
                f"{counted(count(behind), 'record')} below it that the lane has released and not settled, the first at "
                f"offset {first}. Wait until they are settled, or first settle them as skipped with "
                f"`{Way.SKIP_PENDING.of(newest.turn, *tp, to=f'{first}:{end}')}`"
            )
    rescued = {tp: row.topic_id for tp, row in newest.partitions.items() if len(row.state.copies)}
    unchanged = adapters.unchanged_partitions(rescued) if rescued else []
    for tp, log in adapters.cluster.bounds(unchanged).items() if unchanged else ():
        state = newest.partitions[tp].state
        start = targets.get(tp, state.floor)
        alone = state.copies.within(arrays_of(clipped(None, start, log.start))).offsets
        if alone:
            raise ConfigError(
                f"{tp}: a new epoch that begins at offset {start} would lose {counted(alone, 'record')} below the log "
                f"start {log.start}, whose only copies are in the rescue topic. Wait until they are settled, or put "
                f"the partition to `earliest`, which records them as skipped"
            )


def _action_logs(
    adapters: Adapters, newest: Settlement, kind: TurnKind, targets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[str, LogBounds]]:
    """Returns topic id and bounds of the logs in which an action moves partitions.

    A skip goes on in the log that was read; raises TopicChanged if it is another one. A reset takes a log as it is
    now: it may be truncated, or belong to a topic that was created again. A partition that stays at its floor needs no
    log: retention may have passed the floor, or the topic may be gone.
    """
    if not kind.moves_floor:
        return {}
    # Topic ids before bounds. A topic that is created again between the two requests is then stored with its old id,
    # and the next run stops there. In the other order, the old log's bounds would be stored under the new id.
    topics = adapters.cluster.topics({tp.topic for tp in targets})
    lane = {tp: newest.partitions[tp] for tp in targets}
    # A partition that was let go begins anew, at whatever offset: its floor is in no log.
    moving = {tp: row for tp, row in lane.items() if targets[tp] != row.state.floor or row.let_go}
    for tp, settled in moving.items():
        topic = topics.get(tp.topic)
        topic_id = topic.topic_id if topic else None
        known_id = topic_id or "" if kind.opens_epoch else settled.topic_id
        check_topic_not_recreated(
            adapters, tp, known_id, topic_id, topic is not None and tp.partition in topic.partitions
        )
    with_leader = [tp for tp in lane if tp.topic in topics and topics[tp.topic].partitions.get(tp.partition)]
    bounds = adapters.cluster.bounds([*moving, *with_leader])
    if not kind.opens_epoch:
        check_not_truncated(adapters, moving, bounds)
    else:
        # A partition that stays at its floor takes over a log that was cut above it, and reads it from there on. If it
        # was cut below, other records may have taken offsets below the floor, and no turn would read them.
        staying = {tp: row for tp, row in lane.items() if tp not in moving and tp in bounds}
        same = {tp: row for tp, row in staying.items() if row.topic_id == topics[tp.topic].topic_id}
        check_not_truncated(adapters, same, bounds, {tp: row.state.floor for tp, row in same.items()})
    return {
        tp: (topics[tp.topic].topic_id, log)
        for tp, log in bounds.items()
        if tp in moving or (kind.opens_epoch and _floor_is_in(tp, lane[tp], topics[tp.topic].topic_id, log))
    }


def _floor_is_in(tp: TopicPartition, settled: SettledPartition, topic_id: str, log: LogBounds) -> bool:
    """Returns whether a reset that leaves a partition at its floor may take over the log as it is now.

    False if the floor is outside that log: the partition stays in the known log, and the next run stops there. Raises
    ConfigError if the topic was created again and the floor means another record in it.
    """
    floor = settled.state.floor
    if not log.start <= floor <= log.end:
        return False
    if topic_id != settled.topic_id and floor != log.start:
        raise ConfigError(
            f"{tp}: offset {floor} is the lane's floor in a topic that was deleted and created again; give "
            f"`--to earliest`, `latest` or another offset of the new topic"
        )
    return True


def action_row(
    adapters: Adapters,
    newest: Settlement,
    settled: SettledPartition,
    committed: Committed | None,
    target: int,
    log: LogBounds,
    acknowledges: bool,
) -> PlannedPartition:
    """Returns a row of an action's plan; if it `acknowledges`, with the present foreign commit as acknowledged.

    By a skip to an offset or a reset, the operator has decided the lane's position, so its floor may be committed over
    that value (S36). Other actions decide no position: the next run still stops at a group that was moved.
    """
    metadata = commit_metadata_of(adapters, newest)
    if committed is not None and acknowledges and not is_of_ledger(committed, metadata.pipeline, metadata.ledger):
        acknowledged: int | None = committed.offset
    else:
        acknowledged = still_acknowledged(committed, settled.acknowledged_foreign_offset, metadata)
    state = settled.state
    return PlannedPartition(
        settled.topic_id,
        OffsetRange(target, target),
        (),
        state.floor,
        state.complete_to,
        log,
        None,
        committed,
        acknowledged,
    )


def follow_plan(adapters: Adapters, newest: Settlement, moves: Mapping[TopicPartition, Committed]) -> Plan:
    """Returns the plan of the action that follows a group which was moved from outside (S36).

    If every move is forward, the action skips the ranges that were passed. If any move is backward, it resets: a new
    epoch begins at the group's offsets, and partitions that were not moved begin it at their floor. A group that was
    moved beyond the log is followed to the log's end. What retention took above the group's offset is settled as
    `expired` by later turns.
    """
    ends = adapters.cluster.bounds(list(moves))
    targets = {tp: min(committed.offset, ends[tp].end) for tp, committed in moves.items()}
    backward = any(target < newest.partitions[tp].state.floor for tp, target in targets.items())
    moved = ", ".join(f"{tp} to {committed.offset}" for tp, committed in moves.items())
    reason = f"the group was moved from outside: {moved}"
    return action_plan(adapters, newest, TurnKind.RESET if backward else TurnKind.SKIP, targets, reason)
