"""Streams: each record is decoded, goes to the first that wants it, and has one outcome, whoever raises what."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline import Dead, Record, Skip, arrow_handler
from ackline.decode import Undecodable
from ackline.errors import TransientError
from ackline.handler import Tier
from ackline.offsets import TopicPartition
from ackline.spark.handlers import streams as runtime
from ackline.spark.handlers.call import Answers, answer
from ackline.spark.handlers.streams import Streams, load_answering
from ackline.spark.records import Records
from ackline.translation import Stream, Translation
from tests.unit.strategies import REPEATABLE

Said = tuple[str, str | None]
ACKED: Said = ("acked", None)
UNMATCHED: Said = ("skipped", "Unmatched")
UNDECODABLE: Said = ("failed", "Undecodable")


@pytest.fixture
def code() -> Iterator[ModuleType]:
    """A module for the functions of a test."""
    module = ModuleType("code_of_a_test")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def rows_of(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, topic: str = "orders"
) -> Records:
    count = len(values)
    return Records(
        TopicPartition(topic, 3),
        np.arange(100, 100 + 2 * count, 2, dtype=np.int64),
        np.full(count, 1_600_000_000_123_000, dtype=np.int64),
        pa.array(keys or [None] * count, pa.binary()),
        pa.array(values, pa.binary()),
        None,
        np.full(count, 1, dtype=np.int32),
    )


def stream(code: ModuleType, name: str = "", handler: str = "handle", wants: str | None = None, **more: Any) -> Stream:
    path = f"{code.__name__}:{{}}".format
    return Stream(name, path(handler), path(wants) if wants else None, **more)


def answers(streams: Sequence[Stream], rows: Records, deliver_tombstones: bool = False) -> Answers:
    found = answer(Streams(Translation(tuple(streams))), Tier.RECORD, rows, lambda: 1000, deliver_tombstones)
    assert [one.row for one in found.unacked] == sorted({one.row for one in found.unacked})
    assert len(found.handled_at) == len(rows)
    assert (found.handled_at == 1000).all()
    return found


def outcomes(streams: Sequence[Stream], rows: Records, **settings: bool) -> list[Said]:
    unacked: dict[int, Said] = {
        one.row: (one.outcome.value, one.error_class) for one in answers(streams, rows, **settings).unacked
    }
    return [unacked.get(row, ACKED) for row in range(len(rows))]


def message(streams: Sequence[Stream], rows: Records) -> str:
    (one,) = answers(streams, rows).unacked
    return one.error_message or ""


# -- decoding


def test_a_handler_gets_what_is_decoded(code: ModuleType) -> None:
    seen: list[Record] = []
    code.handle = seen.append  # type: ignore[attr-defined]
    rows = rows_of([b'{"n": 1}', b"[]", b'"x"'], [b"k", None, "ü".encode()])
    assert outcomes([stream(code, key="utf8", value="json")], rows) == [ACKED] * 3
    assert [(one.key, one.value) for one in seen] == [("k", {"n": 1}), (None, []), ("ü", "x")]
    assert type(seen[0]) is Record


def test_s44_what_does_not_decode_fails_alone_and_without_the_handler(code: ModuleType) -> None:
    seen: list[Any] = []
    code.handle = lambda record: seen.append(record.value)  # type: ignore[attr-defined]
    rows = rows_of([b"1", b"{secret", b"\xff", b"2", b"[" * 100_000])
    found = answers([stream(code, value="json")], rows)
    assert [(one.row, one.error_class) for one in found.unacked] == [(row, "Undecodable") for row in (1, 2, 4)]
    assert [one.error_message for one in found.unacked] == [
        "the value is not JSON: line 1, column 2",
        "the value is not UTF-8: invalid start byte at byte 0",
        "the value is JSON nested too deep",
    ]
    assert (seen, found.calls) == ([1, 2], 2)


def test_a_key_that_does_not_decode_fails_its_record(code: ModuleType) -> None:
    code.handle = print  # type: ignore[attr-defined]
    rows = rows_of([b"a", b"b"], [b"\xff", b"k"])
    assert message([stream(code, key="utf8")], rows) == "the key is not UTF-8: invalid start byte at byte 0"


def test_s44_what_is_null_is_not_decoded(code: ModuleType) -> None:
    seen: list[Record] = []
    code.handle = seen.append  # type: ignore[attr-defined]
    one = [stream(code, key="json", value="json")]
    assert outcomes(one, rows_of([None, b"1"])) == [("skipped", "Tombstone"), ACKED]
    assert outcomes(one, rows_of([None]), deliver_tombstones=True) == [ACKED]
    assert [(record.key, record.value) for record in seen] == [(None, 1), (None, None)]


def test_a_class_of_the_handlers_own_does_not_pass_for_ours(code: ModuleType) -> None:
    def handle(record: Record) -> None:
        raise Undecodable("Alice is undecodable")

    code.handle = handle  # type: ignore[attr-defined]
    rows = rows_of([b"Alice"])
    assert outcomes([stream(code, value="utf8")], rows) == [("failed", "ackline.decode.Undecodable")]
    assert "Alice" not in message([stream(code, value="utf8")], rows)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), TransientError("not ours")])
def test_what_handler_or_filter_raise_is_the_outcome_of_their_record(code: ModuleType, error: BaseException) -> None:
    def raises(record: Record) -> bool:
        if record.value == "x":
            raise error
        return True

    code.raises, code.handle = raises, lambda record: None  # type: ignore[attr-defined]
    expected = [ACKED, ("failed", type(error).__name__), ACKED]
    for one in (stream(code, handler="raises", value="utf8"), stream(code, wants="raises", value="utf8")):
        assert outcomes([one], rows_of([b"a", b"x", b"b"])) == expected


def test_skip_and_dead_mean_the_same_after_decoding(code: ModuleType) -> None:
    def handle(record: Record) -> None:
        raise {"skip": Skip, "dead": Dead}[record.value]("so")

    code.handle = handle  # type: ignore[attr-defined]
    rows = rows_of([b'"skip"', b'"dead"'])
    assert outcomes([stream(code, value="json")], rows) == [("skipped", "Skip"), ("failed", "Dead")]


def test_an_unreachable_registry_is_no_records_fault(code: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the task: nothing of it is stored, and it is tried again."""

    def away(data: bytes, record: Record) -> Any:
        raise TransientError("the schema registry can't be reached")

    monkeypatch.setattr(runtime, "PLAIN", {"json": lambda field: away})
    code.handle = print  # type: ignore[attr-defined]
    with pytest.raises(TransientError, match="can't be reached"):
        answers([stream(code, value="json")], rows_of([b"1"]))


