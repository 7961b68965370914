"""The plan of a run: what the next turn reads. If the lane has to be moved first, it is the plan of that action."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from ackline.errors import ConfigError, GroupMoved, TooFarBehind, TopicChanged, did_you_mean
from ackline.forms.form import TABLE_GONE
from ackline.in_flight.ack_topic import start_position
from ackline.lane.adapters import Adapters
from ackline.lane.commit import CommitCheck, commit_metadata_of, may_restore
from ackline.lane.log_checks import (
    KafkaView,
    check_not_truncated,
    check_topic_not_recreated,
    listed,
    stop_if_copies_lost,
    stop_if_expired,
)
from ackline.lane.plans import action_plan, follow_plan, new_plan
from ackline.lane.ways_out import Way, reset_advice
from ackline.ledger import planning
from ackline.ledger.commit_rule import Committed, still_acknowledged
from ackline.ledger.metrics import due_retries
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.order import Order
from ackline.ledger.pending import PendingKind
from ackline.ledger.planning import Limits, PartitionView
from ackline.ledger.turns import ACK_POSITION, Plan, PlannedPartition, Settlement, TurnKind
from ackline.outputs.expected import expected_of, older_copies, older_copy_error
from ackline.outputs.output_table import location_of
from ackline.outputs.staged import outputs_of
from ackline.scrub import scrub_address

log = logging.getLogger(__name__)
Views = Mapping[TopicPartition, PartitionView]

_NAMED = 5
"""How many partitions an error names."""
_NO_WINDOW = 2**62
"""`max_uncommitted` for guarantees that never retry: nothing is ever pending, so the window never closes."""


def next_plan(adapters: Adapters, newest: Settlement, view: KafkaView, skipped: bool = False) -> Plan | None:
    """Returns the plan for the turn after `newest`; None if each partition was let go, and none is there again.

    It is a reset if a partition that was let go is there again, and nothing is pending; a skip or a reset if the group
    was moved, under `on_external_reset: follow` (S36); a skip if a partition is too far behind, under the policy `skip`
    (S45), unless this run has `skipped` before. Raises as `ackline.steps.plan.plan` does if the lane can't go on.
    """
    _check_request(adapters, newest)
    views, moves = _views(adapters, newest, view)
    # Nothing below is decided before every readable log is known to be the one that was read. In another log the same
    # offsets mean other records, and a truncated log would count as one with nothing new (S42).
    readable = {tp: newest.partitions[tp] for tp, partition in views.items() if partition.readable}
    check_not_truncated(adapters, readable, view.bounds)
    # The group was moved, and the lane follows it. This comes before the checks of retention and of max_offset_behind:
    # they judge the lane's present position, which this action changes.
    if moves:
        return _with_tables_as_expected(adapters, newest, follow_plan(adapters, newest, moves))
    # After the checks of the other partitions: what stops the lane is not carried into a new epoch.
    returned = _returned(adapters, newest, view)
    if returned:
        plan = action_plan(adapters, newest, TurnKind.RESET, returned, f"there again: {listed(map(str, returned))}")
        return _with_tables_as_expected(adapters, newest, plan)
    stop_if_copies_lost(adapters, views)
    stop_if_expired(adapters, views)
    limit = adapters.pipeline.max_offset_behind
    targets = {} if skipped and limit is not None and limit.policy == "skip" else _skip_targets(adapters, views)
    if targets:
        reason = f"more than max_offset_behind {limit and limit.offsets}"
        return action_plan(adapters, newest, TurnKind.SKIP, targets, reason)
    limits = limits_of(adapters, adapters.request.max_records or None, fresh=not adapters.request.only_retries)
    views = _with_waiting_times(adapters, views, limits)
    try:
        planned = planning.plan_partitions(views, limits, adapters.now(), newest.turn.n + 1)
    except TopicChanged as error:  # a log ends below what was read, under the leader epoch that is known
        for tp in (tp for tp in views if tuple(tp) == (error.topic, error.partition)):
            offset = min(views[tp].state.floor, error.offset or 0)
            error.add_advice(reset_advice(newest.turn, tp, offset))
        raise
    # A plan without a row could not be read again: the lane would stand still for good.
    return new_run_plan(adapters, newest, planned) if planned else None


def _with_tables_as_expected(adapters: Adapters, newest: Settlement, plan: Plan) -> Plan:
    """Returns an action's plan. Raises LedgerError if it opens an epoch, which takes each output table as it is, and a
    table or the ledger is an older copy: only an operator's reset may accept that rows are missing."""
    if plan.kind.opens_epoch and (found := older_copies(adapters.store, newest)):
        raise older_copy_error(newest.turn, "; ".join(found.values()))
    return plan


