"""Partition filters for the tests."""

import sys

included = {0}
"""The partitions that `chosen` includes. A test changes it, as a user would change the code."""


def chosen(topic: str, partition: int) -> bool:
    return partition in included


def raises(topic: str, partition: int) -> bool:
    raise LookupError(f"no such shard: {partition}")


def exits(topic: str, partition: int) -> bool:
    sys.exit(0)


def returns_a_number(topic: str, partition: int) -> int:
    return 1


async def asynchronous(topic: str, partition: int) -> bool:
    return True


def takes_a_partition_only(partition: int) -> bool:
    return True


NUMBER = 5