# -- what a message may repeat (I13)

CANARIES = ("Alice", "Wonder", "31337", "4242", "c4n4ry")
SECRETS = {"name": "Alice\nWonder", "n": 31337, "d": {"c4n4ry": [4242.5]}}


@pytest.mark.parametrize(
    "blab",
    [
        lambda value: ValueError(f"bad customer {value['name']!r} with {value['n']}"),
        lambda value: KeyError(value["name"]),
        lambda value: ValueError(value),
        lambda value: ValueError(value["d"], value.pop("name"), value.pop("n")),
        lambda value: Skip(str(value)),
        lambda value: Dead(f"{value.pop('name')} {value.pop('n')} {value.pop('d')}"),
    ],
)
@pytest.mark.parametrize("where", ["handle", "wants"])
def test_i13_a_message_repeats_nothing_of_a_decoded_value(
    code: ModuleType, blab: Callable[[Any], BaseException], where: str
) -> None:
    def blabs(record: Record) -> bool:
        raise blab(record.value)

    code.blabs, code.handle = blabs, print  # type: ignore[attr-defined]
    streams = [stream(code, **{"handler" if where == "handle" else "wants": "blabs"}, value="json")]
    said = message(streams, rows_of([json.dumps(SECRETS).encode()]))
    assert not [canary for canary in CANARIES if canary in said]


