"""Streams: each record is decoded, goes to the first stream that wants it, and has one outcome, whatever is raised."""

import json
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline import Dead, Record, Skip, arrow_handler
from ackline.errors import TransientError
from ackline.handler import Tier
from ackline.pipeline.streams import Stream, Translation, Undecodable
from ackline.worker import streams as streams_module
from ackline.worker.outcomes import Outcomes
from ackline.worker.records import Records
from ackline.worker.streams import Streams, call_handler, load_handler_or_streams
from tests.ledger.strategies import REPEATABLE
from tests.support.schema_registry import StubRegistry
from tests.support.shop_messages import DECODED, order
from tests.worker.batches import ACKED, NOW, RowResult, records_of, results

TOMBSTONE: RowResult = ("skipped", "Tombstone")
UNMATCHED: RowResult = ("skipped", "Unmatched")
UNDECODABLE: RowResult = ("failed", "Undecodable")
DEAD: RowResult = ("failed", "Dead")


def stream(code: Any, name: str = "", handler: str = "handle", wants: str | None = None, **more: Any) -> Stream:
    path = f"{code.__name__}:{{}}".format
    return Stream(name, path(handler), path(wants) if wants else None, **more)


def call(
    streams: Sequence[Stream], records: Records, deliver_tombstones: bool = False, registry: str = "http://none"
) -> Outcomes:
    loaded = Streams(Translation(tuple(streams), (("url", registry),)))
    outcomes = call_handler(loaded, Tier.RECORD, records, lambda: NOW, deliver_tombstones)
    assert (outcomes.handled_at == NOW).all()
    return outcomes


def results_of(streams: Sequence[Stream], records: Records, deliver_tombstones: bool = False) -> list[RowResult]:
    return results(call(streams, records, deliver_tombstones), len(records))


def message_of(streams: Sequence[Stream], records: Records) -> str:
    (outcome,) = call(streams, records).not_acked
    return outcome.error_message or ""


def test_a_handler_gets_what_is_decoded(code: Any) -> None:
    records: list[Record] = []
    code.handle = records.append
    batch = records_of([b'{"n": 1}', b"[]", b'"x"'], [b"k", None, "ü".encode()])
    assert results_of([stream(code, key="utf8", value="json")], batch) == [ACKED] * 3
    assert [(record.key, record.value) for record in records] == [("k", {"n": 1}), (None, []), ("ü", "x")]
    assert type(records[0]) is Record


def test_s44_what_does_not_decode_fails_alone_and_without_the_handler(code: Any) -> None:
    values: list[Any] = []
    code.handle = lambda record: values.append(record.value)
    keys = [b"k", b"k", b"k", b"\xff", b"k", b"k"]
    batch = records_of([b"1", b"{secret", b"\xff", b"2", b"[" * 100_000, b"3"], keys)
    outcomes = call([stream(code, key="utf8", value="json")], batch)
    assert results(outcomes, 6) == [ACKED, *[UNDECODABLE] * 4, ACKED]
    assert [outcome.error_message for outcome in outcomes.not_acked] == [
        "the value is not JSON: line 1, column 2",
        "the value is not UTF-8: invalid start byte at byte 0",
        "the key is not UTF-8: invalid start byte at byte 0",
        "the value is JSON nested too deep",
    ]
    assert (values, outcomes.calls) == ([1, 3], 2)


@pytest.mark.parametrize("decoder", ["protobuf", "protobuf:tests.support.shop_messages:Order"])
def test_s44_what_is_no_protobuf_fails_alone_and_without_the_handler(
    code: Any, stub: StubRegistry, decoder: str
) -> None:
    got: list[Any] = []
    code.handle = lambda record: got.append(record.value)
    data = stub.protobuf(order()) if decoder == "protobuf" else order().SerializeToString()
    values = [data, data[:-1], None, b"\0\0\0\0\x63\0", b"\xff", data]
    outcomes = call([stream(code, value=decoder)], records_of(values), registry=stub.url)
    assert results(outcomes, 6) == [ACKED, UNDECODABLE, TOMBSTONE, UNDECODABLE, UNDECODABLE, ACKED]
    assert got == [DECODED, DECODED]


def test_s44_what_is_null_is_not_decoded(code: Any) -> None:
    records: list[Record] = []
    code.handle = records.append
    streams = [stream(code, key="json", value="json")]
    assert results_of(streams, records_of([None, b"1"])) == [TOMBSTONE, ACKED]
    assert results_of(streams, records_of([None]), deliver_tombstones=True) == [ACKED]
    assert [(record.key, record.value) for record in records] == [(None, 1), (None, None)]


