"""The settings of the schema registry, from the pipeline file and the extra of the Kafka connection.

Avro and JSON Schema with a registry over HTTP: when the record is wrong, the registry, or the configuration.
"""

import json
import socket
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from ackline.errors import ConfigError, FatalError, TransientError
from ackline.handler import Record
from ackline.kafka.registry import Registry, registry_config, without_registry_settings
from ackline.pipeline.streams import Undecodable
from tests.support.schema_registry import StubRegistry

CONNECTION = {
    "bootstrap.servers": "127.0.0.1:9092", "schema.registry.url": "https://me:hunter%402@registry:8081/path",
    "schema.registry.basic.auth.credentials.source": "USER_INFO", "schema.registry.timeout": "2.5",
    "schema.registry.max.retries": "1", "schema.registry.ssl.ca.location": None,
}  # fmt: skip


def test_i13_the_login_leaves_the_address_and_each_setting_has_its_type() -> None:
    assert dict(registry_config(None, CONNECTION)) == {
        "url": "https://registry:8081/path",
        "basic.auth.user.info": "me:hunter@2",
        "timeout": 2.5,
        "max.retries": 1,
    }


def test_the_address_of_the_file_is_used_with_the_login_of_the_connection() -> None:
    connection = {"schema.registry.url": "http://y", "schema.registry.basic.auth.user.info": "me:2"}
    assert dict(registry_config("http://x", connection)) == {"url": "http://x", "basic.auth.user.info": "me:2"}


def test_kafkas_clients_get_no_setting_of_the_registry() -> None:
    assert without_registry_settings(CONNECTION) == {"bootstrap.servers": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("url", "connection", "reason"),
    [
        (None, {"bootstrap.servers": "x"}, r"no `schema\.registry\.url`"),
        ("http://x", {"schema.registry.max.retries": "many"}, r"`schema\.registry\.max\.retries` is not a number"),
        ("http://x", {"schema.registry.timeout": [1]}, r"`schema\.registry\.timeout` is a list"),
    ],
)
def test_a_missing_address_or_an_invalid_setting_is_refused_by_name(
    url: str | None, connection: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        registry_config(url, connection)


STATUS = {"type": "enum", "name": "status", "symbols": ["OPEN", "CANCELLED"]}
FIELDS = {"id": "long", "customer": "string", "status": STATUS}
ORDER = {"type": "record", "name": "order", "fields": [{"name": name, "type": of} for name, of in FIELDS.items()]}
ALICE = {"id": 123_456, "customer": "Alice", "status": "CANCELLED"}
DOCUMENT = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "order", "type": "object",
    "properties": {"id": {"type": "integer"}}, "required": ["id"],
}  # fmt: skip
RECORD = Record("orders", 0, 0, None, None, None, (), 1)


def refused(registry: Registry, word: str, data: bytes, record: Record = RECORD) -> str:
    with pytest.raises(Undecodable) as raised:
        registry.decoder(word, "value")(data, record)
    return str(raised.value)


def test_what_confluents_serializers_write_is_read_back(stub: StubRegistry, registry: Registry) -> None:
    avro, key = stub.avro(ORDER, ALICE), stub.avro("string", "k", field="key")
    document = stub.json_schema(DOCUMENT, {"id": 7})
    assert (avro[:1], document[5:]) == (b"\0", b'{"id":7}')
    for _ in range(20):
        assert registry.decoder("avro", "value")(avro, RECORD) == ALICE
        assert registry.decoder("avro", "key")(key, RECORD) == "k"
        assert registry.decoder("json_schema", "value")(document, RECORD) == {"id": 7}
    assert set(stub.schema_requests) == {1, 2, 3}
    assert stub.schema_requests.total() < 12, "a process requests each schema once"


def test_s44_a_value_that_does_not_match_its_schema_is_undecodable(stub: StubRegistry, registry: Registry) -> None:
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
        ("avro", b"\0\0\0\0\x63Alice", "names a schema that the registry does not have"),
        ("avro", b"\0\xff\xff\xff\xffAlice", "names a schema id that is too large"),
        ("json_schema", framed + b'{"id": "Alice"}', "does not meet its schema at properties/id/type"),
        ("json_schema", framed + b"{}", "does not meet its schema at required"),
        ("json_schema", framed + b"{Alice", "is not JSON: line 1, column 2"),
        ("json_schema", framed + b"[" * 100_000, "nested too deep"),
        ("json_schema", framed + b"\xff", "is not UTF-8"),
    ]:
        message = refused(registry, word, data)
        assert message.startswith("the value ")
        assert reason in message
        assert "Alice" not in message


GUID = b"\1" + b"g" * 16
"""What clients take for the GUID of a schema, before a value or in a header: any bytes may begin so."""


