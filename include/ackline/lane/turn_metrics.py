"""Metrics of a turn: what its tasks report beside the outcome rows, and what of that a settlement keeps.

They are shown and decide nothing, with one exception. If outcomes are not kept as rows (`record_outcomes: false`), the
report that is stored with the commit of outcomes is the only source of their counts. Once the Delta log has expired the
report, counts and gaps are unknown, and are stored as unknown.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ackline.errors import AcklineError
from ackline.kafka.cluster import READ_UNCOMMITTED
from ackline.lane.adapters import Adapters
from ackline.lane.plans import lane_ranges
from ackline.ledger.fold import PartitionState
from ackline.ledger.metrics import (
    TurnReport,
    fetch_metrics,
    lag_seconds,
    log_metrics,
    partition_metrics,
    retries_in,
    totals_after,
)
from ackline.ledger.offsets import LogBounds, TopicPartition
from ackline.ledger.order import Order
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.pending import microseconds_up
from ackline.ledger.planning import NO_LEADER, PARKED, PAUSED
from ackline.ledger.states import OPEN_SINCE, OPEN_TRANSACTION, Signals, is_behind, signals_after
from ackline.ledger.turns import Plan, SettledPartition, Settlement, is_backfill
from ackline.pipeline.pipeline import TurnSettings
from ackline.tables.store import LedgerStore
from ackline.tables.turn_outcomes import TurnOutcomes

log = logging.getLogger(__name__)
_ATTEMPTS = (Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, Outcome.DROPPED)


def outcome_rows_are_off(store: LedgerStore) -> bool:
    """Returns whether the lane's newest turn keeps no rows of outcomes (`record_outcomes: false`)."""
    newest = store.newest()
    if newest is None or newest.turn.n == 0:
        return False
    return not TurnSettings(store.plan(newest.turn).settings).keeps_outcome_rows


def stored_report(adapters: Adapters, plan: Plan) -> TurnReport | None:
    """Returns the report of a turn's tasks; None if no task has run, or the Delta log has expired the report."""
    return None if plan.empty else adapters.store.report_of(plan.turn)


def turn_outcomes(adapters: Adapters, plan: Plan, report: TurnReport | None) -> TurnOutcomes:
    """Returns the outcomes of a turn: rows, and counts that include outcomes which are not kept as rows."""
    # A range proves that what has no row succeeded or is a gap. First attempts at single offsets have no such proof, so
    # each of them needs its row.
    by_key = TurnSettings(plan.settings).order is Order.KEY
    outcomes = adapters.store.outcomes_of(plan.turn, plan.singles, by_key)
    # An executor's clock may be ahead of this one: nothing was handled after it was reported, nor before the plan, than
    # which the clock of a host that settles may be earlier.
    now = microseconds_up(max(adapters.now(), plan.planned_at))
    outcomes = replace(
        outcomes, rows={tp: OutcomeColumns.of(rows).not_after(now) for tp, rows in outcomes.rows.items()}
    )
    if report is None:
        return replace(outcomes, complete=plan.empty or TurnSettings(plan.settings).keeps_outcome_rows)
    if report.recorded:
        return outcomes
    counts = {tp: Counter(by_outcome) for tp, by_outcome in outcomes.counts.items()}
    fresh = Counter(outcomes.attempted)
    for tp, reported in report.counts.items():
        counts.setdefault(tp, Counter()).update(reported)
        # Each of them is a first attempt: the guarantees that keep no rows make no retries.
        fresh[tp] += sum(reported.get(word, 0) for word in _ATTEMPTS)
    return replace(outcomes, counts=counts, attempted=fresh)


def first_attempts(adapters: Adapters, plan: Plan, report: TurnReport | None) -> Counter[str]:
    """Returns how many new records of a turn had which outcome. The cost does not grow with their number."""
    counts = adapters.store.first_attempts_of(plan.turn)
    if report is not None and not report.recorded:
        for reported in report.counts.values():  # each is a first attempt, see above
            counts.update({word: reported.get(word, 0) for word in _ATTEMPTS})
    return counts


def unacked_first_attempts(adapters: Adapters, plan: Plan, report: TurnReport | None) -> int:
    """Returns how many new records of a turn failed as `Unacked`. The cost is that of the rows that failed."""
    # Of outcomes that are not rows, the tasks report the number; each of them is a first attempt, see above.
    return adapters.store.unacked_of(plan.turn) + (0 if report is None else report.unacked)


