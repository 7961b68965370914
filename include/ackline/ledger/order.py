"""Which records wait for a lower offset of their key, or of their partition: `order` of the pipeline file. Pure.

A record that failed holds back all later ones of its key until it is settled. A key is known by a keyed hash of 64
bits. Two keys with one hash hold each other back, which is too much and never too little.

The ledger stores the hash of each pending record (`PendingRuns.keys`). What was pending before the file had `order:
key` has none there: until it is settled, its partition counts as one key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import numpy as np

from ackline.ledger.offsets import Bools, Int64s, index_of_range
from ackline.ledger.pending import UNKNOWN_KEY, PendingKind, PendingRuns, PendingState, microseconds

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


def is_held_back(state: PendingState) -> bool:
    """Returns whether a pending record waits for a lower one."""
    return state.kind is PendingKind.HELD_BACK


def is_unread(state: PendingState) -> bool:
    """Returns whether a pending record was never read: it is one of the single offsets of a backfill."""
    return state.kind is PendingKind.RETRY and not state.attempts


def _keys(pending: PendingRuns, order: Order) -> tuple[Int64s, bool]:
    """Returns what a turn takes for the key of each run, and whether all count as of one key: by `order`, or because
    the key of one is not known. What was never read is like a fresh record: the turn that reads it finds its key."""
    if order is Order.PARTITION:
        return np.full(len(pending), WHOLE_PARTITION), True
    keys: Int64s = np.where(pending.in_state(is_unread), NO_KEY, pending.known_keys)
    whole = bool((keys == UNKNOWN_KEY).any())
    return np.where(keys == NO_KEY, NO_KEY, WHOLE_PARTITION) if whole else keys, whole


def has_no_lower(pending: PendingRuns, order: Order = Order.KEY) -> Bools:
    """Returns for each run whether a turn may read it without waiting for a lower offset of its key.

    It may read the first run of a key. Behind that it may read what is held back, as long as all before it is held
    back, too: the turn calls the handler in order of offset, and holds the rest back again if one of them fails. What
    is behind a record that failed waits until that is settled, or each of its retries would read all that follow.
    """
    keys, _ = _keys(pending, order)
    waiting = pending.in_state(lambda state: is_held_back(state) or is_unread(state))
    by_key = np.argsort(keys, kind="stable")
    ordered, waits = keys[by_key], waiting[by_key]
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    failed: Int64s = np.cumsum(~waits) - ~waits  # of all runs before this one, of other keys, too
    of_key = failed - np.maximum.accumulate(np.where(is_first, failed, 0))
    free = np.empty(len(keys), dtype=np.bool_)
    free[by_key] = is_first | (waits & (of_key == 0)) | (ordered == NO_KEY)
    return free


def readable_at(pending: PendingRuns, now: datetime, order: Order) -> PendingRuns:
    """Returns what a turn at `now` may read again: due retries, and what is held back no more."""
    is_due = pending.in_state(lambda state: state.kind is PendingKind.RETRY) & (pending.dues <= microseconds(now))
    is_due |= pending.in_state(is_held_back)
    if order is not Order.NONE:
        is_due &= has_no_lower(pending, order)
    return pending.chosen(is_due)


def holds_back_all(pending: PendingRuns, now: datetime, order: Order) -> bool:
    """Returns whether each fresh record would wait for one that is pending, and that no turn at `now` reads."""
    if order is Order.NONE or not waiting_behind(pending, order).whole:
        return False
    return readable_at(pending, now, order).offsets < pending.offsets


def holder_of(pending: PendingRuns, offset: int) -> tuple[int, bool] | None:
    """Returns the run of the lowest pending offset that holds back the one at `offset`, by its index, and whether both
    are known to be of one key; None if it is not pending, or if what has held it back is settled."""
    at = int(index_of_range(np.array([offset], dtype=np.int64), pending.ranges)[0])
    keys, whole = _keys(pending, Order.KEY)
    if at < 0 or keys[at] == NO_KEY:
        return None
    waits = pending.in_state(lambda state: is_held_back(state) or is_unread(state))
    found = np.flatnonzero((keys[:at] == keys[at]) & ~waits[:at])
    return (int(found[0]), not whole) if len(found) else None


def waiting_behind(unread: PendingRuns, order: Order) -> Waiting:
    """Returns what holds back the records of a partition in a turn that does not read these of its pending ones."""
    keys, whole = _keys(unread, order)
    distinct, first = np.unique(keys, return_index=True)  # the first of each key is its lowest
    behind = dict(zip(distinct.tolist(), unread.starts[first].tolist(), strict=True))
    behind.pop(NO_KEY, None)
    return Waiting(whole, behind)