def new_run_plan(
    adapters: Adapters, newest: Settlement, partitions: Mapping[TopicPartition, PlannedPartition], reason: str = ""
) -> Plan:
    """Returns the plan of a run after `newest`: it stores the request, and from where the turn reads answers.

    The position is fenced with the plan, before a token of the turn can exist (S64). Raises ConfigError if the ack
    topic can't be used.
    """
    position = start_position(adapters, newest)
    of_run = adapters.request.settings() | ({ACK_POSITION: position.as_json()} if position is not None else {})
    return new_plan(adapters, newest, TurnKind.RUN, partitions, reason, of_run)


def limits_of(adapters: Adapters, max_records: int | None, fresh: bool = True) -> Limits:
    """Returns how much a turn may read: `max_records` offsets at most, and never more than the file allows; without
    `fresh` only retries."""
    pipeline = adapters.pipeline
    return Limits(
        pipeline.max_uncommitted if pipeline.guarantee.retries else _NO_WINDOW,
        pipeline.max_records_per_run if max_records is None else min(max_records, pipeline.max_records_per_run),
        fresh=fresh,
        max_in_flight=pipeline.in_flight.max if pipeline.ack_topic is not None else None,
        order=pipeline.order if pipeline.guarantee.retries else Order.NONE,
    )


def _check_request(adapters: Adapters, newest: Settlement) -> None:
    gone, named = adapters.request.table_gone, [output.table for output in outputs_of(adapters) if output.table]
    # Rows may wait for a table that the file does not name any more.
    known = (*named, *expected_of(adapters.store, newest)) if gone else ()
    tables = {name: location_of(adapters.store, name) for name in known}
    for name in gone:
        if location_of(adapters.store, name) not in tables.values():
            raise ConfigError(
                f"{TABLE_GONE.name}: {scrub_address(name)} is no output table of {adapters.pipeline.name}"
                f"{did_you_mean(name, tables)}. Nothing was planned",
                key=TABLE_GONE.name,
            )
    unknown = sorted((adapters.request.partitions or frozenset()) - newest.partitions.keys())
    if unknown:
        names = ", ".join(map(str, unknown[:_NAMED]))
        raise ConfigError(
            f"partitions: {names} is no partition that {adapters.pipeline.name} reads; `ackline status "
            f"{adapters.pipeline.name}` lists them. Nothing was planned",
            key="partitions",
        )


def _views(
    adapters: Adapters, newest: Settlement, view: KafkaView
) -> tuple[dict[TopicPartition, PartitionView], dict[TopicPartition, Committed]]:
    """Returns a view of each partition of the lane, and the foreign commits that the lane has to follow.

    Topic and group are checked for subscribed partitions alone: a parked one may belong to another pipeline by now.
    Raises GroupMoved under `on_external_reset: fail`, and NewerCommit.
    """
    metadata = commit_metadata_of(adapters, newest)
    check = CommitCheck(adapters, metadata)
    views: dict[TopicPartition, PartitionView] = {}
    moves: dict[TopicPartition, Committed] = {}
    for tp, settled in newest.partitions.items():
        if settled.let_go:  # no part of a plan: whoever looks for turns on another topic goes by the ids in plans
            continue
        committed, subscribed = view.committed.get(tp), adapters.is_subscribed(tp)
        acknowledged = settled.acknowledged_foreign_offset
        if subscribed:
            check_topic_not_recreated(adapters, tp, settled.topic_id, view.topic_ids.get(tp.topic), tp in view.bounds)
            # `may_restore`: the floor may be committed over the offset to which the group was moved.
            if committed is not None and not may_restore(adapters, committed, metadata):
                try:
                    check.check(tp, committed, acknowledged)
                except GroupMoved:
                    if adapters.pipeline.on_external_reset != "follow":
                        raise
                    moves[tp] = committed
        bounds = view.bounds.get(tp)
        views[tp] = PartitionView(
            settled.topic_id,
            settled.state,
            bounds.read_to(settled.state.complete_to) if bounds is not None else None,
            committed,
            # Once a plan has found a commit of this ledger, the foreign offset of the start counts as a new move (S36).
            still_acknowledged(committed, acknowledged, metadata),
            subscribed,
            settled.paused,
            requested=adapters.request.includes(tp),
        )
    return views, moves


