"""A secret in the connection and payloads that must show nowhere (I13), and each place where they might show.

One run as a user starts it, watched from outside: its output, the arguments of its processes, Spark's event log, the
tables with the files that no commit names, the other commands, the page. tests/airflow/test_dag.py has XCom, Airflow's
logs and its database.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from ackline.ledger.turns import LIVE
from ackline.ui import failing, pages, readings
from ackline.ui.links import Addresses
from tests.e2e.commands import watched_arguments
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import ROOT, Lab, all_of

SECRET, PAYLOAD = "canary-4b1d-of-the-connection", "canary-9e07-of-the-payload"
LARGE = 50_000_000
DEEP = 20_000
VALUES = [
    f'{{"card": "{PAYLOAD}"}}'.encode(),
    f"<script>alert('{PAYLOAD}')</script>".encode(),
    f"\0{PAYLOAD}\0".encode(),
    b'{"a":' * DEEP + json.dumps(PAYLOAD).encode() + b"}" * DEEP,
    b'{"pad": "' + PAYLOAD.encode() * (LARGE // len(PAYLOAD)) + b'"}',
]


def test_i13_neither_a_secret_nor_a_payload_is_shown_anywhere(
    lab: MakeLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler fails on each record, and its exceptions quote the whole record. Each record has an outcome, also
    50 MB of JSON, which goes to the dead-letter topic whole."""
    lane = lab(
        create=False,
        kafka={"connection": "canary", "properties": {"ssl.key.password": f"{SECRET}-of-the-file"}},
        handler="tests.e2e.handlers:quotes_the_record",
        retry={"max_retries": 0},
        audit={"key_hash": True},
    )
    _produce_values(lane)
    events = tmp_path / "events"
    events.mkdir()
    environment = _environment(lane, events)
    with watched_arguments() as arguments:
        done = lane.ackline_process("run", lane.name, env=environment)
    assert done.returncode == 0, done.stderr
    offsets = range(len(VALUES))
    assert lane.rows() == sorted([*all_of("failed", offsets), *all_of("dead", offsets, 0)])
    assert [letter.value for letter in lane.letters()] == VALUES
    messages = [letter.ackline_headers["error_message"] for letter in lane.letters()]
    assert "can't handle" in messages[0]
    assert all(0 < len(message) <= 200 for message in messages)
    for program in ("SparkSubmit", "spark.daemon"):
        assert any(program in line for line in arguments.values()), program
    logs = [path.read_text() for path in events.rglob("*") if path.is_file()]
    assert any("SparkListenerJobEnd" in log for log in logs)
    commands = [
        lane.ackline(command, lane.name, *options, env=environment)
        for command, *options in (["status"], ["audit"], ["audit", "--json"], ["plan", "--json"], ["doctor"])
    ]
    assert [command.returncode for command in commands] == [0] * 5
    monkeypatch.setenv("ACKLINE_AUDIT", lane.audit)
    for where, texts in {
        "output": [text for process in (done, *commands) for text in (process.stdout, process.stderr)],
        "arguments": list(arguments.values()),
        "event log": logs,
        "tables": list(_stored_texts(lane)),
        "page": [_page(lane)],
        "headers of dead letters": [str(letter.ackline_headers) for letter in lane.letters()],
    }.items():
        assert any(texts), where
        assert not [text[:200] for text in texts if SECRET in text or PAYLOAD in text], where
    lane.judge(settled=True)


def _produce_values(lane: Lab) -> None:
    for topic in (lane.topic, lane.dead_letter_topic):
        lane.broker.create_topic(topic, config={"max.message.bytes": str(LARGE + 1_000_000)})
    client = Producer(
        {
            "bootstrap.servers": lane.broker.bootstrap,
            "enable.idempotence": True,
            "message.max.bytes": LARGE + 1_000_000,
        }
    )
    for value in VALUES:
        client.produce(lane.topic, value, f"{PAYLOAD}-key".encode(), headers=[("h", PAYLOAD.encode())])
    assert client.flush(60) == 0


def _environment(lane: Lab, events: Path) -> dict[str, str]:
    extra = {
        "bootstrap.servers": lane.broker.bootstrap,
        "security.protocol": "PLAINTEXT",
        "sasl.password": SECRET,
        "ackline.key_hash_secret": f"{SECRET}-of-the-keys",
    }
    log = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    settings = " ".join(f"--conf spark.eventLog.{name}={value}" for name, value in log.items())
    return {
        "AIRFLOW_CONN_CANARY": json.dumps({"conn_type": "kafka", "extra": extra}),
        "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell",
        "ACKLINE_SPARK_MEMORY": "2g",
        "PYTHONPATH": str(ROOT),
    }


def _stored_texts(lane: Lab) -> Iterator[str]:
    """Yields the bytes of every file below the audit root, and the values of the compressed ones."""
    for path in Path(lane.audit).rglob("*"):
        if path.is_file():
            yield path.read_bytes().decode(errors="replace")
            if path.suffix == ".parquet":
                yield str(pq.ParquetFile(path).read().to_pylist())


def _page(lane: Lab) -> str:
    """Returns every view of the lane: the pipeline, its groups of failing records, its records and its turns."""
    addresses, reading = Addresses("/ackline/", ""), readings.read_lane(lane.name)
    groups = failing.failures(reading)
    views = [pages.pipeline(reading, [LIVE], groups, [], addresses)]
    for group in groups:
        records = failing.failing_records(reading, group.kind, group.error_class)
        views.append(pages.failing(reading, group.kind, group.error_class, records, [], addresses))
    for part in reading.partitions:
        views.append(pages.partition(reading, part, [], addresses))
        for offset in range(len(VALUES)):
            record = readings.read_record(reading, part.tp, offset)
            views.append(pages.record(reading, part.tp, offset, record, [], addresses))
    for totals in reading.turns:
        turn = readings.read_turn(lane.name, LIVE, totals.turn.epoch, totals.turn.n)
        assert turn is not None
        views.append(pages.turn(turn, addresses))
    page = "".join(views)
    assert "RuntimeError" in page
    return page
