"""Decoders and streams through whole runs: what does not decode is a failure like any other, and nothing is silent."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ackline.errors import FatalError, TransientError
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of
from tests.schema_registry import StubRegistry, stub_registry

BROKEN = b'{"customer": "c4n4ry", \xff'
ORDER = {
    "type": "record",
    "name": "order",
    "fields": [{"name": "fail", "type": "int"}, {"name": "customer", "type": "string"}],
}


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    """A schema registry."""
    with stub_registry() as stub:
        yield stub


def error_classes(lab: Lab) -> list[tuple[int, int, str | None]]:
    rows = [(row["offset"], row["attempt"], row["error_class"]) for row in lab.table("outcomes")]
    return sorted(row for row in rows if row[2] is not None)


def test_s44_what_does_not_decode_is_retried_and_dies_with_its_bytes_in_the_letter(lab: MakeLab) -> None:
    one = lab(decode={"value": "json"}, retry={"initial_delay": "1m", "period": "1m", "max_retries": 1})
    one.produce({"n": 0}, BROKEN, {"fail": 1})
    one.run()
    assert one.rows() == [Row(0, 1, "acked"), Row(1, 1, "failed"), Row(2, 1, "failed")]
    assert one.offsets() == [0, 2], "the handler never sees what was not decoded"
    one.wait(60)
    one.run()
    assert one.handled() == [(2, 2)]
    assert one.rows() == [
        Row(0, 1, "acked"), Row(1, 0, "dead"), Row(1, 1, "failed"), Row(1, 2, "failed"),
        Row(2, 1, "failed"), Row(2, 2, "acked"),
    ]  # fmt: skip
    assert error_classes(one)[:3] == [(1, 0, "Undecodable"), (1, 1, "Undecodable"), (1, 2, "Undecodable")]
    (letter,) = one.letters()
    assert letter.value == BROKEN
    assert dict(letter.headers)["ackline.error_class"] == b"Undecodable"
    assert "c4n4ry" not in str(one.table("outcomes"))
    assert one.committed() == 3


def test_what_does_not_decode_need_not_be_tried_again(lab: MakeLab) -> None:
    one = lab(decode={"value": "json"}, retry={"initial_delay": "1h", "by_error": {"Undecodable": "never"}})
    one.produce(BROKEN, {"fail": 1})
    one.run()
    assert one.rows() == [Row(0, 0, "dead"), Row(0, 1, "failed"), Row(1, 1, "failed")]
    assert one.pending() == [1]


def test_what_no_stream_wants_is_a_row_and_the_floor_passes_it(lab: MakeLab) -> None:
    one = lab(
        topics=2,
        handler=None,
        decode={"value": "json"},
        streams=[{"name": "even", "filter": "tests.e2e.handlers:even", "handler": "ackline.testing.journal:handle"}],
    )
    one.produce({"n": 0}, {"n": 1}, {"n": 2})
    one.produce({"n": 3}, {"n": 4}, topic=one.topics[1])
    one.run()
    assert one.rows() == [Row(0, 1, "acked"), Row(1, 1, "skipped"), Row(2, 1, "acked")]
    assert one.rows(topic=one.topics[1]) == [Row(0, 1, "skipped"), Row(1, 1, "acked")]
    assert {error_class for _, _, error_class in error_classes(one)} == {"Unmatched"}
    assert (one.committed(), one.committed(topic=one.topics[1])) == (3, 2)


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_while_the_registry_is_away_nothing_is_stored_and_nothing_lost(
    lab: MakeLab, stub: StubRegistry, guarantee: str
) -> None:
    one = lab(guarantee=guarantee, schema_registry={"url": stub.url}, decode={"value": "avro"})
    one.produce(*(stub.avro(ORDER, {"fail": 0, "customer": "Alice"}, one.topic) for _ in range(3)))
    stub.broken = 400  # asked once; of what is worth another try the client makes several
    with pytest.raises(FatalError, match="does not answer like a schema registry"):
        one.run()
    stub.broken = None
    one.define(schema_registry={"url": "http://127.0.0.1:1"})
    with pytest.raises(TransientError, match="can't be reached"):
        one.run()
    assert (one.table("outcomes"), one.handled(), one.committed()) == ([], [], None)
    one.define(schema_registry={"url": stub.url})
    one.run()
    assert one.rows() == all_of("acked", range(3))
    assert one.committed() == 3


def test_i13_the_registrys_password_shows_nowhere(lab: MakeLab, stub: StubRegistry) -> None:
    """The whole command: it logs in by what the Kafka connection says, and neither prints nor stores it."""
    one = lab(kafka={"connection": "shop"}, schema_registry="connection", decode={"value": "avro"})
    one.produce(stub.avro(ORDER, {"fail": 1, "customer": "Alice"}, one.topic))
    stub.login = "me:c4n4ry-password"
    address = stub.url.replace("//", f"//{stub.login}@")
    extra = {"bootstrap.servers": one.broker.bootstrap, "schema.registry.url": address}
    env = {"AIRFLOW_CONN_SHOP": json.dumps({"conn_type": "kafka", "extra": extra})}
    said = [one.command(*arguments, one.name, env=env) for arguments in (("doctor",), ("run", "--json"), ("status",))]
    assert [done.returncode for done in said] == [0, 0, 0], "\n".join(done.stdout + done.stderr for done in said)
    assert f"reachable, {stub.url}" in said[0].stdout.replace("\n", " ")
    assert json.loads(said[1].stdout.splitlines()[-1])["outcomes"] == {"failed": 1}
    text = "".join(done.stdout + done.stderr for done in said)
    for file in Path(one.audit).rglob("*"):
        text += file.read_bytes().decode(errors="replace") if file.is_file() else ""
    assert not [secret for secret in ("c4n4ry", "Alice") if secret in text]

    env = {"AIRFLOW_CONN_SHOP": json.dumps({"conn_type": "kafka", "extra": {**extra, "schema.registry.url": stub.url}})}
    refused = one.command("run", one.name, env=env)
    assert refused.returncode == 2
    assert "refuses the login (HTTP 401)" in refused.stderr.replace("\n", " ")