@pytest.mark.parametrize(("error", "result"), [
    *((error("x"), ("failed", error.__name__)) for error in (ValueError, SystemExit, KeyboardInterrupt)),
    (TransientError("a handler's own"), ("failed", "TransientError")),
    (Undecodable("a handler's own"), ("failed", "ackline.pipeline.streams.Undecodable")),
    (Skip("so"), ("skipped", "Skip")),
    (Dead("so"), DEAD),
])  # fmt: skip
def test_what_handler_or_filter_raise_is_the_outcome_of_their_record(
    code: Any, error: BaseException, result: RowResult
) -> None:
    def raises(record: Record) -> bool:
        if record.value == "x":
            raise error
        return True

    code.raises = raises
    for raising in (stream(code, handler="raises", value="utf8"), stream(code, wants="raises", value="utf8")):
        assert results_of([raising], records_of([b"a", b"x", b"b"])) == [ACKED, result, ACKED]


def test_an_unreachable_registry_ends_the_task(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not the record's fault: nothing of the task is stored, and its records are tried again."""

    def unreachable(data: bytes, record: Record) -> Any:
        raise TransientError("the schema registry can't be reached")

    monkeypatch.setattr(streams_module, "DECODERS", {"json": lambda field: unreachable})
    with pytest.raises(TransientError, match="can't be reached"):
        call([stream(code, value="json")], records_of([b"1"]))


CANARIES = ("Alice", "Wonder", "31337", "4242", "c4n4ry")
SECRETS = {"name": "Alice\nWonder", "n": 31337, "d": {"c4n4ry": [4242.5]}}


@pytest.mark.parametrize("blab", [
    lambda value: ValueError(f"bad customer {value['name']!r} with {value['n']}"),
    lambda value: KeyError(value["name"]),
    lambda value: ValueError(value),
    lambda value: ValueError(value["d"], value.pop("name"), value.pop("n")),
    lambda value: Undecodable(f"{value['name']} is undecodable"),
    lambda value: Skip(str(value)),
    lambda value: Dead(f"{value.pop('name')} {value.pop('n')} {value.pop('d')}"),
])  # fmt: skip
@pytest.mark.parametrize("function", ["handler", "wants"])
def test_i13_a_message_repeats_nothing_of_a_decoded_value(
    code: Any, blab: Callable[[Any], BaseException], function: str
) -> None:
    def blabs(record: Record) -> bool:
        raise blab(record.value)

    code.blabs = blabs
    streams = [stream(code, **{function: "blabs"}, value="json")]
    message = message_of(streams, records_of([json.dumps(SECRETS).encode()]))
    assert not [canary for canary in CANARIES if canary in message]


def test_i13_values_that_do_not_show_in_the_bytes_are_masked_too(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Avro holds numbers, decimals and the symbols of an enum as bits."""
    value = {"status": "CANCELLED", "amount": Decimal("1234.50"), "id": 987654321, "blob": b"hidden"}
    monkeypatch.setattr(streams_module, "DECODERS", {"json": lambda field: lambda data, record: dict(value)})

    def handle(record: Record) -> None:
        left = record.value
        raise ValueError(f"no {left.pop('status')} of {left.pop('amount')} for {left.pop('id')}: {left.pop('blob')}")

    code.handle = handle
    message = message_of([stream(code, value="json")], records_of([b"\0\1\2"]))
    assert message == "no *** of ***.*** for ***: b'***'"


@pytest.mark.parametrize("returned", [None, 1, 0, "yes", [], object()])
def test_a_filter_that_returns_neither_true_nor_false_fails_its_record(code: Any, returned: object) -> None:
    """A forgotten `return` must not skip all records."""
    code.wants = lambda record: returned
    assert results_of([stream(code, wants="wants")], records_of([b"1"])) == [("failed", "InvalidOutcome")]


def test_each_stream_gets_the_record_decoded_its_own_way(code: Any) -> None:
    """The filter of each stream keeps its record: the next decoding must not change it."""
    records: list[Record] = []

    def no(record: Record) -> bool:
        records.append(record)
        return False

    code.no, code.handle = no, records.append
    streams = [stream(code, "a", wants="no", value="json"), stream(code, "b", wants="no", value="utf8"), stream(code)]
    assert results_of(streams, records_of([b"17"])) == [ACKED]
    assert [record.value for record in records] == [17, "17", b"17"]


FILTERS: dict[str, Callable[[int], bool]] = {
    "none": lambda n: True,
    "even": lambda n: n % 2 == 0,
    "low": lambda n: n < 3,
    "raises": lambda n: 1 // (n % 3) > 0,
}
Drawn = list[tuple[set[str], str, bool]]
"""For each stream its topics, its filter, and whether its handler is an Arrow handler."""


def expected_of(drawn: Drawn, topic: str, value: int | str | None) -> tuple[RowResult, int | None]:
    """The rule in other words: the first stream of the topic whose filter returns True gets the record."""
    if value is None:
        return TOMBSTONE, None
    for number, (topics, wants, _) in enumerate(drawn):
        if topics and topic not in topics:
            continue
        if value == "bad":
            return UNDECODABLE, None
        try:
            if FILTERS[wants](int(value)):
                return ACKED, number
        except ZeroDivisionError:
            return ("failed", "ZeroDivisionError"), None
    return UNMATCHED, None


@REPEATABLE
@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("xyz")), st.sampled_from(list(FILTERS)), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from("xyz"),
    st.lists(st.none() | st.integers(0, 9) | st.just("bad"), max_size=12),
)
def test_every_record_has_one_outcome_and_at_most_one_handler(
    drawn: Drawn, topic: str, values: list[int | str | None]
) -> None:
    calls: list[tuple[int, str]] = []
    module = ModuleType("code_of_a_property")
    sys.modules[module.__name__] = module
    streams = []
    for number, (topics, wants, arrow) in enumerate(drawn):

        def handle(given: Any, number: int = number) -> Any:
            texts = [given.value] if isinstance(given, Record) else given.column("value").to_pylist()
            calls.extend((number, text) for text in texts)
            return None if isinstance(given, Record) else ["acked"] * len(texts)

        setattr(module, f"h{number}", arrow_handler(handle) if arrow else handle)
        setattr(module, f"f{number}", lambda record, rule=FILTERS[wants]: rule(int(record.value)))
        filtered = None if wants == "none" else f"f{number}"
        streams.append(stream(module, f"s{number}", f"h{number}", filtered, topics=tuple(topics) or None, value="utf8"))
    encoded = [None if value is None else b"\xff" if value == "bad" else str(value).encode() for value in values]
    expected = [expected_of(drawn, topic, value) for value in values]
    assert results_of(streams, records_of(encoded, topic=topic)) == [result for result, _ in expected]
    takers = [(number, str(value)) for (_, number), value in zip(expected, values, strict=True) if number is not None]
    assert sorted(calls) == sorted(takers)


def test_an_arrow_handler_gets_decoded_text_and_rows_that_are_not_text_fail_alone(code: Any) -> None:
    batches: list[pa.RecordBatch] = []

    @arrow_handler
    def handle(batch: pa.RecordBatch) -> list[str]:
        batches.append(batch)
        return ["failed" if value == "c" else "acked" for value in batch.column("value").to_pylist()]

    code.handle = handle
    records = records_of([b"a", b"\xff", b"c", b"d"], [b"k", b"k", None, b"\xfe"])
    outcomes = call([stream(code, key="utf8", value="utf8")], records)
    assert (results(outcomes, 4), outcomes.calls) == ([ACKED, UNDECODABLE, ("failed", None), UNDECODABLE], 2)
    (batch,) = batches
    assert (batch.schema.field("key").type, batch.schema.field("value").type) == (pa.string(), pa.string())
    assert (batch.column("value").to_pylist(), batch.column("offset").to_pylist()) == (["a", "c"], [100, 104])


def test_an_arrow_stream_behind_a_filter_gets_its_rows_as_one_batch(code: Any) -> None:
    sizes: list[int] = []

    @arrow_handler
    def batches(batch: pa.RecordBatch) -> list[str]:
        sizes.append(batch.num_rows)
        return ["dead"] * batch.num_rows

    code.batches = batches
    code.short = lambda record: len(record.value) < 2
    streams = [stream(code, "a", "batches", "short"), stream(code)]
    assert results_of(streams, records_of([b"a", b"bb", b"c", b"dd"])) == [DEAD, ACKED, DEAD, ACKED]
    assert sizes == [2]


def test_an_arrow_handler_is_not_called_without_a_decodable_row(code: Any) -> None:
    code.handle = arrow_handler(lambda batch: pytest.fail("called"))
    outcomes = call([stream(code, value="utf8")], records_of([b"\xff", b"\xfe"]))
    assert (results(outcomes, 2), outcomes.calls) == ([UNDECODABLE] * 2, 0)


def test_without_a_translation_the_handler_itself_is_loaded(code: Any) -> None:
    assert load_handler_or_streams(f"{code.__name__}:handle", None) is code.handle
