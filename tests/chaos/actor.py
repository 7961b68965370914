"""Processes that can be stopped anywhere: a step runs in a thread of its own, but only while somebody waits for it.

Control is handed over and back, so that exactly one thread runs at any time: what happens is decided by who is told to
go on and how far, never by the machine's clock or scheduler.
"""

from collections.abc import Callable
from threading import Semaphore, Thread

from ackline.testing.memory import Hook

Until = Callable[[str, str], bool]
"""Whether to stop at (operation, when)."""

PATIENCE = 20_000
"""Operations after which a process counts as one that never ends."""


class Killed(BaseException):
    """The process ends here, and no handler of exceptions notices."""


class Endless(Exception):
    """The process does not end."""


class Actor:
    """A process: `work` is called with the hook that stops it. `error` is what it ended with."""

    def __init__(self, name: str, work: Callable[[Hook], None]) -> None:
        self.name = name
        self.over = False
        self.error: Exception | None = None
        self.at = ("start", "")
        self._work = work
        self._left = PATIENCE
        self._until: Until | None = None
        self._killed = False
        self._thread: Thread | None = None
        self._go, self._stopped = Semaphore(0), Semaphore(0)

    def advance(self, until: Until | None) -> None:
        """Go on until it wants to stop, or to the end."""
        self._until = until
        if self._thread is None and until is None:
            self._live()
            return
        if self._thread is None:
            self._thread = Thread(target=self._threaded, name=self.name, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._stopped.acquire()
        if self.over:
            self._thread.join()

    def kill(self) -> None:
        """End it where it is."""
        self._killed = True
        if self._thread is not None and not self.over:
            self.advance(None)
        self.over = True

    def _threaded(self) -> None:
        self._live()
        self._stopped.release()

    def _live(self) -> None:
        try:
            self._work(self._hook)
        except Killed:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.over = True

    def _hook(self, operation: str, when: str) -> None:
        self._left -= 1
        if self._killed:
            raise Killed
        if self._left < 0:
            raise Endless(f"{self.name} has not ended after {PATIENCE} operations")
        if self._until is not None and self._until(operation, when):
            self.at = (operation, when)
            self._stopped.release()
            self._go.acquire()
            if self._killed:
                raise Killed
