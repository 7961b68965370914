"""Records in flight: what a handler's `InFlight` becomes, under the settings of the task that this process works on."""

from datetime import timedelta
from typing import Any

from ackline.blocks import parse_duration
from ackline.handler import sign_tokens_with
from ackline.outcome import Outcome
from ackline.pending import LATEST, MICROSECOND
from ackline.spark.handlers.outcomes import InvalidOutcome, RowOutcome
from ackline.spark.settings import ReplaySettings
from ackline.tuples import InFlight

_allowed = False
_timeout: timedelta | None = None
# As the tokens of `ackline.handler`, these are of the process: it works on one task at a time.


def use_in_flight_settings(settings: ReplaySettings) -> None:
    """Sets whether handlers of this process may return InFlight, its default timeout, and the signer of tokens."""
    global _allowed, _timeout
    _allowed, _timeout = settings.tokens is not None, settings.in_flight_timeout
    sign_tokens_with(settings.tokens.token if settings.tokens is not None else None)


def in_flight_outcome(answer: InFlight, row: int, handled_at: int) -> RowOutcome:
    """Returns the outcome of a row that is in flight from `handled_at` on, in microseconds since 1970.

    Raises InvalidOutcome if the pipeline has no ack topic, and for a timeout that is no duration above zero.
    """
    if not _allowed:
        raise InvalidOutcome("InFlight needs `ack_topic` in the pipeline file")
    timeout: Any = _timeout if answer.timeout is None else answer.timeout
    if timeout is None:
        return RowOutcome(row, Outcome.IN_FLIGHT, None, None, handled_at)
    timeout = _duration(timeout)
    return RowOutcome(row, Outcome.IN_FLIGHT, None, None, handled_at, min(handled_at + timeout // MICROSECOND, LATEST))


def _duration(timeout: Any) -> timedelta:
    """Returns the timeout of an InFlight, which is a timedelta or a text as in the pipeline file."""
    try:
        duration = parse_duration(timeout)
    except ValueError:  # its text may quote what the handler has made of the record
        duration = timedelta()
    if duration <= timedelta():
        raise InvalidOutcome("the timeout of InFlight is no timedelta above zero, and no text such as 30s or 1h30m")
    return duration
