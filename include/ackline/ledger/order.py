"""Which records wait for a lower offset of their key, or of their partition: `order` of the pipeline file. Pure.

A record that failed holds back all later ones of its key until it is settled. A key is known by a keyed hash of 64
bits. Two keys with one hash hold each other back, which is too much and never too little.

The ledger stores the hash of each pending record (`PendingRuns.keys`). What was pending before the file had `order:
key` has none there: until it is settled, its partition counts as one key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from ackline.ledger.offsets import Bools, Int64s

UNKNOWN_KEY = int(np.iinfo(np.int64).min)
"""Stands for the key of a pending record that is not known."""
NO_KEY = UNKNOWN_KEY + 1
"""Stands for the key of a record that has none: it waits for no other, and no other waits for it."""
WHOLE_PARTITION = 0
"""Stands for the key of each record of a partition that counts as one key."""


class Order(StrEnum):
    """What may not overtake: the values of `order`."""

    NONE = "none"
    KEY = "key"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What holds back the records of a partition when a turn begins: it is pending, and the turn does not read it."""

    whole: bool
    """Whether all records of the partition count as of one key. With `order: key`, those without a key do not."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """The lowest offset of each key that holds its later ones back; that of WHOLE_PARTITION if it is `whole`."""


def storable(hashes: Int64s, has_key: Bools) -> Int64s:
    """Returns the hashes of keys as the ledger stores them: NO_KEY for records without a key, and never for others."""
    kept: Int64s = np.where(hashes == NO_KEY, NO_KEY + 1, hashes)
    return np.where(has_key, kept, NO_KEY)
