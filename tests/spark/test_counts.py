"""What tasks say beside their files: how long they waited for records, and counts where no rows are kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from tests.conftest import MakeTopic
from tests.contract.kafka_log import put
from tests.spark.bench import Bench


@pytest.mark.parametrize("handler", ["by_word", "arrow_words", "column_words"])
def test_waits_are_counted_of_each_partition_and_rows_may_be_counted_only(
    bench: Bench, topic: MakeTopic, handler: str
) -> None:
    """The same in each tier: fresh records of two partitions, and retries of a third."""
    name = topic(3)
    one, two, three = (TopicPartition(name, partition) for partition in range(3))
    for tp in (one, two, three):
        put(bench.broker, name, [(None, b"acked"), (None, None), (None, b"acked")], tp.partition)
    given = (handler, {one: (0, 3), two: (0, 3)}, {three: {0: 2, 2: 2}})
    kept = bench.run(bench.job(*given))
    assert kept.fetches.keys() == {one, two, three}
    for waits in kept.fetches.values():
        assert waits.count >= 1
        assert 0 < waits.longest <= waits.seconds < 60
    before = set(Path(bench.table.uri).rglob("*.parquet"))
    counted = bench.run(replace(bench.job(*given), record_outcomes=False))
    assert counted.files == ()
    assert set(Path(bench.table.uri).rglob("*.parquet")) == before
    assert (counted.counts, counted.calls) == (kept.counts, kept.calls)
    word = {Outcome.ACKED: 2, Outcome.SKIPPED: 1}
    assert counted.counts == {one: word, two: word, three: {Outcome.ACKED: 2}}
