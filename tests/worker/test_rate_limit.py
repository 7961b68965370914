"""The rate limit: how many records a task may handle by when, by a clock that only sleeping and the handler move."""

from dataclasses import dataclass

import pytest

from ackline.handler import Tier
from ackline.worker.run import RateLimit, rate_per_task
from tests.worker.batches import records_of

START = 1000.0


@dataclass
class Clock:
    """Sleeping moves it, at first by too little, as a real sleep may end early."""

    now: float = START

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += max(seconds * 0.9, min(seconds, 0.001))


def rate_limit(rate: float, clock: Clock) -> RateLimit:
    return RateLimit(rate, clock, clock.sleep)


def portions(rate: float, count: int, tier: Tier, cost: float = 0.0) -> list[tuple[float, int]]:
    """(seconds since the start, records) of each portion, if the handler takes `cost` seconds for a record."""
    clock, sizes, offsets = Clock(), list[tuple[float, int]](), list[int]()
    for part in rate_limit(rate, clock).portions(records_of([b"x"] * count), tier, deliver_tombstones=False):
        sizes.append((clock.now - START, len(part)))
        offsets += part.offsets.tolist()
        clock.now += cost * len(part)
    assert offsets == list(range(100, 100 + 2 * count, 2))
    return sizes


@pytest.mark.parametrize("tier", [Tier.RECORD, Tier.ARROW])
@pytest.mark.parametrize(
    ("rate", "count"), [(0.25, 5), (1, 7), (7, 50), (50, 333), (1000, 10_000), (33_333.3, 100_000)]
)
def test_at_no_time_has_a_task_handled_more_than_its_rate_allows(tier: Tier, rate: float, count: int) -> None:
    sizes = portions(rate, count, tier)
    total = 0
    for seconds, records in sizes:
        total += records
        assert total <= rate * seconds + 1e-6
        assert records <= max(1, rate), "no burst is bigger than a second's worth"
    assert total == count
    assert sizes[-1][0] == pytest.approx(count / rate, rel=0.05), "and not much slower either"


def test_record_handlers_get_small_portions_and_arrow_handlers_a_seconds_worth() -> None:
    assert {records for _, records in portions(200, 1000, Tier.RECORD)} == {20}
    assert {records for _, records in portions(200, 1000, Tier.ARROW)} == {200}


def test_a_handler_slower_than_the_rate_is_not_delayed() -> None:
    assert portions(100, 100, Tier.RECORD, cost=0.1)[-1][0] == pytest.approx(9.1, abs=0.2)


def test_a_delayed_task_catches_up_by_at_most_a_seconds_worth() -> None:
    clock = Clock()
    limit = rate_limit(10, clock)
    clock.now += 3600
    for _ in range(40):
        limit.wait(1)
    assert clock.now - START - 3600 == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize(("deliver_tombstones", "seconds"), [(False, 1.0), (True, 10.0)])
def test_only_records_that_the_handler_gets_count(deliver_tombstones: bool, seconds: float) -> None:
    clock = Clock()
    records = records_of([None] * 90 + [b"x"] * 10)
    parts = list(rate_limit(10, clock).portions(records, Tier.ARROW, deliver_tombstones))
    assert sum(map(len, parts)) == 100
    assert clock.now - START == pytest.approx(seconds, abs=0.01)


def test_tasks_share_the_rate_by_how_many_may_run_at_once() -> None:
    assert (rate_per_task(100, tasks=40, cores=4), rate_per_task(100, tasks=2, cores=4)) == (25, 50)
    assert (rate_per_task(100, tasks=40, cores=None), rate_per_task(1, tasks=4, cores=4)) == (2.5, 0.25)
