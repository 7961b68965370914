"""`backfill --where`: which records its expression takes, whatever they hold, and what becomes of the others."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline import Record, arrow_handler, column_handler
from ackline.errors import ConfigError, TransientError
from ackline.handler import Tier
from ackline.ledger.outcomes import Outcome
from ackline.pipeline.functions import check_functions
from ackline.pipeline.streams import MESSAGE_CLASS, Stream, Translation
from ackline.pipeline.where import connect
from ackline.worker.outcomes import WHERE_FAILED, Outcomes
from ackline.worker.records import Records
from ackline.worker.settings import ReplaySettings
from ackline.worker.streams import Streams, call_handler, load_calls
from ackline.worker.under_way import CallsUnderWay
from ackline.worker.where import Match, Where
from tests.ledger.strategies import REPEATABLE
from tests.support.shop_messages import order
from tests.worker.batches import ACKED, NOW, RowResult, records_of, results

UNMATCHED: RowResult = ("skipped", "Unmatched")
UNDECODABLE: RowResult = ("failed", "Undecodable")
WHERE_ERROR: RowResult = ("failed", "WhereError")
NO, YES, FAILED = Match


def stream(code: Any, name: str = "", handler: str = "handle", wants: str | None = None, **more: Any) -> Stream:
    path = f"{code.__name__}:{{}}".format
    return Stream(name, path(handler), path(wants) if wants else None, **more)


def call(where: str, streams: Sequence[Stream], records: Records, deliver_tombstones: bool = True) -> Outcomes:
    loaded = Streams(Translation(tuple(streams), where=where))
    return call_handler(loaded, Tier.RECORD, records, lambda: NOW, deliver_tombstones)


def results_of(where: str, streams: Sequence[Stream], records: Records, **more: Any) -> list[RowResult]:
    return results(call(where, streams, records, **more), len(records))


def match_of(where: str, value: Any, **part: Any) -> Match:
    """What the expression makes of one record, whose value and key are decoded as JSON."""
    decode = Streams(Translation((Stream("", "json:loads", key="json", value="json"),), where=where))
    records = records_of([json.dumps(value).encode()], **part)
    return Match(decode._wheres["json", "json"].matches(records)[0])


@pytest.mark.parametrize(("where", "value", "match"), [
    # a text
    ("value.currency = 'XTS'", {"currency": "XTS"}, YES),
    ("value.currency = 'XTS'", {"currency": "EUR"}, NO),
    ("value.currency = 'XTS'", {}, NO),
    ("value.currency = 'XTS'", {"currency": None}, NO),
    ("value.currency = 'XTS'", {"Currency": "XTS"}, NO),
    ("VALUE.currency = 'XTS'", {"currency": "XTS"}, YES),
    ("value.currency = 'XTS'", [1], NO),
    ("value.currency = 'XTS'", "XTS", NO),
    ("value.currency <> 'XTS'", {}, NO),
    ("value.currency IS DISTINCT FROM 'XTS'", {}, YES),
    ("value.zip = '7'", {"zip": 7}, YES),
    ("value.zip = '7'", {"zip": "07"}, NO),
    ("value.name = 'ü☃''\"\\'", {"name": "ü☃'\"\\"}, YES),
    ("value.name LIKE 'A%'", {"name": "Ann"}, YES),
    ("value.list = '[1,\"a\"]'", {"list": [1, "a"]}, YES),
    # a number
    ("value.amount > 10", {"amount": 10.5}, YES),
    ("value.amount > 10", {"amount": 10}, NO),
    ("value.amount > 10", {"amount": "12"}, YES),
    ("value.amount > 10", {"amount": "twelve"}, FAILED),
    ("value.amount > 10", {"amount": True}, FAILED),
    ("value.amount > 10", {"amount": [12]}, FAILED),
    ("value.amount > 10", {"amount": ""}, FAILED),
    ("value.amount > 10", {"amount": None}, NO),
    ("TRY_CAST(value.amount AS DOUBLE) > 10", {"amount": "twelve"}, NO),
    ("value.amount = 12", {"amount": 12.5}, NO),
    ("value.amount = 12", {"amount": 12.0}, YES),
    ("value.amount IN (1, 12.5)", {"amount": 12.5}, YES),
    ("value.amount BETWEEN 10 AND 13", {"amount": 12.5}, YES),
    ("value.amount NOT BETWEEN 10 AND 13", {"amount": 12.5}, NO),
    ("value.id = 9007199254740993", {"id": 9007199254740993}, YES),
    ("value.id = 9007199254740993", {"id": 9007199254740992}, NO),
    ("value.id = 123456789012345678901234567890", {"id": 123456789012345678901234567890}, YES),
    ("value.id = 123456789012345678901234567890", {"id": 123456789012345678901234567891}, NO),
    ("value.id < 5", {"id": 10**60}, NO),
    ("12 IN (value.a, value.b)", {"a": 1, "b": 12}, YES),
    ("value.price * value.pieces = 4.5", {"price": 1.5, "pieces": 3}, YES),
    ("coalesce(value.discount, 0) = 0", {}, YES),
    ("value.a::DOUBLE = value.b", {"a": 1, "b": 1.0}, YES),
    # true and false
    ("value.paid", {"paid": True}, YES),
    ("value.paid", {"paid": False}, NO),
    ("NOT value.paid", {"paid": False}, YES),
    ("NOT value.paid", {}, NO),
    ("value.paid", {"paid": "perhaps"}, FAILED),
    ("value.paid = true", {"paid": "true"}, YES),
    ("value.paid AND value.a = 1", {"paid": True, "a": 1}, YES),
    # null, below, lists
    ("value.a IS NULL", {"a": None}, YES),
    ("value.a IS NULL", {}, YES),
    ("value.a IS NOT NULL", {"a": []}, YES),
    ("value.a.b.c = 1", {"a": {"b": {"c": 1}}}, YES),
    ("value.a.b.c = 1", {"a": [1]}, NO),
    ("value.a[0] = 1 AND value.a[-1] = 3", {"a": [1, 2, 3]}, YES),
    ("value.a[3] = 1", {"a": [1]}, NO),
    ("value.lines[1].sku = 'x'", {"lines": [{}, {"sku": "x"}]}, YES),
    ("value['the-id'] = 1 AND value.\"a.b\" = 2", {"the-id": 1, "a.b": 2}, YES),
    ("value['a\"\\b'] = 1", {'a"\\b': 1}, YES),
    ("list_contains(value.tags::VARCHAR[], 'x')", {"tags": ["a", "x"]}, YES),
    ("list_contains(value.tags::VARCHAR[], 'x')", {"tags": []}, NO),
    ("list_contains(value.tags::VARCHAR[], 'x')", {"tags": 5}, FAILED),
    ("'x' IN value.tags::VARCHAR[]", {"tags": ["a", "x"]}, YES),
    ("len(value.tags::JSON[]) > 1", {"tags": ["a", {}]}, YES),
    # times
    ("value.at::TIMESTAMPTZ >= '2026-01-31T12:00:00Z'", {"at": "2026-01-31T13:00:00+01:00"}, YES),
    ("value.at::TIMESTAMPTZ > '2026-01-31T12:00:00Z'", {"at": "2026-01-31T13:00:00+01:00"}, NO),
    ("value.at < timestamp", {"at": "2020-01-01"}, YES),
    ("value.at < timestamp", {"at": "soon"}, FAILED),
    # the whole value
    ("value = 'x'", "x", YES),
    ("value = 5", 5, YES),
    ("value IS NULL", None, YES),
    ("value::JSON->>'$.a' = 'x'", {"a": "x"}, YES),
    ("TRUE", 1, YES),
])  # fmt: skip
def test_a_field_takes_the_type_of_what_it_is_compared_with(where: str, value: Any, match: Match) -> None:
    assert match_of(where, value) is match


@pytest.mark.parametrize(("where", "match"), [
    ("key.id = 7 AND value.a = 1", YES),
    ("headers.origin = 'eu'", YES),
    ("headers['x-last'] = '2'", YES),
    ("headers.none IS NULL AND headers.missing IS NULL", YES),
    ("headers.bytes = '\ufffd'", YES),
    ("headers.n > 41", YES),
    ("topic = 'orders' AND partition = 3 AND \"offset\" = 100", YES),
    ("timestamp = '2020-09-13T12:26:40.123Z'", YES),
    ("timestamp < '2020-09-13 12:26:40'", NO),
])  # fmt: skip
def test_key_headers_and_place_of_a_record_have_names(where: str, match: Match) -> None:
    headers = (("origin", b"eu"), ("x-last", b"1"), ("x-last", b"2"), ("none", None), ("bytes", b"\xff"), ("n", b"42"))
    assert match_of(where, {"a": 1}, keys=[b'{"id": 7}'], headers=[headers]) is match


@pytest.mark.parametrize(("where", "decoding", "value", "match"), [
    ("value = 'ü'", "bytes", "ü".encode(), YES),
    ("value IN ('a', 'b')", "bytes", b"b", YES),
    ("value LIKE 'a%'", "bytes", b"abc", YES),
    ("value LIKE 'a%'", "bytes", b"\xff", FAILED),
    ("value = 'a'", "bytes", b"\xff", NO),
    ("value = '\\xff'::BLOB", "bytes", b"\xff", YES),
    ("value.currency = 'XTS'", "bytes", b'{"currency": "XTS"}', YES),
    ("value.currency = 'XTS'", "bytes", b"XTS", FAILED),
    ("value.currency = 'XTS'", "bytes", b"\xff", FAILED),
    ("value['currency'] = 'XTS'", "utf8", b'{"currency": "XTS"}', YES),
    ("value.currency = 'XTS'", "utf8", b"no JSON", FAILED),
    ("upper(value) = 'A'", "utf8", b"a", YES),
    ("value = 'a'", "utf8", None, NO),
    ("value.a = 1", "bytes", None, NO),
    ("value IS NULL", "bytes", None, YES),
])  # fmt: skip
def test_fields_of_what_is_not_decoded_are_those_of_the_json_that_it_holds(
    where: str, decoding: str, value: bytes | None, match: Match
) -> None:
    loaded = Streams(Translation((Stream("", "json:loads", value=decoding),), where=where))
    assert loaded._wheres["bytes", decoding].matches(records_of([value])).tolist() == [match]


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-3, 3), st.floats(-10, 10), st.text(max_size=3),
    st.sampled_from(["XTS", "1", "2.5", "true"]),
)  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ä"]), inner)
)


@REPEATABLE
@given(st.lists(JSON, min_size=1, max_size=20), st.integers(-3, 3) | st.integers(-(2**64), 2**64))
def test_of_any_values_the_same_match_as_a_plain_reading_of_the_rules(values: list[Any], number: int) -> None:
    """Differential: against the rules of docs/semantics.md, written down again in Python."""
    records = records_of([json.dumps(value).encode() for value in values])
    for where, rule in (
        ("value.a = 'XTS'", lambda field: text_of(field) == "XTS"),
        ("value.a IS NULL", lambda field: field is None),
        (f"value.a < {number}", lambda field: field is not None and number_of(field) < number),
        (f"value.a = {number}", lambda field: field is not None and number_of(field) == number),
    ):
        found = Streams(Translation((Stream("", "json:loads", value="json"),), where=where))._wheres["bytes", "json"]
        assert found.matches(records).tolist() == [expected(rule, value) for value in values], where


def expected(rule: Any, value: Any) -> Match:
    try:
        return YES if rule(value.get("a") if isinstance(value, dict) else None) else NO
    except ValueError:
        return FAILED


def text_of(field: Any) -> str | None:
    return field if field is None or isinstance(field, str) else json.dumps(field)


def number_of(field: Any) -> int | float:
    if isinstance(field, bool | list | dict):
        raise ValueError
    text = str(field) if not isinstance(field, str) else field.strip()
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else float(text)


def test_a_record_that_does_not_match_is_skipped_as_unmatched_and_no_handler_gets_it(code: Any) -> None:
    got: list[int] = []
    code.handle = lambda record: got.append(record.value["n"])
    batch = records_of([json.dumps({"n": n, "odd": n % 2 == 1}).encode() for n in range(5)])
    outcomes = call("value.odd", [stream(code, value="json")], batch)
    assert results(outcomes, 5) == [UNMATCHED, ACKED, UNMATCHED, ACKED, UNMATCHED]
    assert (got, outcomes.calls) == ([1, 3], 2)
    assert {outcome.error_message for outcome in outcomes.not_acked} == {None}


def test_i17_a_record_for_which_it_raises_fails_alone_and_its_message_quotes_nothing(code: Any) -> None:
    batch = records_of([b'{"n": "secret"}', b'{"n": 5}', b"{}", b'{"n": [1]}'])
    outcomes = call("value.n > 4", [stream(code, value="json")], batch)
    assert results(outcomes, 4) == [WHERE_ERROR, ACKED, UNMATCHED, WHERE_ERROR]
    assert [each.error_message for each in outcomes.not_acked if each.error_message] == [WHERE_FAILED] * 2
    assert outcomes.calls == 1


def test_what_does_not_decode_and_tombstones_end_as_they_do_without_it(code: Any) -> None:
    batch = records_of([b"{not", None, b'{"a": 1}'], [b"k", b"k", b"\xff"])
    streams = [stream(code, key="utf8", value="json")]
    assert results_of("value.a = 2", streams, batch, deliver_tombstones=False) == (
        [UNDECODABLE, ("skipped", "Tombstone"), UNDECODABLE]
    )
    assert results_of("value.a = 2", streams, batch) == [UNDECODABLE, UNMATCHED, UNDECODABLE]
    assert results_of("key = 'k'", streams, batch) == [UNDECODABLE, ACKED, UNDECODABLE]


def test_it_decides_after_the_filters_so_no_other_stream_gets_what_it_leaves_out(code: Any) -> None:
    got: list[tuple[str, Any]] = []
    code.a, code.b = (lambda record, name=name: got.append((name, record.value)) for name in "ab")
    code.wants = lambda record: record.value["for"] == "a"
    streams = [stream(code, "a", "a", "wants", value="json"), stream(code, "b", "b", value="utf8")]
    values = [b'{"for": "a", "n": 1}', b'{"for": "a", "n": 2}', b'{"for": "b", "n": 1}', b'{"for": "b", "n": 2}']
    assert results_of("value.n = 2", streams, records_of(values)) == [UNMATCHED, ACKED, UNMATCHED, ACKED]
    assert got == [("a", {"for": "a", "n": 2}), ("b", values[3].decode())]


@pytest.mark.parametrize("where", ["value.n > 1", "value.n > 100", "value.n >= 0"])
def test_an_arrow_handler_gets_the_rows_that_match(code: Any, where: str) -> None:
    batches: list[list[Any]] = []

    @arrow_handler
    def handle(batch: pa.RecordBatch) -> list[str]:
        batches.append(batch.column("value").to_pylist())
        return ["failed" if b"7" in value else "acked" for value in batches[-1]]

    code.handle = handle
    values = [b'{"n": 0}', b'{"n": "x"}', b'{"n": 7}', b'{"n": 9}']
    found = results_of(where, [stream(code)], records_of(values))
    many = where == "value.n > 100"
    first = ACKED if where == "value.n >= 0" else UNMATCHED
    assert found == [first, WHERE_ERROR, *([UNMATCHED] * 2 if many else [("failed", None), ACKED])]
    assert batches == ([] if many else [[values[0]] * (first == ACKED) + values[2:]])


def test_calls_that_wait_are_made_for_what_matches_alone(code: Any) -> None:
    got: list[int] = []

    async def handle(record: Record) -> None:
        got.append(record.value["n"])

    code.handle = handle
    translation = Translation((stream(code, value="json"),), where="value.n % 2 = 1")
    settings = ReplaySettings(None, True, Outcome.FAILED, None, translation=translation)
    calls = load_calls(settings, Tier.RECORD)
    assert isinstance(calls, CallsUnderWay)
    batch = records_of([json.dumps({"n": n}).encode() for n in range(1200)])
    outcomes = calls.outcomes_of(batch, False)
    calls.close()
    assert results(outcomes, 1200) == [UNMATCHED, ACKED] * 600
    assert (sorted(got), outcomes.calls) == (list(range(1, 1200, 2)), 600)


def test_what_try_does_not_catch_fails_the_records_that_cause_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Streams(Translation((Stream("", "json:loads", value="json"),), where="value.a = 1"))
    found = loaded._wheres["bytes", "json"]
    query, asked = Where._query_rows, []

    def short_of_memory(self: Where, columns: pa.Table) -> Any:
        asked.append(len(columns))
        if any("culprit" in text for text in columns.column("value_json").to_pylist()):
            raise duckdb.OutOfMemoryException("no memory")
        return query(self, columns)

    monkeypatch.setattr(Where, "_query_rows", short_of_memory)
    assert found.matches(records_of([b'{"a": 1}', b'{"culprit": 1}', b"{}"])).tolist() == [YES, FAILED, NO]
    assert asked == [3, 1, 1, 1]


def test_the_registry_that_does_not_answer_ends_the_task_and_no_record(code: Any) -> None:
    def unreachable(data: bytes, record: Record) -> Any:
        raise TransientError("the schema registry can't be reached")

    found = Where("value.a = 1", ("bytes", "avro"), None, unreachable)
    with pytest.raises(TransientError, match="can't be reached"):
        found.matches(records_of([b"1"]))


def test_the_fields_of_a_protobuf_message_are_those_that_a_handler_gets() -> None:
    """Integers of 64 bits are texts, bytes are Base64, and a field with its default is missing."""
    decoder = f"{MESSAGE_CLASS}tests.support.shop_messages:Order"
    for where, match in (
        ("value.customer.credit.units = 5 AND value.total.currency = 'XTS'", YES),
        ("value.order_id = 123456789012", YES),
        ("value.lines[0].count > 1 AND value.lines[-1].sku = 'pot'", YES),
        ("value.lines[1].count IS NULL", YES),
        ("value.by_shelf.left = 1", YES),
        ("value.status = 'CANCELLED'", YES),
        ("from_base64(value.seal::VARCHAR) = '\\x00\\xff'::BLOB", YES),
        ("value.placed_at::TIMESTAMPTZ = '2023-11-14T22:13:20Z'", YES),
        ("value.customer.full_name = 'Bob'", NO),
        ("value.status > 1", FAILED),
    ):
        found = Streams(Translation((Stream("", "json:loads", value=decoder),), where=where))._wheres["bytes", decoder]
        assert found.matches(records_of([order().SerializeToString(), b"Alice"])).tolist() == [match, YES], where


def test_a_decoded_value_that_is_no_json_is_read_as_its_texts() -> None:
    """Avro has decimals, times and bytes."""
    from datetime import UTC, datetime
    from decimal import Decimal

    value = {"price": Decimal("12.300000000000000001"), "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "raw": b"\x01",
             "half": "\ud800", "deep": {"nan": float("nan")}}  # fmt: skip
    for where, match in (
        ("value.price::DECIMAL(38, 18) = 12.300000000000000001", YES),
        ("value.price > 12", YES),
        ("value.at::TIMESTAMPTZ = '2026-01-31T13:00:00+01:00'", YES),
        ("value.raw = 'AQ=='", YES),
        ("value.deep.nan IS NULL", YES),
    ):
        decoded = {name: each for name, each in value.items() if name != "half"}
        found = Where(where, ("bytes", "avro"), None, lambda data, record, decoded=decoded: decoded)  # type: ignore[misc]
        assert found.matches(records_of([b"1"])).tolist() == [match], where
    half = Where("value.half = '?'", ("bytes", "avro"), None, lambda data, record: {"half": value["half"]})
    assert half.matches(records_of([b"1"])).tolist() == [YES]


def test_a_retry_gets_the_same_answer_and_order_does_not_matter() -> None:
    batch = records_of([json.dumps({"n": n}).encode() for n in range(50)])
    loaded = Streams(Translation((Stream("", "json:loads", value="json"),), where="value.n % 3 = 0"))
    found = loaded._wheres["bytes", "json"]
    again = found.matches(replace(batch, attempts=batch.attempts + 1).take(np.arange(10, 20)))
    assert found.matches(batch)[10:20].tolist() == again.tolist()


@REPEATABLE
@given(st.lists(st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False), max_size=10))
def test_of_numbers_the_same_answer_as_duckdb_gives_for_a_column_of_them(numbers: list[float]) -> None:
    """Differential: DuckDB reads the same numbers from a typed column."""
    batch = records_of([json.dumps({"n": n}).encode() for n in numbers])
    for condition in ("{} > 10.5", "{} BETWEEN -5 AND 1000000", "{} IN (0, 1, 0.5)", "abs({}) < 100"):
        loaded = Streams(Translation((Stream("", "json:loads", value="json"),), where=condition.format("value.n")))
        with connect() as connection:
            rows = [
                connection.execute(
                    f"SELECT {condition.format('?' if isinstance(n, int) else '?::DOUBLE')}", [n]
                ).fetchone()
                for n in numbers
            ]
        assert loaded._wheres["bytes", "json"].matches(batch).tolist() == [bool(row[0]) for row in rows if row]


def test_a_column_handler_is_refused_before_a_turn_is_planned(code: Any) -> None:
    """It gets undecoded records within Spark's JVM, where no expression of DuckDB is evaluated."""
    code.handle = column_handler(lambda frame: frame)
    with pytest.raises(ConfigError, match=r"is a column handler.*`--where` of a backfill"):
        check_functions(None, Translation((stream(code),), where="value.a = 1"))
