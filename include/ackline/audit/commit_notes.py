"""Notes in the metadata of commits: the report of a turn's tasks, and the subscription of a lane's first genesis."""

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

_COMMIT, _NOTE = "ackline.commit", "ackline.note"
_HISTORY_LIMITS = (8, 64, 512)
"""How many of the newest commits are searched for a note: first what nearly always holds it, at last a bound that does
not grow with the log."""


def as_metadata(application: str, number: int, note: str | None) -> dict[str, str]:
    """Returns the metadata by which `find_note` finds the note of a commit; none without a note."""
    return {} if note is None else {_COMMIT: f"{application}/{number}", _NOTE: note}


def find_note(table: DeltaTable, application: str, number: int) -> str | None:
    """Returns the note of the commit `number` of `application`; None if the newest commits hold none."""
    wanted = f"{application}/{number}"
    for limit in _HISTORY_LIMITS:
        try:
            commits = table.history(limit)
        except (DeltaError, OSError, ValueError):
            return None
        for commit in commits:
            if commit.get(_COMMIT) == wanted:
                return str(commit.get(_NOTE))
        if len(commits) < limit:
            return None
    return None
