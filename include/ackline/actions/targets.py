"""What an operator's request means for the lane as it is now: where each partition goes, or which pending offsets it is
about. The command and the DAG `operate__NAME` make the same request."""

from collections.abc import Mapping
from datetime import datetime

import numpy as np

from ackline.actions.form import ActionRequest
from ackline.errors import ConfigError
from ackline.lane.adapters import Adapters
from ackline.lane.plans import Targets
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.pending import PendingKind, PendingRuns
from ackline.ledger.turns import Settlement, TurnKind
from ackline.pipeline.arguments import Destination


def choose_targets(adapters: Adapters, request: ActionRequest, newest: Settlement) -> Targets:
    """Returns the targets of a request, given the lane as it is.

    Raises ConfigError for partitions that the lane does not have, for a single offset and several partitions, for a
    skip that goes back, and if nothing that is pending is selected.
    """
    name = adapters.pipeline.name
    if request.is_about_pending:
        return _pending_targets(request, newest, name)
    chosen = request.partitions.chosen(newest.partitions, name)
    floors = {tp: newest.partitions[tp].state.floor for tp in chosen}
    if request.kind in (TurnKind.PAUSE, TurnKind.RESUME):
        return floors
    if request.kind is TurnKind.RESET:  # a topic created again may lack partitions, which stay at their floor
        topics = adapters.cluster.topics(sorted({tp.topic for tp in chosen}))
        existing = [tp for tp in chosen if tp.topic in topics and tp.partition in topics[tp.topic].partitions]
        chosen = existing or chosen
    _check_offset_is_of_one_partition(request, len(chosen))
    targets = {tp: floors[tp] + request.by for tp in chosen} if request.by is not None else {}
    targets = targets or _destinations(adapters, request.to, {tp: floors[tp] for tp in chosen})
    for tp, target in targets.items():
        if target < 0:
            raise ConfigError(f"{tp}: offset {target} is below 0; the floor is {floors[tp]}", key="--by")
    return _forward(targets, floors, request, name) if request.kind is TurnKind.SKIP else targets


def _check_offset_is_of_one_partition(request: ActionRequest, partitions: int) -> None:
    if isinstance(request.to, int) and partitions > 1 and not request.all_partitions:
        raise ConfigError(
            f"--to {request.to} is one offset, and {partitions} partitions are chosen: choose one with --topic and "
            f"--partition, or write --all-partitions",
            key="--to",
        )


def _destinations(
    adapters: Adapters, to: Destination | None, floors: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    if isinstance(to, int):
        return dict.fromkeys(floors, to)
    if to == "committed":
        return _committed(adapters, floors)
    if to is None or to == "floor":
        return dict(floors)
    bounds = adapters.cluster.bounds(floors)
    if isinstance(to, datetime):
        first = adapters.cluster.offsets_at(floors, to)
        ends = {tp: bounds[tp].end for tp in floors}
        # The readable end of the log, if no record is that late or it is not readable yet.
        return {tp: ends[tp] if (offset := first[tp]) is None else min(offset, ends[tp]) for tp in floors}
    return {tp: bounds[tp].start if to == "earliest" else bounds[tp].end for tp in floors}


def _committed(adapters: Adapters, floors: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    committed = adapters.group.committed(floors)
    without = [str(tp) for tp in floors if tp not in committed]
    if without:
        raise ConfigError(
            f"the group {adapters.pipeline.kafka.group_id} has no committed offset for {', '.join(without)}: give "
            f"another --to for these",
            key="--to",
        )
    return {tp: committed[tp].offset for tp in floors}


def _forward(
    targets: Mapping[TopicPartition, int], floors: Mapping[TopicPartition, int], request: ActionRequest, name: str
) -> dict[TopicPartition, int]:
    """Returns the targets of a skip, which goes forward only.

    A word or a time may be behind the floor of some partitions, which then stay where they are; an offset is refused.
    """
    back = [tp for tp, target in targets.items() if target < floors[tp]]
    if back and (isinstance(request.to, int) or len(back) == len(targets)):
        tp = back[0]
        raise ConfigError(
            f"{tp}: offset {targets[tp]} is below the floor {floors[tp]}, and a skip goes forward only. To handle "
            f"records again, begin a new epoch with `ackline reset {name}`",
            key="--to",
        )
    return {tp: target for tp, target in targets.items() if tp not in back}


def _pending_targets(request: ActionRequest, newest: Settlement, name: str) -> dict[TopicPartition, PendingRuns]:
    """Returns the pending runs that a request selects, of the partitions that have any. A retry selects retries."""
    targets = {}
    for tp in request.partitions.chosen(newest.partitions, name):
        runs = newest.partitions[tp].state.pending
        if request.offsets is not None:
            bounds = (np.array([request.offsets.start]), np.array([request.offsets.end]))
            runs = runs.within(bounds) if request.offsets else runs.where(lambda state: False)
        if request.error_class is not None:
            runs = runs.where(lambda state: state.error_class == request.error_class)
        if request.kind is TurnKind.RETRY:
            runs = runs.of_kind(PendingKind.RETRY)
        if len(runs):
            targets[tp] = runs
    if not targets:
        what = "no retry" if request.kind is TurnKind.RETRY else "no record"
        raise ConfigError(f"{name}: {what} that was selected is pending, so there is nothing to {request.kind}")
    return targets
