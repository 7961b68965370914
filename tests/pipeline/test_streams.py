"""What the decoders, streams and steps of a pipeline file become. Refused files: test_refusals.py.

A decoder returns a value or raises Undecodable, and the error quotes nothing of the bytes.
"""

import pickle
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pydantic_core import PydanticCustomError

from ackline.handler import Record
from ackline.pipeline.pipeline import load
from ackline.pipeline.streams import DECODERS, Stream, Translation, Undecodable, message_class_of, scalar_texts
from ackline.pipeline.topology import StepBlock, Topology, topology
from tests.ledger.strategies import REPEATABLE
from tests.support.pipeline_files import NO_HANDLER, STREAMS, TWO_TOPICS, Write

REGISTRY = "schema_registry: {url: http://registry:8081}\n"
HANDLER = "handlers.orders:handle"


def translation_of(write_file: Write, *changes: tuple[str, str], more: str) -> Translation:
    translation = load(write_file(*changes, more=more)).translation
    assert translation is not None
    return translation


def test_without_decoders_and_streams_there_is_no_translation(write_file: Write) -> None:
    assert load(write_file()).translation is None
    assert load(write_file(more="decode: {key: bytes, value: bytes}\n")).translation is None


def test_the_handler_is_the_last_stream_and_covers_all_topics(write_file: Write) -> None:
    pipeline = load(write_file(TWO_TOPICS, more=STREAMS + "decode: {key: utf8, value: utf8}\n"))
    assert pipeline.translation == Translation(
        (
            Stream("paid", "shop:paid", None, ("payments",), None, "utf8", "json"),
            Stream("large", "shop:large_order", "shop:large", None, None, "utf8", "utf8"),
            Stream("", HANDLER, None, None, None, "utf8", "utf8"),
        )
    )
    assert pipeline.handlers == ("shop:paid", "shop:large_order", HANDLER)


def test_with_streams_a_file_needs_no_handler(write_file: Write) -> None:
    streams = translation_of(write_file, TWO_TOPICS, NO_HANDLER, more=STREAMS).streams
    assert [stream.name for stream in streams] == ["paid", "large"]


def test_a_filter_needs_no_streams(write_file: Write) -> None:
    [stream] = translation_of(write_file, more="filter: shop:wanted\n").streams
    assert stream == Stream("", HANDLER, "shop:wanted")


def test_the_pattern_of_a_stream_matches_whole_names_only(write_file: Write) -> None:
    every_topic = [("topics: [orders]", "pattern: '.*'"), ("{topic: orders.dead}", "none")]
    streams = "streams:\n  - {name: a, pattern: 'shop-.*', handler: 'x:x'}\n"
    stream = translation_of(write_file, *every_topic, more=streams).streams[0]
    assert [stream.covers_topic(topic) for topic in ("shop-1", "my-shop-1", "shop")] == [True, False, False]


def test_settings_for_tables_and_logs_hold_decoders_and_streams(write_file: Write) -> None:
    settings = load(write_file(TWO_TOPICS, more=STREAMS + REGISTRY + "decode: {value: avro}\n")).settings()
    assert settings["decode"] == {"key": None, "value": "avro"}
    assert settings["schema_registry"] == {"url": "http://registry:8081"}
    assert [stream["name"] for stream in settings["streams"]] == ["paid", "large"]


def test_a_message_class_is_the_decoder_of_its_stream_and_needs_no_registry(write_file: Write) -> None:
    pipeline = load(write_file(more="decode: {key: utf8, value: {protobuf: 'shop_pb2:Order.Line'}}\n"))
    assert pipeline.translation is not None
    (stream,) = pipeline.translation.streams
    assert (stream.key, stream.value) == ("utf8", "protobuf:shop_pb2:Order.Line")
    assert (message_class_of(stream.key), message_class_of(stream.value)) == (None, "shop_pb2:Order.Line")
    assert not pipeline.translation.needs_registry
    assert pipeline.settings()["decode"] == {"key": "utf8", "value": {"protobuf": "shop_pb2:Order.Line"}}


def test_i13_a_translation_does_not_show_the_login_and_is_pickled_whole() -> None:
    registry = (("basic.auth.user.info", "me:hunter2"), ("url", "https://registry:8081"))
    translation = Translation((Stream("", "shop:good", value="avro"),), registry)
    copy = pickle.loads(pickle.dumps(translation))
    assert "hunter" not in repr(translation)
    assert (copy, hash(copy)) == (translation, hash(translation))


RECORD = Record("orders", 0, 0, None, None, None, (), 1)


def decoded(decoder: str, data: bytes) -> object:
    return DECODERS[decoder]("value")(data, RECORD)


@REPEATABLE
@given(st.text())
@example("\0 is a character like any other")
def test_utf8_is_the_text_that_was_encoded(text: str) -> None:
    assert decoded("utf8", text.encode()) == text


