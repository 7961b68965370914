"""The timestamps of records: which of them are times. Pure.

Kafka takes any 64-bit number as a timestamp, and means milliseconds since 1970. A producer that writes microseconds or
nanoseconds, or a time before 1970, stores a number that is no time. Such a record is handled like any other, as a
record without a timestamp.
"""

from datetime import UTC, datetime, timedelta

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_TIMESTAMP = -1
"""Kafka's value for a record without a timestamp."""
LATEST_MILLISECOND = 253_402_300_799_999
"""The end of the year 9999: the last time that `datetime` holds, and that an audit table takes."""


def time_of(milliseconds: int) -> datetime | None:
    """Returns a record's timestamp as a time in UTC; None if it is before 1970 or after 9999."""
    if not 0 <= milliseconds <= LATEST_MILLISECOND:
        return None
    return UNIX_EPOCH + timedelta(milliseconds=milliseconds)
