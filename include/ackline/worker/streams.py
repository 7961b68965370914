"""Imports the handlers of a job, decodes each record, and calls the handler of the first stream whose filter takes it.

The caller is a Spark task, or the process of an isolated handler.

Decoding and filtering are part of handling a record: what they raise is the outcome of that record alone. A record that
no stream takes is skipped, with the error class Unmatched, and so is one that a backfill's `--where` does not take. A
failure of the schema registry ends the Spark task.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.calling import ASYNC_CONCURRENCY, ManagedHandler, TaskFailure, close_handlers, run_here
from ackline.errors import AcklineError
from ackline.handler import Handler, Record, Tier, load_handler
from ackline.kafka.registry import Registry
from ackline.ledger.outcomes import Outcome
from ackline.pipeline.functions import StreamFunctions, check_emits, check_in_flight, load_functions, load_steps
from ackline.pipeline.messages import message_decoder
from ackline.pipeline.streams import (
    DECODERS,
    Decode,
    Stream,
    Translation,
    Undecodable,
    message_class_of,
    scalar_texts,
)
from ackline.worker.call import (
    IsFull,
    call_arrow_handler,
    call_record_handler,
    refuse_unfinished,
    use_in_flight_settings,
)
from ackline.worker.isolation.serving import CallLog, Observer, RecordCalls, serve_requests
from ackline.worker.outcomes import (
    NOT_CALLED,
    Clock,
    DecodingFailed,
    InvalidOutcome,
    Outcomes,
    PayloadOf,
    Unmatched,
    outcome_clock,
    outcome_of_exception,
    tombstone_outcome,
)
from ackline.worker.portions import Choose, WaitingHandlers
from ackline.worker.records import Records
from ackline.worker.settings import ReplaySettings
from ackline.worker.under_way import CallsUnderWay
from ackline.worker.where import Taken, Where

# A record is frozen for its handler. These set a slot of it in place, before the handler gets it.
_set_key: Any = Record.__dict__["key"].__set__
_set_value: Any = Record.__dict__["value"].__set__

_BYTES = ("bytes", "bytes")
_EMPTY_RECORD = Record("", 0, 0, None, None, None, (), 0)


@dataclass(frozen=True, slots=True)
class _Route:
    """A stream with its functions and decoders; a decoder is None where bytes stay bytes."""

    stream: Stream
    functions: StreamFunctions
    key: Decode | None
    value: Decode | None
    decoding: tuple[str, str]
    """What keys and values are decoded as. A record is decoded once for all routes with the same decoding."""

    def decode(self, record: Record) -> None:
        """Decodes key and value in place. Raises DecodingFailed, or TaskFailure if the record is not the cause."""
        try:
            if self.key is not None and record.key is not None:
                _set_key(record, self.key(record.key, record))
            if self.value is not None and record.value is not None:
                _set_value(record, self.value(record.value, record))
        except Undecodable as error:
            raise DecodingFailed(str(error)) from None
        except AcklineError as error:
            raise TaskFailure(error) from None

    def wants(self, record: Record) -> bool:
        """Returns the filter's decision. Raises InvalidOutcome if the filter returned neither True nor False."""
        if self.functions.filter is None:
            return True
        wanted = self.functions.filter(record)
        if isinstance(wanted, bool | np.bool_):
            return bool(wanted)
        refuse_unfinished(wanted)
        raise InvalidOutcome(f"the filter returned {type(wanted).__name__}, not True or False")