def gaps_of(plan: Plan, tp: TopicPartition, outcomes: TurnOutcomes) -> int | None:
    """Returns how many offsets of the fresh range held no record; None if the Delta log has expired the report."""
    if tp not in plan.partitions:
        return 0
    if not outcomes.complete:
        return None
    fresh, attempted = plan.partitions[tp].fresh, outcomes.attempted.get(tp, 0)
    if not fresh:
        return 0
    if not outcomes.rows.get(tp):
        return len(fresh) - attempted
    rows = OutcomeColumns.of(outcomes.rows[tp])
    # No outcome proves anything about the offsets of a range row (lost, expired), so they are no proved gaps.
    ranges = rows.of_ranges()
    unread = sum(max(0, min(row.end, fresh.end) - max(row.offset, fresh.start)) for row in ranges)
    if plan.partitions[tp].retries:  # some of them may be first attempts at what was held back
        attempted -= int(((rows.attempts == 1) & ~rows.answered & (rows.offsets < fresh.start)).sum())
    if len(held_back := rows.with_outcome(Outcome.HELD_BACK)):
        unread += int((held_back.offsets >= fresh.start).sum())
    return len(fresh) - attempted - unread


def with_metrics(
    adapters: Adapters,
    plan: Plan,
    before: Settlement,
    partitions: Mapping[TopicPartition, SettledPartition],
    outcomes: TurnOutcomes,
    report: TurnReport | None,
) -> dict[TopicPartition, SettledPartition]:
    """Returns a settlement's partitions with `metrics` and `totals`; the same in every process that computes them."""
    logs = {tp: log for tp in partitions if (log := _log_at(plan, before, tp)) is not None}
    try:  # a broker that does not answer fails no settlement: these are metrics
        times = first_times(adapters, logs, {tp: settled.state.floor for tp, settled in partitions.items()})
    except AcklineError:
        times = FirstTimes({tp: None for tp, log in logs.items() if partitions[tp].state.floor < log.high_watermark})
    waiting = times.unsettled
    states, chosen = {tp: settled.state for tp, settled in partitions.items()}, lane_ranges(adapters, plan.turn.epoch)
    expiries = expiries_without_copies(adapters, states, logs, waiting)
    now, measured = adapters.now(), {}
    for tp, settled in partitions.items():
        previous, rows, log = before.partitions.get(tp), outcomes.rows.get(tp, ()), logs.get(tp)
        earlier = previous.metrics if previous else None
        age = lag_seconds(tp in waiting, waiting.get(tp), now) if log is not None else None
        metrics = partition_metrics(settled.state, log, settled.committed, rows, now, age)
        lag, since = log and max(0, log.end - settled.state.floor), times.open_since.get(tp)
        metrics |= {OPEN_SINCE: since.timestamp()} if since is not None else {}
        behind = is_behind(lag, log.open_transaction if log else 0)
        if chosen is not None:
            # A backfill lane is not behind the log's end: it is behind what it was to read.
            lag = settled.state.unsettled_in(chosen[tp])
            metrics["lag"], behind = float(lag), is_behind(lag, 0)
        metrics |= fetch_metrics(earlier, report.fetches.get(tp) if report else None)
        unrecorded = report.counts.get(tp, {}) if report is not None and not report.recorded else {}
        metrics |= signals_after(
            earlier, rows, moved=settled.state.floor != settled.old_floor, behind=behind,
            new_records=outcomes.attempted.get(tp, 0), retention_at=expiries.get(tp), now=now,
            without_row=sum(unrecorded.get(word, 0) for word in (Outcome.FAILED, Outcome.DROPPED)),
        )  # fmt: skip
        measured[tp] = replace(
            settled,
            metrics=metrics,
            totals=totals_after(previous.totals if previous else None, settled.counts, retries_in(rows)),
        )
    return measured


def expiries_without_copies(
    adapters: Adapters,
    states: Mapping[TopicPartition, PartitionState],
    logs: Mapping[TopicPartition, LogBounds],
    first: Mapping[TopicPartition, datetime | None],
) -> dict[TopicPartition, datetime]:
    """Returns what `expiries_of` does of the first record of each partition that has no copy. Retention costs nothing
    where it takes a record that has one; `first` has the times of the first unsettled records."""
    apart = {tp: state for tp, state in states.items() if len(state.copies) or len(state.released)}
    rescued = {tp: state.first_without_copy for tp, state in apart.items()}
    try:
        behind = first_times(adapters, {tp: logs[tp] for tp in rescued if tp in logs}, rescued).unsettled
    except AcklineError:
        behind = {}
    return expiries_of(adapters, {tp: time for tp, time in first.items() if tp not in rescued} | dict(behind))


