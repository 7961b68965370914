"""A topic that is compacted in the middle of a backfill, on a real broker: every chosen offset is counted."""

from collections.abc import Iterable

import pytest

from ackline.backfill.plan import plan_backfill
from ackline.backfill.run import backfill_pipeline, find_backfill
from ackline.lane.adapters import open_adapters
from ackline.pipeline.arguments import lane_of
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab
from tests.e2e.test_backfill import backfill, ended, judge
from tests.kafka.kafka_log import COMPACTED, compact

ONE_RETRY = {"initial_delay": "1m", "period": "1m", "max_retries": 1}


def write(lane: Lab, *records: tuple[str, bytes]) -> None:
    """Produces (key, value) records, each in a batch of its own."""
    for key, value in records:
        wire.produce(lane.broker.bootstrap, lane.topic, [wire.Write(value, key.encode())])


def compacted(lane: Lab, gone: Iterable[int]) -> None:
    """Waits until the broker has compacted these offsets away."""
    compact(lane.broker, lane.topic, gone, lambda: write(lane, ("roll", b"{}")))


def planned(lane: Lab, backfill_id: str) -> None:
    """Stores the next plan of a backfill, as a process does that dies after it."""
    with lane.adapters() as live:
        stored = find_backfill(live.store.other_lane(lane_of(backfill_id)))
    assert stored is not None
    pipeline = backfill_pipeline(lane.pipeline, stored.arguments)
    opened = open_adapters(
        pipeline, run_id="dies", actor="test", now=lane.now, audit=lane.audit, lane=lane_of(backfill_id)
    )
    with opened as adapters:
        assert plan_backfill(adapters).plan is not None


@pytest.mark.deep
def test_s72_compaction_between_turns_and_between_plan_and_replay_leaves_every_offset_of_a_range_counted(
    lab: MakeLab,
) -> None:
    """Offset 0 waits for its retry, 2 is unread, and 3 is in a stored plan, when compaction takes them."""
    lane = lab(topic_config=COMPACTED, retry=ONE_RETRY)
    write(lane, ("a", b'{"fail": 1}'), ("b", b"{}"), ("c", b"{}"), ("d", b"{}"), ("e", b'{"fail": 1}'))
    begun = backfill(lane, f"{lane.topic}:0:0-5", "--id", "b", "--max-records", "2")
    assert (begun["outcomes"], begun["pending"]["retry"], begun["pending"]["unread"]) == ({"acked": 1}, 1, 3)
    write(lane, ("a", b"{}"), ("c", b"{}"))
    compacted(lane, [0, 2])
    planned(lane, "b")
    write(lane, ("d", b"{}"))
    compacted(lane, [3])
    middle = backfill(lane, "--id", "b")
    assert (middle["outcomes"], middle["gaps"], middle["pending"]["retry"]) == ({"acked": 1}, 2, 2)
    judge(lane, "b", settled=False)
    lane.advance_clock(60)
    done = backfill(lane, "--id", "b")
    assert (done["settled"], done["outcomes"], done["gaps"]) == (True, {"acked": 2, "compacted": 1}, 2)
    assert ended(lane, "b") == done["outcomes"]
    judge(lane, "b")


def test_s72_compaction_between_plan_and_replay_takes_single_offsets_of_a_backfill_by_outcome(lab: MakeLab) -> None:
    """Offset 0 is gone before the plan, 2 after it. Both are `compacted`, and not gaps: they were there once."""
    lane = lab(topic_config=COMPACTED, retry={"max_retries": 0})
    dead = b'{"dead": true}'
    write(lane, ("a", dead), ("b", b"{}"), ("c", dead), ("d", dead))
    lane.run()
    backfill(lane, "--outcome", "dead", "--id", "b", "--max-records", "1")
    write(lane, ("c", b"{}"))
    planned(lane, "b")
    compacted(lane, [2])
    done = backfill(lane, "--id", "b")
    assert (done["settled"], done["outcomes"], done["gaps"]) == (True, {"compacted": 1, "dead": 2}, 0)
    assert ended(lane, "b") == done["outcomes"]
    judge(lane, "b")
