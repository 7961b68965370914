"""The ranges of a backfill lane, as its genesis has stored them: what is part of the lane, and what is not."""

from collections.abc import Mapping

from ackline.chosen_ranges import ChosenRanges
from ackline.offsets import OffsetRange, TopicPartition
from ackline.steps.parts import Parts
from ackline.turns import TurnId, is_backfill

LaneRanges = Mapping[TopicPartition, tuple[OffsetRange, ...]] | None
"""The ranges of each partition; None for the live lane, which holds every offset."""


def lane_ranges(parts: Parts, epoch: int) -> LaneRanges:
    """Returns the ranges that the lane reads whole in an epoch; None for the live lane. Reads the genesis."""
    if not is_backfill(parts.store.lane):
        return None
    genesis = parts.store.settlement(TurnId(parts.store.pipeline, parts.store.lane, epoch, 0))
    return {tp: settled.ranges or () for tp, settled in genesis.partitions.items()}


def chosen_in(ranges: LaneRanges, tp: TopicPartition) -> ChosenRanges:
    """Returns the ranges of one partition; None for the live lane."""
    return None if ranges is None else ranges[tp]
