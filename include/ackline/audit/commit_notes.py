"""Notes in the metadata of commits: the report of a turn's tasks, and the subscription of a lane's first genesis."""

from ackline.audit.log_state import LogState, LogStates

_COMMIT, _NOTE = "ackline.commit", "ackline.note"
_SEARCHED_ENTRIES = 512
"""How many of the newest commits are searched for a note: a bound that does not grow with the log."""


def as_metadata(application: str, number: int, note: str | None) -> dict[str, str]:
    """Returns the metadata by which `find_note` finds the note of a commit; none without a note."""
    return {} if note is None else {_COMMIT: f"{application}/{number}", _NOTE: note}


def find_note(states: LogStates, state: LogState, application: str, number: int) -> str | None:
    """Returns the note of the commit `number` of `application`; None if the newest commits hold none."""
    info = states.commit_info(state, _COMMIT, f"{application}/{number}", _SEARCHED_ENTRIES)
    return None if info is None else str(info.get(_NOTE))
