"""What has to stay cheap: scattered retries are read exactly, and very many pending offsets work."""

import time

from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab

PAYLOAD = b'{"order": 1041, "item": "teapot", "quantity": 2, "note": "' + b"." * 120 + b'"}'


def filled(lab: MakeLab, count: int, handler: str) -> Lab:
    """A lab with `count` records of an ordinary size, in producer batches of at most 16 KiB."""
    one = lab(handler=f"tests.e2e.handlers:{handler}")
    one.journalled = False
    wire.produce(one.broker.bootstrap, one.topic, (wire.Write(PAYLOAD) for _ in range(count)))
    return one


def test_a_thousand_scattered_retries_fetch_at_most_fifty_records_each(lab: MakeLab) -> None:
    one = filled(lab, 100_000, "scattered")
    one.run()
    assert len(one.pending()) == 1_000
    plan = one.plan()
    assert [run.value for planned in plan.partitions.values() for run in planned.retries] == [2] * 1_000
    replayed = one.replay()
    assert replayed.calls == 1_000
    assert 1_000 <= replayed.fetched_for_retries <= 50_000
    one.settle()
    assert one.committed() == 100_000
    one.judge(settled=True)


def test_a_hundred_thousand_pending_offsets_work(lab: MakeLab) -> None:
    """None of them next to another, so that each is an entry of the settlement; then all are retried."""
    one = filled(lab, 200_000, "every_other")
    began = time.monotonic()
    one.run()
    assert len(one.settled().state.pending) == 100_000
    assert one.run().calls == 100_000
    assert one.committed() == 200_000
    assert one.pending() == []
    assert time.monotonic() - began < 120
    one.judge(settled=True)
