"""At most once, repeats what fails between the end of the Spark job and the commit of its outcomes.

At most once the job runs once. If its report is not stored, every record of the range becomes `lost`, although each has
an outcome. So a broker or a store that is away for some minutes must not end the driver here. Under the other
guarantees the next run repeats the turn, and an error at once is better than a driver that waits.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from ackline.errors import AcklineError, RangeGone, TopicChanged
from ackline.steps.parts import Parts

TRIES = 15
"""How often the work is tried. The waits between the tries add up to five minutes."""
_MAX_WAIT_SECONDS = 30
_FINAL = (RangeGone, TopicChanged)
"""Errors that state what is so, and not that it could not be found out."""

log = logging.getLogger(__name__)
T = TypeVar("T")


def insist(parts: Parts, work: Callable[[], T]) -> T:
    """Returns what `work` returns. At most once, tries it again if it raises; it may have been done by then.

    Raises the error of the last try; at once RangeGone and TopicChanged, and under the other guarantees each error.
    """
    if parts.pipeline.guarantee != "at_most_once":
        return work()
    tries = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, AcklineError) and not isinstance(error, _FINAL)),
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(max=_MAX_WAIT_SECONDS),
        sleep=parts.sleep,
        before_sleep=_log_error,
        reraise=True,
    )
    return tries(work)


def _log_error(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    seconds = state.next_action.sleep if state.next_action else 0
    log.warning("%s. At most once no record is handed out again, so this is tried again in %.0f s", error, seconds)
