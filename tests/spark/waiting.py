"""Handlers whose calls end only while others are under way."""

import asyncio
import threading
from typing import Any

from ackline import Emit, Record
from tests.spark.handlers import by_word

TOGETHER = 8
"""Calls that must be under way at once."""
_SECONDS = 30
_threads = threading.Barrier(TOGETHER)


def meet(record: Record) -> None:
    """Waits for seven other threads."""
    _threads.wait(_SECONDS)


def meet_and_emit(record: Record) -> Emit:
    """Waits for seven other threads, and emits."""
    meet(record)
    return Emit("x", key="k")


class Meet:
    """Waits for seven other calls on the loop, with what the loop was opened with."""

    async def open(self) -> None:
        """Makes what belongs to the loop."""
        self.barrier = asyncio.Barrier(TOGETHER)

    async def __call__(self, record: Record) -> None:
        """Waits."""
        await asyncio.wait_for(self.barrier.wait(), _SECONDS)

    async def close(self) -> None:
        """Takes what `open` has made."""
        del self.barrier


class NeverCloses(Meet):
    """Can't write what it has buffered."""

    async def __call__(self, record: Record) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Fails."""
        raise ConnectionResetError("the peer is gone")


async def by_word_later(record: Record) -> Any:
    """Does what the value names, or never ends."""
    await asyncio.sleep(0)
    if record.value == b"hang":
        await asyncio.Event().wait()
    return by_word(record)
