"""`max_rate`: what one task may do by when, by a clock that only sleeping and the handler move."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from ackline.handler import Tier
from ackline.offsets import TopicPartition
from ackline.spark.rate_limit import RateLimit, share
from ackline.spark.records import Records


@dataclass
class Clock:
    """Starts anywhere; sleeping moves it, too little at first, as a real sleep may end early."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += max(seconds * 0.9, min(seconds, 0.001))


def paced(rate: float, clock: Clock) -> RateLimit:
    return RateLimit(rate, clock, clock.sleep)


def rows(count: int, tombstones: int = 0) -> Records:
    offsets = np.arange(count, dtype=np.int64)
    values = pa.array([None] * tombstones + [b"x"] * (count - tombstones), pa.binary())
    keys = pa.nulls(count, pa.binary())
    return Records(TopicPartition("t", 0), offsets, offsets, keys, values, None, np.ones(count, np.int32))


def handed_out(rate: float, count: int, tier: Tier, cost: float = 0.0) -> list[tuple[float, int]]:
    """(seconds since the start, records) of each portion, when each takes its handler `cost` seconds a record."""
    clock = Clock()
    found = []
    for part in paced(rate, clock).portions(rows(count), tier, deliver_tombstones=False):
        found.append((clock.now - 1000.0, len(part)))
        clock.now += cost * len(part)
    return found


@pytest.mark.parametrize("tier", [Tier.RECORD, Tier.ARROW])
@pytest.mark.parametrize(("rate", "count"), [(0.25, 5), (1, 7), (50, 333), (1000, 10_000), (33_333.3, 100_000)])
def test_by_no_time_more_was_handed_out_than_the_rate_allows(tier: Tier, rate: float, count: int) -> None:
    found = handed_out(rate, count, tier)
    total = 0
    for tp, records in found:
        total += records
        assert total <= rate * tp + 1e-6
        assert records <= max(1, rate), "no burst bigger than a second's worth"
    assert total == count
    assert found[-1][0] == pytest.approx(count / rate, rel=0.05), "and not much slower either"


def test_the_record_tier_comes_evenly_and_the_arrow_tier_by_a_seconds_worth() -> None:
    assert {records for _, records in handed_out(200, 1000, Tier.RECORD)} == {20}
    assert {records for _, records in handed_out(200, 1000, Tier.ARROW)} == {200}


def test_a_handler_slower_than_the_rate_is_not_held_up() -> None:
    assert handed_out(100, 100, Tier.RECORD, cost=0.1)[-1][0] == pytest.approx(9.1, abs=0.2)


def test_after_a_long_silence_no_more_than_a_seconds_worth_is_caught_up() -> None:
    clock = Clock()
    pace = paced(10, clock)
    clock.now += 3600
    for _ in range(40):
        pace.take(1)
    assert clock.now - 4600.0 == pytest.approx(3.0, abs=0.01)


def test_what_the_handler_does_not_see_costs_nothing() -> None:
    clock = Clock()
    every = list(paced(10, clock).portions(rows(100, tombstones=90), Tier.ARROW, deliver_tombstones=False))
    assert sum(map(len, every)) == 100
    assert clock.now - 1000.0 == pytest.approx(1.0, abs=0.01)
    list(paced(10, clock).portions(rows(100, tombstones=90), Tier.ARROW, deliver_tombstones=True))
    assert clock.now - 1000.0 == pytest.approx(11.0, abs=0.01)


def test_portions_are_the_rows_in_their_order() -> None:
    every = list(paced(7, Clock()).portions(rows(50), Tier.ARROW, deliver_tombstones=False))
    assert np.concatenate([part.offsets for part in every]).tolist() == list(range(50))


def test_tasks_share_the_rate_by_how_many_may_run_at_once() -> None:
    assert share(100, tasks=40, cores=4) == 25
    assert share(100, tasks=2, cores=4) == 50
    assert share(100, tasks=40, cores=None) == 2.5
    assert share(1, tasks=4, cores=4) == 0.25
