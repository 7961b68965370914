"""Avro and JSON Schema against a registry over HTTP: what is the record's fault, the registry's, or the file's."""

from collections.abc import Iterator

import pytest

from ackline.decode import Undecodable
from ackline.errors import ConfigError, FatalError, TransientError
from ackline.handler import Record
from ackline.kafka.registry import Registry
from tests.schema_registry import StubRegistry, stub_registry

ORDER = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "status", "type": {"type": "enum", "name": "status", "symbols": ["OPEN", "CANCELLED"]}},
    ],
}
ALICE = {"id": 123_456, "customer": "Alice", "status": "CANCELLED"}
DOCUMENT = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "order",
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
}
RECORD = Record("orders", 0, 0, None, None, None, (), 1)


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    """A registry of this test's own."""
    with stub_registry() as stub:
        yield stub


@pytest.fixture
def registry(stub: StubRegistry) -> Iterator[Registry]:
    """Ours, over it; asks once."""
    registry = Registry({"url": stub.url, "max.retries": 0})
    yield registry
    registry.close()


def refused(registry: Registry, word: str, data: bytes) -> str:
    with pytest.raises(Undecodable) as caught:
        registry.decoder(word, "value")(data, RECORD)
    return str(caught.value)


def test_what_confluents_serializers_write_is_read_back(stub: StubRegistry, registry: Registry) -> None:
    avro, key, document = (
        stub.avro(ORDER, ALICE),
        stub.avro("string", "k", field="key"),
        stub.json_schema(DOCUMENT, {"id": 7}),
    )
    assert (avro[:1], document[5:]) == (b"\0", b'{"id":7}')
    for _ in range(3):
        assert registry.decoder("avro", "value")(avro, RECORD) == ALICE
        assert registry.decoder("avro", "key")(key, RECORD) == "k"
        assert registry.decoder("json_schema", "value")(document, RECORD) == {"id": 7}
    assert stub.asked == 3, "a process asks once for each schema"


def test_s44_a_value_that_is_not_what_its_schema_says_is_the_records_fault(
    stub: StubRegistry, registry: Registry
) -> None:
    avro, document = stub.avro(ORDER, ALICE), stub.json_schema(DOCUMENT, {"id": 7})
    framed = document[:5]
    for word, data, reason in [
        ("avro", b"", "does not begin with the id of a schema"),
        ("avro", b"plain text", "does not begin with the id of a schema"),
        ("json_schema", b'{"id": 7}', "does not begin with the id of a schema"),
        ("avro", avro[:3], "is not avro"),
        ("avro", avro[:8], "is not avro"),
        ("avro", avro[:5] + b"\xff" * 40, "is not avro"),
        ("avro", avro[:5] + b"\x02\x0aAl\xffce\x02", "is not avro"),
        ("avro", document, "is not avro"),
        ("avro", b"\0\0\0\0\x63Alice", "names a schema that the registry does not know"),
        ("avro", b"\0\xff\xff\xff\xffAlice", "names a schema id that can't be"),
        ("json_schema", framed + b'{"id": "Alice"}', "does not meet its schema at properties/id/type"),
        ("json_schema", framed + b"{}", "does not meet its schema at required"),
        ("json_schema", framed + b"{Alice", "is not JSON: line 1, column 2"),
        ("json_schema", framed + b"[" * 100_000, "nested too deep"),
        ("json_schema", framed + b"\xff", "is not UTF-8"),
    ]:
        said = refused(registry, word, data)
        assert said.startswith("the value ")
        assert reason in said
        assert "Alice" not in said


def test_an_unknown_schema_is_not_asked_for_by_each_of_a_million_records(
    stub: StubRegistry, registry: Registry
) -> None:
    for _ in range(5):
        refused(registry, "avro", b"\0\0\0\0\x63Alice")
    assert stub.asked == 1


def test_a_registry_that_is_away_or_not_ready_is_tried_again(stub: StubRegistry) -> None:
    avro = stub.avro(ORDER, ALICE)
    for status in (429, 500, 503):
        stub.broken = status
        with pytest.raises(TransientError, match=f"not ready .HTTP {status}"):
            Registry({"url": stub.url, "max.retries": 0}).decoder("avro", "value")(avro, RECORD)
    away = Registry({"url": "http://127.0.0.1:1", "max.retries": 0})
    with pytest.raises(TransientError, match="can't be reached"):
        away.decoder("avro", "value")(avro, RECORD)
    with pytest.raises(TransientError, match="can't be reached"):
        away.check()


def test_a_registry_that_refuses_us_is_a_matter_of_configuration(stub: StubRegistry) -> None:
    avro = stub.avro(ORDER, ALICE)
    stub.login = "me:hunter2"
    for login in ({}, {"basic.auth.user.info": "me:wrong-canary"}):
        registry = Registry({"url": stub.url, **login})
        with pytest.raises(ConfigError, match=r"HTTP 401.*basic\.auth\.user\.info") as caught:
            registry.decoder("avro", "value")(avro, RECORD)
        assert "canary" not in str(caught.value)
    allowed = Registry({"url": stub.url, "basic.auth.user.info": "me:hunter2"})
    assert allowed.decoder("avro", "value")(avro, RECORD) == ALICE
    assert allowed.check() == stub.url


def test_an_address_that_is_no_registrys_buries_no_records(stub: StubRegistry) -> None:
    """A wrong path answers 404 to everything: that is not what an unknown schema looks like."""
    avro = stub.avro(ORDER, ALICE)
    with pytest.raises(FatalError, match="does not answer like a schema registry"):
        Registry({"url": f"{stub.url}/wrong"}).decoder("avro", "value")(avro, RECORD)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"no.such": "x"}, "no.such"),
        ({"basic.auth.user.info": "canary"}, "username"),
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "No such file"),
    ],
)
def test_settings_that_do_not_hold_are_refused_before_anything_is_asked(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Registry({"url": "http://127.0.0.1:1", **settings})
    assert "canary" not in str(caught.value)
