"""A handler for faults that need time to strike in."""

import time

from ackline.handler import Record
from ackline.testing import journal


def slow(record: Record) -> None:
    """The journal handler, at most five records a second."""
    journal.handle(record)
    time.sleep(0.2)
