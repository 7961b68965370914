"""The outcomes of two lanes of a pipeline, compared over the offsets that both have settled. Reads the tables only."""

from collections.abc import Iterator

from ackline.audit.store import LedgerStore
from ackline.errors import ConfigError
from ackline.lane_diff import ChangedRun, LaneDiff, ResultRuns, compare, newest_results
from ackline.offsets import TopicPartition
from ackline.turns import Settlement


def diff_lanes(store: LedgerStore, before: str, after: str) -> tuple[LaneDiff, Iterator[ChangedRun]]:
    """Returns how the newest terminal outcomes of two lanes compare, and the runs of offsets that differ.

    If a topic was created again, only outcomes of the topic that the lane `after` has read are compared. Raises
    ConfigError for a lane that has not begun.
    """
    stores = [store.other_lane(lane) for lane in (before, after)]
    newest = [_newest(lane) for lane in stores]
    topic_ids = {tp.topic: settled.topic_id for lane in newest for tp, settled in lane.partitions.items()}
    old, new = (_results(lane, last, topic_ids) for lane, last in zip(stores, newest, strict=True))
    return compare(old, new)


def _newest(store: LedgerStore) -> Settlement:
    newest = store.newest()
    if newest is None:
        raise ConfigError(f"{store.pipeline} has no lane {store.lane}", key="LANE")
    return newest


def _results(store: LedgerStore, newest: Settlement, topic_ids: dict[str, str]) -> dict[TopicPartition, ResultRuns]:
    epochs = [store.terminal_results(epoch, topic_ids) for epoch in range(newest.turn.epoch, -1, -1)]
    tps = {tp for results in epochs for tp in results}
    return {tp: newest_results(results[tp] for results in epochs if tp in results) for tp in tps}
