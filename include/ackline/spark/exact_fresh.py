"""Fresh ranges that Spark's Kafka source can't read, because a record's timestamp does not fit Spark's own.

The source converts each timestamp to microseconds, and fails the job for one that then needs more than 64 bits: a
producer has written nanoseconds where Kafka means milliseconds. No option of the source avoids that. The tasks
therefore read such a range as they read retries, offset by offset, with a client that returns any number. This takes
several times as long, so it is done only where it is needed:

- replay asks each partition's leader for the first timestamp that is too large, before anything is handed out.
- A timestamp that is too small (far before 1970) can't be looked up like that. The job then fails, and starts again
  with exact reads. By then it has handled some records, like a run that was killed. At most once it does
  not start again.
"""

from collections.abc import Mapping

from ackline.offsets import OffsetRange, TopicPartition, ValuedRange
from ackline.spark.retries import FRESH, Attempts

FIRST_UNREADABLE = 2**63 // 1000 + 1
"""The lowest timestamp, in milliseconds, that Spark's source can't convert."""

Ranges = Mapping[TopicPartition, OffsetRange]


def split_ranges(fresh: Ranges, exact_from: Mapping[TopicPartition, int]) -> tuple[Ranges, Ranges]:
    """Splits fresh ranges into what Spark's source reads and what exact reads do. `exact_from` has the offset of each
    partition from which on records may be unreadable."""
    by_source, exactly = dict(fresh), {}
    for tp, start in exact_from.items():
        if tp in fresh and start < fresh[tp].end:
            start = max(start, fresh[tp].start)
            by_source[tp], exactly[tp] = OffsetRange(fresh[tp].start, start), OffsetRange(start, fresh[tp].end)
    return {tp: offsets for tp, offsets in by_source.items() if len(offsets)}, exactly


def with_fresh(retries: Mapping[TopicPartition, Attempts], exactly: Ranges) -> dict[TopicPartition, Attempts]:
    """Returns the offsets that exact reads get: the retries, and after them the fresh ranges `exactly`."""
    joined = dict(retries)
    for tp, fresh in exactly.items():
        joined[tp] = (*retries.get(tp, ()), ValuedRange(fresh.start, fresh.end, FRESH))
    return joined
