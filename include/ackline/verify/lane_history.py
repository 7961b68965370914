"""The evidence by epoch and topic-partition, in the form that the rules read.

Which turns count is decided here, apart from the product on purpose: a row counts if its turn has a settlement that is
not void.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.verify.evidence import (
    EMPTY,
    NEVER,
    Evidence,
    Ints,
    Log,
    TopicPartition,
    slice_between,
    to_ints,
    to_ranges,
)
from ackline.verify.rows import (
    LOST,
    NO_RANGES,
    NO_ROWS,
    CountedRanges,
    EpochPartition,
    OffsetTurns,
    OutcomeRows,
    PlannedRange,
    Ranges,
    Settlement,
    find_offset_turns,
    split_outcomes,
    split_plans,
    split_settlements,
)


@dataclass(frozen=True, slots=True)
class Chosen(Ranges):
    """The offsets that a backfill lane is to read of one partition in one epoch, as sorted ranges.

    `single`: they were chosen one by one, and are pending from the start.
    """

    single: bool

    @property
    def others(self) -> list[tuple[int, int]]:
        """The ranges between and around the chosen ones, which are no part of the lane."""
        bounds = [0, *np.stack([self.start, self.end], axis=1).ravel().tolist(), NEVER]
        return list(zip(bounds[::2], bounds[1::2], strict=True))


@dataclass(frozen=True)
class PartitionHistory:
    """All that the tables and the log contain about one partition in one epoch.

    `outcomes` are effective rows only. `settlements` and `plans` are in the order of turns, and hold void ones too.
    `start` is the offset at which the epoch starts; None if no row contains it. `counted` are the ranges whose turns
    kept no rows. `log` is None if the topic is not among those that were read, or if the epoch has read an older log.
    `newest`: no later epoch exists. `waived` are the turns that no process may claim any more. `chosen` is what
    a backfill lane is to read; None for the live lane, which reads every offset.
    """

    epoch: int
    tp: TopicPartition
    newest: bool
    outcomes: OutcomeRows
    settlements: Sequence[Settlement]
    plans: Sequence[PlannedRange]
    start: int | None
    counted: CountedRanges
    log: Log | None
    waived: frozenset[int] = frozenset()
    chosen: Chosen | None = None

    @property
    def last(self) -> Settlement | None:
        """The last settlement of the epoch; None without one."""
        return self.settlements[-1] if self.settlements else None

    @cached_property
    def offset_turns(self) -> OffsetTurns:
        """The turns of the first outcome, of the terminal one and of the last attempt of each offset."""
        return find_offset_turns(self.outcomes)

    def settlements_before(self, turn: int) -> list[Settlement]:
        """Return the settlements of the turns before `turn`."""
        return [settlement for settlement in self.settlements if settlement.turn < turn]

    def offsets_between(self, start: int, end: int) -> Ints:
        """Return the offsets in `[start, end)` that a consumer receives and that are part of the lane; empty if the log
        was not read."""
        offsets = slice_between(self.log.offsets, start, end) if self.log else EMPTY
        return offsets if self.chosen is None else offsets[self.chosen.count_covering(offsets) > 0]

    @property
    def reads_single_offsets(self) -> bool:
        """Whether the offsets were chosen by their outcome: all are pending from the start, and read one by one."""
        return self.chosen is not None and self.chosen.single


class LaneHistory:
    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.effective = evidence.settlements.filter(pc.not_equal(evidence.settlements["kind"], "void"))
        """The settlements whose turns count: the others are void."""
        topics = sorted(pc.unique(evidence.outcomes["topic"]).to_pylist())
        self.outcomes = split_outcomes(self._effective(evidence.outcomes), topics)
        self.settlements = split_settlements(evidence.settlements)
        self.plans = split_plans(evidence.planned.to_pylist())
        self.waived = evidence.marked("waiver")
        effective_plans = self._effective(evidence.planned)
        self.starts = self._find_starts(effective_plans)
        self.counted = self._find_counted(effective_plans)
        self.newest_epoch = max((epoch for epoch, _ in self.starts), default=0)
        self.first_of_log = self._find_first_of_log()

    def partition(self, epoch: int, tp: TopicPartition) -> PartitionHistory:
        """Return the history of one partition in one epoch; its parts are empty where there are no rows."""
        key, log = (epoch, tp), self.evidence.logs.get(tp) if epoch >= self.first_of_log.get(tp, 0) else None
        return PartitionHistory(
            epoch, tp, epoch == self.newest_epoch, self.outcomes.get(key, NO_ROWS), self.settlements.get(key, []),
            self.plans.get(key, []), self.starts.get(key), self.counted.get(key, NO_RANGES), log,
            frozenset(turn for of_epoch, turn in self.waived if of_epoch == epoch), self._chosen(epoch, tp),
        )  # fmt: skip

    def _chosen(self, epoch: int, tp: TopicPartition) -> Chosen | None:
        """Return what the genesis of a backfill lane has stored; None for the live lane."""
        if not self.evidence.lane.startswith("backfill-"):
            return None
        genesis = next((s for s in self.settlements.get((epoch, tp), []) if s.kind == "genesis"), None)
        if genesis is None:
            return Chosen(EMPTY, EMPTY, False)
        if genesis.ranges:
            return Chosen(*to_ranges(genesis.ranges), False)
        return Chosen(genesis.pending.start, genesis.pending.end, True)

    def partitions(self) -> list[PartitionHistory]:
        """Return the history of every epoch and partition that has a settlement or an effective outcome."""
        return [self.partition(epoch, tp) for epoch, tp in sorted(self.settlements.keys() | self.outcomes.keys())]

    def _effective(self, table: pa.Table) -> pa.Table:
        """Return the rows that count: those whose turn has a settlement that is not void."""
        return table.filter(pa.array(np.isin(_turn_keys(table), _turn_keys(self.effective))))

    @cached_property
    def effective_turns(self) -> set[tuple[int, int]]:
        """Epoch and number of each turn that counts."""
        turns = self.effective.select(["epoch", "turn"]).group_by(["epoch", "turn"]).aggregate([])
        return set(zip(turns["epoch"].to_pylist(), turns["turn"].to_pylist(), strict=True))

    def _find_starts(self, effective_plans: pa.Table) -> dict[EpochPartition, int]:
        """Return where each epoch starts in each partition: its genesis, or the end of the reset that opened it."""
        starts: dict[EpochPartition, int] = {}
        resets = effective_plans.filter(pc.equal(effective_plans["kind"], "reset"))
        for plan in resets.select(["epoch", "topic", "partition", "end_offset"]).to_pylist():
            starts[plan["epoch"] + 1, TopicPartition(plan["topic"], plan["partition"])] = plan["end_offset"]
        for kind, later in (("reset", 1), ("genesis", 0)):
            for (epoch, tp), settlements in self.settlements.items():
                # The genesis of a partition that joins later settles all partitions: for the others only the first
                # genesis is a start.
                for settlement in settlements:
                    if settlement.kind == kind:
                        starts.setdefault((epoch + later, tp), settlement.floor)
        return starts

    def _find_first_of_log(self) -> dict[TopicPartition, int]:
        """Return the first epoch that has read the present log, for each partition of which a reset has found another
        log: a topic that was created again, or a log that was cut below what was read.

        In the log before, the same offsets are of other records. A reset that goes back while the leader changes looks
        the same, and then the epochs before it are judged without the log.
        """
        first: dict[TopicPartition, int] = {}
        before: dict[TopicPartition, Settlement] = {}
        highest: dict[TopicPartition, int] = {}
        for (epoch, tp), settlements in sorted(self.settlements.items()):
            for settlement in settlements:
                start = self.starts.get((epoch + 1, tp))
                if settlement.kind == "reset" and tp in before and start is not None:
                    another = _differ(before[tp].topic_id, settlement.topic_id)
                    led_anew = _differ(before[tp].leader_epoch, settlement.leader_epoch)
                    if another or (led_anew and start < max(highest[tp], settlement.complete_to)):
                        first[tp] = epoch + 1
                before[tp] = settlement
                highest[tp] = max(highest.get(tp, 0), settlement.complete_to)
        return first

    def _find_counted(self, effective_plans: pa.Table) -> dict[EpochPartition, CountedRanges]:
        """Return the ranges of the turns that were planned to keep no rows, and kept none."""
        kept = {
            (epoch, int(turn))
            for (epoch, _), rows in self.outcomes.items()
            for turn in np.unique(rows.turn[(rows.attempt >= 1) | (rows.outcome == LOST)])
        }
        runs = effective_plans.filter(pc.equal(effective_plans["kind"], "run"))
        counted: dict[EpochPartition, CountedRanges] = {}
        for (epoch, tp), plans in split_plans(runs.to_pylist()).items():
            ranges = [
                (plan.start, plan.end, plan.turn)
                for plan in plans
                if plan.settings.get("record_outcomes") is False
                and plan.start < plan.end
                and (epoch, plan.turn) not in kept
            ]
            if ranges:
                counted[epoch, tp] = CountedRanges(*np.array(ranges, dtype=np.int64).T)
        return counted


def _differ(before: str | int | None, now: str | int | None) -> bool:
    return None not in (before, now) and before != now


def _turn_keys(table: pa.Table) -> Ints:
    """Return epoch and turn of each row as one number; an epoch has less than 2^44 turns."""
    return (to_ints(table["epoch"]) << 44) + to_ints(table["turn"])
