"""Protobuf with a registry over HTTP: nested messages, references, and what is wrong with a record or the registry."""

import base64
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import any_pb2, descriptor_pb2, text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ackline.errors import ConfigError, FatalError, TransientError
from ackline.handler import Record
from ackline.kafka.registry import Registry
from ackline.pipeline.streams import Undecodable
from tests.ledger.strategies import REPEATABLE
from tests.support.schema_registry import StubRegistry
from tests.support.shop_messages import DECODED, Label, Line, order

RECORD = Record("orders", 0, 0, None, None, None, (), 1)


def decoded(registry: Registry, data: bytes, record: Record = RECORD) -> Any:
    return registry.decoder("protobuf", "value")(data, record)


def refused(registry: Registry, data: bytes, record: Record = RECORD) -> str:
    with pytest.raises(Undecodable) as raised:
        decoded(registry, data, record)
    return str(raised.value)


def test_what_confluents_serializer_writes_is_read_back(stub: StubRegistry, registry: Registry) -> None:
    """The order refers to two other files, one of which refers to the other."""
    decode, key = registry.decoder("protobuf", "value"), stub.protobuf(Line(sku="tea"), field="key")
    first, second, nested = (stub.protobuf(message) for message in (Line(sku="tea"), order(), Label(text="top")))
    assert (first[5:6], second[5:7], nested[5:9]) == (b"\0", b"\x02\x02", b"\x06\x02\x02\0"), "the indexes"
    for _ in range(20):
        assert decode(first, RECORD) == {"sku": "tea"}
        assert decode(second, RECORD) == DECODED
        assert decode(nested, RECORD) == {"text": "top"}
        assert registry.decoder("protobuf", "key")(key, RECORD) == {"sku": "tea"}


def test_a_decoder_requests_each_schema_once(stub: StubRegistry, registry: Registry) -> None:
    decode, data = registry.decoder("protobuf", "value"), stub.protobuf(order())
    for _ in range(50):
        decode(data, RECORD)
    assert stub.schema_requests.total() <= 3


def test_a_single_zero_and_the_list_of_a_zero_name_the_first_message(stub: StubRegistry, registry: Registry) -> None:
    data = stub.protobuf(Line(sku="tea"))
    assert decoded(registry, data[:5] + b"\x02\0" + data[6:]) == decoded(registry, data) == {"sku": "tea"}


def test_the_id_of_a_schema_may_be_in_a_header(stub: StubRegistry, registry: Registry) -> None:
    data = stub.protobuf(order())
    record = replace(RECORD, headers=(("__value_schema_id", data[:7]),))
    assert decoded(registry, data[7:], record) == DECODED


def test_a_registry_may_store_a_descriptor_as_it_was_registered(stub: StubRegistry, registry: Registry) -> None:
    schema = descriptor_pb2.FileDescriptorProto()
    text_format.Parse('name: "a.proto" message_type { name: "Empty" }', schema)
    stub.schemas.append({"schemaType": "PROTOBUF", "schema": base64.b64encode(schema.SerializeToString()).decode()})
    stub._formatted = lambda schema, fmt: (501, {}) if fmt else (200, schema)  # type: ignore[method-assign]
    assert decoded(registry, b"\0\0\0\0\x01\0") == {}


def test_s44_what_is_no_message_of_its_schema_is_undecodable(stub: StubRegistry, registry: Registry) -> None:
    data = stub.protobuf(order())
    avro = stub.avro("string", "Alice")
    no_message = "the value names a message that its schema does not have"
    for value, reason in [
        (b"", "the value does not begin with the id of a schema"),
        (b"Alice", "the value does not begin with the id of a schema"),
        (data[:3], "the value is not protobuf"),
        (data[:5], "the value is not protobuf"),
        (data[:6], "the value is not protobuf"),
        (data[:-1], "the value is not protobuf that matches its schema: DecodeError"),
        (data[:5] + b"\x02\x04Alice", no_message),
        (data[:5] + b"\x02\x01Alice", no_message),  # -1
        (data[:5] + b"\x04\x02\0Alice", no_message),  # an entry of a map
        (data[:5] + b"\x06\x02\x02\x02Alice", no_message),
        (data[:5] + b"\x01Alice", "the value is not protobuf"),  # a list of -1 indexes
        (data[:5] + b"\xff" * 40, "the value is not protobuf"),
        (data[:7] + b"\x12\x07\x0a\x05Al\xffce", "the value is not protobuf"),
        (avro, "the value names a schema that is not Protobuf"),
        (b"\0\0\0\0\x63\0Alice", "the value names a schema that the registry does not have"),
        (b"\0\xff\xff\xff\xff\0Alice", "the value names a schema id that is too large"),
        (b"\1" + b"g" * 16 + b"\0Alice", "the value names a schema that the registry does not have"),
    ]:
        message = refused(registry, value)
        assert message.startswith(reason), value
        assert "Al" not in message


