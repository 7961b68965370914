"""The next turn of a backfill lane: its open plan, or a new one over what was chosen and is not settled.

The lane reads what its genesis has stored, whatever becomes of the pipeline file and the group. Of two
processes that resume the same lane, one stores plan n, and the other adopts it (steps/take_turn.py).
"""

import logging

from ackline.errors import ConfigError
from ackline.in_flight.ack_topic import unread_answers
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import check_not_truncated, check_topic_not_recreated, other_log_error
from ackline.lane.plans import (
    LaneRanges,
    check_settings_unchanged,
    chosen_in,
    lane_ranges,
)
from ackline.ledger import planning
from ackline.ledger.fold import PendingKind
from ackline.ledger.offsets import LogBounds, TopicPartition, clipped
from ackline.ledger.planning import Limits, PartitionView
from ackline.ledger.turns import Plan, SettledPartition, Settlement, TurnKind
from ackline.outputs.turn import publish_settled
from ackline.steps.plan import Planned, check_dead_letter_topic
from ackline.steps.run_plan import max_in_flight, new_run_plan
from ackline.steps.settle import settle_turn
from ackline.steps.take_turn import take_turn

log = logging.getLogger(__name__)

NO_WINDOW = 2**62
"""`max_uncommitted` for guarantees that never retry."""


def plan_backfill(
    adapters: Adapters, max_records: int | None = None, resend: bool = False, reason: str = ""
) -> Planned:
    """Returns the lane's open plan, or else a new one, stored; without a plan if nothing can be read now.

    The turn reads `max_records` offsets at most. With `resend`, it is also taken for dead letters alone that were not
    acknowledged. A new plan stores `reason`; an open one keeps its own. Raises ConfigError if the lane has not begun,
    the dead-letter topic is missing or an output has other columns, TopicChanged if a log is not the one in which the
    offsets were chosen.
    """

    def begin() -> None:
        raise ConfigError(f"{adapters.pipeline.name} has no lane {adapters.store.lane}")

    def end(open_plan: Plan, newest: Settlement) -> bool:
        if open_plan.kind is TurnKind.RUN:
            return False
        settle_turn(adapters, open_plan, newest)  # a cancellation whose process has died; any process finishes it
        return True

    def make(newest: Settlement) -> Plan | None:
        # A lane that is settled takes no further number, and commits no group: no later step publishes its last turn.
        publish_settled(adapters, newest)
        return _next_plan(adapters, newest, max_records, resend, reason)

    taken = take_turn(adapters, "taking a turn", (TurnKind.RUN,), begin=begin, end=end, make=make)
    return Planned(taken.plan, taken.adopted)


def _next_plan(
    adapters: Adapters, newest: Settlement, max_records: int | None, resend: bool, reason: str
) -> Plan | None:
    """Returns the plan after `newest`; None if it would do nothing."""
    chosen = lane_ranges(adapters, newest.turn.epoch)
    unfinished = {tp: settled for tp, settled in newest.partitions.items() if _is_unfinished(tp, settled, chosen)}
    if not unfinished:
        return None
    check_dead_letter_topic(adapters)
    check_settings_unchanged(adapters, newest)
    logs = _logs(adapters, unfinished, chosen)
    views = {
        tp: PartitionView(
            settled.topic_id,
            settled.state,
            logs.get(tp),
            subscribed=adapters.is_subscribed(tp),
            paused=settled.paused,
            chosen=chosen_in(chosen, tp),
        )
        for tp, settled in unfinished.items()
    }
    retries = adapters.pipeline.guarantee == "at_least_once"
    most = adapters.pipeline.max_records_per_run if max_records is None else max_records
    limits = Limits(
        adapters.pipeline.max_uncommitted if retries else NO_WINDOW,
        min(most, adapters.pipeline.max_records_per_run),
        max_in_flight=max_in_flight(adapters),
    )
    planned = planning.plan_partitions(views, limits, adapters.now(), newest.turn.n + 1)
    for tp, row in planned.items():
        if row.why == planning.NO_LEADER:
            log.warning("%s has no leader: it is left out until it has one; the others go on", tp)
    reads = any(
        not row.empty or clipped(chosen_in(chosen, tp), row.complete_to, row.fresh.start) for tp, row in planned.items()
    )
    letters = resend and any(has_dead_letters(settled) for settled in unfinished.values())
    answers = not reads and _has_answers(adapters, newest)
    return new_run_plan(adapters, newest, planned, reason) if reads or letters or answers else None


def _has_answers(adapters: Adapters, newest: Settlement) -> bool:
    """Returns whether a turn would end an attempt in flight: a deadline has passed, or answers are not read yet."""
    states = [settled.state for settled in newest.partitions.values()]
    if not any(state.pending_by_kind()[PendingKind.IN_FLIGHT] for state in states):
        return False
    unread = unread_answers(adapters, newest)
    if unread is not None and any(unread.ranges.values()):
        return True
    # While answers are hidden nothing times out, so turns for what is overdue would follow each other without an end.
    hidden = unread is not None and unread.hides_answers
    return not hidden and any(state.pending.overdue_at(adapters.now()) for state in states)


def _is_unfinished(tp: TopicPartition, settled: SettledPartition, chosen: LaneRanges) -> bool:
    ranges = chosen_in(chosen, tp)
    return bool(settled.state.pending) or bool(ranges and ranges[-1].end > settled.state.complete_to)


def has_dead_letters(settled: SettledPartition) -> bool:
    """Returns whether a record of the partition waits for the acknowledgement of its dead letter."""
    return settled.state.pending_by_kind()[PendingKind.DEAD_LETTER] > 0


def _logs(
    adapters: Adapters, lane: dict[TopicPartition, SettledPartition], chosen: LaneRanges
) -> dict[TopicPartition, LogBounds]:
    """Returns the readable logs of partitions with a leader. Raises TopicChanged if a log is not the one in which the
    offsets were chosen: in another log the same offsets mean other records (S42).

    Unlike the live lane, the whole of what was chosen is compared and not only what was read: of a log that was cut
    below it, and has grown again, the rest would be other records than those that were asked for.
    """
    adapters.cluster.reachable()
    topics = adapters.cluster.topics(sorted({tp.topic for tp in lane}))
    for tp, settled in lane.items():
        topic = topics.get(tp.topic)
        exists = topic is not None and tp.partition in topic.partitions
        check_topic_not_recreated(adapters, tp, settled.topic_id, topic.topic_id if topic else None, exists)
    bounds = adapters.cluster.bounds([tp for tp in lane if topics[tp.topic].partitions[tp.partition]])
    ends = {
        tp: max([settled.state.complete_to, *(part.end for part in chosen_in(chosen, tp) or ())])
        for tp, settled in lane.items()
    }
    check_not_truncated(adapters, lane, bounds, ends)
    for tp, log_bounds in bounds.items():
        if log_bounds.end < lane[tp].state.complete_to:
            raise other_log_error(adapters, tp, f"ends at {log_bounds.end}, below {lane[tp].state.complete_to}")
    return bounds