def test_i17_bytes_that_mean_a_guid_or_a_large_id_are_undecodable_by_a_registry_without_them(
    stub: StubRegistry, registry: Registry
) -> None:
    unknown, large = "the value names a schema that the registry does not have", "the value names a schema id that is"
    stub.avro(ORDER, ALICE)
    for word in ("avro", "json_schema"):
        assert refused(registry, word, GUID + b"Alice") == unknown
    for header, reason in ((GUID, unknown), (b"\0\xff\xff\xff\xff", large)):
        record = replace(RECORD, headers=(("__value_schema_id", header),))
        assert refused(registry, "json_schema", b"{}", record).startswith(reason)


def test_an_unknown_schema_is_not_requested_for_each_of_a_million_records(
    stub: StubRegistry, registry: Registry
) -> None:
    for _ in range(50):
        refused(registry, "avro", b"\0\0\0\0\x63Alice")
    assert stub.schema_requests[0x63] < 5


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_registry_that_is_not_ready_is_a_transient_error(stub: StubRegistry, registry: Registry, status: int) -> None:
    avro = stub.avro(ORDER, ALICE)
    stub.broken = status
    with pytest.raises(TransientError, match=f"not ready .HTTP {status}"):
        registry.decoder("avro", "value")(avro, RECORD)
    stub.broken = None
    assert registry.decoder("avro", "value")(avro, RECORD) == ALICE


def test_an_unreachable_registry_is_a_transient_error(stub: StubRegistry) -> None:
    avro = stub.avro(ORDER, ALICE)
    unreachable = Registry({"url": "http://127.0.0.1:1", "max.retries": 0})
    with pytest.raises(TransientError, match="can't be reached"):
        unreachable.decoder("avro", "value")(avro, RECORD)
    with pytest.raises(TransientError, match="can't be reached"):
        unreachable.check()


def test_a_registry_that_answers_too_late_is_a_transient_error(stub: StubRegistry) -> None:
    avro = stub.avro(ORDER, ALICE)
    stub.delay = 0.5
    with pytest.raises(TransientError, match=r"can't be reached .*Timeout"):
        Registry({"url": stub.url, "max.retries": 0, "timeout": 0.1}).decoder("avro", "value")(avro, RECORD)


@pytest.mark.parametrize(
    ("host", "reason"),
    [("8.8.8.8", r"host 8\.8\.8\.8, ConnectError"), ("schemas.example", r"host schemas\.example, gaierror")],
)
def test_a_schema_that_refers_to_a_host_that_does_not_answer_or_resolve_is_a_transient_error(
    stub: StubRegistry, registry: Registry, monkeypatch: pytest.MonkeyPatch, host: str, reason: str
) -> None:
    """Confluent's client fetches such a schema itself, and from public addresses only."""
    resolve = socket.getaddrinfo

    def answer(name: str, *others: Any, **named: Any) -> Any:
        if name == "schemas.example":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(name, *others, **named)

    def refuse(url: str, **_: object) -> None:
        raise httpx2.ConnectError(f"no way to {url}")

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    monkeypatch.setattr(httpx2, "get", refuse)
    framed = stub.json_schema(DOCUMENT, {"id": 7})
    reference = {"$ref": f"http://me:hunter2@{host}/id.json"}
    stub.schemas[0]["schema"] = json.dumps({**DOCUMENT, "properties": {"id": reference}})
    with pytest.raises(TransientError, match=reason) as raised:
        registry.decoder("json_schema", "value")(framed, RECORD)
    assert "hunter2" not in str(raised.value)


def test_a_registry_that_refuses_the_login_is_a_configuration_error(stub: StubRegistry) -> None:
    avro = stub.avro(ORDER, ALICE)
    stub.login = "me:hunter2"
    for login in ({}, {"basic.auth.user.info": "me:wrong-canary"}):
        registry = Registry({"url": stub.url, **login})
        with pytest.raises(ConfigError, match=r"HTTP 401.*basic\.auth\.user\.info") as raised:
            registry.decoder("avro", "value")(avro, RECORD)
        assert "canary" not in str(raised.value)
    allowed = Registry({"url": stub.url, "basic.auth.user.info": "me:hunter2"})
    assert allowed.decoder("avro", "value")(avro, RECORD) == ALICE
    assert allowed.check() == stub.url


def test_an_address_of_no_registry_makes_no_record_undecodable(stub: StubRegistry) -> None:
    """A wrong path answers 404 to everything. A registry's answer about an unknown schema is a different one."""
    avro = stub.avro(ORDER, ALICE)
    for data in (avro, GUID + b"Alice"):
        with pytest.raises(FatalError, match="does not answer like a schema registry"):
            Registry({"url": f"{stub.url}/wrong"}).decoder("avro", "value")(data, RECORD)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"no.such": "x"}, "no.such"),
        ({"basic.auth.user.info": "canary"}, "username"),
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "No such file"),
    ],
)
def test_invalid_settings_are_refused_before_the_first_request(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        Registry({"url": "http://127.0.0.1:1", **settings})
    assert "canary" not in str(raised.value)
