"""The initial position of each partition that is new to the lane: decided once, and stored before it is planned.

Decided once, because the answer changes: "latest" of a later run would pass over records that came meanwhile (S54).
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from ackline.errors import FatalError, NewerCommit
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import KafkaView
from ackline.lane.plans import new_plan
from ackline.lane.times import stamped_before
from ackline.lane.ways_out import ledger_advice
from ackline.ledger.commit_rule import CommitMetadata, Committed, is_of_ledger, is_of_pipeline
from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.ledger.turns import LIVE, Plan, PlannedPartition, SettledPartition, Settlement, TurnKind
from ackline.pipeline.blocks import KafkaBlock

InitialPosition = tuple[int, str]
"""An offset, and the evidence for it, which the settlement stores."""
_BY_TIME = "first since"
_log = logging.getLogger(__name__)


def genesis_partitions(
    adapters: Adapters,
    newest: Settlement | None,
    view: KafkaView,
    adopts_ledger: bool = False,
    to_store: bool = False,
) -> dict[TopicPartition, SettledPartition]:
    """Returns the subscribed partitions that are not in the lane yet, each settled at its initial position.

    With `adopts_ledger`, any commit of the group decides, whatever `start` is; without a commit, the log start.
    Leaves out a partition without a leader, unless the group's commit decides where it starts. With `to_store`, looks
    whether records after a start by time are stamped before it, and says so in a warning and in the evidence: that may
    take a minute, once a partition. Raises FatalError if the group's commit is beyond the log's end.
    """
    lane = newest.partitions if newest else {}
    known_topics = {tp.topic for tp in lane}
    before = previous_subscription(adapters, newest)
    genesis: dict[TopicPartition, SettledPartition] = {}
    for tp, log in sorted(view.bounds.items()):
        if tp in lane or not adapters.is_subscribed(tp):
            continue
        committed = view.committed.get(tp)
        known = tp.topic in known_topics
        position = _initial_position_by_commit(adapters, committed, known, adopts_ledger)
        if position is None and log is not None:
            position = _initial_position_by_log(adapters, tp, log, known, before, adopts_ledger)
        if position is None:
            continue
        offset, evidence = position
        _check_not_beyond_end(adapters, tp, offset, log)
        # A foreign commit that exists now is acknowledged: the first floor may be committed over it. A commit of this
        # ledger is not foreign, and needs no acknowledgement.
        ours = is_of_ledger(committed, adapters.pipeline.name, adapters.store.ledger_id())
        genesis[tp] = SettledPartition(
            view.topic_ids[tp.topic],
            offset,
            PartitionState(offset),
            acknowledged_foreign_offset=None if committed is None or ours else committed.offset,
            committed=committed,
            evidence=evidence,
            leader_epoch=log.leader_epoch if log is not None else None,
        )
    return _with_times(adapters, genesis, view) if to_store else genesis


def _with_times(
    adapters: Adapters, genesis: dict[TopicPartition, SettledPartition], view: KafkaView
) -> dict[TopicPartition, SettledPartition]:
    """Returns the partitions with what is out of order behind a start by time as a part of their evidence."""
    time, logs = adapters.pipeline.start_timestamp, dict[TopicPartition, LogBounds]()
    for tp, settled in genesis.items():
        log = view.bounds[tp]
        if time is not None and log is not None and (settled.evidence or "").startswith(_BY_TIME):
            logs[tp] = log._replace(start=settled.state.complete_to)
    for tp, note in (stamped_before(adapters, logs, time) if time is not None else {}).items():
        genesis[tp] = replace(genesis[tp], evidence=f"{genesis[tp].evidence}; {note}")
        _log.warning("%s: %s", tp, note)
    return genesis


def leaderless_partitions(
    adapters: Adapters, lane: Mapping[TopicPartition, SettledPartition], view: KafkaView
) -> tuple[TopicPartition, ...]:
    """Returns subscribed partitions that can't join the lane yet: without a leader, their log's ends are unknown."""
    return tuple(
        tp for tp, log in sorted(view.bounds.items()) if log is None and tp not in lane and adapters.is_subscribed(tp)
    )


def check_not_of_another_ledger(adapters: Adapters, newest: Settlement | None, view: KafkaView) -> None:
    """Raises NewerCommit if another ledger of this pipeline has committed a topic that is new to this one (S30).

    To begin at that commit would be right if the other ledger is lost. But as a rule ACKLINE_AUDIT is empty or names
    another folder by mistake: then what is pending there would never be handled, and acked records might be again.
    """
    if adapters.store.lane != LIVE:
        return  # another lane has a ledger of its own, and commits nothing
    known_topics = {tp.topic for tp in newest.partitions} if newest else set()
    name, ledger = adapters.pipeline.name, adapters.store.ledger_id()
    for tp, committed in sorted(view.committed.items()):
        if tp.topic in known_topics or not adapters.is_subscribed(tp) or not is_of_pipeline(committed, name):
            continue
        metadata = CommitMetadata.decode_or_none(committed.metadata)
        if metadata is None or is_of_ledger(committed, name, ledger):
            continue
        raise NewerCommit(
            f"{tp}: the group {adapters.pipeline.kafka.group_id} holds offset {committed.offset}, committed by turn "
            f"{metadata.n} of epoch {metadata.epoch} of ledger {metadata.ledger} of this pipeline, which is not in "
            f"ACKLINE_AUDIT. Nothing was planned. {ledger_advice(adapters.store)}",
            tp=tp,
            offset=committed.offset,
        )


def _initial_position_by_commit(
    adapters: Adapters, committed: Committed | None, known_topic: bool, adopts_ledger: bool
) -> InitialPosition | None:
    """Returns the position by the group's commit (S30): this pipeline's own, or under `uncommitted_*` a foreign one.

    A run meets no commit of another ledger here (`check_not_of_another_ledger`); a status and an adoption may.

    None for a new partition of a topic that is in the lane already: this ledger has handled nothing of it, even if the
    group has a commit for it.
    """
    if committed is None or known_topic:
        return None
    if is_of_pipeline(committed, adapters.pipeline.name):
        return committed.offset, "this pipeline's own commit"
    by_commit = adopts_ledger or adapters.pipeline.start.startswith("uncommitted_")
    return (committed.offset, "the group's commit") if by_commit else None


def _initial_position_by_log(
    adapters: Adapters,
    tp: TopicPartition,
    log: LogBounds,
    known_topic: bool,
    before: KafkaBlock | None,
    adopts_ledger: bool,
) -> InitialPosition:
    """Returns the position in the log: its start if all of it came after the lane began, else the one by `start`."""
    if known_topic:
        return log.start, "new partition: log start"
    if adopts_ledger:
        return log.start, "a ledger was adopted, and the group has no commit: log start"
    if before is not None and before.subscribes_to(*tp):
        # The last turn looked for this topic and did not find it. All of its records came later (S32, S54). The
        # filter's code may have changed since then; from the log start, no record is passed over.
        filtered = ", or filtered out," if before.partition_filter else ""
        return log.start, f"the topic was missing{filtered} at the last turn: log start"
    timestamp = adapters.pipeline.start_timestamp
    if timestamp is None:
        from_start = adapters.pipeline.start.endswith("earliest")
        return (log.start, "log start") if from_start else (log.end, "log end")
    offset = adapters.cluster.offsets_at([tp], timestamp)[tp]
    if offset is None:  # no record at or after the timestamp: the end, as for `latest` (S34)
        return log.end, f"log end, nothing since {timestamp.isoformat()}"
    return min(offset, log.end), f"{_BY_TIME} {timestamp.isoformat()}"


def _check_not_beyond_end(adapters: Adapters, tp: TopicPartition, offset: int, log: LogBounds | None) -> None:
    """Raises FatalError for an offset beyond the end of the log; an open transaction is part of the log (S43)."""
    if log is None or offset <= log.high_watermark:
        return
    raise FatalError(
        f"{tp}: the group {adapters.pipeline.kafka.group_id} holds offset {offset}, beyond the log end "
        f"{log.high_watermark}: the topic was truncated or recreated. Move the group to the offset at which the "
        f"pipeline is to start",
        tp=tp,
        offset=offset,
    )


def previous_subscription(adapters: Adapters, newest: Settlement | None) -> KafkaBlock | None:
    """Returns the subscription of the last turn that looked for topics; None before the first one.

    A topic in it that is not in the lane did not exist at that turn (S32, S54).
    """
    if newest is None:
        return None
    turn = newest.turn
    if turn.n == 0 and turn.epoch:  # a new epoch has no turn 0 of its own: the reset that opened it holds the settings
        turn = adapters.store.reset_into(turn.epoch)
    settings = adapters.store.plan(turn).settings["kafka"] if turn.n else adapters.store.first_subscription(turn)
    if settings is None:
        # The Delta log has expired the subscription of the first genesis. It is taken as unchanged: every new topic
        # starts at its log start, and no record is passed over.
        return adapters.pipeline.kafka
    return KafkaBlock.stored({**settings, "properties": {}})


def genesis_plan(adapters: Adapters, newest: Settlement, genesis: Mapping[TopicPartition, SettledPartition]) -> Plan:
    """Returns the plan of the turn in which partitions join a lane that has begun."""
    partitions = {}
    for tp, settled in genesis.items():
        start = settled.state.complete_to
        bounds = LogBounds(start, start, settled.leader_epoch)
        planned = PlannedPartition(
            settled.topic_id, OffsetRange(start, start), (), start, start, bounds, settled.evidence
        )
        partitions[tp] = replace(
            planned, committed=settled.committed, acknowledged_foreign_offset=settled.acknowledged_foreign_offset
        )
    return new_plan(adapters, newest, TurnKind.GENESIS, partitions, "new partitions")