class Streams:
    """The streams of a translation, with their functions imported. `emits` is True if steps take what handlers emit,
    `in_flight` if handlers may return InFlight. Raises what `load_functions` raises."""

    def __init__(self, translation: Translation, *, emits: bool = False, in_flight: bool = False) -> None:
        self.registry = registry = Registry(dict(translation.registry)) if translation.needs_registry else None
        self._routes = [
            _Route(
                stream,
                load_functions(stream, emits=emits, in_flight=in_flight),
                _decoder(stream.key, "key", registry),
                _decoder(stream.value, "value", registry),
                (stream.key, stream.value),
            )
            for stream in translation.streams
        ]
        where, routes = translation.where, {route.decoding: route for route in self._routes}
        self._wheres = {
            decoding: Where(where, decoding, route.key, route.value)
            for decoding, route in routes.items()
            if where is not None
        }
        self._routes_of = lru_cache(maxsize=None)(self._find_routes)

    def with_wrapped_handlers(self, wrap: Callable[[Handler], Handler]) -> "Streams":
        """Returns these streams with each handler wrapped; filters and decoders stay as they are."""
        wrapped = copy(self)
        wrapped._routes = [
            replace(route, functions=replace(route.functions, handler=wrap(route.functions.handler)))
            for route in self._routes
        ]
        wrapped._routes_of = lru_cache(maxsize=None)(wrapped._find_routes)
        return wrapped

    def _find_routes(self, topic: str) -> tuple[_Route, ...]:
        return tuple(route for route in self._routes if route.stream.covers_topic(topic))

    @property
    def functions(self) -> list[StreamFunctions]:
        """The functions of the streams, in the order of the streams."""
        return [route.functions for route in self._routes]

    def _taken(self, routes: tuple[_Route, ...], records: Records) -> Taken:
        """Evaluates `--where` for a batch, before the first call begins: its time must count for no call."""
        decodings = {route.decoding for route in routes} if self._wheres else ()
        return Taken(records.offsets, {each: self._wheres[each].matches(records) for each in decodings})

    def choose(self, records: Records) -> tuple[Choose, PayloadOf]:
        """Returns what `WaitingHandlers.choose` returns."""
        routes = self._routes_of(records.tp.topic)
        taken = self._taken(routes, records)

        def chosen(record: Record) -> tuple[Handler, Record]:
            route, record = _first_match(routes, record, taken)
            return route.functions.handler, record

        return chosen, _payload_of(routes, records)

    def call(
        self, records: Records, now: Clock, observer: Observer | None = None, is_full: IsFull | None = None
    ) -> Outcomes:
        """Returns the outcome of each record; of the first ones, if `is_full` has returned True after one of them. An
        `observer` counts decoding and filters as part of a record's call; it can't observe the batches that filters
        make."""
        routes = self._routes_of(records.tp.topic)
        taken = self._taken(routes, records)
        if routes and routes[0].functions.filter is None and routes[0].functions.tier is Tier.ARROW:
            return _call_arrow_taken(routes[0], records, taken, now, observer)
        handler, batches = _routed(routes, records, taken)
        if observer is not None:
            handler = observer.log.wrap(handler, Tier.RECORD)
            if self.registry is not None:
                self.registry.waiting = observer.log.waiting
        outcomes = call_record_handler(
            handler,
            records,
            now,
            _payload_of(routes, records),
            observer,
            is_full,
        )
        outcomes.calls -= sum(outcome.error_class in NOT_CALLED for outcome in outcomes.not_acked)
        outcomes.insert(
            (np.array(rows), _call_arrow_route(route, records.take(rows), now)) for route, rows in batches if rows
        )
        return outcomes


_Batches = Sequence[tuple[_Route, list[int]]]
"""Each route with the rows that wait for its Arrow handler. A route with a record handler has none."""


def _routed(routes: tuple[_Route, ...], records: Records, taken: Taken) -> tuple[Handler, _Batches]:
    """Returns a record handler that calls the handler of the first route which wants the record, and the batches that
    it leaves for Arrow handlers. Call these after the last record: a batch grows with each record that its route takes.
    """
    if len(routes) == 1 and routes[0].functions.filter is None:  # the usual case, made fast
        decode, handler, decoding = routes[0].decode, routes[0].functions.handler, routes[0].decoding

        def call_only_route(record: Record) -> Any:
            decode(record)
            return handler(record)

        def call_taken(record: Record) -> Any:
            decode(record)
            taken.check(decoding, record)
            return handler(record)

        return call_taken if taken.matches else call_only_route, ()
    batches: _Batches = [(route, []) for route in routes]

    def call_first_match(record: Record) -> Any:
        route, record = _first_match(routes, record, taken)
        if route.functions.tier is not Tier.ARROW:
            return route.functions.handler(record)
        rows = next(rows for each, rows in batches if each is route)
        rows.append(int(np.searchsorted(records.offsets, record.offset)))
        return None

    return call_first_match, batches


