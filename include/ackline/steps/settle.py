"""settle: fold a turn's outcomes into the state, confirm dead letters, store the settlement, then commit the floor.

settle may be killed between any two of its writes, and any process may run it again. The writes, in this order:
1. Dead letters, acknowledged by all replicas. They come first, so that no table calls a record `dead` whose letter the
   broker may lose (I6). After a crash here they are sent again, with the same source coordinates in their headers.
2. Decisions n, a commit of their own, for zero rows too. The end of the answers that were read goes into the same
   commit, so that exactly these answers count, and the next turn reads on behind them. Two processes that settle the
   same turn may get different acknowledgements and answers from the broker. Both fold the decisions that are *stored*,
   and so store the same settlement.
3. The files of rows that wait for records in flight, the output tables that do not exist yet, and the final data
   files of the rows that the turn publishes (outputs/settled.py). No process sees the files before a settlement names
   them: a crash here leaves files that are removed with the other staged rows of the turn, or with a vacuum of the
   output table. What can fail for these rows fails here, while the turn can be voided.
4. Copies of pending records that retention is about to take (dead_letters/rescue.py), acknowledged by all replicas.
   They come before the settlement, which names where they are, and nobody reads them before. A crash here costs another
   copy of each. With `rescue.release` the settlement also takes these records from its floor.
5. Settlement n, the authority. A crash before it costs nothing: a repeat folds the same rows to the same state (I9).
6. The rows of outputs, in one log entry a table, which names the files of step 3 (outputs/publish.py). They come after
   the settlement, which decides which records are acked. After a crash here, the next step that commits or plans
   publishes the rest.
7. The group's offsets (lane/commit.py). They come last: before the settlement is durable, nothing proves that the
   records below the floor are settled (I1, I2), or can be found in the rescue topic (S89). After a crash here, any
   later run makes the same commit.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ackline.dead_letters.rescue import rescue
from ackline.errors import GroupMoved, LedgerError, NoProof, TooManyFailures
from ackline.lane.adapters import Adapters
from ackline.lane.claim import (
    acknowledged_foreign_offset,
    check_not_voided,
    close_if_waived,
    operator_loss,
    void_turn,
)
from ackline.lane.commit import CommitResult, commit_newest, renew_id_of_copy
from ackline.lane.listeners import notify_settled
from ackline.lane.log_checks import expired_rows_error
from ackline.lane.plans import lane_ranges
from ackline.lane.spans import span
from ackline.lane.turn_metrics import (
    first_attempts,
    gaps_of,
    stored_report,
    turn_outcomes,
    unacked_first_attempts,
    with_metrics,
)
from ackline.lane.ways_out import advises_void, void_advice
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.metrics import TurnReport
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import (
    LOST_BY_OPERATOR,
    AnswerReport,
    OperatorLoss,
    Plan,
    SettledPartition,
    Settlement,
    TurnId,
)
from ackline.outputs.publish import publish_settled
from ackline.outputs.settled import check_staged_rows, settled_outputs
from ackline.steps.decide import States, decide, states_after
from ackline.tables.turn_outcomes import TurnOutcomes

log = logging.getLogger(__name__)

BREAKER = "too many failures"
"""The reason of a turn that the breaker has closed begins with it."""


def settle(
    adapters: Adapters,
    turn: TurnId | None = None,
    on_stored: Callable[[Settlement], None] | None = None,
    and_later: bool = False,
) -> CommitResult:
    """Settles the lane's open turn, if there is one, and commits the newest floor.

    With `turn`, settles that turn only: if another run has planned the next turn, that run settles it. Without it, a
    turn of another run is settled only if its outcomes are stored. With `and_later`, settles also a turn that this run
    has planned after it. `on_stored` gets the settlement that this process has stored, before the commit.

    Raises NoProof if the turn's outcomes are not stored; TurnVoided if an operator has closed `turn`;
    GroupBusy, GroupMoved and NewerCommit if the floor may not be committed. The settlement is stored by then, and a
    later run commits it.
    """
    newest, plan = adapters.newest_and_open_plan()
    own = plan is not None and plan.run_id == adapters.run_id
    mine = plan is not None and (turn == plan.turn or (and_later and own))
    if plan is not None and turn is None:
        # Without a turn of its own, the caller settles any turn but one that another run may still replay.
        mine = own or not plan.kind.replays or adapters.store.has_outcomes(plan.turn)
    stored = settle_turn(adapters, plan, newest) if newest and plan and mine else None
    if stored is not None and on_stored is not None:
        on_stored(stored)
    try:
        with span(adapters, "commit", stored.turn if stored else None) as note:
            result = replace(commit_newest(adapters, publish_settled), stored=stored)
            note(result.settlement.turn if result.settlement else None, committed=len(result.committed))
    except GroupMoved:
        if adapters.pipeline.on_external_reset != "follow":
            raise
        # The settlement stands. To follow the group is a turn of its own, which the next run's plan takes (S36).
        result = CommitResult(adapters.store.newest(), {}, stored)
    if turn is not None:
        check_not_voided(adapters, turn)  # after the commit: the newest floor is right, whatever became of this turn
    return result


def settle_turn(adapters: Adapters, plan: Plan, before: Settlement) -> Settlement | None:
    """Stores decisions n and settlement n of an open plan; `before` is settlement n - 1.

    Returns what was stored; None if another process has taken number n, to settle the turn or to void it.
    Raises NoProof, TooManyFailures and RetentionPassed.
    """
    with span(adapters, "settle", plan.turn) as note:
        stored = _settle_turn(adapters, plan, before)
        rows = stored.partitions.values() if stored is not None else ()
        note(stored=stored is not None, pending=sum(row.state.pending.offsets for row in rows))
        for word, number in sum((Counter(row.counts) for row in rows), Counter[str]()).items():
            note(**{word: number})
    return stored


def _settle_turn(adapters: Adapters, plan: Plan, before: Settlement) -> Settlement | None:
    if plan.kind.replays:
        adapters = adapters.of_turn(plan)
    if close_if_waived(adapters, plan, before):
        return None
    # Only the stored outcomes prove that the whole range was handled. The state of an Airflow task does not: it can be
    # set by hand. A fold without outcomes would move complete_to over records that no handler has handled (S8).
    if plan.kind.replays and not adapters.store.has_outcomes(plan.turn):
        raise NoProof(
            f"{plan.turn} has no stored outcomes, so nothing proves that it was handled; a task marked as successful "
            f"proves nothing. Run replay again. {void_advice(plan.turn)}"
        )
    report = stored_report(adapters, plan)
    try:
        outcomes, undecided = _decided_outcomes(adapters, plan, before, report)
    except LedgerError:
        if adapters.store.is_settled(plan.turn):
            return None  # by another process, which has published the staged rows that this one has looked for
        raise
    # If another process has closed the turn as void meanwhile, decisions n may have been refused because later ones are
    # stored, and the rows of this turn are not whole. Checked after they were read: while the turn is open, a taken
    # number of decisions can only be n.
    if adapters.store.is_settled(plan.turn):
        return None
    lost = operator_loss(adapters, plan)
    settled = _settled_partitions(adapters, plan, before, outcomes, undecided, lost)
    if plan.kind.replays:
        settled = rescue(adapters, plan, settled)
    partitions = with_metrics(adapters, plan, before, settled, outcomes, report)
    reason = lost.reason if lost else plan.reason
    answers = _answer_report(adapters, plan, before)
    outputs = settled_outputs(adapters, plan, before, settled, outcomes, lost is not None)
    settlement = Settlement(
        plan.turn,
        plan.kind,
        adapters.run_id,
        adapters.now(),
        partitions,
        adapters.actor,
        reason,
        answers=answers,
        outputs=outputs,
        # Part of the one commit that takes number n, so that each turn counts once, however often it is settled.
        steps=report.steps if report else None,
        code=(report.code if report else "") or plan.code,
    )
    # Before the settlement: once that is stored, no process settles the turn again, and none would renew the id.
    renew_id_of_copy(adapters, plan)
    # The fence: one process takes number n. Any other process drops its own fold and uses the stored one.
    if not adapters.store.store_settlement(settlement, plan):
        return None
    # After the write: as long as the turn is open, the markers of its tasks keep Spark from starting a part again (I7).
    adapters.remove_task_folders(plan.turn)
    for text in answers.warnings if answers else ():
        log.warning("%s: %s", plan.turn, text)
    if adapters.listener is not None:  # after the write: listeners get durable events only
        notify_settled(adapters.listener, plan, settlement, outcomes)
    return settlement


def _decided_outcomes(
    adapters: Adapters, plan: Plan, before: Settlement, report: TurnReport | None
) -> tuple[TurnOutcomes, States]:
    """Returns the turn's outcomes with decisions n, which are made and stored first if they are not stored yet, and the
    states that were found on the way, of partitions for which this process has decided nothing."""
    # Checked before the rows are read. In the other order, another process could store its decisions in between. The
    # check would find them, but the rows would not hold them: a record whose `dead` row counts would stay pending (I4).
    decided = adapters.store.has_decisions(plan.turn)
    # The breaker judges by counts, before the rows of a turn that failed as a whole are read.
    if not decided:
        _void_if_too_many_failed(adapters, plan, before, report)
    outcomes = _read_outcomes(adapters, plan, report)
    if decided:
        return outcomes, {}
    # Breaker and retention close the turn as void, so both are checked before the first dead letter is sent: a letter
    # of a void turn announces a record as dead that the next turn handles again.
    _void_if_expired(adapters, plan, before, outcomes.rows)
    check_staged_rows(adapters, plan)
    decisions, answers, undecided = decide(adapters, plan, before, outcomes)
    # Retention may have passed a record just before its dead letter was read. Such letters are sent again by the turn
    # that settles their records.
    _void_if_expired(adapters, plan, before, decisions)
    adapters.store.store_decisions(plan, adapters.run_id, decisions, answers)
    del outcomes  # they may be millions, and must not be in memory twice
    # Only the stored decisions count, whichever process has taken number n. They are read again, because those of
    # another process may differ from the decisions made above.
    return _read_outcomes(adapters, plan, report), undecided


def _read_outcomes(adapters: Adapters, plan: Plan, report: TurnReport | None) -> TurnOutcomes:
    with advises_void(plan.turn):  # files of outcomes that were lost do not come back by themselves
        return turn_outcomes(adapters, plan, report)


def _settled_partitions(
    adapters: Adapters,
    plan: Plan,
    before: Settlement,
    outcomes: TurnOutcomes,
    undecided: States,
    lost: OperatorLoss | None,
) -> dict[TopicPartition, SettledPartition]:
    """Returns a row of settlement n for every partition of the lane, also for those that the plan leaves alone."""
    # Another process may have stored its decisions in place of this one's: a state is taken over only where the stored
    # rows have no decision either. An operator who loses the turn removes its outcomes.
    known = undecided if lost is None else {}
    states = states_after(plan, before, outcomes, lane_ranges(adapters, plan.turn.epoch), known)
    evidence = LOST_BY_OPERATOR if lost else plan.reason
    if plan.kind.replays and not lost:
        evidence = f"outcomes {plan.turn.n} and decisions {plan.turn.n} of run {plan.run_id}"
    # For the audit only: the group's commits decide nothing here, and the step that commits reads them again.
    own = {tp: _topic_id(tp, plan, before) for tp in states} if adapters.commits else {}
    committed = adapters.group.committed(adapters.unchanged_partitions(own), stable=False) if own else {}
    return {
        tp: SettledPartition(
            _topic_id(tp, plan, before),
            before.partitions[tp].state.floor if tp in before.partitions else state.floor,
            state,
            outcomes.counts.get(tp, {}),
            gaps_of(plan, tp, outcomes),
            acknowledged_foreign_offset(tp, plan, before),
            committed.get(tp),
            evidence,
            _is_paused(tp, plan, before, lost),
            leader_epoch=_leader_epoch(tp, plan, before),
        )
        for tp, state in states.items()
    }


def _answer_report(adapters: Adapters, plan: Plan, before: Settlement) -> AnswerReport | None:
    """Returns what decisions n hold about the answers from outside, and how far they have read the ack topic."""
    if plan.kind.replays and plan.ack_position is not None:
        return adapters.store.answers_of(plan.turn) or AnswerReport(plan.ack_position)
    return before.answers.after_turn_without_answers() if before.answers else None


def _void_if_too_many_failed(adapters: Adapters, plan: Plan, before: Settlement, report: TurnReport | None) -> None:
    """Closes the turn as void and raises TooManyFailures if too many of its new records failed (S46).

    Only first attempts count, so a turn of poison retries never trips the breaker. `dropped` counts too: it is a
    failure under a guarantee without retries.
    """
    breaker = adapters.pipeline.breaker
    # A claimed turn is never void: the group has moved over it, so its records would be neither handled nor lost.
    if breaker is None or adapters.no_breaker or not plan.kind.replays or adapters.store.has_claim(plan.turn):
        return
    with advises_void(plan.turn):
        counts = first_attempts(adapters, plan, report)
    tried, failed = counts.total(), counts[Outcome.FAILED] + counts[Outcome.DROPPED]
    # Divided, not multiplied: 0.29 * 100 is less than 29 in floating point, and 29 of 100 would trip a ratio of 0.29.
    if tried < breaker.min_records or failed / tried <= breaker.failure_ratio:
        return
    if adapters.pipeline.steps is not None:
        # A tuple that a join holds waits for another one; no handler failed. Read only where it can make a difference.
        with advises_void(plan.turn):
            failed -= unacked_first_attempts(adapters, plan, report)
        if failed / tried <= breaker.failure_ratio:
            return
    allowed = f"{breaker.failure_ratio * 100:g}%"
    reason = f"{BREAKER}: {failed} of {tried} new records failed, the breaker allows {allowed}"
    if not void_turn(adapters, plan, before, reason):
        return  # another process has settled the turn meanwhile, so it is not void
    raise TooManyFailures(
        f"{reason}. {plan.turn} is void: nothing of it was settled, dead-lettered or committed. Fix the handler and "
        f"run again, or let it through with --no-breaker"
    )


def _void_if_expired(
    adapters: Adapters, plan: Plan, before: Settlement, rows: Mapping[TopicPartition, Iterable[OutcomeRow]]
) -> None:
    """Closes the turn as void and raises RetentionPassed if `on_expired: fail` forbids to settle `rows`."""
    error = expired_rows_error(adapters, plan, rows)
    if error is not None and void_turn(adapters, plan, before, str(error)):
        raise error


def _is_paused(tp: TopicPartition, plan: Plan, before: Settlement, lost: OperatorLoss | None) -> bool:
    if tp in plan.partitions and plan.kind.pauses is not None:
        return plan.kind.pauses
    if lost and lost.pause and tp in plan.partitions and not plan.partitions[tp].empty:
        return True
    return tp in before.partitions and before.partitions[tp].paused


def _topic_id(tp: TopicPartition, plan: Plan, before: Settlement) -> str:
    return plan.partitions[tp].topic_id if tp in plan.partitions else before.partitions[tp].topic_id


def _leader_epoch(tp: TopicPartition, plan: Plan, before: Settlement) -> int | None:
    """Returns the leader epoch under which replay has read: the plan's; without one there, the one before the turn."""
    planned = plan.partitions[tp].log.leader_epoch if tp in plan.partitions else None
    return planned if planned is not None or tp not in before.partitions else before.partitions[tp].leader_epoch