def test_a_message_of_no_known_type_inside_another_is_undecodable(stub: StubRegistry, registry: Registry) -> None:
    data = stub.protobuf(any_pb2.Any(type_url="x/shop.Gone", value=b"Alice"))
    assert "TypeError" in refused(registry, data)


def test_a_reference_that_the_registry_does_not_have_is_undecodable(stub: StubRegistry, registry: Registry) -> None:
    data = stub.protobuf(order())
    stub.schemas[2] = {**stub.schemas[2], "references": [{"name": "a.proto", "subject": "a", "version": 99}]}
    assert refused(registry, data) == "the value names a schema that the registry does not have"
    stub.schemas[2] = {**stub.schemas[2], "references": []}
    fresh = Registry({"url": stub.url})
    assert "is not protobuf that matches its schema" in refused(fresh, data)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_registry_that_is_not_ready_is_a_transient_error(stub: StubRegistry, registry: Registry, status: int) -> None:
    data = stub.protobuf(order())
    stub.broken = status
    with pytest.raises(TransientError, match=f"not ready .HTTP {status}"):
        decoded(registry, data)
    stub.broken = None
    assert decoded(registry, data) == DECODED


def test_an_unreachable_registry_or_a_refused_login_is_no_fault_of_the_record(stub: StubRegistry) -> None:
    data = stub.protobuf(order())
    with pytest.raises(TransientError, match="can't be reached"):
        decoded(Registry({"url": "http://127.0.0.1:1", "max.retries": 0}), data)
    with pytest.raises(FatalError, match="does not answer like a schema registry"):
        decoded(Registry({"url": f"{stub.url}/wrong"}), data)
    stub.login = "me:hunter2"
    with pytest.raises(ConfigError, match="HTTP 401"):
        decoded(Registry({"url": stub.url}), data)


def test_a_registry_that_gives_no_descriptors_is_refused_and_no_record_blamed(
    stub: StubRegistry, registry: Registry
) -> None:
    data = stub.protobuf(order())
    stub.serialized = False
    with pytest.raises(FatalError, match="does not give Protobuf schemas as descriptors"):
        decoded(registry, data)
    stub._formatted = lambda schema, fmt: (501 if fmt else 200, {**schema, "schema": "text"})  # type: ignore[method-assign]
    with pytest.raises(FatalError, match="does not give Protobuf schemas as descriptors"):
        decoded(Registry({"url": stub.url}), data)


def test_a_rule_for_readers_that_nothing_can_apply_is_not_passed_over(stub: StubRegistry, registry: Registry) -> None:
    """A handler would get an encrypted field as it was stored."""
    data = stub.protobuf(order())
    rule = {"name": "r", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "NO_SUCH_TYPE", "onFailure": "ERROR"}
    stub.schemas[2] = {**stub.schemas[2], "ruleSet": {"domainRules": [rule]}}
    assert "is not protobuf that matches its schema" in refused(registry, data)


@settings(REPEATABLE, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(), st.integers(0, 20))
def test_i17_any_bytes_are_decoded_or_undecodable_and_nothing_else(
    stub: StubRegistry, registry: Registry, more: bytes, kept: int
) -> None:
    data = stub.protobuf(order()) if not stub.schemas else b"\0\0\0\0\x03\x02\x02" + order().SerializeToString()
    decode = registry.decoder("protobuf", "value")
    for value in (more, data[:kept] + more, data + more):
        with suppress(Undecodable):
            assert isinstance(decode(value, RECORD), dict)
