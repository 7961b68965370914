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
from ackline.figures import Report, figures_of, last_fetch, retries_in, totals_after
from ackline.ledger import PartitionState, SettledPartition, Settlement, TurnKind
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.planning import NO_LEADER, PARKED, PAUSED, LogBounds, Plan
from ackline.steps.parts import Parts

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
    counts = {at: Counter(one) for at, one in found.counts.items()}
    fresh = Counter(found.attempted_fresh)
    for at, told in report.counts.items():  # no retries are among them: under these guarantees nothing is tried again
        counts.setdefault(at, Counter()).update(told)
        fresh[at] += sum(told.get(word, 0) for word in _ATTEMPTS)
    return replace(found, counts=counts, attempted_fresh=fresh)


def gaps_of(plan: Plan, at: TopicPartition, found: TurnOutcomes) -> int | None:
    """How many offsets of the fresh range held no record; None where nobody knows any more."""
    if at not in plan.partitions:
        return 0
    if not found.complete:
        return None
    lost = sum(row.end - row.offset for row in found.rows.get(at, ()) if row.outcome is Outcome.LOST)
    return len(plan.partitions[at].fresh) - found.attempted_fresh.get(at, 0) - lost


def with_figures(
    parts: Parts,
    plan: Plan,
    before: Settlement,
    partitions: Mapping[TopicPartition, SettledPartition],
    found: TurnOutcomes,
    report: Report | None,
) -> dict[TopicPartition, SettledPartition]:
    """The partitions of a settlement with `figures` and `totals`: by the same fold whenever it is asked."""
    seconds = _lag_seconds(parts, plan, {at: one.state for at, one in partitions.items()})
    now, numbered = parts.now(), {}
    for at, one in partitions.items():
        was, rows = before.partitions.get(at), found.rows.get(at, ())
        log = _log_seen(plan, at)
        fetched = last_fetch(was.figures if was else None, report.fetches.get(at) if report else None)
        numbered[at] = replace(
            one,
            figures=figures_of(one.state, log, one.held, rows, now, seconds.get(at)) | fetched,
            totals=totals_after(was.totals if was else None, one.counts, retries_in(rows)),
        )
    return numbered


def _lag_seconds(
    parts: Parts, plan: Plan, states: Mapping[TopicPartition, PartitionState]
) -> dict[TopicPartition, float]:
    """How old the first record at or above each floor is; 0 where nothing is behind. A broker that does not answer
    fails nothing."""
    logs = {at: log for at in states if (log := _log_seen(plan, at)) is not None}
    behind = {at: max(states[at].floor, log.start) for at, log in logs.items() if states[at].floor < log.end}
    try:
        times = parts.cluster.record_times(behind) if behind else {}
    except AcklineError:
        times = {}
    ages = {at: max(0.0, round((parts.now() - time).total_seconds(), 3)) for at, time in times.items()}
    return dict.fromkeys(logs.keys() - behind.keys(), 0.0) | ages


def _log_seen(plan: Plan, at: TopicPartition) -> LogBounds | None:
    """The log as the plan of a run saw it; None where it saw none, and stored an empty one at `complete_to`.

    Of what is paused or parked nobody can tell that from a log that is empty there: then it is not known either.
    """
    if plan.kind is not TurnKind.RUN or at not in plan.partitions:
        return None
    one = plan.partitions[at]
    nowhere = one.log.start == one.log.end == one.complete_to
    unseen = one.why == NO_LEADER or (nowhere and one.why in (PAUSED, PARKED))
    return None if unseen else one.log
