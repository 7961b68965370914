"""Imports the handlers of a job in the process that calls them: a Spark task, or a process of their own."""

from collections.abc import Callable
from functools import lru_cache

from ackline.handler import Handler, Tier, load_handler
from ackline.spark.handlers.call import CallObserver, call_handler
from ackline.spark.handlers.in_flight import use_in_flight_settings
from ackline.spark.handlers.outcomes import Outcomes, outcome_clock
from ackline.spark.handlers.streams import Streams
from ackline.spark.records import Records
from ackline.spark.settings import ReplaySettings
from ackline.stream_functions import StreamFunctions, check_emits, check_in_flight, load_steps
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
    emits, in_flight = settings.topology is not None, settings.tokens is not None
    handler = _load_once(settings.handler, settings.translation, emits, in_flight)
    if wrap is not None:
        handler = handler.with_wrapped_handlers(wrap) if isinstance(handler, Streams) else wrap(handler)
    clock = outcome_clock(settings.now)
    use_in_flight_settings(settings)
    return lambda records: call_handler(handler, tier, records, clock, settings.deliver_tombstones, observer)


def load_handler_or_streams(
    handler: str | None, translation: Translation | None, emits: bool = False, in_flight: bool = False
) -> Handler | Streams:
    """Imports the streams of `translation`, or `handler` (`module:function`) where there is no translation. They may
    emit to steps if `emits`, and hand records on if `in_flight`.

    Raises ConfigError if a function does not import or does not fit, or if the registry's settings are invalid.
    """
    if translation is not None:
        streams = Streams(translation, emits=emits, in_flight=in_flight)
        check_in_flight(streams.functions, in_flight)
        return streams
    assert handler is not None
    function = load_handler(handler, emits=emits, in_flight=in_flight)
    if emits:
        check_emits(function, handler, "handler")
    check_in_flight([StreamFunctions.of_handler(function)], in_flight)
    return function


def load_functions_of_job(settings: ReplaySettings) -> Handler | Streams:
    """Imports all functions of a job, those of its steps among them. Returns the handler, or the streams.

    Raises what `load_handler_or_streams` and `load_steps` raise.
    """
    emits, in_flight = settings.topology is not None, settings.tokens is not None
    if settings.topology is not None:
        load_steps(settings.topology)
    return load_handler_or_streams(settings.handler, settings.translation, emits, in_flight)


# Spark gives one Python worker many tasks.
_load_once = lru_cache(maxsize=8)(load_handler_or_streams)
