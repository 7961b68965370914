"""What tasks report beside their files: how long they waited for records, and counts if no rows are kept."""

from pathlib import Path

from ackline.ledger.outcomes import Outcome
from tests.spark.lab import Lab


def test_waits_are_counted_of_each_partition_and_rows_may_be_counted_only(lab: Lab) -> None:
    check_counts_alone(lab, "column_words")


def check_counts_alone(lab: Lab, handler: str) -> None:
    """Fails unless waits are counted for fresh records of two partitions and retries of a third, and outcomes alike
    with and without rows."""
    first, second, third = tps = lab.partitions(3)
    for tp in tps:
        lab.put_records(tp, [(None, b"acked"), (None, None), (None, b"acked")])
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
