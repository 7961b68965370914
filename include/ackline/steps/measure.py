"""The numbers of a turn: what the tasks said of it beside its rows, and what of that a settlement keeps.

Nothing depends on them but what is shown, with one exception: where outcomes are not kept as rows
(`record_outcomes: false`), the report that came with the commit of outcomes is all there is of their counts. The log of
the table may forget it; counts and gaps are then unknown, and said to be.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ackline.audit.store import TurnOutcomes
from ackline.errors import AcklineError
from ackline.ledger import PartitionState
from ackline.metrics import Report, last_fetch, metrics_of, retries_in, totals_after
from ackline.offsets import LogBounds, TopicPartition
from ackline.outcome import Outcome
from ackline.planning import NO_LEADER, PARKED, PAUSED
from ackline.steps.parts import Parts
from ackline.turns import Plan, SettledPartition, Settlement, TurnKind

_ATTEMPTS = (Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, Outcome.DROPPED)


def keeps_rows(parts: Parts, plan: Plan) -> bool:
    """Whether each outcome of a turn is to be a row. Its plan says so, whoever carries it out; and under at_least_once
    it always is, for a failure that left no row would pass for a gap."""
    return bool(plan.settings.get("record_outcomes", True)) or parts.pipeline.guarantee == "at_least_once"


def report_of(parts: Parts, plan: Plan) -> Report | None:
    """What the tasks said of a turn; None where they had nothing to say, or it is not known any more."""
    return None if plan.kind is not TurnKind.RUN or plan.empty else parts.store.report_of(plan.turn)


def outcomes_of(parts: Parts, plan: Plan, report: Report | None) -> TurnOutcomes:
    """The outcomes of a turn, with those that were counted only."""
    found = parts.store.outcomes_of(plan.turn)
    if report is None:
        forgotten = plan.kind is TurnKind.RUN and not plan.empty and not plan.settings.get("record_outcomes", True)
        return replace(found, complete=not forgotten)
    if report.recorded:
        return found
    counts = {tp: Counter(one) for tp, one in found.counts.items()}
    fresh = Counter(found.attempted_fresh)
    for tp, told in report.counts.items():  # no retries are among them: under these guarantees nothing is tried again
        counts.setdefault(tp, Counter()).update(told)
        fresh[tp] += sum(told.get(word, 0) for word in _ATTEMPTS)
    return replace(found, counts=counts, attempted_fresh=fresh)


def gaps_of(plan: Plan, tp: TopicPartition, found: TurnOutcomes) -> int | None:
    """How many offsets of the fresh range held no record; None where nobody knows any more."""
    if tp not in plan.partitions:
        return 0
    if not found.complete:
        return None
    lost = sum(row.end - row.offset for row in found.rows.get(tp, ()) if row.outcome is Outcome.LOST)
    return len(plan.partitions[tp].fresh) - found.attempted_fresh.get(tp, 0) - lost


def with_metrics(
    parts: Parts,
    plan: Plan,
    before: Settlement,
    partitions: Mapping[TopicPartition, SettledPartition],
    found: TurnOutcomes,
    report: Report | None,
) -> dict[TopicPartition, SettledPartition]:
    """The partitions of a settlement with `metrics` and `totals`: by the same fold whenever it is asked."""
    seconds = _lag_seconds(parts, plan, {tp: one.state for tp, one in partitions.items()})
    now, numbered = parts.now(), {}
    for tp, one in partitions.items():
        was, rows = before.partitions.get(tp), found.rows.get(tp, ())
        log = _log_seen(plan, tp)
        fetched = last_fetch(was.metrics if was else None, report.fetches.get(tp) if report else None)
        numbered[tp] = replace(
            one,
            metrics=metrics_of(one.state, log, one.committed, rows, now, seconds.get(tp)) | fetched,
            totals=totals_after(was.totals if was else None, one.counts, retries_in(rows)),
        )
    return numbered


def _lag_seconds(
    parts: Parts, plan: Plan, states: Mapping[TopicPartition, PartitionState]
) -> dict[TopicPartition, float]:
    """How old the first record at or above each floor is; 0 where nothing is behind. A broker that does not answer
    fails nothing."""
    logs = {tp: log for tp in states if (log := _log_seen(plan, tp)) is not None}
    behind = {tp: max(states[tp].floor, log.start) for tp, log in logs.items() if states[tp].floor < log.end}
    try:
        times = parts.cluster.record_times(behind) if behind else {}
    except AcklineError:
        times = {}
    ages = {tp: max(0.0, round((parts.now() - time).total_seconds(), 3)) for tp, time in times.items()}
    return dict.fromkeys(logs.keys() - behind.keys(), 0.0) | ages


def _log_seen(plan: Plan, tp: TopicPartition) -> LogBounds | None:
    """The log as the plan of a run saw it; None where it saw none, and stored an empty one at `complete_to`.

    Of what is paused or parked nobody can tell that from a log that is empty there: then it is not known either.
    """
    if plan.kind is not TurnKind.RUN or tp not in plan.partitions:
        return None
    one = plan.partitions[tp]
    nowhere = one.log.start == one.log.end == one.complete_to
    unseen = one.why == NO_LEADER or (nowhere and one.why in (PAUSED, PARKED))
    return None if unseen else one.log