@REPEATABLE
@given(st.sampled_from(sorted(DECODERS)), st.binary())
def test_s44_any_bytes_are_decoded_or_refused_and_nothing_else(decoder: str, data: bytes) -> None:
    with suppress(Undecodable):
        decoded(decoder, data)


@pytest.mark.parametrize(("data", "reason"), [
    (b"", "line 1, column 1"), (b"secret", "line 1, column 1"), (b'{"name": "secret", \n}', "line 2, column 1"),
    (b'{"name": "secret"} {"name": "secret"}', "line 1, column 20"), (b'"sec\0ret"', "line 1, column 5"),
    (b'"secret\\q"', "line 1, column 8"), (b'"secret', "line 1, column 1"),
    (b"\xef\xbb\xbf{}", "line 1, column 1"), (b'"secret\xff"', "invalid start byte at byte 7"),
    (b'"\xed\xa0\x80"', "invalid continuation byte at byte 1"),
    ('{"secret": 1}'.encode("utf-16"), "invalid start byte at byte 0"), (b"[" * 200_000, "nested too deep"),
    (b'{"a":' * 200_000, "nested too deep"), (b"9" * 5_000, "ValueError"),
    (b'["' + b"secret" * 9_000_000, "line 1, column 2"),
])  # fmt: skip
def test_bytes_that_are_not_json_are_refused_without_a_quotation(data: bytes, reason: str) -> None:
    with pytest.raises(Undecodable) as caught:
        decoded("json", data)
    message = str(caught.value)
    assert message.startswith("the value is")
    assert reason in message
    assert "secret" not in message


def test_the_field_that_does_not_decode_is_named() -> None:
    with pytest.raises(Undecodable, match="the key is not UTF-8: unexpected end of data at byte 1"):
        DECODERS["utf8"]("key")(b"a\xc3", RECORD)


def test_the_scalar_texts_of_a_value_hold_all_of_its_scalars_and_keys() -> None:
    value = {"name": "Zoé", "n": [1, 2.5, {"deep": (True, None, b"raw")}]}
    assert sorted(map(str, scalar_texts(value))) == sorted(["name", "Zoé", "n", "1", "2.5", "deep", "b'raw'"])


def test_a_value_with_many_levels_has_scalar_texts() -> None:
    value: object = "scalar"
    for _ in range(100_000):
        value = [value]
    assert list(scalar_texts(value)) == ["scalar"]


STEPS = TypeAdapter(list[StepBlock])


def step(name: str, *inputs: str, **more: object) -> dict[str, object]:
    return {"name": name, "handler": "shop:step", "input": list(inputs), **more}


def built(*steps: dict[str, object]) -> Topology:
    return topology(STEPS.validate_python(list(steps)))


def order(*steps: dict[str, object]) -> list[str]:
    return [step.name for step in built(*steps).steps]


def test_steps_keep_the_order_of_the_file_except_that_each_follows_its_inputs() -> None:
    assert order(step("a", "source"), step("b", "source"), step("c", "a", "b")) == ["a", "b", "c"]
    assert (order(step("c", "a", "b"), step("b", "a"), step("a", "source.items")), order()) == (["a", "b", "c"], [])


def test_a_stream_goes_to_each_step_that_names_it_and_to_no_other() -> None:
    shop = built(
        step("price", "source.items"),
        step("total", "price", group_by="key", join=True),
        step("audit", "price", "source.items"),
    )
    takers = {str(stream): [step.name for step in steps] for stream, steps in shop.consumers.items()}
    assert takers == {"source.items": ["price", "audit"], "price": ["total", "audit"]}
    assert [(step.grouped, step.join) for step in shop.steps] == [(False, False), (True, True), (False, False)]


@pytest.mark.parametrize(("steps", "key_path", "reason"), [
    ([step("a", "b"), step("b", "a")], ("steps", 0, "input"), "a cycle: a, b wait for one another"),
    ([step("a", "a")], ("steps", 0, "input"), "a cycle: a wait"),
    ([step("a", "source"), step("c", "b"), step("b", "c", "a")], ("steps", 1, "input"), "a cycle: c, b"),
    ([step("a", "b.items")], ("steps", 0, "input", 0), "no step is named b; write one of source, a"),
    ([step("a", "source"), step("a", "source")], ("steps", 1, "name"), "two steps are named a"),
    ([step("source", "source")], ("steps", 0, "name"), "rename the step"),
    ([step("a", "source", "source")], ("steps", 0, "input", 1), "is there twice"),
])  # fmt: skip
def test_a_graph_that_is_no_tree_of_steps_is_refused_by_key(
    steps: list[dict[str, object]], key_path: tuple[str | int, ...], reason: str
) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        built(*steps)
    assert caught.value.context is not None
    assert caught.value.context["key_path"] == key_path
    assert reason in str(caught.value)