def _first_match(routes: Sequence[_Route], record: Record, taken: Taken) -> tuple[_Route, Record]:
    """Returns the first route that wants a record, and the record as it has decoded it. Raises what a filter raises,
    DecodingFailed, TaskFailure, what `taken` raises, and Unmatched if no route wants the record."""
    key, value = record.key, record.value
    decoding = _BYTES
    for route in routes:
        if route.decoding != decoding:
            if decoding != _BYTES:  # a copy, because the last filter may have kept the record that it was given
                record = replace(record, key=key, value=value)
            route.decode(record)
            decoding = route.decoding
        if route.wants(record):
            if taken.matches:
                taken.check(route.decoding, record)
            return route, record
    raise Unmatched


def _payload_of(routes: tuple[_Route, ...], records: Records) -> PayloadOf:
    return lambda row: chain(records.payload_of(row), _decoded(routes, records, row))


def _decoded(routes: tuple[_Route, ...], records: Records, row: int) -> Iterator[bytes | str]:
    """Yields what the decoders make of a row, as texts. Decodes it anew: a handler may have changed its values."""
    for route in {route.decoding: route for route in routes}.values():
        record = records.record(row)
        for decode, data in ((route.key, record.key), (route.value, record.value)):
            if decode is not None and data is not None:
                try:
                    decoded = decode(data, record)
                except (Undecodable, AcklineError):
                    continue
                yield from scalar_texts(decoded)


def _call_arrow_taken(route: _Route, records: Records, taken: Taken, now: Clock, observer: Observer | None) -> Outcomes:
    """Calls an Arrow handler for the rows that `--where` takes."""
    rows = taken.rows(route.decoding)
    if len(rows) == len(records):
        return _call_arrow_route(route, records, now, observer)
    time, called = now(), Outcomes(np.empty(0, np.int64))
    if len(rows):
        called = _call_arrow_route(route, records.take(rows), now, observer)
    return called.among(len(records), rows, taken.others(route.decoding, time), time)


def _call_arrow_route(route: _Route, records: Records, now: Clock, observer: Observer | None = None) -> Outcomes:
    """Calls an Arrow handler. Rows that should be text and are not fail alone: the handler does not get them."""
    undecodable: dict[int, str] = {}
    for decode, column in ((route.key, records.keys), (route.value, records.values)):
        if decode is not None:
            undecodable |= {row: reason for row, reason in _not_text(decode, column) if row not in undecodable}
    time = now()
    failures = [outcome_of_exception(DecodingFailed(undecodable[row]), row, None, time) for row in sorted(undecodable)]
    outcomes = Outcomes(np.full(len(records), time, np.int64), failures)
    rows = np.array([row for row in range(len(records)) if row not in undecodable], dtype=np.int64)
    if len(rows):
        batch = records.take(rows) if undecodable else records
        if route.key is not None:
            batch = replace(batch, keys=batch.keys.cast(pa.string()))
        if route.value is not None:
            batch = replace(batch, values=batch.values.cast(pa.string()))
        handler = (
            route.functions.handler if observer is None else observer.log.wrap(route.functions.handler, Tier.ARROW)
        )
        outcomes.insert([(rows, call_arrow_handler(handler, batch, now))])
        outcomes.calls = len(batch)
    return outcomes


def _not_text(decode: Decode, column: pa.Array) -> Iterator[tuple[int, str]]:
    """Yields each row of a column that is not UTF-8, with the reason. Arrow checks all rows at once; only if it finds
    one that is no text, each row is decoded."""
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        for row, data in enumerate(column.to_pylist()):
            try:
                if data is not None:
                    decode(data, _EMPTY_RECORD)
            except Undecodable as error:
                yield row, str(error)


