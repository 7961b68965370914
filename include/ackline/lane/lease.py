"""Holds the lease of a turn while replay works on it, and waits for a lease that another process holds.

Correctness never rests on a lease, so it may be wrong at any time. Reading and writing it are two steps, without
compare-and-set: two processes that find none at the same moment both write one, and both replay. A process that hangs
for longer than its lease goes on when it wakes. In each case the fences decide: the outcomes of a turn are stored once,
and at most once the start marker lets one process alone call the handler. For the same reason no error of the file ends
a run: it goes on without a lease, as every run did before there were leases.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from ackline.errors import HandedOut
from ackline.ledger.turns import TurnId
from ackline.stored import DamagedError
from ackline.tables.layout import LeaseFile
from ackline.tables.lease import MISSED_RENEWALS, RENEWAL_SECONDS, Lease

POLL_SECONDS = 2.0
"""How often a process that waits reads the lease of the other."""
_JOIN_SECONDS = 5.0
"""How long the end of a lease waits for a renewal that the store does not answer."""

log = logging.getLogger(__name__)


class WhenHeld(Enum):
    """What a run does if another process holds the lease of its turn."""

    WAIT = "wait"
    """It waits until the other has ended. So does the command."""
    TAKE_OVER = "take over"
    """It takes the lease, and both replay the turn."""
    REFUSE = "refuse"
    """It raises HandedOut. So does the Spark driver of Airflow: its task waits for a lease without a worker."""


@contextmanager
def renewed_in_a_thread(renew: Callable[[], bool]) -> Iterator[None]:
    """Calls `renew` every RENEWAL_SECONDS in a thread, until the context ends or it returns False."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(RENEWAL_SECONDS) and renew():
            pass

    thread = threading.Thread(target=run, name="ackline-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_JOIN_SECONDS)


@dataclass(frozen=True, slots=True)
class TurnLease:
    """The leases of the turns of one lane, for one run."""

    file: LeaseFile
    run_id: str
    when_held: WhenHeld = WhenHeld.WAIT
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep
    renewing: Callable[[Callable[[], bool]], AbstractContextManager[None]] = renewed_in_a_thread

    @contextmanager
    def held(self, turn: TurnId) -> Iterator[bool]:
        """Holds the lease of a turn during the context; first waits for another holder. Yields whether it has waited.

        Raises HandedOut under REFUSE if another process holds it.
        """
        waited = self._wait(turn)
        lease = Lease.of_this_process(turn, self.run_id, self.clock())
        if not self._write(lease):
            yield waited
            return
        renewal = _Renewal(self, lease)
        try:
            with self.renewing(renewal.renew):
                yield waited
        finally:
            self._remove(lease)

    def living_holder(self, turn: TurnId) -> Lease | None:
        """Returns the lease of a turn once its holder has renewed it; None if no process holds it, or not any more.

        Takes up to a minute, MISSED_RENEWALS renewals. The time is that of this process's own waiting: the clock of the
        other host may be wrong. Removes the lease of a holder that has ended or does not renew it.
        """
        first = lease = self._holder(turn)
        waited = 0.0
        while first is not None and lease is not None and lease.mark == first.mark:
            if waited >= MISSED_RENEWALS * RENEWAL_SECONDS:
                log.warning("%s was being replayed by %s, and not renewed for %.0f s; going on", turn, lease, waited)
                self._remove(lease)
                return None
            self.sleep(POLL_SECONDS)
            waited += POLL_SECONDS
            lease = self._holder(turn)
        return lease

    def _holder(self, turn: TurnId) -> Lease | None:
        lease = self.read()
        # The lease of another turn is left over: the lane has gone on, so nothing that its process does can count.
        if lease is None or lease.turn != str(turn):
            return None
        if lease.process_has_ended():
            log.warning("%s was being replayed by %s, which has ended; going on", turn, lease)
            self._remove(lease)
            return None
        return lease

    def read(self) -> Lease | None:
        """Returns the stored lease; None without one. Content that is not a lease is logged and ignored."""
        try:
            content = self.file.read()
            return None if content is None else Lease.decode(content)
        except DamagedError:
            log.warning("%s is not a lease, so it is ignored and replaced", self.file)
        except OSError as error:
            log.warning("the lease %s can't be read, so it is ignored: %s", self.file, error)
        return None

    def _wait(self, turn: TurnId) -> bool:
        """Waits until no other process holds the lease. Returns whether it has waited."""
        lease = self._holder(turn)
        if lease is None:
            return False
        if self.when_held is WhenHeld.REFUSE:
            raise HandedOut(f"{turn} is being replayed by {lease}; run this again when that has ended")
        if self.when_held is WhenHeld.TAKE_OVER:
            log.warning("%s is being replayed by %s; taken over", turn, lease)
            return False
        log.warning(
            "%s is being replayed by %s; waiting until that ends. `ackline run %s --take-over` goes on at once",
            turn, lease, turn.pipeline,
        )  # fmt: skip
        while self.living_holder(turn) is not None:
            pass
        return True

    def _write(self, lease: Lease) -> bool:
        try:
            self.file.write(lease.encode())
        except OSError as error:
            log.warning("the lease %s can't be written; the run goes on without it: %s", self.file, error)
            return False
        return True

    def _remove(self, lease: Lease) -> None:
        """Removes a lease that has ended, unless another process has written its own by now.

        That may happen between the two steps as well. Then the other loses its lease, and writes it again when it
        renews it.
        """
        try:
            if _holder_of(self.file) == lease.holder:
                self.file.remove()
        except OSError as error:
            log.warning("the lease %s can't be removed; it ends by itself in a minute: %s", self.file, error)


class _Renewal:
    """Renews a lease for as long as it is this process's own."""

    def __init__(self, leases: TurnLease, lease: Lease) -> None:
        self._file, self._lease = leases.file, lease

    def renew(self) -> bool:
        """Renews the lease. Returns False if another process has taken it over: two that replay must not fight for it.

        An error of the store is passed over: the next renewal may succeed.
        """
        try:
            if _holder_of(self._file) not in (None, self._lease.holder):
                log.warning("%s: another run has taken the turn over; this one goes on beside it", self._lease.turn)
                return False
            self._lease = self._lease.renewed()
            self._file.write(self._lease.encode())
        except OSError:
            log.debug("the lease could not be renewed", exc_info=True)
        return True


def _holder_of(file: LeaseFile) -> str | None:
    """Returns the holder of the stored lease; None without one, or if the content is not a lease."""
    lease = Lease.decode_or_none(file.read())
    return None if lease is None else lease.holder
