"""Imports the handlers of a job in the process that calls them: a Spark task, or a process of their own."""

from collections.abc import Callable
from functools import lru_cache

from ackline.handler import Handler, Tier, load_handler
from ackline.spark.handlers.call import CallObserver, call_handler
from ackline.spark.handlers.outcomes import Outcomes, outcome_clock
from ackline.spark.handlers.streams import Streams
from ackline.spark.records import Records
from ackline.spark.settings import ReplaySettings
from ackline.stream_functions import check_emits, load_steps
from ackline.translation import Translation

CallHandler = Callable[[Records], Outcomes]


def load_call(
    settings: ReplaySettings,
    tier: Tier,
    observer: CallObserver | None = None,
    wrap: Callable[[Handler], Handler] | None = None,
) -> CallHandler:
    """Returns a function that calls the job's handler in this process, through `wrap` if it is given.

    Raises what `load_handler_or_streams` raises.
    """
    handler = _load_once(settings.handler, settings.translation, settings.topology is not None)
    if wrap is not None:
        handler = handler.with_wrapped_handlers(wrap) if isinstance(handler, Streams) else wrap(handler)
    clock = outcome_clock(settings.now)
    return lambda records: call_handler(handler, tier, records, clock, settings.deliver_tombstones, observer)


def load_handler_or_streams(
    handler: str | None, translation: Translation | None, emits: bool = False
) -> Handler | Streams:
    """Imports the streams of `translation`, or `handler` (`module:function`) where there is no translation. They may
    emit to steps if `emits`.

    Raises ConfigError if a function does not import or does not fit, or if the registry's settings are invalid.
    """
    if translation is not None:
        return Streams(translation, emits=emits)
    assert handler is not None
    function = load_handler(handler, emits=emits)
    if emits:
        check_emits(function, handler, "handler")
    return function


def load_functions_of_job(settings: ReplaySettings) -> Handler | Streams:
    """Imports all functions of a job, those of its steps among them. Returns the handler, or the streams.

    Raises what `load_handler_or_streams` and `load_steps` raise.
    """
    if settings.topology is not None:
        load_steps(settings.topology)
    return load_handler_or_streams(settings.handler, settings.translation, settings.topology is not None)


# Spark gives one Python worker many tasks.
_load_once = lru_cache(maxsize=8)(load_handler_or_streams)
