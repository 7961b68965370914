"""Handlers and filters are checked before anything is planned; what a partition filter excludes is not read."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ackline import arrow_handler, column_handler
from ackline.errors import ConfigError
from ackline.ledger.planning import PARKED
from ackline.pipeline.folder import load_folder
from ackline.pipeline.functions import check_functions, load_partition_filter
from ackline.pipeline.streams import Stream, Translation
from ackline.pipeline.topology import StepBlock, Topology, topology
from ackline.steps import plan
from tests.pipeline import filters
from tests.support.memory import HandlerCall
from tests.support.memory_lane import GROUP, OK, TP, TP1, MemoryLane
from tests.support.pipeline_files import Write


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


SHOP = "tests.support.shop_messages"


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("shop_pb2:Order", "does not import: ModuleNotFoundError"),
        (f"{SHOP}:Ordre", "does not import: AttributeError.*did you mean"),
        (f"{SHOP}:order", "is no class of Protobuf messages .function."),
        (f"{SHOP}:POOL", "is no class of Protobuf messages"),
        ("google.protobuf.message:Message", "is no class of Protobuf messages"),
    ],
)
def test_a_message_class_is_imported_before_anything_is_planned(path: str, reason: str) -> None:
    check(Stream("a", "shop:good", key=f"protobuf:{SHOP}:Line", value=f"protobuf:{SHOP}:Order"))
    for stream, key in (
        (Stream("a", "shop:good", value=f"protobuf:{path}"), "streams.a.decode.value"),
        (Stream("", "shop:good", key=f"protobuf:{path}"), "decode.key"),
    ):
        with pytest.raises(ConfigError, match=f"{key} {path} {reason}") as caught:
            check(stream)
        assert caught.value.key == key


@pytest.mark.usefixtures("shop")
def test_an_asynchronous_filter_is_refused() -> None:
    """It returns a coroutine, which counts as true."""
    with pytest.raises(ConfigError, match="asynchronous"):
        check(Stream("", "shop:good", "shop:later"))


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("decoder", ["json", "avro", "json_schema", "protobuf", f"protobuf:{SHOP}:Order"])
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
    for path, reason in (("shop:gone", "does not import"), ("shop:column", "column")):
        with pytest.raises(ConfigError, match=reason) as caught:
            check_functions("shop:emits", None, False, steps(path))
        assert caught.value.key == "steps.price.handler"
        with pytest.raises(ConfigError, match=reason):
            check_functions(path, None, False, steps("shop:good"))


@pytest.mark.usefixtures("shop")
def test_arrow_handlers_take_tuples_and_emit_but_can_not_be_isolated_then() -> None:
    check_functions("shop:batches", None, True)
    for path, step, place in (
        ("shop:good", "shop:batches", "step price has"),
        ("shop:batches", "shop:good", "a pipeline with `steps` or `outputs` has"),
    ):
        check_functions(path, None, False, steps(step))
        with pytest.raises(ConfigError, match=f"{place} an Arrow handler, whose rows come from a batch") as caught:
            check_functions(path, None, True, steps(step))
        assert caught.value.key == "handler_isolation"


@pytest.mark.usefixtures("shop")
def test_calls_of_a_step_with_an_arrow_handler_are_not_under_way_at_once() -> None:
    check_functions("shop:good", None, False, steps("shop:good", 2), concurrency=2)
    with pytest.raises(ConfigError, match="gets many records in one call") as caught:
        check_functions("shop:good", None, False, steps("shop:batches", 2))
    assert caught.value.key == "steps.price.concurrency"


def steps(handler: str, concurrency: int | None = None) -> Topology:
    """One step with this handler."""
    return topology([StepBlock(name="price", handler=handler, input=["source"], concurrency=concurrency)])


MODULE = "tests.pipeline.filters"
CHOSEN = ("[orders]", f"[orders]\n  partition_filter: {MODULE}:chosen")


def filtered_lane(function: str = "chosen", **settings: Any) -> MemoryLane:
    """A lane with a filter, and two topics of three partitions with a record in each."""
    kafka = {"partition_filter": f"{MODULE}:{function}", **settings.pop("kafka", {})}
    lane = MemoryLane(start=settings.pop("start", "earliest"), kafka=kafka, **settings)
    for topic in ("orders", "payments"):
        lane.create(topic, 3, records=1)
    return lane


@pytest.fixture(autouse=True)
def _includes_partition_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "included", {0})


def calls(lane: MemoryLane) -> list[tuple[str, int, int]]:
    return [(*call.tp, call.offset) for call in lane.world.history if isinstance(call, HandlerCall)]


@pytest.mark.parametrize(
    "kafka", [{"topics": ["orders", "payments"]}, {"topics": None, "pattern": "orders|payments"}], ids=str
)
def test_s33_only_the_partitions_that_it_includes_are_read(kafka: dict[str, Any]) -> None:
    filters.included = {0, 2}
    lane = filtered_lane(kafka=kafka).after_run()
    assert calls(lane) == [("orders", 0, 0), ("orders", 2, 0), ("payments", 0, 0), ("payments", 2, 0)]
    assert {tp.partition for _, tp in lane.world.committed} == {0, 2}


def test_a_partition_that_it_excludes_later_is_parked_and_continues_at_its_floor() -> None:
    filters.included = {0, 1}
    lane = filtered_lane().after_run()
    filters.included = {0}
    for tp in (TP, TP1):
        lane.produce(OK, tp=tp)
    result = lane.run()
    assert (result.plans[0].partitions[TP1].why, lane.world.committed[GROUP, TP1].offset) == (PARKED, 1)
    filters.included = {0, 1}
    lane.run()
    assert calls(lane) == [("orders", 0, 0), ("orders", 1, 0), ("orders", 0, 1), ("orders", 1, 1)]


def test_a_partition_that_it_includes_later_is_read_from_its_log_start_and_no_record_is_skipped() -> None:
    """Even under `start: latest`: the filter may have excluded the topic, or the topic may be new (S32)."""
    lane = filtered_lane(start="latest", kafka={"topics": ["orders", "payments"]})
    filters.included = set()
    plan.plan(lane.adapters())
    filters.included = {1}
    lane.run()
    assert calls(lane) == [("orders", 1, 0), ("payments", 1, 0)]
    plans = lane.world.tables.plans.values()
    reasons = {planned.why for stored in plans for planned in stored.partitions.values()}
    assert "the topic was missing, or filtered out, at the last turn: log start" in reasons


@pytest.mark.parametrize(("function", "problem"), [
    ("raises", r"called for orders\[0\], raised LookupError: no such shard: 0; nothing was planned"),
    ("exits", "raised SystemExit"),
    ("returns_a_number", "returned a int, not True or False"),
])  # fmt: skip
def test_an_error_of_the_filter_stops_the_plan_and_nothing_is_stored(function: str, problem: str) -> None:
    lane = filtered_lane(function)
    for make_plan in (plan.plan, plan.preview):
        with pytest.raises(ConfigError, match=problem) as caught:
            make_plan(lane.adapters())
        assert caught.value.key == "kafka.partition_filter"
    assert lane.world.history == []


@pytest.mark.parametrize(("path", "problem"), [
    (f"{MODULE}:nothing", "does not import: AttributeError"),
    ("tests.nowhere:at_all", "does not import: ModuleNotFoundError"),
    (f"{MODULE}:NUMBER", "is not a function"),
    (f"{MODULE}:asynchronous", "is asynchronous"),
    (f"{MODULE}:takes_a_partition_only", "does not take a topic and a partition"),
])  # fmt: skip
def test_a_function_that_cannot_be_a_filter_is_refused_when_the_pipeline_is_opened(path: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_partition_filter(path)


def test_two_files_with_one_group_and_topic_are_refused_whatever_their_filters_return(
    write_file: Write, tmp_path: Path
) -> None:
    """Otherwise only the code of two filters would keep them from committing the offsets of the same partition."""
    write_file(CHOSEN)
    write_file(CHOSEN, ("name: orders", "name: other"), (":chosen", ":raises"), name="b.yaml")
    assert len(load_folder(tmp_path).broken) == 2
