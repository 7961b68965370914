"""Ids of edges: 64 bits that depend on the attempt and on the place in the tree, and on nothing else.

A task that is run again makes the same ids, and a retry makes new ones: its number is part of the seed. Storm draws its
ids at random; here a second execution of a task must not differ from the first.
"""

from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from ackline.offsets import TopicPartition
from ackline.turns import TurnId

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STRIDE = 0xD1342543DE82EF95


def mix(number: int) -> int:
    """Returns the finalizer of SplitMix64 of a number: a bijection of 64 bits that spreads neighbours."""
    number = (number + _GOLDEN) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def seed_of(turn: TurnId, tp: TopicPartition) -> int:
    """Returns what the ids of a topic-partition's trees start from. It is the same in each turn of a lane's epoch."""
    text = f"{turn.pipeline}\0{turn.lane}\0{turn.epoch}\0{tp.topic}\0{tp.partition}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def root_id(seed: int, offset: int, attempt: int) -> int:
    """Returns the id that the edges of one attempt at a record start from."""
    return mix(mix(seed ^ offset) + attempt)


UInt64s = npt.NDArray[np.uint64]


def edge_ids(parents: UInt64s, positions: UInt64s) -> UInt64s:
    """Returns the id of each edge, given the id of its parent edge and its position."""
    return _mix(parents ^ (positions * np.uint64(_STRIDE)))


def _mix(numbers: UInt64s) -> UInt64s:
    """Returns `mix` of each number. Arrays of unsigned numbers wrap around, as `MASK` makes Python's do."""
    numbers = numbers + np.uint64(_GOLDEN)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Any = numbers ^ (numbers >> np.uint64(31))
    return mixed  # type: ignore[no-any-return]
