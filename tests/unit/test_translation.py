"""What a pipeline file may say of decoders and streams, and what is refused by file, line, key and reason."""

import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ackline import arrow_handler, column_handler
from ackline.errors import ConfigError
from ackline.kafka.registry import registry_config, without_registry
from ackline.pipeline import load
from ackline.translation import Stream, Translation, check_code
from tests.unit.pipeline_files import Write, writer

REGISTRY = "schema_registry: {url: http://registry:8081}\n"
NO_HANDLER = ("handler: handlers.orders:handle\n", "")
TWO = ("[orders]", "[orders, payments]")
STREAMS = """\
streams:
  - name: paid
    topics: [payments]
    handler: shop:paid
    decode: {value: json}
  - name: large
    filter: shop:large
    handler: shop:large_order
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a pipeline file."""
    return writer(tmp_path)


@pytest.fixture
def shop() -> Iterator[ModuleType]:
    """The module `shop`."""
    module = ModuleType("shop")
    sys.modules["shop"] = module
    yield module
    del sys.modules["shop"]


def test_without_decoders_and_streams_there_is_no_translation(write: Write) -> None:
    assert load(write()).translation is None
    assert load(write(more="decode: {key: bytes, value: bytes}\n")).translation is None


def test_the_handler_is_the_last_stream_of_all_topics(write: Write) -> None:
    pipeline = load(write(TWO, more=STREAMS + "decode: {key: utf8, value: utf8}\n"))
    assert pipeline.translation == Translation(
        (
            Stream("paid", "shop:paid", None, ("payments",), None, "utf8", "json"),
            Stream("large", "shop:large_order", "shop:large", None, None, "utf8", "utf8"),
            Stream("", "handlers.orders:handle", None, None, None, "utf8", "utf8"),
        )
    )
    assert pipeline.handlers == ("shop:paid", "shop:large_order", "handlers.orders:handle")


def test_streams_make_the_handler_dispensable(write: Write) -> None:
    pipeline = load(write(TWO, NO_HANDLER, more=STREAMS))
    assert pipeline.translation is not None
    assert [one.name for one in pipeline.translation.streams] == ["paid", "large"]


def test_a_filter_needs_no_streams(write: Write) -> None:
    pipeline = load(write(more="filter: shop:wanted\n"))
    assert pipeline.translation == Translation((Stream("", "handlers.orders:handle", "shop:wanted"),))


def test_a_stream_is_of_the_topics_that_it_names(write: Write) -> None:
    streams = "streams:\n  - {name: a, pattern: 'shop-.*', handler: 'x:x'}\n"
    translation = load(
        write(("topics: [orders]", "pattern: '.*'"), ("{topic: orders.dead}", "none"), more=streams)
    ).translation
    assert translation is not None
    assert [translation.streams[0].of(topic) for topic in ("shop-1", "my-shop-1", "shop")] == [True, False, False]


