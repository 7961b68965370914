"""`try_record`: what a run would make of one record, without a broker, Spark or a table, for tests of handlers::

    from ackline.testing import try_record

    def test_an_order_without_a_price_fails() -> None:
        tried = try_record("handlers.orders:handle", value=b'{"id": 7}', topic="orders")
        assert (tried.outcome, tried.error_class) == ("failed", "KeyError")

`ackline try` gives the same answers for records in Kafka.
"""

import inspect
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.answers.tried import Emission, Tried, signer, try_batch
from ackline.handler import DEFAULT_STREAM, SOURCE, Handler, Tier, Tuple, load_handler, tier_of
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import NO_TIMESTAMP, UNIX_EPOCH, Outcome
from ackline.pipeline import streams as decoding
from ackline.pipeline.topology import Step, Stream, Topology
from ackline.scrub import texts_of_handler
from ackline.worker.records import Records
from ackline.worker.settings import ReplaySettings

__all__ = ["Emission", "Tried", "try_record"]

_given = SimpleNamespace()
"""The functions that are being tried: a task imports its handler by a path."""
_numbers = itertools.count()


def try_record(
    handler: Handler | str,
    value: Any = None,
    *,
    key: Any = None,
    headers: Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] = (),
    topic: str = "topic",
    partition: int = 0,
    offset: int = 0,
    timestamp: datetime | None = None,
    attempt: int = 1,
    emits: bool | None = None,
    streams: Iterable[str] = (),
) -> Tried:
    """Returns what a run would make of one record; a handler that raises is an answer, and raises nothing here.

    `handler` is a function, or the path `module:function` of one. Key and value in bytes are given to it as they are, a
    text as `decode: utf8` gives it, and anything else as `decode: json` does. A null value is given to it, too. It may
    answer `InFlight`.

    `emits` is whether the pipeline has steps or outputs, so that the handler may emit; by default it is taken to have
    them if the handler is a generator. What is emitted is in `emitted`, and goes to no step. The handler may emit to
    the stream `default`, to each one whose name stands in its module, and to `streams`.

    Raises ConfigError for a handler that does not import or that a pipeline file could not name, a column handler among
    them, and TypeError for a key or value that is not JSON.
    """
    tp = TopicPartition(topic, partition)
    time = NO_TIMESTAMP if timestamp is None else (timestamp - UNIX_EPOCH) // timedelta(microseconds=1)
    pairs = tuple((name, _bytes(each)) for name, each in (headers.items() if isinstance(headers, Mapping) else headers))
    keys, values = (pa.array([_bytes(part)], pa.binary()) for part in (key, value))
    offsets, times, attempts = np.array([offset], np.int64), np.array([time], np.int64), np.array([attempt], np.int32)
    records = Records(tp, offsets, times, keys, values, [pairs] if pairs else None, attempts)
    with _path_of(handler) as path, TemporaryDirectory(prefix="ackline-try-") as folder:
        function = load_handler(path, emits=True, in_flight=True)
        if emits is None:
            code = inspect.unwrap(function)
            emits = inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code)
        stream = decoding.Stream(decoding.PIPELINE_STREAM, path, key=_decoder(key), value=_decoder(value))
        settings = ReplaySettings(
            handler=None,
            deliver_tombstones=True,
            on_failure=Outcome.FAILED,
            now=None,
            translation=decoding.Translation((stream,)),
            topology=_topology({DEFAULT_STREAM, *texts_of_handler(function), *streams}) if emits else None,
            tokens=signer([tp]) if tier_of(function) is Tier.RECORD else None,
        )
        return try_batch(settings, records, folder)


@contextmanager
def _path_of(handler: Handler | str) -> Iterator[str]:
    """Makes a function importable within the block, and returns its path."""
    if isinstance(handler, str):
        yield handler
        return
    name = f"{getattr(handler, '__name__', 'handler')}_{next(_numbers)}"
    setattr(_given, name, handler)
    try:
        yield f"{__name__}:_given.{name}"
    finally:
        delattr(_given, name)


def _bytes(part: Any) -> bytes | None:
    if part is None or isinstance(part, bytes):
        return part
    return (part if isinstance(part, str) else json.dumps(part)).encode()


def _decoder(part: Any) -> str:
    return "utf8" if isinstance(part, str) else "bytes" if part is None or isinstance(part, bytes) else "json"


def _take(_: Tuple) -> None:
    """The handler of the step that takes all that is emitted."""


def _topology(names: Iterable[str]) -> Topology:
    inputs = tuple(Stream(SOURCE, name) for name in sorted(names))
    step = Step(0, "next", f"{__name__}:_take", inputs, grouped=False, join=False)
    return Topology((step,), dict.fromkeys(inputs, (step,)))
