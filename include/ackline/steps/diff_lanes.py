"""The outcomes of two lanes of a pipeline, compared over the offsets that both have settled. Reads the tables only."""

from collections.abc import Iterable, Iterator

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
    newest = [begun_lane(lane) for lane in stores]
    topic_ids = topic_ids_of(newest)
    old, new = (_results(lane, last, topic_ids) for lane, last in zip(stores, newest, strict=True))
    return compare(old, new)


def newest_results_of(store: LedgerStore, newest: Settlement) -> dict[TopicPartition, ResultRuns]:
    """Returns the newest terminal outcome of each offset of a lane, in the topics that it reads now."""
    return _results(store, newest, topic_ids_of([newest]))


def topic_ids_of(settlements: Iterable[Settlement]) -> dict[str, str]:
    """Returns the ids of the topics of some lanes; where they differ, that of the last lane."""
    return {tp.topic: settled.topic_id for lane in settlements for tp, settled in lane.partitions.items()}


def begun_lane(store: LedgerStore) -> Settlement:
    """Returns the newest settlement of a lane. Raises ConfigError if it has not begun."""
    newest = store.newest()
    if newest is None:
        raise ConfigError(
            f"{store.pipeline} has no lane {store.lane}: write live, or backfill-ID with an id that "
            f"`ackline backfill {store.pipeline} --list` shows",
            key="LANE",
        )
    return newest


def _results(store: LedgerStore, newest: Settlement, topic_ids: dict[str, str]) -> dict[TopicPartition, ResultRuns]:
    epochs = [store.terminal_results(epoch, topic_ids) for epoch in range(newest.turn.epoch, -1, -1)]
    tps = {tp for results in epochs for tp in results}
    return {tp: newest_results(results[tp] for results in epochs if tp in results) for tp in tps}
