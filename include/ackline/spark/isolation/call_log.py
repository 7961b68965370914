"""Which calls a handler was given, in memory that its process shares with the one that started it.

It is written before each call, so it outlives whatever the call does: who finds the process dead, or a call that does
not end, reads here which records had been handed out. It holds offsets and times, never a payload.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ackline.handler import Handler, Record, Tier
from ackline.spark.records import Int64s

_WORD = 8
# Words of the log: how many rows were handed out, when the last call began (0: none is under way), whether they went
# together, as a batch, and their offsets.
_BEGUN, _SINCE, _BATCH, _FIRST = 0, 1, 2, 3
# In the place of that time: a call is under way, and waits for what is not its own doing.
_WAITS = -1
_HEADER = struct.Struct("=qq")
_ROOM = 1024


class Head(NamedTuple):
    """How many rows were handed out, and since when (CLOCK_MONOTONIC, ns) the last call is under way; 0: none is;
    negative: it waits for what is not its own doing."""

    begun: int
    since: int


class CallLog:
    """The log of one batch at a time. `descriptor` is what the handler's process is given of it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map()

    @classmethod
    def create(cls) -> "CallLog":
        """A new one, of this process."""
        descriptor = os.memfd_create("ackline-calls")
        os.ftruncate(descriptor, (_FIRST + _ROOM) * _WORD)
        return cls(descriptor)

    def _map(self) -> None:
        self._memory = mmap.mmap(self.descriptor, 0)
        self._words = memoryview(self._memory).cast("q")

    def _unmap(self) -> None:
        self._words.release()
        self._memory.close()

    def clear(self, rows: int) -> None:
        """Begin a batch of so many rows; no process is at work on another one."""
        if len(self._words) < _FIRST + rows:
            self._unmap()
            os.ftruncate(self.descriptor, (_FIRST + rows) * _WORD)
            self._map()
        self._words[_SINCE] = 0
        self._words[_BEGUN] = 0
        self._words[_BATCH] = 0

    def opened(self) -> None:
        """Look at the batch that was begun elsewhere."""
        if os.fstat(self.descriptor).st_size > self._words.nbytes:
            self._unmap()
            self._map()

    def idle(self) -> None:
        """Every call has come back."""
        self._words[_SINCE] = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what a call waits for through no fault of its own: that time is not the call's."""
        words, began = self._words, time.monotonic_ns()
        since, words[_SINCE] = words[_SINCE], _WAITS
        try:
            yield
        finally:
            words[_SINCE] = since + time.monotonic_ns() - began

    def head(self) -> Head:
        """How far the batch is; while its process runs, `since` may be one call behind `begun`."""
        return head_of(self.descriptor)

    def begun(self) -> Int64s:
        """The offsets that were handed out, in that order."""
        return np.array(self._words[_FIRST : _FIRST + self._words[_BEGUN]], dtype=np.int64)

    @property
    def batch(self) -> bool:
        """Whether the rows were handed out together: then none of them is known to have done it."""
        return bool(self._words[_BATCH])

    def over(self, handler: Handler, tier: Tier) -> Handler:
        """The handler, each call of it noted before it is made."""
        words, now = self._words, time.monotonic_ns

        def record_noted(record: Record) -> object:
            begun = words[_BEGUN]
            words[_FIRST + begun] = record.offset
            words[_BEGUN] = begun + 1
            words[_SINCE] = now()
            return handler(record)

        def batch_noted(batch: pa.RecordBatch) -> object:
            begun = words[_BEGUN]
            for number, offset in enumerate(batch.column("offset").to_pylist(), _FIRST + begun):
                words[number] = offset
            words[_BATCH] = 1
            words[_BEGUN] = begun + batch.num_rows
            words[_SINCE] = now()
            return handler(batch)

        noted = record_noted if tier is Tier.RECORD else batch_noted
        noted.__module__ = getattr(handler, "__module__", None) or "handler"
        return noted

    def close(self) -> None:
        """Give the memory back."""
        self._unmap()
        os.close(self.descriptor)


def head_of(descriptor: int) -> Head:
    """The head of the log behind a descriptor."""
    return Head(*_HEADER.unpack(os.pread(descriptor, _HEADER.size, 0)))
