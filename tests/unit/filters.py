"""Partition filters for the tests."""

import sys

lets_in = {0}
"""The partitions that `chosen` lets in; a test changes it as a user would change the code."""


def chosen(topic: str, partition: int) -> bool:
    return partition in lets_in


def raises(topic: str, partition: int) -> bool:
    raise LookupError(f"no such shard: {partition}")


def leaves(topic: str, partition: int) -> bool:
    sys.exit(0)


def returns_a_number(topic: str, partition: int) -> int:
    return 1


async def asynchronous(topic: str, partition: int) -> bool:
    return True


def of_one(partition: int) -> bool:
    return True


NUMBER = 5
