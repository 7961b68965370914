"""What has to stay cheap: scattered retries are read exactly, and very many pending offsets work."""

import time

import pytest

from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab

PAYLOAD = b'{"order": 1041, "item": "teapot", "quantity": 2, "note": "' + b"." * 120 + b'"}'


def filled(lab: MakeLab, count: int, handler: str) -> Lab:
    """Returns a lab with `count` records of an ordinary size, in producer batches of at most 16 KiB."""
    lane = lab(handler=f"tests.e2e.handlers:{handler}")
    lane.journalled = False
    wire.produce(lane.broker.bootstrap, lane.topic, (wire.Write(PAYLOAD) for _ in range(count)))
    return lane


@pytest.mark.deep
def test_a_thousand_scattered_retries_fetch_at_most_fifty_records_each(lab: MakeLab) -> None:
    lane = filled(lab, 100_000, "fails_every_hundredth_once")
    lane.run()
    assert len(lane.pending()) == 1_000
    plan = lane.plan()
    assert [run.value for planned in plan.partitions.values() for run in planned.retries] == [2] * 1_000
    replayed = lane.replay()
    assert replayed.calls == 1_000
    assert 1_000 <= replayed.fetched_for_retries <= 50_000
    lane.settle()
    assert lane.committed() == 100_000
    lane.judge(settled=True)


@pytest.mark.deep
def test_tens_of_thousands_of_pending_offsets_work(lab: MakeLab) -> None:
    """No two are neighbours, so that each is an entry of the settlement; then all are retried."""
    lane = filled(lab, 60_000, "fails_every_other_once")
    began = time.monotonic()
    lane.run()
    assert len(lane.settled().state.pending) == 30_000
    assert lane.run().calls == 30_000
    assert lane.committed() == 60_000
    assert lane.pending() == []
    assert time.monotonic() - began < 60
    lane.judge(settled=True)