def test_i13_values_that_do_not_show_in_the_bytes_are_masked_too(
    code: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Avro holds numbers, decimals and the symbols of an enum as bits."""
    value = {"status": "CANCELLED", "amount": Decimal("1234.50"), "id": 987654321, "blob": b"hidden"}
    monkeypatch.setattr(runtime, "PLAIN", {"json": lambda field: lambda data, record: dict(value)})

    def handle(record: Record) -> None:
        left = record.value
        raise ValueError(f"no {left.pop('status')} of {left.pop('amount')} for {left.pop('id')}: {left.pop('blob')}")

    code.handle = handle  # type: ignore[attr-defined]
    said = message([stream(code, value="json")], rows_of([b"\0\1\2"]))
    assert said == "no *** of ***.*** for ***: b'***'"


# -- streams


def test_a_record_goes_to_the_first_stream_that_wants_it_and_else_to_the_handler(code: ModuleType) -> None:
    taken: list[tuple[str, Any]] = []
    for name in ("a", "b", "handle"):
        setattr(code, name, lambda record, name=name: taken.append((name, record.value)))
    code.even = lambda record: record.value % 2 == 0  # type: ignore[attr-defined]
    code.third = lambda record: record.value % 3 == 0  # type: ignore[attr-defined]
    streams = [
        stream(code, "a", "a", "even", value="json"),
        stream(code, "b", "b", "third", topics=("orders",), value="json"),
        stream(code, value="json"),
    ]
    rows = rows_of([str(n).encode() for n in range(7)])
    assert outcomes(streams, rows) == [ACKED] * 7
    assert taken == [("a", 0), ("handle", 1), ("a", 2), ("b", 3), ("a", 4), ("handle", 5), ("a", 6)]
    taken.clear()
    outcomes(streams, rows_of([b"3"], topic="others"))
    assert taken == [("handle", 3)]


def test_what_no_stream_wants_is_skipped_and_says_so(code: ModuleType) -> None:
    code.handle, code.no = print, lambda record: False  # type: ignore[attr-defined]
    for streams in (
        [stream(code, "a", wants="no")],
        [stream(code, "a", topics=("payments",))],
        [stream(code, wants="no")],
    ):
        found = answers(streams, rows_of([b"1", b"2"]))
        assert [(one.outcome.value, one.error_class) for one in found.unacked] == [UNMATCHED] * 2
        assert found.calls == 0


@pytest.mark.parametrize("said", [None, 1, 0, "yes", [], object()])
def test_a_filter_that_says_neither_yes_nor_no_fails_its_record(code: ModuleType, said: object) -> None:
    """A forgotten `return` must not skip all records."""
    code.handle, code.wants = print, lambda record: said  # type: ignore[attr-defined]
    assert outcomes([stream(code, wants="wants")], rows_of([b"1"])) == [("failed", "InvalidOutcome")]


def test_each_stream_decodes_as_it_says(code: ModuleType) -> None:
    seen: list[Any] = []

    def no(record: Record) -> bool:
        seen.append(record)
        return False

    code.no, code.handle = no, seen.append  # type: ignore[attr-defined]
    streams = [stream(code, "a", wants="no", value="json"), stream(code, "b", wants="no", value="utf8"), stream(code)]
    assert outcomes(streams, rows_of([b"17"])) == [ACKED]
    assert [record.value for record in seen] == [17, "17", b"17"]


def test_a_record_that_the_first_filter_can_not_be_shown_fails(code: ModuleType) -> None:
    """Another stream might have had another decoder; but then nothing would ever say that the first can't read."""
    code.handle, code.no = print, lambda record: False  # type: ignore[attr-defined]
    streams = [stream(code, "a", wants="no", value="json"), stream(code)]
    assert outcomes(streams, rows_of([b"{"])) == [UNDECODABLE]


@REPEATABLE
@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("xyz")), st.sampled_from(["none", "even", "low", "raises"]), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from("xyz"),
    st.lists(st.none() | st.integers(0, 9) | st.just("bad"), max_size=12),
)
def test_every_record_has_one_outcome_and_at_most_one_handler(
    drawn: list[tuple[set[str], str, bool]], topic: str, values: list[int | str | None]
) -> None:
    """Against the rule as one would say it: the first stream of the topic whose filter says yes."""
    calls: list[tuple[int, str]] = []
    module = ModuleType("code_of_a_property")
    sys.modules[module.__name__] = module
    filters: dict[str, Callable[[int], bool]] = {
        "none": lambda n: True,
        "even": lambda n: n % 2 == 0,
        "low": lambda n: n < 3,
        "raises": lambda n: 1 // (n % 3) > 0,
    }
    streams = []
    for number, (topics, wants, arrow) in enumerate(drawn):

        def handle(given: Any, number: int = number) -> Any:
            texts = [given.value] if isinstance(given, Record) else given.column("value").to_pylist()
            calls.extend((number, text) for text in texts)
            return None if isinstance(given, Record) else ["acked"] * len(texts)

        setattr(module, f"h{number}", arrow_handler(handle) if arrow else handle)
        setattr(module, f"f{number}", lambda record, rule=filters[wants]: rule(int(record.value)))
        asked = None if wants == "none" else f"f{number}"
        streams.append(stream(module, f"s{number}", f"h{number}", asked, topics=tuple(topics) or None, value="utf8"))

    def expected(value: int | str | None) -> tuple[Said, int | None]:
        if value is None:
            return ("skipped", "Tombstone"), None
        for number, (topics, wants, _) in enumerate(drawn):
            if topics and topic not in topics:
                continue
            if value == "bad":
                return UNDECODABLE, None
            try:
                if filters[wants](int(value)):
                    return ACKED, number
            except ZeroDivisionError:
                return ("failed", "ZeroDivisionError"), None
        return UNMATCHED, None

    rows = rows_of([None if v is None else b"\xff" if v == "bad" else str(v).encode() for v in values], topic=topic)
    assert outcomes(streams, rows) == [expected(value)[0] for value in values]
    takers = [(expected(value)[1], str(value)) for value in values]
    wanted = [(number, text) for number, text in takers if number is not None]
    assert sorted(calls) == sorted(wanted)


