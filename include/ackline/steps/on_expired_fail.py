"""`on_expired: fail`: if retention was quicker than the pipeline, the run stops and settles nothing as expired.

`expired` rows can come to count in two places, and both are checked:
- `stop_if_expired`, before plan n is stored. What the log no longer holds is neither planned nor passed over, so every
  later run stops with this error until an operator decides. The genesis, an earlier write, may be stored by then: it
  makes no row about any record, and `ackline skip` needs the lane that it begins.
- `expired_rows_error`, before decisions n are stored. It finds what retention took between plan and read, or before a
  dead letter was read again. Outcomes n are stored by then, but rows count only once a settlement names their turn, and
  this turn becomes void. After a crash before the void settlement, the next run finds the same rows and does the same.
  After a crash behind it, the first check stops the next plan. So no run repeats the turn for ever.
If a fresh range is gone when replay is about to read it, `RangeGone` makes the turn void; the next plan stops.
"""

from collections.abc import Iterable, Mapping, Sequence

from ackline.errors import RetentionPassed
from ackline.ledger import OutcomeRow, PendingKind
from ackline.offsets import TopicPartition, ValuedRange, join
from ackline.outcome import Outcome
from ackline.outcome_rows import OutcomeColumns
from ackline.planning import PartitionView
from ackline.steps.parts import Parts
from ackline.turns import Plan

_NAMED = 5
"""How many partitions a message names, and how many ranges of each."""


def stop_if_expired(parts: Parts, views: Mapping[TopicPartition, PartitionView]) -> None:
    """Raises RetentionPassed if the log starts above an offset that a partition has not read yet or has pending."""
    if parts.pipeline.on_expired != "fail":
        return
    lost = {tp: _lost_ranges(parts, view) for tp, view in views.items() if view.readable}
    if any(lost.values()):
        raise _retention_passed(parts, lost, "Nothing was planned")


def _lost_ranges(parts: Parts, view: PartitionView) -> list[ValuedRange[None]]:
    assert view.log is not None
    start, state = view.log.start, view.state
    # Without a dead-letter topic, a record that waits for its letter is not read again: it becomes `dead`, not expired.
    # A record in flight is not read before its attempt has failed: until then an answer may settle it.
    letters = () if parts.pipeline.dead_letter_topic else (PendingKind.DEAD_LETTER,)
    not_read_again = (PendingKind.IN_FLIGHT, *letters)
    pending = [
        ValuedRange(run.start, min(run.end, start), None)
        for run in state.pending
        if run.value.kind not in not_read_again
    ]
    unread = [ValuedRange(state.complete_to, start, None)]
    return list(join(run for run in [*pending, *unread] if run.start < run.end))


def expired_rows_error(
    parts: Parts, plan: Plan, rows: Mapping[TopicPartition, Iterable[OutcomeRow]]
) -> RetentionPassed | None:
    """Returns the error because of which the turn becomes void, if one of `rows` would settle something as expired.

    None if the rows may be settled. A claimed turn is never void, because the group has moved over it: its expired
    rows are settled as they are.
    """
    if parts.pipeline.on_expired != "fail":
        return None
    lost = {
        tp: join(ValuedRange(start, end, None) for start, end in sorted((row.offset, row.end) for row in expired))
        for tp, found in rows.items()
        if (expired := OutcomeColumns.of(found).with_outcome(Outcome.EXPIRED))
    }
    if not lost or parts.store.has_claim(plan.turn):
        return None
    return _retention_passed(parts, lost, f"{plan.turn} is void: nothing of it was settled or committed")


def _retention_passed(
    parts: Parts, lost: Mapping[TopicPartition, Sequence[ValuedRange[None]]], consequence: str
) -> RetentionPassed:
    lost = {tp: runs for tp, runs in sorted(lost.items()) if runs}
    tp, runs = next(iter(lost.items()))
    where = f" --topic {tp.topic} --partition {tp.partition}" if len(lost) == 1 else ""
    return RetentionPassed(
        f"retention took records that were not settled: {_listed(map(_ranges, lost, lost.values()))}. {consequence}. "
        f"Go on with `ackline skip {parts.pipeline.name}{where} --to earliest --reason …`, which records them as "
        f"skipped, or write `on_expired: record`",
        topic=tp.topic,
        partition=tp.partition,
        offset=runs[0].start,
    )


def _ranges(tp: TopicPartition, runs: Sequence[ValuedRange[None]]) -> str:
    return f"{tp} {_listed(f'[{run.start}, {run.end})' for run in runs)}"


def _listed(texts: Iterable[str]) -> str:
    every = list(texts)
    more = len(every) - _NAMED
    return ", ".join(every[:_NAMED]) + (f" and {more} more" if more > 0 else "")
