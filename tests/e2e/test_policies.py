"""Retry policies by class of error, and timestamps to start from (S30, S34)."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of, fails


def test_an_error_that_is_never_retried_is_dead_at_once_and_others_wait(lab: MakeLab) -> None:
    one = lab(retry={"initial_delay": "1m", "by_error": {"JSONDecodeError": "never"}})
    one.produce({"fail": 1}, b"{not json")
    one.run()
    assert one.rows() == [Row(0, 1, "failed"), Row(1, 0, "dead"), Row(1, 1, "failed")]
    assert one.pending() == [0]


def test_an_error_class_has_its_own_delay(lab: MakeLab) -> None:
    one = lab(retry={"initial_delay": "1h", "by_error": {"ValueError": {"initial_delay": "1s"}}})
    one.records(1, fails([0], 1))
    one.run()
    one.wait(2)
    one.run()
    assert one.handled() == [(0, 1), (0, 2)]


class AnHourOnce:
    """A retry policy: one more attempt, an hour later."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        return handled_at + timedelta(hours=1) if attempts == 1 and error_class == "ValueError" else None


def test_a_class_of_ones_own_decides_on_retries(lab: MakeLab) -> None:
    one = lab(retry={"class": "tests.e2e.test_policies:AnHourOnce"})
    one.produce({"fail": -1}, b"{not json")
    one.run()
    assert (one.outcomes()["dead"], one.pending()) == (1, [0])
    assert one.settled().state.next_due == one.now + timedelta(hours=1)
    one.wait(3600)
    one.run()
    assert one.outcomes() == {"failed": 3, "dead": 2}
    assert one.committed() == 2


@pytest.mark.parametrize(("start", "committed", "first"), [
    ("timestamp", None, 2), ("timestamp", 1, 2), ("uncommitted_timestamp", 1, 1), ("uncommitted_timestamp", None, 2),
])  # fmt: skip
def test_s30_a_timestamp_to_start_from(lab: MakeLab, start: str, committed: int | None, first: int) -> None:
    """S34: it lies between two records, and the second of them is the first that is read. Then the ledger wins."""
    one = lab(start=start, start_timestamp=datetime.now(UTC) + timedelta(hours=1))
    one.produce({"n": 0}, {"n": 1})
    boundary = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)  # a whole millisecond, as Kafka has them
    while datetime.now(UTC) < boundary:
        pass
    one.produce({"n": 2}, {"n": 3})
    one.define(start_timestamp=boundary.isoformat())
    if committed is not None:
        one.commit(committed)
    one.run()
    assert one.offsets() == list(range(first, 4))
    one.define(start="latest", start_timestamp=None)
    one.forget_commit()
    one.records(1)
    one.run()
    assert one.offsets() == [4]
    one.judge(settled=True)


def test_s34_a_timestamp_after_the_last_record_starts_at_the_end(lab: MakeLab) -> None:
    one = lab(start="timestamp", start_timestamp=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    one.records(2)
    one.run()
    one.records(1)
    one.run()
    assert one.rows() == all_of("acked", [2])