def _decoder(word: str, field: str, registry: Registry | None) -> Decode | None:
    if word == "bytes":
        return None
    if word in DECODERS:
        return DECODERS[word](field)
    if (path := message_class_of(word)) is not None:
        return message_decoder(path, field)
    assert registry is not None
    return registry.decoder(word, field)


def call_handler(
    handler: Handler | Streams,
    tier: Tier,
    records: Records,
    now: Clock,
    deliver_tombstones: bool,
    observer: Observer | None = None,
    is_full: IsFull | None = None,
) -> Outcomes:
    """Calls the handler, and returns the outcome of each record. Without `deliver_tombstones`, records without a value
    are skipped, and the handler does not get them. A record handler gets no more records once `is_full` returns True:
    then the outcomes are those of the first records, at least of one. Raises an AcklineError only for what keeps a
    record from being handled without being its fault."""

    def call(records: Records) -> Outcomes:
        if isinstance(handler, Streams):
            return handler.call(records, now, observer, is_full)
        logged = handler if observer is None else observer.log.wrap(handler, tier)
        if tier is Tier.RECORD:
            return call_record_handler(logged, records, now, observer=observer, is_full=is_full)
        return call_arrow_handler(logged, records, now)

    return without_tombstones(call, records, now, deliver_tombstones)


def without_tombstones(call: "CallHandler", records: Records, now: Clock, deliver_tombstones: bool) -> Outcomes:
    """Returns the outcomes that `call` returns, which gets no record without a value unless `deliver_tombstones`."""
    if deliver_tombstones or not records.values.null_count:
        return call(records)
    delivered = records.values.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(delivered)
    outcomes = Outcomes(np.empty(0, np.int64))
    if len(rows):
        outcomes = call(records.filter(delivered))
    time = now()
    tombstones = [tombstone_outcome(int(row), time) for row in np.flatnonzero(~delivered)]
    return outcomes.among(len(records), rows, tombstones, time)


def _chosen(handler: Handler, records: Records) -> tuple[Choose, PayloadOf]:
    return lambda record: (handler, record), records.payload_of


def functions_of(handler: Handler | Streams) -> list[StreamFunctions]:
    """Returns the functions of the streams; without streams those of the handler."""
    return handler.functions if isinstance(handler, Streams) else [StreamFunctions.of_handler(handler)]


def gets_batches(handler: Handler | Streams) -> bool:
    """Returns whether one call may get many records."""
    return any(each.tier is Tier.ARROW for each in functions_of(handler))


def can_be_cancelled(handler: Handler | Streams, settings: ReplaySettings) -> bool:
    """Returns whether a call that takes too long can be cancelled, so that it needs no process that can be killed."""
    return settings.topology is None and all(each.is_asynchronous for each in functions_of(handler))


def waiting_handlers(
    settings: ReplaySettings, handler: Handler | Streams, rated: bool = False
) -> WaitingHandlers | None:
    """Returns how the handlers of a task are called if several calls may be under way, or if they need an event loop;
    None if one call follows the other."""
    handlers = [each.handler for each in functions_of(handler)]
    managed = [each for each in handlers if isinstance(each, ManagedHandler)]
    if (settings.concurrency or 1) == 1 and not any(each.needs_loop for each in managed):
        return None
    default = ASYNC_CONCURRENCY if any(each.is_asynchronous for each in managed) else 1
    choose = handler.choose if isinstance(handler, Streams) else partial(_chosen, handler)
    return WaitingHandlers(
        handlers=handlers,
        choose=choose,
        limit=settings.concurrency or default,
        threads=settings.concurrency or 1,
        deliver_tombstones=settings.deliver_tombstones,
        timeout=settings.record_timeout,
        rated=rated,
        registry=handler.registry if isinstance(handler, Streams) else None,
        failures_hold=settings.on_failure is Outcome.FAILED,
    )


