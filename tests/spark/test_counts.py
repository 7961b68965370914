"""What tasks report beside their files: how long they waited for records, and counts if no rows are kept."""

from pathlib import Path

import pytest

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from tests.kafka.kafka_log import put
from tests.spark.lab import Lab


@pytest.mark.parametrize("handler", ["by_word", "arrow_words", "column_words"])
def test_waits_are_counted_of_each_partition_and_rows_may_be_counted_only(lab: Lab, handler: str) -> None:
    """Fresh records of two partitions, and retries of a third, in each tier."""
    name = lab.topic(3)
    first, second, third = tps = [TopicPartition(name, partition) for partition in range(3)]
    for tp in tps:
        put(lab.broker, name, [(None, b"acked"), (None, None), (None, b"acked")], tp.partition)
    given = (handler, {first: (0, 3), second: (0, 3)}, {third: {0: 2, 2: 2}})
    recorded = lab.run(lab.job(*given))
    assert recorded.fetches.keys() == set(tps)
    for waits in recorded.fetches.values():
        assert waits.count >= 1
        assert 0 < waits.longest <= waits.seconds < 60
    before = set(Path(lab.table.uri).rglob("*.parquet"))
    counted = lab.run(lab.job(*given, record_outcomes=False))
    assert (counted.files, set(Path(lab.table.uri).rglob("*.parquet"))) == ((), before)
    assert (counted.counts, counted.calls) == (recorded.counts, recorded.calls)
    fresh = {Outcome.ACKED: 2, Outcome.SKIPPED: 1}
    assert counted.counts == {first: fresh, second: fresh, third: {Outcome.ACKED: 2}}
