"""What records become in each tier: the same on real Spark as in tasks in one process."""

import hashlib
import hmac
from pathlib import Path

from ackline.ledger.outcomes import Outcome
from tests.spark.lab import Lab

SECRET = b"a secret of the tests"
KEYS = [b"4711", b"4712", None, b"", b"4711", b"\xff\x00"]
KEY_WORDS = [b"acked", b"failed", b"acked", b"skipped", None, b"acked"]


def hash_of(key: bytes | None) -> str | None:
    return None if key is None else hmac.new(SECRET, key, hashlib.sha256).hexdigest()[:32]


OUTCOME_WORDS = [b"acked", b"failed", b"skipped", b"dead", None, b"nonsense"]
EXPECTED: list[tuple[int, str, str | None]] = [
    (0, "acked", None), (1, "failed", None), (2, "skipped", "Skip"), (3, "failed", "Dead"), (4, "skipped", "Tombstone"),
]  # fmt: skip


def check_retries(lab: Lab, handler: str) -> None:
    """Fails unless fresh records and retries have the outcomes that their values name, and their own attempts."""
    a, b, c = tps = lab.partitions(2, 1)
    first, second = a.topic, c.topic
    bad, good = (b"fail", b"ok") if handler == "by_word" else (b"failed", b"acked")
    for tp in tps:
        lab.put_records(tp, [(None, value) for value in [good, bad, good, bad, good]])
    job = lab.job(handler, {a: (2, 5), c: (0, 5)}, {a: {1: 4}, b: {0: 2, 3: 3, 4: 2}})
    result = lab.run(job)
    rows = [(row["topic"], row["partition"], row["offset"], row["attempt"], row["outcome"]) for row in lab.rows(job)]
    expected = [
        (first, 0, 1, 4, "failed"), (first, 0, 2, 1, "acked"), (first, 0, 3, 1, "failed"), (first, 0, 4, 1, "acked"),
        (first, 1, 0, 2, "acked"), (first, 1, 3, 3, "failed"), (first, 1, 4, 2, "acked"),
        *[(second, 0, offset, 1, "failed" if offset % 2 else "acked") for offset in range(5)],
    ]  # fmt: skip
    assert (sorted(rows), result.calls) == (sorted(expected), 12)
    assert 4 <= result.fetched_for_retries <= 10


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
