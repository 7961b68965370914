"""Processes that can be stopped at any operation: each runs in a thread of its own, but only while the test waits.

Control is handed over and back, so exactly one thread runs at any time. The test decides which process goes on and how
far; the machine's clock and scheduler decide nothing.
"""

from collections.abc import Callable
from threading import Semaphore, Thread

from tests.support.memory import Hook

Until = Callable[[str, str], bool]
"""Returns whether to stop at (operation, when)."""

MAX_OPERATIONS = 20_000
"""A process with more operations counts as one that never ends."""


class Killed(BaseException):
    """The process is killed. No `except Exception` catches this."""


class Endless(Exception):
    """The process does not end."""


class Actor:
    """A process. `work` is called with the hook that stops it; `error` is the exception that it ended with."""

    def __init__(self, name: str, work: Callable[[Hook], object]) -> None:
        self.name = name
        self.over = False
        self.error: Exception | None = None
        self._work = work
        self._left = MAX_OPERATIONS
        self._until: Until | None = None
        self._killed = False
        self._thread: Thread | None = None
        self._go, self._stopped = Semaphore(0), Semaphore(0)

    def advance(self, until: Until | None) -> None:
        """Lets the process run until `until` returns true, or to its end if `until` is None."""
        self._until = until
        if self._thread is None and until is None:
            self._run_work()
            return
        if self._thread is None:
            self._thread = Thread(target=self._run_in_thread, name=self.name, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._stopped.acquire()
        if self.over:
            self._thread.join()

    def kill(self) -> None:
        self._killed = True
        if self._thread is not None and not self.over:
            self.advance(None)
        self.over = True

    def _run_in_thread(self) -> None:
        self._run_work()
        self._stopped.release()

    def _run_work(self) -> None:
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
            raise Endless(f"{self.name} has not ended after {MAX_OPERATIONS} operations")
        if self._until is not None and self._until(operation, when):
            self._stopped.release()
            self._go.acquire()
            if self._killed:
                raise Killed