def load_waiting(settings: ReplaySettings, tier: Tier, rated: bool = False) -> WaitingHandlers | None:
    """Returns `waiting_handlers` of the job; None for an Arrow handler. Raises as `load_handler_or_streams` does."""
    emits = settings.topology is not None
    handler = _load_once(settings.handler, settings.translation, emits, settings.tokens is not None)
    return waiting_handlers(settings, handler, rated) if tier is Tier.RECORD or isinstance(handler, Streams) else None


CallHandler = Callable[[Records], Outcomes]


def load_calls(
    settings: ReplaySettings, tier: Tier, observer: Observer | None = None, rated: bool = False
) -> "CallHandler | CallsUnderWay":
    """Returns what calls the job's handler in this process: one record after the other, or several at once. Raises as
    `load_handler_or_streams` does."""
    if (waiting := load_waiting(settings, tier, rated)) is None:
        return load_call(settings, tier, observer)
    use_in_flight_settings(settings)
    return CallsUnderWay(waiting, outcome_clock(settings.now, settings.not_before), observer)


def load_call(
    settings: ReplaySettings,
    tier: Tier,
    observer: Observer | None = None,
    wrap: Callable[[Handler], Handler] | None = None,
    is_full: IsFull | None = None,
) -> CallHandler:
    """Returns a function that calls the job's handler in this process, through `wrap` if it is given, until `is_full`.
    Raises what `load_handler_or_streams` raises."""
    emits, in_flight = settings.topology is not None, settings.tokens is not None
    handler = _load_once(settings.handler, settings.translation, emits, in_flight)
    called = handler
    if wrap is not None:
        called = handler.with_wrapped_handlers(wrap) if isinstance(handler, Streams) else wrap(handler)
    clock = outcome_clock(settings.now, settings.not_before)
    use_in_flight_settings(settings)
    managed = [each.handler for each in functions_of(handler) if isinstance(each.handler, ManagedHandler)]

    def call(records: Records) -> Outcomes:
        if settings.on_failure is not Outcome.FAILED and records.order_keys is not None:
            records = replace(records, order_keys=None)  # one call follows the other, and a failure holds nothing back
        for each in managed:  # before the first call is logged: what `open` does is no record's doing
            each.open(run_here)
        return call_handler(called, tier, records, clock, settings.deliver_tombstones, observer, is_full)

    return call


def serve(data: socket.socket, log: CallLog) -> None:
    """Calls the handler of records on batches, as a Spark task does."""
    serve_requests(data, log, lambda start, observer: _serving(start[0], start[1], observer))


def _serving(settings: ReplaySettings, tier: Tier, observer: Observer) -> Callable[[RecordCalls], Outcomes]:
    calls = load_calls(settings, tier, observer)
    handler = _load_once(settings.handler, settings.translation, False, settings.tokens is not None)
    observer.log.set_buffers(any(each.buffers for each in functions_of(handler)))

    def respond(request: RecordCalls) -> Outcomes:
        if isinstance(calls, CallsUnderWay):
            observer.log.begin_rows()
            outcomes = calls.outcomes_of(*request)
        else:
            outcomes = calls(request.records)
        observer.log.end_batch()  # a death from here on is the doing of no record
        close_handlers()  # what they have buffered is lost if a later call ends this process
        return outcomes

    return respond


def load_handler_or_streams(
    handler: str | None, translation: Translation | None, emits: bool = False, in_flight: bool = False
) -> Handler | Streams:
    """Imports the streams of `translation`, or `handler` (`module:function`) where there is no translation. They may
    emit to steps if `emits`, and hand records on if `in_flight`. Raises ConfigError if a function does not import or
    does not fit, or if the registry's settings are invalid."""
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
    """Imports all functions of a job, those of its steps among them. Returns the handler, or the streams. Raises what
    `load_handler_or_streams` and `load_steps` raise."""
    emits, in_flight = settings.topology is not None, settings.tokens is not None
    if settings.topology is not None:
        load_steps(settings.topology)
    return load_handler_or_streams(settings.handler, settings.translation, emits, in_flight)


# Spark gives one Python worker many tasks.
_load_once = lru_cache(maxsize=8)(load_handler_or_streams)
