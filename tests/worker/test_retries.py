"""How fresh ranges are divided between Spark's source and exact reads."""

import pytest

from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange
from ackline.worker.tasks import FRESH, split_ranges, with_fresh

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


@pytest.mark.parametrize(("start", "by_source", "exactly"), [
    (3, None, (10, 20)),
    (10, None, (10, 20)),
    (14, (10, 14), (14, 20)),
    (20, (10, 20), None),
    (99, (10, 20), None),
])  # fmt: skip
def test_what_may_hold_an_unreadable_timestamp_is_read_exactly_and_the_rest_by_the_source(
    start: int, by_source: tuple[int, int] | None, exactly: tuple[int, int] | None
) -> None:
    fresh = {TP: OffsetRange(10, 20), OTHER: OffsetRange(0, 5)}
    spark, exact = split_ranges(fresh, {TP: start, TopicPartition("gone", 0): 0})
    assert spark == ({TP: OffsetRange(*by_source)} if by_source else {}) | {OTHER: OffsetRange(0, 5)}
    assert exact == ({TP: OffsetRange(*exactly)} if exactly else {})


def test_fresh_offsets_are_read_after_the_retries_of_their_partition() -> None:
    retries = {TP: (ValuedRange(1, 2, 3),)}
    joined = with_fresh(retries, {TP: OffsetRange(10, 20), OTHER: OffsetRange(0, 5)})
    assert joined == {TP: (ValuedRange(1, 2, 3), ValuedRange(10, 20, FRESH)), OTHER: (ValuedRange(0, 5, FRESH),)}
