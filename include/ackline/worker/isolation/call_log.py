"""Logs the calls of a handler in memory that the handler's process shares with its Spark task.

The process logs each call before it makes the call, so the log survives whatever the call does. If the process dies, or
a call does not end, the task reads here which records the handler was given. The log holds offsets and times, never a
payload.
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
from ackline.worker.records import Int64s

_WORD = 8
# The words of the log: how many rows the handler was given, when the call under way began (0: none is under way),
# whether it was given the rows as one batch, and from the fourth word on their offsets.
_GIVEN, _BEGAN_AT, _AS_BATCH, _OFFSETS = 0, 1, 2, 3
# In place of that time: a call is under way, and waits for the schema registry, which is not the handler's doing.
_WAITING = -1
_STATE = struct.Struct("=qq")
_INITIAL_ROWS = 1024


class CallState(NamedTuple):
    """How many rows of the batch the handler was given, and when the call under way began (CLOCK_MONOTONIC, ns).

    `began_at` is 0 if no call is under way, and negative while a call waits for the schema registry.
    """

    given: int
    began_at: int


NO_CALL = CallState(0, 0)


class CallLog:
    """The log of one batch at a time. The task passes `descriptor` to the handler's process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map()

    @classmethod
    def create(cls) -> "CallLog":
        """Makes a new log in this process."""
        descriptor = os.memfd_create("ackline-calls")
        os.ftruncate(descriptor, (_OFFSETS + _INITIAL_ROWS) * _WORD)
        return cls(descriptor)

    def _map(self) -> None:
        self._memory = mmap.mmap(self.descriptor, 0)
        self._words = memoryview(self._memory).cast("q")

    def _unmap(self) -> None:
        self._words.release()
        self._memory.close()

    def begin_batch(self, rows: int) -> None:
        """In the task: empties the log for a batch of `rows` rows. The handler's process must be idle."""
        if len(self._words) < _OFFSETS + rows:
            self._unmap()
            os.ftruncate(self.descriptor, (_OFFSETS + rows) * _WORD)
            self._map()
        self._words[_BEGAN_AT] = 0
        self._words[_GIVEN] = 0
        self._words[_AS_BATCH] = 0

    def open_batch(self) -> None:
        """In the handler's process: makes room for the batch that the task has begun."""
        if os.fstat(self.descriptor).st_size > self._words.nbytes:
            self._unmap()
            self._map()

    def begin_call(self, number: int) -> None:
        """In the handler's process: logs that a call begins, by its number in the batch instead of an offset."""
        words = self._words
        given = words[_GIVEN]
        words[_OFFSETS + given] = number
        words[_BEGAN_AT] = time.monotonic_ns()  # before the count, as in `wrap`
        words[_GIVEN] = given + 1

    def end_batch(self) -> None:
        """In the handler's process: logs that the last call has returned."""
        self._words[_BEGAN_AT] = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The time in this context does not count against the limit of the call under way."""
        words, now = self._words, time.monotonic_ns()
        began_at, words[_BEGAN_AT] = words[_BEGAN_AT], _WAITING
        try:
            yield
        finally:
            words[_BEGAN_AT] = began_at + time.monotonic_ns() - now

    def state(self) -> CallState:
        """Returns the progress of the batch. While the process runs, `began_at` may be one call ahead of `given`."""
        return read_state(self.descriptor)

    def given(self) -> Int64s:
        """Returns the offsets that the handler was given, in that order."""
        return np.array(self._words[_OFFSETS : _OFFSETS + self._words[_GIVEN]], dtype=np.int64)

    @property
    def as_batch(self) -> bool:
        """Whether one call got all rows, so that any of them may be the culprit."""
        return bool(self._words[_AS_BATCH])

    def wrap(self, handler: Handler, tier: Tier) -> Handler:
        """Returns the handler; each call of it is logged before it is made."""
        words, now = self._words, time.monotonic_ns

        def logged_record_call(record: Record) -> object:
            # The offset before the count, so that no death leaves a counted row without its offset. The time before the
            # count, so that no death leaves a counted row for which no call is under way: it would pass for acked.
            given = words[_GIVEN]
            words[_OFFSETS + given] = record.offset
            words[_BEGAN_AT] = now()
            words[_GIVEN] = given + 1
            return handler(record)

        def logged_batch_call(batch: pa.RecordBatch) -> object:
            given = words[_GIVEN]
            for word, offset in enumerate(batch.column("offset").to_pylist(), _OFFSETS + given):
                words[word] = offset
            words[_AS_BATCH] = 1
            words[_GIVEN] = given + batch.num_rows
            words[_BEGAN_AT] = now()
            return handler(batch)

        logged = logged_record_call if tier is Tier.RECORD else logged_batch_call
        logged.__module__ = getattr(handler, "__module__", None) or "handler"
        return logged

    def close(self) -> None:
        """Frees the memory."""
        self._unmap()
        os.close(self.descriptor)


def read_state(descriptor: int) -> CallState:
    """Returns the state of the log behind a descriptor."""
    return CallState(*_STATE.unpack(os.pread(descriptor, _STATE.size, 0)))