REFUSED = [
    ("no handler, no streams", [NO_HANDLER], "", 1, "handler", "missing"),
    ("a word", [], "decode: {value: xml}\n", 8, "decode.value", "not 'xml'"),
    ("unknown field", [], "decode: {headers: utf8}\n", 8, "decode.headers", "unknown key"),
    ("avro without registry", [], "decode:\n  key: utf8\n  value: avro\n", 10, "decode.value", "avro needs"),
    ("json_schema key", [], "decode: {key: json_schema}\n", 8, "decode.key", "json_schema needs a schema registry"),
    ("avro in a stream", [TWO], STREAMS.replace("value: json", "value: avro"), 12, "streams.0.decode.value",
     "avro needs a schema registry"),
    ("registry half said", [], "schema_registry: http://registry\n", 8, "schema_registry", "{url: URL}"),
    ("registry without url", [], "schema_registry: {}\n", 8, "schema_registry.url", "missing"),
    ("registry elsewhere", [], "schema_registry: {url: 'ftp://x'}\n", 8, "schema_registry.url", "not an address"),
    ("login in the file", [], "schema_registry: {url: 'http://me:hunter2@x'}\n", 8, "schema_registry.url",
     "schema.registry.basic.auth.user.info"),
    ("password in the file", [], "schema_registry: {url: 'http://x', password: hunter2}\n", 8,
     "schema_registry.password", "unknown key"),
    ("login among Kafka's", [("  topics", "  properties: {schema.registry.basic.auth.user.info: x}\n  topics")], "", 5,
     "kafka.properties", "belongs into the Kafka connection"),
    ("registry of no connection", [], "schema_registry: connection\n", 8, "schema_registry", "`kafka.connection`"),
    ("no stream", [], "streams: []\n", 8, "streams", "at least 1"),
    ("stream without handler", [], "streams:\n  - {name: a, filter: 'x:x'}\n", 9, "streams.0.handler", "missing"),
    ("stream without name", [], "streams:\n  - {handler: 'x:x'}\n", 9, "streams.0.name", "missing"),
    ("stream of the empty name", [], "streams:\n  - {name: '', handler: 'x:x'}\n", 9, "streams.0.name", "pattern"),
    ("no function", [], "streams:\n  - {name: a, handler: x.x}\n", 9, "streams.0.handler", "pattern"),
    ("no filter", [], "filter: x\n", 8, "filter", "pattern"),
    ("topics and pattern", [], "streams:\n  - {name: a, topics: [orders], pattern: o, handler: 'x:x'}\n", 9,
     "streams.0", "either `topics` or `pattern`"),
    ("no pattern", [], "streams:\n  - {name: a, pattern: '(', handler: 'x:x'}\n", 9, "streams.0.pattern", "expression"),
    ("a topic not read", [], STREAMS, 10, "streams.0.topics", "payments is not a topic that the pipeline reads"),
    ("a pattern of nothing", [], "streams:\n  - {name: a, pattern: 'pay.*', handler: 'x:x'}\n", 9, "streams.0.pattern",
     "matches none"),
    ("a name twice", [TWO], STREAMS.replace("large\n    filter", "paid\n    filter"), 13, "streams.1.name",
     "the name of two streams"),
    ("a topic twice", [TWO], STREAMS + "  - {name: b, topics: [orders, payments], handler: 'x:x'}\n", 16,
     "streams.2.topics", "stream paid comes first"),
    ("after all", [TWO], "streams:\n  - {name: a, handler: 'x:x'}\n  - {name: b, filter: 'x:y', handler: 'x:x'}\n", 10,
     "streams.1.name", "stream a comes first"),
    ("filter of nothing", [TWO, NO_HANDLER], STREAMS + "filter: x:x\n", 15, "filter", "there is none"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "more", "line", "key", "reason"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_a_refusal_names_file_line_key_and_reason(
    write: Write, changes: list[tuple[str, str]], more: str, line: int, key: str, reason: str
) -> None:
    path = write(*changes, more=more)
    with pytest.raises(ConfigError) as caught:
        load(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:{line}: {key}: "), said
    assert reason in said
    assert "hunter2" not in said
    assert len(said.splitlines()) == 1


def test_settings_for_tables_and_logs_say_how_records_are_translated(write: Write) -> None:
    settings = load(write(TWO, more=STREAMS + REGISTRY + "decode: {value: avro}\n")).settings()
    assert settings["decode"] == {"key": None, "value": "avro"}
    assert settings["schema_registry"] == {"url": "http://registry:8081"}
    assert [one["name"] for one in settings["streams"]] == ["paid", "large"]


# -- the code


def test_all_functions_of_all_streams_are_imported_before_anything_is_planned(shop: ModuleType) -> None:
    shop.good = shop.wants = lambda record: True  # type: ignore[attr-defined]
    check_code("shop:good", None)
    check_code(None, Translation((Stream("a", "shop:good", "shop:wants"), Stream("", "shop:good"))))
    for stream, key in (
        (Stream("a", "shop:gone"), "streams.a.handler"),
        (Stream("a", "shop:good", "shop:gone"), "streams.a.filter"),
        (Stream("", "shop:good", "shop:gone"), "filter"),
        (Stream("", "shop:gone"), "handler"),
    ):
        with pytest.raises(ConfigError, match="does not import") as caught:
            check_code(None, Translation((stream,)))
        assert caught.value.key == key
        assert key in str(caught.value)


def test_a_filter_that_is_asynchronous_is_refused(shop: ModuleType) -> None:
    """What it returns is always true."""

    async def wants(record: object) -> bool:
        return False

    shop.good, shop.wants = print, wants  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="asynchronous"):
        check_code(None, Translation((Stream("", "shop:good", "shop:wants"),)))


@pytest.mark.parametrize("word", ["json", "avro", "json_schema"])
def test_an_arrow_handler_is_not_given_what_has_no_column_type(shop: ModuleType, word: str) -> None:
    shop.batches = arrow_handler(lambda batch: ["acked"])  # type: ignore[attr-defined]
    check_code(None, Translation((Stream("a", "shop:batches", key="utf8", value="utf8"),)))
    with pytest.raises(ConfigError, match=f"streams.a.decode.value: {word} has no column type"):
        check_code(None, Translation((Stream("a", "shop:batches", value=word),)))


def test_an_arrow_handler_behind_a_filter_can_not_be_isolated(shop: ModuleType) -> None:
    """Its batches are made in the midst of other calls; by itself, or of topics of its own, it can."""
    shop.batches = arrow_handler(lambda batch: ["acked"])  # type: ignore[attr-defined]
    shop.good = shop.wants = lambda record: True  # type: ignore[attr-defined]
    batches, filtered = Stream("b", "shop:batches", value="utf8"), Stream("f", "shop:good", "shop:wants")
    for sound in ([batches], [Stream("g", "shop:good", topics=("paid",)), batches], [batches, filtered]):
        check_code(None, Translation(tuple(sound)), isolated=True)
    for unsound in ([filtered, batches], [replace(batches, filter="shop:wants")]):
        with pytest.raises(ConfigError, match="Arrow handler behind a filter"):
            check_code(None, Translation(tuple(unsound)), isolated=True)


def test_a_column_handler_takes_whole_topics_as_bytes(shop: ModuleType) -> None:
    shop.column = column_handler(lambda records: records)  # type: ignore[attr-defined]
    for stream in (Stream("", "shop:column", value="utf8"), Stream("a", "shop:column")):
        with pytest.raises(ConfigError, match="stays in the JVM"):
            check_code(None, Translation((stream,)))


# -- the registry's settings

CONNECTION = {
    "bootstrap.servers": "127.0.0.1:9092",
    "schema.registry.url": "https://me:hunter%402@registry:8081/path",
    "schema.registry.basic.auth.credentials.source": "USER_INFO",
    "schema.registry.timeout": "2.5",
    "schema.registry.max.retries": "1",
    "schema.registry.ssl.ca.location": None,
}


def test_the_connection_says_how_to_reach_the_registry_and_the_file_where() -> None:
    assert dict(registry_config(None, CONNECTION)) == {
        "url": "https://registry:8081/path",
        "basic.auth.user.info": "me:hunter@2",
        "timeout": 2.5,
        "max.retries": 1,
    }
    assert dict(registry_config("http://x", {"schema.registry.basic.auth.user.info": "me:2"})) == {
        "url": "http://x",
        "basic.auth.user.info": "me:2",
    }
    assert without_registry(CONNECTION) == {"bootstrap.servers": "127.0.0.1:9092"}


def test_a_registry_without_address_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no `schema\.registry\.url`"):
        registry_config(None, {"bootstrap.servers": "x"})


def test_a_setting_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"`schema\.registry\.max\.retries` is no number"):
        registry_config("http://x", {"schema.registry.max.retries": "many"})


def test_i13_a_translation_does_not_show_how_to_log_in_and_travels_whole() -> None:
    translation = Translation((Stream("", "shop:good", value="avro"),), registry_config(None, CONNECTION))
    assert "hunter" not in repr(translation)
    assert pickle.loads(pickle.dumps(translation)) == translation
    assert hash(translation) == hash(pickle.loads(pickle.dumps(translation)))
