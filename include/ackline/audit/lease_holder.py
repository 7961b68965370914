"""Which process works on an open turn, by the lease beside the tables of the lane. For readers: nothing rests on it."""

from datetime import datetime

from ackline.audit.lease_file import LeaseFile
from ackline.lease import Holder, Lease
from ackline.turns import TurnId


def holder_of(file: LeaseFile, turn: TurnId, now: datetime) -> Holder | None:
    """Returns the process that holds the lease of a turn; None if no process does, or if the lease can't be read.

    `now` is the time of the clock: the lease is renewed by it, whatever `--now` is.
    """
    try:
        content, renewed_at = file.read(), file.written_at()
        lease = None if content is None else Lease.decode(content)
    except (OSError, ValueError):
        return None
    # A lease of another turn is left over from a process that has died.
    if lease is None or renewed_at is None or lease.turn != str(turn):
        return None
    return Holder.of(lease, renewed_at, now)
