"""Streams in a Python worker: each record is decoded, offered to the filters in order, and handed to one handler.

Decoding and filters are part of handling: what they raise is the outcome of their record alone. A record that nobody
wants is skipped, with a class of its own. What only the schema registry is to blame for ends the task instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.decode import PLAIN, Decode, Undecodable, leaves
from ackline.errors import AcklineError
from ackline.handler import Handler, Record, Tier, load_handler
from ackline.kafka.registry import Registry
from ackline.outcome import ErrorClass
from ackline.spark.handlers.call import (
    Answers,
    Clock,
    InvalidOutcome,
    Routed,
    Unanswerable,
    Undecoded,
    Unmatched,
    Watch,
    answer_batch,
    answer_records,
    raised,
    refuse_unfinished,
)
from ackline.spark.records import Records
from ackline.translation import Code, Stream, Translation, load_code

# A record is frozen for its handler, not for us: its slots are set before the handler sees it.
_set_key: Any = Record.__dict__["key"].__set__
_set_value: Any = Record.__dict__["value"].__set__


@dataclass(frozen=True, slots=True)
class _Route:
    """A stream with its functions and decoders; a decoder is None where bytes stay bytes."""

    stream: Stream
    code: Code
    key: Decode | None
    value: Decode | None

    @property
    def decoding(self) -> tuple[str, str]:
        """What it decodes to; two routes with the same need it once."""
        return self.stream.key, self.stream.value

    def decode(self, record: Record) -> None:
        """Decode key and value in place. Raises Undecoded, or Unanswerable where the record is not to blame."""
        try:
            if self.key is not None and record.key is not None:
                _set_key(record, self.key(record.key, record))
            if self.value is not None and record.value is not None:
                _set_value(record, self.value(record.value, record))
        except Undecodable as error:
            raise Undecoded(str(error)) from None
        except AcklineError as error:
            raise Unanswerable(error) from None

    def wants(self, record: Record) -> bool:
        """What the filter says. Raises InvalidOutcome for an answer that is not True or False."""
        if self.code.wants is None:
            return True
        said = self.code.wants(record)
        if isinstance(said, bool | np.bool_):
            return bool(said)
        refuse_unfinished(said)
        raise InvalidOutcome(f"the filter returned {type(said).__name__}, not True or False")


class Streams(Routed):
    """The streams of a translation, loaded. Raises what `ackline.translation.load_code` raises."""

    def __init__(self, translation: Translation) -> None:
        self._registry = registry = Registry(dict(translation.registry)) if translation.needs_registry else None
        self._routes = [
            _Route(one, load_code(one), _decoder(one.key, "key", registry), _decoder(one.value, "value", registry))
            for one in translation.streams
        ]
        self._of = lru_cache(maxsize=None)(self._find)

    def _find(self, topic: str) -> tuple[_Route, ...]:
        return tuple(route for route in self._routes if route.stream.of(topic))

    @property
    def code(self) -> list[Code]:
        """The streams' functions, in the order in which they are asked."""
        return [route.code for route in self._routes]

    def answer(self, rows: Records, now: Clock, watch: Watch | None = None) -> Answers:
        """What the streams make of `rows`. For a `watch`, decoding and filters are part of a record's call; batches
        that filters have made can't be watched."""
        routes = self._of(rows.tp.topic)
        if routes and routes[0].code.wants is None and routes[0].code.tier is Tier.ARROW:
            return _answer_batch(routes[0], rows, now, watch)
        batches: dict[_Route, list[int]] = {}
        one_of = _one_of(routes, rows, batches)
        if watch is not None:
            one_of = watch.over(one_of, Tier.RECORD)
            if self._registry is not None:
                self._registry.waiting = watch.waiting
        answers = answer_records(
            one_of, rows, now, lambda row: chain(rows.payload(row), _decoded(routes, rows, row)), watch
        )
        answers.calls -= sum(one.error_class in _NOT_CALLED for one in answers.unacked)
        for route, taken in batches.items():
            _put(answers, np.array(taken), _answer_batch(route, rows.take(taken), now))
        answers.unacked.sort(key=lambda one: one.row)
        return answers


