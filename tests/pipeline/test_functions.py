"""The handlers and filters of streams are imported and checked before anything is planned."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest

from ackline import arrow_handler, column_handler
from ackline.errors import ConfigError
from ackline.pipeline.functions import check_functions
from ackline.pipeline.streams import Stream, Translation
from ackline.pipeline.topology import StepBlock, Topology, topology


@pytest.fixture
def shop() -> Iterator[ModuleType]:
    """The module `shop`: a record handler, an Arrow handler, a column handler and filters."""

    async def later(record: object) -> bool:
        return False

    module = ModuleType("shop")
    functions = {
        "good": lambda record: None, "wanted": lambda record: True, "later": later,
        "batches": arrow_handler(lambda batch: ["acked"]), "column": column_handler(lambda records: records),
    }  # fmt: skip
    vars(module).update(functions)
    sys.modules["shop"] = module
    yield module
    del sys.modules["shop"]


def check(*streams: Stream, isolated: bool = False) -> None:
    check_functions(None, Translation(streams), isolated)


@pytest.mark.usefixtures("shop")
def test_all_functions_of_all_streams_are_imported_before_anything_is_planned() -> None:
    check_functions("shop:good", None)
    check(Stream("a", "shop:good", "shop:wanted"), Stream("", "shop:good"))
    for stream, key in (
        (Stream("a", "shop:gone"), "streams.a.handler"),
        (Stream("a", "shop:good", "shop:gone"), "streams.a.filter"),
        (Stream("", "shop:good", "shop:gone"), "filter"),
        (Stream("", "shop:gone"), "handler"),
    ):
        with pytest.raises(ConfigError, match="does not import") as caught:
            check(stream)
        assert caught.value.key == key
        assert str(caught.value).startswith(f"{key} shop:gone ")


@pytest.mark.usefixtures("shop")
def test_an_asynchronous_filter_is_refused() -> None:
    """It returns a coroutine, which counts as true."""
    with pytest.raises(ConfigError, match="asynchronous"):
        check(Stream("", "shop:good", "shop:later"))


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("decoder", ["json", "avro", "json_schema"])
def test_an_arrow_handler_is_refused_with_a_decoder_that_has_no_column_type(decoder: str) -> None:
    check(Stream("a", "shop:batches", key="utf8", value="utf8"))
    with pytest.raises(ConfigError, match=f"streams.a.decode.value: {decoder} has no column type"):
        check(Stream("a", "shop:batches", value=decoder))


@pytest.mark.usefixtures("shop")
def test_an_arrow_handler_behind_a_filter_cannot_be_isolated() -> None:
    """Its batches are made while other records are handled. Alone, or with topics of its own, it can be isolated."""
    batches, filtered = Stream("b", "shop:batches", value="utf8"), Stream("f", "shop:good", "shop:wanted")
    for streams in ([batches], [Stream("g", "shop:good", topics=("paid",)), batches], [batches, filtered]):
        check(*streams, isolated=True)
    for streams in ([filtered, batches], [replace(batches, filter="shop:wanted")]):
        check(*streams)
        with pytest.raises(ConfigError, match="Arrow handler behind a filter") as caught:
            check(*streams, isolated=True)
        assert caught.value.key == "handler_isolation"


@pytest.mark.usefixtures("shop")
def test_a_column_handler_takes_whole_topics_as_bytes_and_cannot_be_isolated() -> None:
    for stream in (Stream("", "shop:column", value="utf8"), Stream("a", "shop:column")):
        with pytest.raises(ConfigError, match="column handler, which runs in the JVM on undecoded records"):
            check(stream)
    check_functions("shop:column", None)
    with pytest.raises(ConfigError, match="runs inside Spark's JVM"):
        check_functions("shop:column", None, isolated=True)


def test_with_steps_handlers_may_be_generators_and_those_of_steps_are_imported_too(shop: ModuleType) -> None:
    def emits(record: object) -> Iterator[int]:
        yield 1

    vars(shop)["emits"] = emits
    check_functions("shop:emits", None, False, steps("shop:emits"))
    check_functions(None, Translation((Stream("", "shop:emits"),)), False, steps("shop:good"))
    with pytest.raises(ConfigError, match="no `steps` take what it yields"):
        check_functions("shop:emits", None)
    for path, reason in (("shop:gone", "does not import"), ("shop:batches", "arrow tier"), ("shop:column", "column")):
        with pytest.raises(ConfigError, match=reason) as caught:
            check_functions("shop:emits", None, False, steps(path))
        assert caught.value.key == "steps.price.handler"
        with pytest.raises(ConfigError, match=reason):
            check_functions(path, None, False, steps("shop:good"))


def steps(handler: str) -> Topology:
    """One step with this handler."""
    return topology([StepBlock(name="price", handler=handler, input=["source"])])
