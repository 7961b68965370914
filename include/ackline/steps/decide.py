"""What settle decides beside the attempts: what retention took, what an operator skips, and which records are dead.

Decisions are rows of their own (attempt 0) in `outcomes`. Nothing here stores them; settle does, as decisions n.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from ackline.dead_letters.send import send_dead_letters
from ackline.errors import ConfigError
from ackline.in_flight.ack_topic import AnswerRange
from ackline.in_flight.decide import DecidedRows, answers_of_turn, decide_answers
from ackline.lane.adapters import Adapters
from ackline.lane.plans import LaneRanges, chosen_in, lane_ranges
from ackline.lane.turn_metrics import gaps_of
from ackline.lane.ways_out import void_advice
from ackline.ledger.backoff import Backoff, RetryPolicy
from ackline.ledger.fold import OutcomeRow, PartitionState, fold
from ackline.ledger.offsets import OffsetRange, TopicPartition, arrays_of, clipped, union
from ackline.ledger.outcomes import Outcome, OutcomeColumns, RangeRows
from ackline.ledger.pending import PendingRuns
from ackline.ledger.planning import LEFT_ALONE
from ackline.ledger.turns import AnswerReport, Plan, PlannedPartition, Settlement, TurnKind
from ackline.pipeline.pipeline import TurnSettings
from ackline.tables.turn_outcomes import TurnOutcomes

Decisions = dict[TopicPartition, list[OutcomeRow]]
Rows = Mapping[TopicPartition, Iterable[OutcomeRow]]
States = Mapping[TopicPartition, PartitionState]


class Decided(NamedTuple):
    """What settle decides of a turn. `answers` is what became of the answers from outside; None if the turn has no ack
    topic. `undecided` are the states after the outcomes alone, of the partitions without any decision here."""

    rows: Rows
    answers: AnswerReport | None = None
    undecided: States = MappingProxyType({})


def states_after(
    plan: Plan, before: Settlement, outcomes: TurnOutcomes, chosen: LaneRanges = None, undecided: States | None = None
) -> dict[TopicPartition, PartitionState]:
    """Returns the state of every partition of the lane after the turn. `chosen` are the ranges of a backfill lane. The
    state of a partition in `undecided` is taken from there if the outcomes hold no row of a decision.

    The retry policy is the plan's, not the file's: every process that settles the turn, at any time, computes the same
    due times (I9). Raises ConfigError if that policy's class does not import any more, LedgerError if the outcomes
    contradict the plan.
    """
    # Only a run has failed attempts. An action must be settled even if the retry class of its plan is gone.
    policy = _policy(plan) if plan.kind.replays else RetryPolicy()
    states = {tp: settled.state for tp, settled in before.partitions.items()}
    for tp, planned in plan.partitions.items():
        state = states.setdefault(tp, PartitionState(planned.complete_to))
        rows = outcomes.rows.get(tp, ())
        if undecided and tp in undecided and not _has_decision(rows):
            states[tp] = undecided[tp]
        elif plan.kind.replays:
            seed = _seed(plan, tp)
            gaps = gaps_of(plan, tp, outcomes) or 0
            states[tp] = fold(state, planned.fresh, planned.retries, rows, policy, seed, gaps, chosen_in(chosen, tp))
        elif plan.kind is TurnKind.RETRY:
            # No attempt is counted, and the time is the plan's: every process computes the same due times (I9).
            states[tp] = replace(state, pending=_due_now(state, planned, plan.planned_at))
        elif plan.kind.moves_floor:
            # complete_to never moves back, even if the target is below it. A reset that goes forward ends its epoch as
            # a skip does; what it leaves pending, the new epoch reads.
            end = max(state.complete_to, planned.fresh.end)
            states[tp] = fold(state, OffsetRange(end, end), (), rows, policy, chosen=chosen_in(chosen, tp))
    return dict(sorted(states.items()))


def _has_decision(rows: Iterable[OutcomeRow]) -> bool:
    columns = OutcomeColumns.of(rows)
    return columns.answers is not None or not columns.attempts.all()


def _seed(plan: Plan, tp: TopicPartition) -> str:
    """Returns the seed of the jitter: the identity of the partition, so that a repeat of the fold gives the same due
    times."""
    return f"{plan.turn.lane}/{plan.turn.epoch}/{tp.topic}/{tp.partition}"


def _due_now(state: PartitionState, planned: PlannedPartition, now: datetime) -> PendingRuns:
    pending, chosen = state.pending, arrays_of(planned.retries)
    return pending.minus(chosen).plus(pending.within(chosen).due_by(now))


def _policy(plan: Plan) -> Backoff:
    try:
        return TurnSettings(plan.settings).retry_policy()
    except ConfigError as error:  # opening the adapters has checked the file's class, which may be another one by now
        raise ConfigError(
            f"{plan.turn} stays open: it was planned with a retry policy that can't be used any more: {error}. "
            f"{void_advice(plan.turn)}",
            key=error.key,
        ) from None


def decide(adapters: Adapters, plan: Plan, before: Settlement, outcomes: TurnOutcomes) -> Decided:
    """Returns the decisions of the turn by partition. Sends the dead letters of the records that are decided as
    dead."""
    chosen = lane_ranges(adapters, plan.turn.epoch)
    if not plan.kind.replays:
        return Decided(skipped_by(plan, before, adapters.now(), chosen) if plan.kind.moves_floor else {})
    decisions = _expired_ranges(adapters, plan, chosen)
    rows = {
        tp: OutcomeColumns.concat([outcomes.rows.get(tp, ()), decisions.get(tp, ())])
        for tp in dict.fromkeys([*outcomes.rows, *decisions])
    }
    states = states_after(plan, before, replace(outcomes, rows=rows), chosen)
    # Before the dead letters: a turn whose ack topic can't be read stays open, and each settle would send them again.
    wanted = None if plan.ack_position is None else answers_of_turn(adapters, plan, plan.ack_position)
    dead: Rows
    answered: Rows = {}
    report = None
    if wanted is None:
        dead = _dead(adapters, plan, states)
    elif adapters.pipeline.dead_letter_topic is None:
        dead, answered, report = _answers_before_letters(adapters, plan, before, wanted, states)
    else:
        dead, answered, report = _letters_before_answers(adapters, plan, before, wanted, states)
    kinds: tuple[Rows, ...] = (decisions, dead, answered)
    tps = dict.fromkeys(tp for rows_of_kind in kinds for tp in rows_of_kind)
    merged = {tp: DecidedRows(tuple(of_kind.get(tp, ()) for of_kind in kinds)) for tp in tps}
    return Decided(merged, report, {tp: state for tp, state in states.items() if tp not in merged})


def _answers_before_letters(
    adapters: Adapters, plan: Plan, before: Settlement, wanted: AnswerRange, states: States
) -> tuple[Rows, Rows, AnswerReport]:
    """Decides the answers, and then which records are dead, those too whose last attempt an answer has failed.

    The order of a pipeline without a dead-letter topic: nothing leaves this process before decisions n are stored.
    These hold the failed attempt and `dead` in one commit, so a repeated settle finds both, or decides both again.
    """
    answered, report = decide_answers(adapters, plan, before, wanted, states)
    return _dead(adapters, plan, _after_answers(plan, states, answered)), answered, report


def _letters_before_answers(
    adapters: Adapters, plan: Plan, before: Settlement, wanted: AnswerRange, states: States
) -> tuple[Rows, Rows, AnswerReport]:
    """Sends the dead letters, and then decides the answers, so that no letter is sent for a record that only an answer
    or a deadline of this turn fails.

    The order of a pipeline with a dead-letter topic. Until decisions n are stored, a repeated settle may read a later
    answer, and a letter of a record that is acked then would be wrong. So the next turn sends it.
    """
    dead = _dead(adapters, plan, states)
    answered, report = decide_answers(adapters, plan, before, wanted, states)
    return dead, answered, report


def _dead(adapters: Adapters, plan: Plan, states: States) -> Rows:
    """Sends the dead letters of the turn. Returns a `dead` row for each record whose letter the broker has.

    Dead letters of partitions that are left alone wait: their records can't be read, or must not be.
    """
    readable = {
        tp: state for tp, state in states.items() if tp in plan.partitions and plan.partitions[tp].why not in LEFT_ALONE
    }
    return send_dead_letters(adapters, plan, readable)


def _after_answers(plan: Plan, states: States, answered: Rows) -> dict[TopicPartition, PartitionState]:
    """Returns the states after the rows that end or renew attempts in flight."""
    policy, after = _policy(plan), dict(states)
    for tp, rows in answered.items():
        end = states[tp].complete_to
        after[tp] = fold(states[tp], OffsetRange(end, end), (), rows, policy, _seed(plan, tp))
    return after


def _expired_ranges(adapters: Adapters, plan: Plan, chosen: LaneRanges) -> Decisions:
    """Returns an `expired` row for each range that retention took before it was planned: one row for the whole range.

    The fresh range of such a partition starts above `complete_to`. A backfill lane also passes over what is no part of
    it, and that gets no row.
    """
    return {
        tp: [OutcomeRow(part.start, 0, Outcome.EXPIRED, adapters.now(), None, part.end) for part in ranges]
        for tp, planned in plan.partitions.items()
        if (ranges := clipped(chosen_in(chosen, tp), planned.complete_to, planned.fresh.start))
    }


def skipped_by(
    plan: Plan, before: Settlement, now: datetime, chosen: LaneRanges = None
) -> dict[TopicPartition, RangeRows]:
    """Returns what a skip or a reset settles without handling it: pending offsets below its target, and unread ranges
    up to it. For a reset, that is what the new epoch does not read, so that no record is passed over silently (I15).
    For a skip of pending offsets, these. A skip to an offset leaves what is released pending, wherever it is, unless
    the topic is let go; a reset that would leave such a record behind is refused (`ackline.lane.plans`).

    Offsets below the target that were acked get no row: they have their one terminal outcome already.
    """
    decisions: dict[TopicPartition, RangeRows] = {}
    for tp, planned in plan.partitions.items():
        settled, target = before.partitions[tp], planned.fresh.end
        state = settled.state
        skipped = [arrays_of(planned.retries)]
        if not planned.retries:
            # A reset takes over a topic that was created again. Nothing of the old topic is ever read again.
            end = target if planned.topic_id == settled.topic_id else max(state.complete_to, target)
            # What is released is no part of the position, so moving that past it decides nothing about it.
            moved = state.pending if planned.topic_id != settled.topic_id else state.holding
            pending = moved.within(arrays_of([OffsetRange(0, end)]))
            unread = clipped(chosen_in(chosen, tp), state.complete_to, target)
            skipped = [pending.ranges, arrays_of(unread)]
        decisions[tp] = RangeRows(union(*skipped), Outcome.SKIPPED, now, plan.reason)
    return decisions
