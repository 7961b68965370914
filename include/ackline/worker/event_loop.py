"""The event loop of a Spark task, on a thread of its own, and the watch over it.

The task's first thread reads Kafka's records from Spark, and blocks there. The loop goes on meanwhile.

A handler that blocks the loop, such as by a sleep that is not awaited, keeps each call that is under way from going on.
The watch warns with the time, and with the line of the user's code that it was in.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ackline.calling import guarded, raise_or_return
from ackline.scrub import place_of_frame

_BEAT = 0.1
_BLOCKED = 0.5
"""Seconds without a beat after which the loop counts as blocked."""

_PATIENCE = 5.0

log = logging.getLogger(__name__)


class EventLoop:
    """A loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._ended = threading.Event()
        self._beat = time.monotonic()
        self._seen: str | None = None
        self._thread = threading.Thread(target=self._run, name="ackline-calls", daemon=True)
        self._thread.start()
        self._watch = threading.Thread(target=self._watch_beats, name="ackline-watch", daemon=True)
        self._watch.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._on_beat)
        while not self._ended.is_set():
            # A task that a handler has started may raise these, which end the loop in the middle of others.
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                log.warning("%s of a task of the handler came to the event loop, and was ignored", type(error).__name__)
        self.loop.close()

    @property
    def is_alive(self) -> bool:
        """Whether the loop still runs: a handler may have closed what it needs."""
        return self._thread.is_alive()

    @property
    def blocked(self) -> float:
        """For how many seconds the loop has not gone on."""
        return max(0.0, time.monotonic() - self._beat - _BEAT)

    def submit(self, callback: Callable[[], object]) -> None:
        """Has the loop call `callback` soon."""
        self.loop.call_soon_threadsafe(callback)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Returns what an awaitable returns, or raises what it raises, and blocks until then. Runs it on the loop.
        Raises TimeoutError if the loop is blocked or gone meanwhile."""
        answer = asyncio.run_coroutine_threadsafe(guarded(awaitable), self.loop)
        while True:
            try:
                return raise_or_return(answer.result(_PATIENCE))
            except TimeoutError:
                if answer.done():
                    raise
                if not self.is_alive or self.blocked > _PATIENCE:
                    raise TimeoutError("a call blocks the event loop") from None

    def close(self, seconds: float = 5.0) -> None:
        """Cancels what still runs, and ends the loop. Waits `seconds` at most for a task that does not end."""
        if not self._ended.is_set():
            self._ended.set()
            self.submit(self._cancel_all)
            self._thread.join(seconds)

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        ended = asyncio.gather(*tasks, self.loop.shutdown_asyncgens(), return_exceptions=True)
        ended.add_done_callback(lambda _: self.loop.stop())

    def _on_beat(self) -> None:
        now, seen = time.monotonic(), self._seen
        blocked, self._beat, self._seen = now - self._beat - _BEAT, now, None
        if blocked > _BLOCKED:
            log.warning(
                "the handler blocked the event loop for %.1f s%s: no call under way could go on; await what it waits "
                "for, or write a plain function",
                blocked, "" if seen is None else f" ({seen})",
            )  # fmt: skip
        self.loop.call_later(_BEAT, self._on_beat)

    def _watch_beats(self) -> None:
        while not self._ended.wait(_BLOCKED / 2):
            if time.monotonic() - self._beat > _BLOCKED and self._seen is None:
                frame = sys._current_frames().get(self._thread.ident or 0)
                self._seen = None if frame is None else place_of_frame(frame)
