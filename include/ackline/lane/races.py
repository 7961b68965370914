"""The rounds of a step that races with other processes of its lane, and what they prove about a newer commit.

Every write of a turn is fenced by the turn's number, and no lock keeps two processes from the same lane. A step that
loses a number has stored nothing: it reads the ledger anew, and goes on from what the other process has stored.
`ackline.steps.take_turn` takes a turn in such rounds, and `ackline.lane.commit` commits the group in them.
"""

from collections.abc import Iterator

from ackline.errors import LedgerError, NewerCommit
from ackline.lane.adapters import Adapters
from ackline.ledger.turns import Settlement, TurnId

MAX_LOST_RACES = 20
"""Rounds of such a loop before the step stops.

A step loses a round only to a process that has stored something in the meantime, so the lane goes on although this
process does not. A lane has one scheduled run, and now and then an operator's command beside it: two lost rounds in a
row are rare. Twenty in a row mean that runs start one another without end, or that the tables do not return what was
stored. Going on would hide that. There is no wait between rounds: the other process has stored its turn already, and
waiting would not change what the next round reads.
"""


class Rounds:
    """The rounds of one step, MAX_LOST_RACES at most. Each begins with the newest settlement, read anew; None if the
    lane has not begun. `doing` names the step in the error of one that has lost every round."""

    def __init__(self, adapters: Adapters, doing: str) -> None:
        self._adapters, self._doing = adapters, doing
        self._progress: tuple[TurnId | None, bool] | None = None

    def __iter__(self) -> Iterator[Settlement | None]:
        for _ in range(MAX_LOST_RACES):
            yield self._adapters.store.newest()

    def all_lost(self) -> LedgerError:
        """Returns the error of a step that has lost all rounds."""
        return LedgerError(
            f"{self._doing} of {self._adapters.pipeline.name}: other runs were quicker {MAX_LOST_RACES} times in a "
            f"row. Look for runs that start one another without end; if there are none, `ackline doctor` checks the "
            "tables"
        )

    def lose_to(self, error: NewerCommit) -> None:
        """Returns if another round may find that the commit is of this ledger; raises `error` if it is not.

        A commit that looks newer than the ledger has two possible causes. Every step stores before it commits, so
        another run may have stored and committed since this round read the ledger: then the ledger has changed, and the
        next round sees that. Or the commit is from another ledger, or this ledger is an old copy: then the ledger has
        not changed between two rounds, and the error stands.
        """
        previous, self._progress = self._progress, self._ledger_progress()
        if self._progress == previous:
            raise error

    def _ledger_progress(self) -> tuple[TurnId | None, bool]:
        """Returns the ledger's newest turn, and whether the turn after it is claimed."""
        newest, plan = self._adapters.newest_and_open_plan()
        return newest.turn if newest else None, plan is not None and self._adapters.store.has_claim(plan.turn)
