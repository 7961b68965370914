"""Imports the handlers of a job in the process that calls them: a Spark task, or a process of their own."""

from collections.abc import Callable
from functools import lru_cache

from ackline.handler import Handler, Tier, load_handler
from ackline.spark.handlers.call import CallObserver, call_handler
from ackline.spark.handlers.outcomes import Outcomes, outcome_clock
from ackline.spark.handlers.streams import Streams
from ackline.spark.records import Records
from ackline.spark.settings import ReplaySettings
from ackline.translation import Translation

CallHandler = Callable[[Records], Outcomes]


def load_call(settings: ReplaySettings, tier: Tier, observer: CallObserver | None = None) -> CallHandler:
    """Returns a function that calls the job's handler in this process. Raises what `load_handler_or_streams` raises."""
    handler, clock = _load_once(settings.handler, settings.translation), outcome_clock(settings.now)
    return lambda records: call_handler(handler, tier, records, clock, settings.deliver_tombstones, observer)


def load_handler_or_streams(handler: str | None, translation: Translation | None) -> Handler | Streams:
    """Imports the streams of `translation`, or `handler` (`module:function`) where there is no translation.

    Raises ConfigError if a function does not import or does not fit, or if the registry's settings are invalid.
    """
    if translation is not None:
        return Streams(translation)
    assert handler is not None
    return load_handler(handler)


# Spark gives one Python worker many tasks.
_load_once = lru_cache(maxsize=8)(load_handler_or_streams)
