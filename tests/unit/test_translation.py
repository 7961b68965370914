"""What the decoders and streams of a pipeline file become. Refused files: test_pipeline_refusals.py."""

import pickle

from ackline.pipeline.pipeline import load
from ackline.pipeline.streams import Stream, Translation
from tests.unit.pipeline_files import NO_HANDLER, STREAMS, TWO_TOPICS, Write

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


def test_i13_a_translation_does_not_show_the_login_and_is_pickled_whole() -> None:
    registry = (("basic.auth.user.info", "me:hunter2"), ("url", "https://registry:8081"))
    translation = Translation((Stream("", "shop:good", value="avro"),), registry)
    copy = pickle.loads(pickle.dumps(translation))
    assert "hunter" not in repr(translation)
    assert copy == translation
    assert hash(copy) == hash(translation)
