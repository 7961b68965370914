"""Operators' acts: turns that handle nothing and change what is known, each planned, stored and settled like any other.

An act takes number n among the plans, as a plan that holds the whole act: `start_offset` and `end_offset` of its rows
are where it moves a partition to. While a turn is open an act is refused, so that it never runs beside a replay.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ackline.errors import ConfigError, FatalError, GroupMoved, LedgerError
from ackline.kafka.cluster import LogBounds as ReadableLog
from ackline.ledger import Committed, SettledPartition, Settlement, TurnKind, answered, of_ledger
from ackline.offsets import OffsetRange, TopicPartition
from ackline.pipeline import KafkaBlock
from ackline.planning import LogBounds, Plan, PlannedPartition
from ackline.steps.change import check_unchanged
from ackline.steps.parts import Parts
from ackline.steps.same_log import check_logs, check_topic
from ackline.steps.settle import Settled, commit_newest, mark_of, settle_turn

_MOVE_NOTHING = (TurnKind.PAUSE, TurnKind.RESUME)

Targets = Mapping[TopicPartition, int]
Choose = Callable[[Settlement], Targets]
"""Where an act moves each partition, given the lane as it is when the act takes its turn."""


def act(parts: Parts, kind: TurnKind, choose: Choose, reason: str) -> Settled:
    """Carry out an act on the live lane and commit what follows from it.

    `choose` is asked again whenever another run has taken the number. Raises FatalError while a turn is open,
    ConfigError for a lane that has not begun, for partitions it does not have, and for targets outside the log;
    TopicChanged for those whose topic is not the one that was read.
    """
    for _ in range(20):
        newest = parts.store.newest()
        if newest is None:
            raise ConfigError(f"{parts.pipeline.name} has not run yet: there is nothing to {kind}")
        open_plan = parts.store.open_plan(newest)
        if open_plan is not None:
            raise FatalError(
                f"{open_plan.turn} is open: let it end (`ackline run {parts.pipeline.name}`), then {kind} again"
            )
        if kind is not TurnKind.RESET:
            check_unchanged(parts, newest)  # else its plan's settings would pass for those that what is pending has
        targets = choose(newest)
        if not targets:
            raise ConfigError(f"{parts.pipeline.name}: no partition was named to {kind}")
        plan = act_plan(parts, newest, kind, targets, reason, inside=True)
        plan = replace(plan, settings={**plan.settings, "kafka": plan.settings["kafka"] | _looked_for(parts, newest)})
        if parts.store.store_plan(plan):
            settle_turn(parts, plan, newest)
            try:
                return commit_newest(parts)
            except GroupMoved:
                if kind not in _MOVE_NOTHING:
                    raise
                return Settled(parts.store.newest(), {})  # it is done; what the group is moved for, the next run says
    raise LedgerError("20 times another run took the turn that this act was about to take; are runs looping?")


def act_plan(
    parts: Parts, newest: Settlement, kind: TurnKind, targets: Targets, reason: str, inside: bool = False
) -> Plan:
    """The plan of an act: a row for each partition that it moves, with the foreign commit that it answers.

    A reset begins an epoch of the whole lane: partitions without a row begin it at their floor, in the log they know.
    Raises TopicChanged; ConfigError for an unknown partition, and for a target that is to be `inside` its log and is
    not.
    """
    unknown = [str(at) for at in targets if at not in newest.partitions]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: not a partition of {parts.pipeline.name}")
    logs = _logs(parts, newest, kind, targets)
    held = parts.group.committed(list(targets))
    partitions = {}
    for at, to in targets.items():
        one = newest.partitions[at]
        topic_id, log = logs.get(at, (one.topic_id, LogBounds(to, to)))
        if inside and not log.start <= to <= log.end:
            raise ConfigError(f"{at}: offset {to} is outside the log [{log.start}, {log.end})")
        partitions[at] = replace(moved(parts, newest, one, held.get(at), to, log, kind), topic_id=topic_id)
    return new_plan(parts, newest, kind, partitions, reason)


def subscribed_before(parts: Parts, newest: Settlement | None) -> KafkaBlock | None:
    """The subscription of the last turn that looked for topics: one in it that the lane does not know was not there
    then (S32, S54). None where nobody has looked yet."""
    if newest is None:
        return None
    turn = newest.turn
    if turn.n == 0 and turn.epoch:
        turn = parts.store.reset_into(turn.epoch)
    settings = parts.store.plan(turn).settings["kafka"] if turn.n else parts.store.first_subscription(turn)
    if settings is None:  # not known any more: from the log start nothing is passed over
        return parts.pipeline.kafka
    return KafkaBlock.stored({**settings, "properties": {}})


def _looked_for(parts: Parts, newest: Settlement) -> dict[str, Any]:
    """What the plan of an operator's act says of topics: an act looks for none, so a topic that was put into the file
    before it is as new to the lane after it."""
    before = subscribed_before(parts, newest) or parts.pipeline.kafka
    return before.model_dump(mode="json", include={"topics", "pattern", "partitions", "partition_filter"})


def _logs(
    parts: Parts, newest: Settlement, kind: TurnKind, targets: Targets
) -> dict[TopicPartition, tuple[str, LogBounds]]:
    """Topic id and bounds of the logs that an act moves in.

    A reset takes a log as it is now: it may have been cut, or be of a topic that was created again. A skip goes on in
    the log that was read; raises TopicChanged where that is another. What stays at its floor needs no log: retention
    may have passed it, its topic may be gone. The ids are asked first: bounds of a topic created again in between stop
    the next run, while the old topic's bounds under the new id would not.
    """
    if kind not in (TurnKind.SKIP, TurnKind.RESET):
        return {}
    topics = parts.cluster.topics({at.topic for at in targets})
    lane = {at: newest.partitions[at] for at in targets}
    moving = {at: one for at, one in lane.items() if targets[at] != one.state.floor}
    for at, one in moving.items():
        found = topics[at.topic].topic_id if at.topic in topics else None
        known = one.topic_id if kind is TurnKind.SKIP else found or ""
        check_topic(parts, at, known, found, found is not None and at.partition in topics[at.topic].partitions)
    leads = [at for at in lane if at.topic in topics and topics[at.topic].partitions.get(at.partition)]
    bounds = parts.cluster.bounds([*moving, *leads])
    if kind is TurnKind.SKIP:
        check_logs(parts, moving, bounds)
    return {
        at: (topics[at.topic].topic_id, LogBounds(log.start, log.end, log.leader_epoch))
        for at, log in bounds.items()
        if at in moving or (kind is TurnKind.RESET and _still_fits(at, lane[at], topics[at.topic].topic_id, log))
    }


def _still_fits(at: TopicPartition, one: SettledPartition, topic_id: str, log: ReadableLog) -> bool:
    """Whether a floor that a reset leaves where it is means something in the log as it is now; where not, it stays in
    the one that is known. Raises ConfigError where it would mean something else in a topic that was created again."""
    floor = one.state.floor
    if not log.start <= floor <= log.end:
        return False
    if topic_id != one.topic_id and floor != log.start:
        raise ConfigError(
            f"{at}: offset {floor} is where the lane stood in a topic that was deleted and created again; give "
            f"`--to earliest`, `latest` or another offset of the new one"
        )
    return True


def moved(
    parts: Parts,
    newest: Settlement,
    one: SettledPartition,
    held: Committed | None,
    to: int,
    log: LogBounds,
    kind: TurnKind,
) -> PlannedPartition:
    """A row of an act. What the group holds is answered by it, if it is not ours; by what moves nothing it is not."""
    mark = mark_of(parts, newest)
    foreign = held is not None and not of_ledger(held, mark.pipeline, mark.ledger) and kind not in _MOVE_NOTHING
    seen = held.offset if held is not None and foreign else answered(held, one.seen, mark)
    at = OffsetRange(to, to)
    return PlannedPartition(one.topic_id, at, (), one.state.floor, one.state.complete_to, log, None, held, seen)


def new_plan(
    parts: Parts,
    newest: Settlement,
    kind: TurnKind,
    partitions: Mapping[TopicPartition, PlannedPartition],
    reason: str = "",
) -> Plan:
    """A plan for the turn after `newest`, with the settings in force."""
    return Plan(
        newest.turn._replace(n=newest.turn.n + 1),
        kind,
        parts.run_id,
        parts.now(),
        partitions,
        parts.pipeline.kafka.isolation,
        parts.pipeline.settings(),
        parts.actor,
        reason,
    )


def follow(parts: Parts, newest: Settlement, moves: Mapping[TopicPartition, Committed]) -> Plan:
    """The act that follows a group which somebody has moved (S36).

    Forward only: the ranges passed are skipped. Backward anywhere: a new epoch, from there; partitions that were not
    moved start it at their floor. A group that was moved beyond the log is followed to its end; what retention took
    above the group's offset is `expired` by the turns that come.
    """
    ends = parts.cluster.bounds(list(moves))
    targets = {at: min(held.offset, ends[at].end) for at, held in moves.items()}
    back = any(to < newest.partitions[at].state.floor for at, to in targets.items())
    reason = f"the group was moved from outside: {', '.join(f'{at} to {held.offset}' for at, held in moves.items())}"
    return act_plan(parts, newest, TurnKind.RESET if back else TurnKind.SKIP, targets, reason)


def genesis_plan(parts: Parts, newest: Settlement, genesis: Mapping[TopicPartition, SettledPartition]) -> Plan:
    """The turn in which partitions join a lane that has begun."""
    partitions = {}
    for at, one in genesis.items():
        start = one.state.complete_to
        bounds = LogBounds(start, start, one.leader_epoch)
        row = PlannedPartition(one.topic_id, OffsetRange(start, start), (), start, start, bounds, one.evidence)
        partitions[at] = replace(row, held=one.held, seen=one.seen)
    return new_plan(parts, newest, TurnKind.GENESIS, partitions, "new partitions")
