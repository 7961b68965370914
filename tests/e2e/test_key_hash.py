"""What became of order 4711: records found by their key, in a table that holds no key, on a real broker and Spark."""

import json

import pytest

from ackline.errors import ConfigError
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab

SECRET = "canary-of-the-key-hashes"
HASHED = {"audit": {"key_hash": True}}


def environment(lane: Lab, **extra: str) -> dict[str, str]:
    fields = {"conn_type": "kafka", "extra": {"bootstrap.servers": lane.broker.bootstrap, **extra}}
    return {"AIRFLOW_CONN_SHOP": json.dumps(fields)}


def produce(lane: Lab, *records: tuple[bytes | None, bytes]) -> None:
    wire.produce(lane.broker.bootstrap, lane.topic, [wire.Write(value, key=key) for key, value in records])


def found(lane: Lab, *options: str) -> list[tuple[int, int, str]]:
    connection = environment(lane, **{"ackline.key_hash_secret": SECRET})
    done = lane.ackline("audit", lane.name, "--json", *options, env=connection)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    return [(row["offset"], row["attempt"], row["outcome"]) for row in rows]


@pytest.mark.parametrize("guarantee", ["at_least_once", pytest.param("at_most_once", marks=pytest.mark.deep)])
def test_a_key_finds_all_that_became_of_its_records_their_retries_and_decisions_too(
    lab: MakeLab, guarantee: str
) -> None:
    lane = lab(kafka={"connection": "shop"}, guarantee=guarantee, retry={"period": "1s", "max_retries": 1}, **HASHED)
    produce(lane, (b"4711", b'{"fail": -1}'), (b"4712", b"{}"), (None, b"{}"), (b"4711", b"{}"), (b"\xff\x00", b"{}"))
    connection = environment(lane, **{"ackline.key_hash_secret": SECRET})
    for _ in range(2):
        done = lane.ackline("run", lane.name, "--now", lane.now.isoformat(), env=connection)
        assert done.returncode == 0, done.stderr
        lane.advance_clock(3600)
    of_first = {
        "at_least_once": [(0, 1, "failed"), (0, 2, "failed"), (0, 0, "dead")],
        "at_most_once": [(0, 1, "dropped")],
    }
    assert found(lane, "--key", "4711") == [*of_first[guarantee], (3, 1, "acked")]
    assert found(lane, "--key-hex", "FF00") == [(4, 1, "acked")]
    assert found(lane, "--key", "4713") == []
    assert len({row["key_hash64"] for row in lane.table("outcomes")} - {None}) == 3
    assert {row["key_hash64"] for row in lane.table("outcomes") if row["offset"] == 2} == {None}
    assert not any(SECRET in str(row) or "4711" in str(row["error_message"]) for row in lane.table("outcomes"))


def test_without_a_secret_nothing_is_planned_and_the_error_names_the_extra(lab: MakeLab) -> None:
    lane = lab(kafka={"connection": "shop"}, **HASHED)
    produce(lane, (b"4711", b"{}"))
    for extra in ({}, {"ackline.key_hash_secret": "too short"}):
        done = lane.ackline("run", lane.name, env=environment(lane, **extra))
        assert done.returncode == ConfigError.exit_status
        assert "`ackline.key_hash_secret`" in done.stderr
        assert "too short" not in done.stderr
    assert lane.table("plans") == []
    for command in (["audit", lane.name, "--key", "4711"], ["plan", lane.name], ["doctor", lane.name]):
        assert lane.ackline(*command, env=environment(lane)).returncode != 0, command


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["--key", "a", "--key-hex", "61"], "write one of them"), (["--key-hex", "6"], "two hexadecimal digits")],
)
def test_a_key_that_can_not_be_understood_is_refused(lab: MakeLab, options: list[str], reason: str) -> None:
    lane = lab(kafka={"connection": "shop"}, **HASHED)
    done = lane.ackline("audit", lane.name, *options, env=environment(lane, **{"ackline.key_hash_secret": SECRET}))
    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
