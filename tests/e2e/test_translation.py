"""Decoders and streams in whole runs: what does not decode is a failure like any other, and each record has a row."""

import json
from pathlib import Path

import pytest

from ackline.errors import FatalError, TransientError
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of
from tests.support.schema_registry import StubRegistry

BROKEN = b'{"customer": "c4n4ry", \xff'
ORDER = {
    "type": "record",
    "name": "order",
    "fields": [{"name": "fail", "type": "int"}, {"name": "customer", "type": "string"}],
}


def test_s44_what_does_not_decode_is_retried_and_dead_and_what_no_stream_takes_is_skipped(lab: MakeLab) -> None:
    even = {"name": "even", "filter": "tests.e2e.handlers:even", "handler": "tests.support.journal:handle"}
    retry = {"initial_delay": "1m", "period": "1m", "max_retries": 1}
    lane = lab(handler=None, decode={"value": "json"}, streams=[even], retry=retry)
    lane.produce({"n": 0}, BROKEN, {"n": 2, "fail": 1}, {"n": 3})
    lane.run()
    assert lane.new_offsets() == [0, 2], "neither the broken record nor the odd one reaches the handler"
    lane.advance_clock(60)
    lane.run()
    assert lane.new_calls() == [(2, 2)]
    assert lane.rows() == [
        Row(0, 1, "acked"), Row(1, 0, "dead"), Row(1, 1, "failed"), Row(1, 2, "failed"),
        Row(2, 1, "failed"), Row(2, 2, "acked"), Row(3, 1, "skipped"),
    ]  # fmt: skip
    error_classes = {(row["offset"], row["attempt"]): row["error_class"] for row in lane.table("outcomes")}
    assert [error_classes[1, attempt] for attempt in (0, 1, 2)] == ["Undecodable"] * 3
    assert error_classes[3, 1] == "Unmatched"
    (letter,) = lane.letters()
    assert (letter.value, letter.ackline_headers["error_class"]) == (BROKEN, "Undecodable")
    assert "c4n4ry" not in str(lane.table("outcomes"))
    assert lane.committed() == 4


def test_while_the_registry_is_away_nothing_is_stored_and_at_most_once_loses_nothing(
    lab: MakeLab, stub: StubRegistry
) -> None:
    lane = lab(guarantee="at_most_once", schema_registry={"url": stub.url}, decode={"value": "avro"})
    lane.produce(*(stub.avro(ORDER, {"fail": 0, "customer": "Alice"}, lane.topic) for _ in range(3)))
    stub.broken = 400  # the client sends it once; it repeats requests that may succeed later
    with pytest.raises(FatalError, match="does not answer like a schema registry"):
        lane.run()
    stub.broken = None
    lane.configure(schema_registry={"url": "http://127.0.0.1:1"})
    with pytest.raises(TransientError, match="can't be reached"):
        lane.run()
    assert (lane.table("outcomes"), lane.new_calls(), lane.committed()) == ([], [], None)
    lane.configure(schema_registry={"url": stub.url})
    lane.run()
    assert lane.rows() == all_of("acked", range(3))
    assert lane.committed() == 3


def test_i13_the_registrys_password_shows_nowhere(lab: MakeLab, stub: StubRegistry) -> None:
    """The command logs in by what the Kafka connection holds, and neither prints nor stores it."""
    lane = lab(kafka={"connection": "shop"}, schema_registry="connection", decode={"value": "avro"})
    lane.produce(stub.avro(ORDER, {"fail": 1, "customer": "Alice"}, lane.topic))
    stub.login = "me:c4n4ry-password"

    def env(address: str) -> dict[str, str]:
        extra = {"bootstrap.servers": lane.broker.bootstrap, "schema.registry.url": address}
        return {"AIRFLOW_CONN_SHOP": json.dumps({"conn_type": "kafka", "extra": extra})}

    logged_in = env(stub.url.replace("//", f"//{stub.login}@"))
    doctor, run, status = (
        lane.ackline(command, lane.name, *options, env=logged_in)
        for command, *options in (["doctor"], ["run", "--json"], ["status"])
    )
    texts = [text for done in (doctor, run, status) for text in (done.stdout, done.stderr)]
    assert [done.returncode for done in (doctor, run, status)] == [0, 0, 0], "\n".join(texts)
    assert f"reachable, {stub.url}" in doctor.stdout.replace("\n", " ")
    assert json.loads(run.stdout.splitlines()[-1])["outcomes"] == {"failed": 1}
    texts += [file.read_bytes().decode(errors="replace") for file in Path(lane.audit).rglob("*") if file.is_file()]
    assert not [secret for secret in ("c4n4ry", "Alice") for text in texts if secret in text]

    refused = lane.ackline("run", lane.name, env=env(stub.url))
    assert refused.returncode == 2
    assert "refuses the login (HTTP 401)" in refused.stderr.replace("\n", " ")
