"""The limit of the loops in which a step races with other runs of the same lane."""

from ackline.errors import LedgerError
from ackline.steps.parts import Parts

MAX_LOST_RACES = 20
"""Rounds of such a loop before the step stops.

A step loses a round only to a process that has stored something in the meantime, so the lane goes on although this
process does not. A lane has one scheduled run, and now and then an operator's command beside it: two lost rounds in a
row are rare. Twenty in a row mean that runs start one another without end, or that the tables do not return what was
stored. Going on would hide that. There is no wait between rounds: the other process has stored its turn already, and
waiting would not change what the next round reads.
"""


def too_many_lost_races(parts: Parts, doing: str) -> LedgerError:
    """Returns the error of a step that has lost MAX_LOST_RACES rounds in a row; `doing` names what it could not do."""
    return LedgerError(
        f"{doing} of {parts.pipeline.name}: other runs were quicker {MAX_LOST_RACES} times in a row. Look for runs "
        f"that start one another without end; if there are none, `ackline doctor` checks the tables"
    )