def metrics_without_effect(plan: Plan, before: Settlement, tp: TopicPartition, now: datetime) -> dict[str, float]:
    """Returns the metrics of a partition after a turn that is void: those before it, with the log that its plan saw."""
    settled = before.partitions[tp]
    earlier, log = settled.metrics or {}, _log_at(plan, before, tp)
    lag = int(earlier["lag"]) if "lag" in earlier else None
    metrics = fetch_metrics(earlier) | log_metrics(log)
    if log is not None:
        lag = max(0, log.end - settled.state.floor)
        # Of the same transaction the time is known; of another one the next turn that settles finds it.
        if log.open_transaction and OPEN_SINCE in earlier and earlier.get("log_end") == log.end:
            metrics[OPEN_SINCE] = earlier[OPEN_SINCE]
    behind = is_behind(lag, log.open_transaction if log is not None else 0)
    if lag is not None:
        metrics["lag"] = float(lag)
    retention_at = Signals.of(earlier).retention_at
    return metrics | signals_after(
        earlier, (), moved=False, behind=behind, new_records=0, retention_at=retention_at, now=now
    )


@dataclass(frozen=True, slots=True)
class FirstTimes:
    """The times of records that the log has and the lane has not settled. None if the broker has no time for one."""

    unsettled: Mapping[TopicPartition, datetime | None]
    """Of each partition that is behind its log, the time of the first record at or above its floor."""
    open_since: Mapping[TopicPartition, datetime | None] = field(default_factory=dict)
    """Of each partition with an open transaction, the time of the transaction's first record. Kafka's clients can't ask
    a broker when a transaction has begun."""


def first_times(
    adapters: Adapters, logs: Mapping[TopicPartition, LogBounds], floors: Mapping[TopicPartition, int]
) -> FirstTimes:
    """Returns the times of the first records that are not settled. A lane that has read all that is readable is as old
    as the open transaction above it. Raises AcklineError if the broker does not answer."""
    readable = {tp: max(floors[tp], log.start) for tp, log in logs.items() if floors[tp] < log.end}
    times = adapters.cluster.record_times(readable) if readable else {}
    # The first offset that is not stable is that of the transaction. Only the record's time is taken (I14).
    held = {tp: log.end for tp, log in logs.items() if log.open_transaction}
    opened = adapters.cluster.record_times(held, READ_UNCOMMITTED) if held else {}
    unsettled = {tp: opened.get(tp) for tp in held} | {tp: times.get(tp) for tp in readable}
    return FirstTimes(unsettled, {tp: opened.get(tp) for tp in held})


def expiries_of(
    adapters: Adapters, first_unsettled: Mapping[TopicPartition, datetime | None]
) -> dict[TopicPartition, datetime]:
    """Returns the earliest time at which retention may take the first record of each partition that is not settled.

    That is the record's time plus `retention.ms`, because Kafka removes a segment when its newest record is that old.
    Leaves out partitions without a known time of that record, and without retention by time.
    """
    try:
        policies = adapters.cluster.policies({tp.topic for tp, time in first_unsettled.items() if time is not None})
    except AcklineError as error:
        log.warning("the retention of the topics is not known: %s", error)
        return {}
    expiries = {}
    for tp, time in first_unsettled.items():
        policy = policies.get(tp.topic)
        if time is not None and policy is not None and policy.retention is not None:
            with contextlib.suppress(OverflowError):  # beyond the calendar: it keeps its records for good
                expiries[tp] = time + policy.retention
    return expiries


def _log_at(plan: Plan, before: Settlement, tp: TopicPartition) -> LogBounds | None:
    """Returns the bounds of the log, as the plan of a run has seen them; None if they are not known.

    An action reads no log. It carries on the bounds of the settlement before, so that a lane which a reset has put back
    is not taken for settled.
    """
    if plan.kind.replays or is_backfill(plan.turn.lane):
        return _planned_log(plan, tp)
    settled = before.partitions.get(tp)
    stored = settled.metrics if settled is not None and settled.metrics else {}
    if "log_start" not in stored or "log_end" not in stored:
        return None
    withheld = int(stored.get(OPEN_TRANSACTION, 0))
    return LogBounds(int(stored["log_start"]), int(stored["log_end"]), open_transaction=withheld)


def _planned_log(plan: Plan, tp: TopicPartition) -> LogBounds | None:
    """Returns the bounds of the log that the plan of a run was made for; None if the plan had none.

    Such a plan stores an empty log at `complete_to`. For a paused or parked partition, the same bounds may stand for a
    real log that is empty there. The two look the same, so these bounds count as unknown too.
    """
    if not plan.kind.replays or tp not in plan.partitions or is_backfill(plan.turn.lane):
        return None  # a backfill lane is not behind the log's end: it reads what was chosen
    planned = plan.partitions[tp]
    empty = planned.log.start == planned.log.end == planned.complete_to
    unknown = planned.why == NO_LEADER or (empty and planned.why in (PAUSED, PARKED))
    return None if unknown else planned.log
