"""`on_expired: fail`: where retention was quicker than the pipeline, the run stops, and nothing is settled as expired.

It is asked at the two places from which `expired` rows could come to count:
- before plan n is stored (`refuse_lost`): what the log no longer holds is neither planned nor passed over, so the same
  refusal meets every run until somebody decides. The lane's beginning, an earlier write, may be stored by then: it says
  nothing of any record, and `ackline skip` needs it.
- before decisions n are stored (`expired_of`): what retention took between plan and read, or before a dead letter
  was read again. Replay's outcomes are stored by then, but rows count only once a settlement names their turn, and this
  one becomes void. Killed before the void settlement, the next run finds the same rows and does the same; killed after
  it, the next plan refuses by the first rule. So no run repeats the turn for ever.
A fresh range that is gone when it is to be read makes its turn void by itself (`RangeGone`); the next plan refuses.
"""

from collections.abc import Iterable, Mapping, Sequence

from ackline.errors import RetentionPassed
from ackline.ledger import OutcomeRow, PendingKind
from ackline.offsets import Run, TopicPartition, join
from ackline.outcome import Outcome
from ackline.planning import PartitionView
from ackline.steps.parts import Parts
from ackline.turns import Plan

_NAMED = 5
"""Partitions, and ranges of each, that a message names."""


def refuse_lost(parts: Parts, views: Mapping[TopicPartition, PartitionView]) -> None:
    """Raise RetentionPassed where the log starts above what a partition has not read, or has pending."""
    if parts.pipeline.on_expired != "fail":
        return
    lost = {tp: _lost(parts, view) for tp, view in views.items() if view.readable}
    if any(lost.values()):
        raise _passed(parts, lost, "Nothing was planned")


def _lost(parts: Parts, view: PartitionView) -> list[Run[None]]:
    assert view.log is not None
    start, state = view.log.start, view.state
    # Without a dead-letter topic such a record is not read again: it is `dead`, and not expired.
    unread_kinds = () if parts.pipeline.dead_letter_topic else (PendingKind.DEAD_LETTER,)
    pending = [Run(r.start, min(r.end, start), None) for r in state.pending if r.value.kind not in unread_kinds]
    unread = [Run(state.complete_to, start, None)]
    return list(join(run for run in [*pending, *unread] if run.start < run.end))


def expired_of(parts: Parts, plan: Plan, rows: Mapping[TopicPartition, Sequence[OutcomeRow]]) -> RetentionPassed | None:
    """The error for which the turn is void, where one of `rows` would settle something as expired; None where it may.

    Never for a claimed turn: the group has moved over it, so what it says stays said.
    """
    if parts.pipeline.on_expired != "fail":
        return None
    lost = {
        tp: join(Run(start, end, None) for start, end in sorted((row.offset, row.end) for row in expired))
        for tp, found in rows.items()
        if (expired := [row for row in found if row.outcome is Outcome.EXPIRED])
    }
    if not lost or parts.store.has_claim(plan.turn):
        return None
    return _passed(parts, lost, f"{plan.turn} is void: nothing of it was settled or committed")


def _passed(parts: Parts, lost: Mapping[TopicPartition, Sequence[Run[None]]], so: str) -> RetentionPassed:
    found = {tp: runs for tp, runs in sorted(lost.items()) if runs}
    tp, runs = next(iter(found.items()))
    where = f" --topic {tp.topic} --partition {tp.partition}" if len(found) == 1 else ""
    return RetentionPassed(
        f"retention took records that were not settled: {_listed(map(_ranges, found, found.values()))}. {so}. Go on "
        f"with `ackline skip {parts.pipeline.name}{where} --to earliest`, which records them as skipped, or write "
        f"`on_expired: record`",
        topic=tp.topic,
        partition=tp.partition,
        offset=runs[0].start,
    )


def _ranges(tp: TopicPartition, runs: Sequence[Run[None]]) -> str:
    return f"{tp} {_listed(f'[{run.start}, {run.end})' for run in runs)}"


def _listed(texts: Iterable[str]) -> str:
    every = list(texts)
    more = len(every) - _NAMED
    return ", ".join(every[:_NAMED]) + (f" and {more} more" if more > 0 else "")