# -- the Arrow tier


def test_an_arrow_handler_gets_text_where_utf8_is_asked_for_and_rows_that_are_none_fail_alone(code: ModuleType) -> None:
    seen: list[pa.RecordBatch] = []

    @arrow_handler
    def handle(batch: pa.RecordBatch) -> list[str]:
        seen.append(batch)
        return ["failed" if value == "c" else "acked" for value in batch.column("value").to_pylist()]

    code.handle = handle  # type: ignore[attr-defined]
    rows = rows_of([b"a", b"\xff", b"c", b"d"], [b"k", b"k", None, b"\xfe"])
    found = answers([stream(code, key="utf8", value="utf8")], rows)
    assert [(one.row, one.error_class) for one in found.unacked] == [(1, "Undecodable"), (2, None), (3, "Undecodable")]
    assert found.calls == 2
    (batch,) = seen
    assert (batch.schema.field("key").type, batch.schema.field("value").type) == (pa.string(), pa.string())
    assert batch.column("value").to_pylist() == ["a", "c"]
    assert batch.column("offset").to_pylist() == [100, 104]


def test_an_arrow_stream_behind_a_filter_gets_its_rows_as_one_batch(code: ModuleType) -> None:
    sizes: list[int] = []

    @arrow_handler
    def batches(batch: pa.RecordBatch) -> list[str]:
        sizes.append(batch.num_rows)
        return ["dead"] * batch.num_rows

    code.batches, code.handle = batches, lambda record: None  # type: ignore[attr-defined]
    code.short = lambda record: len(record.value) < 2  # type: ignore[attr-defined]
    streams = [stream(code, "a", "batches", "short"), stream(code)]
    dead: Said = ("failed", "Dead")
    assert outcomes(streams, rows_of([b"a", b"bb", b"c", b"dd"])) == [dead, ACKED, dead, ACKED]
    assert sizes == [2]


def test_a_batch_without_a_sound_row_is_not_handed_out(code: ModuleType) -> None:
    code.handle = arrow_handler(lambda batch: pytest.fail("called"))  # type: ignore[attr-defined]
    found = answers([stream(code, value="utf8")], rows_of([b"\xff", b"\xfe"]))
    assert ([one.error_class for one in found.unacked], found.calls) == (["Undecodable"] * 2, 0)


def test_without_a_translation_the_handler_itself_answers(code: ModuleType) -> None:
    code.handle = handle = lambda record: None  # type: ignore[attr-defined]
    assert load_answering(f"{code.__name__}:handle", None) is handle
