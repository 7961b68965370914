"""The inputs of a call, and what an error message must not repeat of them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ackline.decode import scalar_texts
from ackline.handler import Record
from ackline.spark.trees.edge_columns import EdgeNumbers
from ackline.spark.trees.payload import unpack
from ackline.topology import Stream
from ackline.tuples import Origin, Tuple, new_tuple

_new = tuple.__new__  # a named tuple's own constructor takes three times as long, and there is one for each tuple


class Input(NamedTuple):
    """A tuple with the edges that lead to it from its roots, and the bytes that it came from."""

    tuple: Tuple
    edges: EdgeNumbers
    key: bytes
    payload: bytes


def input_of(key: bytes, payload: bytes, stream: Stream, origins: tuple[Origin, ...], edges: EdgeNumbers) -> Input:
    """Returns a tuple that was emitted to `stream`, as the input of a call."""
    name, value = unpack(key, payload)
    return _new(Input, (new_tuple(value, name, stream.name, stream.step, origins), edges, key, payload))


def texts_of(given: Sequence[Input]) -> Iterator[bytes | str | None]:
    """Yields what an error message must not repeat of tuples: as they came, for a handler may have changed them."""
    for each in given:
        for part in unpack(each.key, each.payload):
            yield from scalar_texts(part)


def texts_of_record(record: Record) -> Iterator[bytes | str | None]:
    """Yields what an error message must not repeat of a record."""
    yield from scalar_texts([record.key, record.value, *(value for _, value in record.headers)])