_NOT_CALLED = (ErrorClass.UNDECODABLE, ErrorClass.UNMATCHED)


def _one_of(routes: tuple[_Route, ...], rows: Records, batches: dict[_Route, list[int]]) -> Handler:
    """A function of one record that lets the first route which wants it answer, or keeps its row for an Arrow one."""
    if len(routes) == 1 and routes[0].code.wants is None:  # the usual case, without the questions
        decode, handler = routes[0].decode, routes[0].code.handler

        def only(record: Record) -> Any:
            decode(record)
            return handler(record)

        return only

    def one_of(record: Record) -> Any:
        key, value = record.key, record.value
        decoding = ("bytes", "bytes")
        for route in routes:
            if route.decoding != decoding:
                if decoding != ("bytes", "bytes"):  # the last filter may have kept the record it saw
                    record = replace(record, key=key, value=value)
                route.decode(record)
                decoding = route.decoding
            if not route.wants(record):
                continue
            if route.code.tier is not Tier.ARROW:
                return route.code.handler(record)
            batches.setdefault(route, []).append(int(np.searchsorted(rows.offsets, record.offset)))
            return None
        raise Unmatched

    return one_of


def _decoded(routes: tuple[_Route, ...], rows: Records, row: int) -> Iterator[bytes | str]:
    """What a row's handlers may have seen of it, decoded anew: they may have changed what they were given."""
    for route in {route.decoding: route for route in routes}.values():
        record = rows.record(row)
        for decode, data in ((route.key, record.key), (route.value, record.value)):
            if decode is not None and data is not None:
                try:
                    seen = decode(data, record)
                except (Undecodable, AcklineError):
                    continue
                yield from leaves(seen)


def _answer_batch(route: _Route, rows: Records, now: Clock, watch: Watch | None = None) -> Answers:
    """A batch for an Arrow handler, without the rows that are not the text they should be: those fail by themselves."""
    failed: dict[int, str] = {}
    for decode, column in ((route.key, rows.keys), (route.value, rows.values)):
        if decode is not None:
            failed |= {row: why for row, why in _not_text(decode, column) if row not in failed}
    sound = rows
    if failed:
        sound = rows.take([row for row in range(len(rows)) if row not in failed])
    if route.key is not None:
        sound = replace(sound, keys=sound.keys.cast(pa.string()))
    if route.value is not None:
        sound = replace(sound, values=sound.values.cast(pa.string()))
    at = now()
    answers = Answers(
        np.full(len(rows), at, np.int64), [raised(Undecoded(why), row, rows, at) for row, why in failed.items()]
    )
    if len(sound):
        places = np.array([row for row in range(len(rows)) if row not in failed])
        handler = route.code.handler if watch is None else watch.over(route.code.handler, Tier.ARROW)
        _put(answers, places, answer_batch(handler, sound, now))
        answers.calls = len(sound)
    answers.unacked.sort(key=lambda one: one.row)
    return answers


def _not_text(decode: Decode, column: pa.Array) -> Iterator[tuple[int, str]]:
    """The rows of a column that are not UTF-8, each with the reason; Arrow says in one go that there is none."""
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        for row, data in enumerate(column.to_pylist()):
            try:
                if data is not None:
                    decode(data, _NOBODY)
            except Undecodable as error:
                yield row, str(error)


_NOBODY = Record("", 0, 0, None, None, None, (), 0)


def _put(answers: Answers, places: Any, part: Answers) -> None:
    """The answers about some rows among those about all: `places` are their rows."""
    answers.handled_at[places] = part.handled_at
    answers.unacked += [replace(one, row=int(places[one.row])) for one in part.unacked]


def _decoder(word: str, field: str, registry: Registry | None) -> Decode | None:
    if word == "bytes":
        return None
    if word in PLAIN:
        return PLAIN[word](field)
    assert registry is not None
    return registry.decoder(word, field)


def load_answering(handler: str | None, translation: Translation | None) -> "Handler | Streams":
    """Returns what `ackline.spark.handlers.call.answer` takes: the streams, or the handler where there are none.

    Raises ConfigError where a function does not import or fit, or the registry's settings don't hold.
    """
    if translation is not None:
        return Streams(translation)
    assert handler is not None
    return load_handler(handler)
