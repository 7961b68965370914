"""The plan of an operator's action, or of the action that follows a moved group."""

from collections.abc import Mapping
from dataclasses import replace

from ackline.commit_rule import Committed, is_of_ledger, still_acknowledged
from ackline.errors import ConfigError
from ackline.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.steps.commit import commit_metadata_of
from ackline.steps.log_checks import check_logs, check_topic
from ackline.steps.parts import Parts
from ackline.turns import Plan, PlannedPartition, SettledPartition, Settlement, TurnKind

MOVE_NOTHING = (TurnKind.PAUSE, TurnKind.RESUME)

Targets = Mapping[TopicPartition, int]


def action_plan(
    parts: Parts, newest: Settlement, kind: TurnKind, targets: Targets, reason: str, inside: bool = False
) -> Plan:
    """The plan of an act: a row for each partition that it moves, with the foreign commit that it answers.

    A reset begins an epoch of the whole lane: partitions without a row begin it at their floor, in the log they know.
    Raises TopicChanged; ConfigError for an unknown partition, and for a target that is to be `inside` its log and is
    not.
    """
    unknown = [str(tp) for tp in targets if tp not in newest.partitions]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: not a partition of {parts.pipeline.name}")
    logs = _logs(parts, newest, kind, targets)
    committed = parts.group.committed(list(targets))
    partitions = {}
    for tp, to in targets.items():
        one = newest.partitions[tp]
        topic_id, log = logs.get(tp, (one.topic_id, LogBounds(to, to)))
        if inside and not log.start <= to <= log.end:
            raise ConfigError(f"{tp}: offset {to} is outside the log [{log.start}, {log.end})")
        partitions[tp] = replace(action_row(parts, newest, one, committed.get(tp), to, log, kind), topic_id=topic_id)
    return new_plan(parts, newest, kind, partitions, reason)


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
    topics = parts.cluster.topics({tp.topic for tp in targets})
    lane = {tp: newest.partitions[tp] for tp in targets}
    moving = {tp: one for tp, one in lane.items() if targets[tp] != one.state.floor}
    for tp, one in moving.items():
        found = topics[tp.topic].topic_id if tp.topic in topics else None
        known = one.topic_id if kind is TurnKind.SKIP else found or ""
        check_topic(parts, tp, known, found, found is not None and tp.partition in topics[tp.topic].partitions)
    leads = [tp for tp in lane if tp.topic in topics and topics[tp.topic].partitions.get(tp.partition)]
    bounds = parts.cluster.bounds([*moving, *leads])
    if kind is TurnKind.SKIP:
        check_logs(parts, moving, bounds)
    return {
        tp: (topics[tp.topic].topic_id, LogBounds(log.start, log.end, log.leader_epoch))
        for tp, log in bounds.items()
        if tp in moving or (kind is TurnKind.RESET and _still_fits(tp, lane[tp], topics[tp.topic].topic_id, log))
    }


def _still_fits(tp: TopicPartition, one: SettledPartition, topic_id: str, log: LogBounds) -> bool:
    """Whether a floor that a reset leaves where it is means something in the log as it is now; where not, it stays in
    the one that is known. Raises ConfigError where it would mean something else in a topic that was created again."""
    floor = one.state.floor
    if not log.start <= floor <= log.end:
        return False
    if topic_id != one.topic_id and floor != log.start:
        raise ConfigError(
            f"{tp}: offset {floor} is where the lane stood in a topic that was deleted and created again; give "
            f"`--to earliest`, `latest` or another offset of the new one"
        )
    return True


def action_row(
    parts: Parts,
    newest: Settlement,
    one: SettledPartition,
    committed: Committed | None,
    to: int,
    log: LogBounds,
    kind: TurnKind,
) -> PlannedPartition:
    """A row of an act. What the group holds is answered by it, if it is not ours; by what moves nothing it is not."""
    mark = commit_metadata_of(parts, newest)
    foreign = (
        committed is not None and not is_of_ledger(committed, mark.pipeline, mark.ledger) and kind not in MOVE_NOTHING
    )
    acknowledged_foreign_offset = (
        committed.offset
        if committed is not None and foreign
        else still_acknowledged(committed, one.acknowledged_foreign_offset, mark)
    )
    tp = OffsetRange(to, to)
    return PlannedPartition(
        one.topic_id, tp, (), one.state.floor, one.state.complete_to, log, None, committed, acknowledged_foreign_offset
    )


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


def follow_plan(parts: Parts, newest: Settlement, moves: Mapping[TopicPartition, Committed]) -> Plan:
    """The act that follows a group which somebody has moved (S36).

    Forward only: the ranges passed are skipped. Backward anywhere: a new epoch, from there; partitions that were not
    moved start it at their floor. A group that was moved beyond the log is followed to its end; what retention took
    above the group's offset is `expired` by the turns that come.
    """
    ends = parts.cluster.bounds(list(moves))
    targets = {tp: min(committed.offset, ends[tp].end) for tp, committed in moves.items()}
    back = any(to < newest.partitions[tp].state.floor for tp, to in targets.items())
    moved = ", ".join(f"{tp} to {committed.offset}" for tp, committed in moves.items())
    reason = f"the group was moved from outside: {moved}"
    return action_plan(parts, newest, TurnKind.RESET if back else TurnKind.SKIP, targets, reason)