def _returned(adapters: Adapters, newest: Settlement, view: KafkaView) -> dict[TopicPartition, int]:
    """Returns where each partition begins that was let go and is there again. Empty while anything is pending.

    It begins in a new epoch of the lane: in the old one its offsets have outcomes, which are of other records. With
    nothing pending, the other partitions begin that epoch where they are, and no record is handled again. With
    something pending, records that were acked above a floor would be, so the partition waits, or an operator decides.
    In a topic with the id of the old one, which the broker has not shown for a time, it goes on where it was.
    """
    targets = {}
    for tp, settled in newest.partitions.items():
        bounds = view.bounds.get(tp)
        if not settled.let_go or bounds is None or not adapters.is_subscribed(tp) or not adapters.request.includes(tp):
            continue
        same = view.topic_ids[tp.topic] == settled.known_topic_id
        targets[tp] = min(max(bounds.start, settled.state.complete_to), bounds.end) if same else bounds.start
    if targets and any(settled.state.pending for settled in newest.partitions.values()):
        log.warning(
            "%s: let go, and there again. A new epoch reads it once no record of the lane is pending; to read it now, "
            "`%s`", listed(map(str, targets)), Way.RESET.of(newest.turn, next(iter(targets)).topic, to="earliest"),
        )  # fmt: skip
        return {}
    return targets


def _with_waiting_times(
    adapters: Adapters, views: dict[TopicPartition, PartitionView], limits: Limits
) -> dict[TopicPartition, PartitionView]:
    """Returns the views with the time of each first unread record, if the run can't take all and has to choose."""
    unread = {
        tp: max(view.state.complete_to, view.log.start)
        for tp, view in views.items()
        if view.readable and view.log is not None and view.log.end > view.state.complete_to
    }
    available = sum(view.log.end - unread[tp] for tp, view in views.items() if tp in unread and view.log is not None)
    available += sum(due_retries(view.state, adapters.now()) for view in views.values() if view.readable)
    if len(unread) < 2 or available <= limits.max_records_per_run:
        return views
    times = adapters.cluster.record_times(unread)
    return {tp: replace(view, waits_since=times.get(tp)) for tp, view in views.items()}


def _skip_targets(adapters: Adapters, views: Views) -> dict[TopicPartition, int]:
    """Returns the offset to which each partition that is too far behind is skipped (S45).

    Raises TooFarBehind under `fail`. Offsets that retention took do not count as behind; a skip settles them too.
    Records in flight do not count either, and no skip passes them: their answers may be in the ack topic. Paused,
    parked and leaderless partitions are left alone.
    """
    limit = adapters.pipeline.max_offset_behind
    if limit is None:
        return {}
    targets = {}
    for tp, view in views.items():
        if not view.readable or view.log is None:
            continue
        pending = view.state.holding  # what is released waits apart, in the rescue topic
        in_flight = pending.of_kind(PendingKind.IN_FLIGHT)
        first_in_flight = int(in_flight.starts.min(initial=view.log.end))
        others = pending.where(lambda state: state.kind is not PendingKind.IN_FLIGHT)
        # Nothing is behind because of a record in flight: it is read, and waits for its answer.
        first = int(others.starts.min(initial=view.state.complete_to))
        behind = view.log.end - max(first, view.log.start)
        if behind <= limit.offsets:
            continue
        if limit.policy == "fail":
            command = Way.SKIP.of(adapters.store, *tp, to=min(first_in_flight, view.log.end - limit.offsets))
            name = "the floor" if first == view.state.floor else "the first offset that is not in flight,"
            raise TooFarBehind(
                f"{tp}: {name} {first} is {behind} offsets behind the log's end, more than "
                f"max_offset_behind ({limit.offsets}); raise it, skip with `{command}`, or let the policy be `skip`",
                tp=tp,
                offset=first,
            )
        target = min(first_in_flight, view.log.end - limit.offsets)
        if target > view.state.floor:
            targets[tp] = target
    return targets
