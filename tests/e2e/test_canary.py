"""Canary (I13): a secret in the connection, payloads that nobody would want to see, and where they must not be.

One run as a user starts it, watched from outside: what it prints, the arguments of its processes, Spark's event log,
the tables down to files that no commit names, the page. XCom, Airflow's logs and its database: tests/dags/test_dag.py.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from ackline.audit.queries import AuditFilter
from ackline.ui import lanes, pages
from tests.dags.project import processes
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
    """The handler fails on each record, and its exceptions quote all it knows. Each record has an outcome, also 50 MB
    of JSON, which goes to the dead-letter topic whole."""
    one = lab(
        create=False,
        kafka={"connection": "canary"},
        handler="tests.e2e.handlers:blabs",
        retry={"max_retries": 0},
    )
    _produced(one)
    events = tmp_path / "events"
    events.mkdir()
    argv: dict[int, str] = {}
    with _watched(argv):
        done = one.command("run", one.name, env=_environment(one, events))
    assert done.returncode == 0, done.stderr
    each = range(len(VALUES))
    assert one.rows() == sorted([*all_of("failed", each), *all_of("dead", each, 0)])
    assert [letter.value for letter in one.letters()] == VALUES
    assert {kind for kind in ("SparkSubmit", "pyspark.daemon") if any(kind in line for line in argv.values())} == {
        "SparkSubmit",
        "pyspark.daemon",
    }
    logs = [path.read_text() for path in events.rglob("*") if path.is_file()]
    assert any("SparkListenerJobEnd" in log for log in logs)
    monkeypatch.setenv("ACKLINE_AUDIT", one.audit)
    shown = {
        "output": [done.stdout, done.stderr],
        "arguments": list(argv.values()),
        "event log": logs,
        "tables": list(_stored(one)),
    }
    for where, texts in {**shown, "page": [_page(one)]}.items():
        assert any(texts), where
        assert not [text[:200] for text in texts if SECRET in text or PAYLOAD in text], where
    one.judge(settled=True)


def _produced(one: Lab) -> None:
    for topic in (one.topic, one.dead):
        one.broker.create_topic(topic, config={"max.message.bytes": str(LARGE + 1_000_000)})
    client = Producer(
        {
            "bootstrap.servers": one.broker.bootstrap,
            "enable.idempotence": True,
            "message.max.bytes": LARGE + 1_000_000,
        }
    )
    for value in VALUES:
        client.produce(one.topic, value, f"{PAYLOAD}-key".encode(), headers=[("h", PAYLOAD.encode())])
    assert client.flush(60) == 0


def _environment(one: Lab, events: Path) -> dict[str, str]:
    extra = {"bootstrap.servers": one.broker.bootstrap, "security.protocol": "PLAINTEXT", "sasl.password": SECRET}
    log = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    settings = " ".join(f"--conf spark.eventLog.{name}={value}" for name, value in log.items())
    return {
        "AIRFLOW_CONN_CANARY": json.dumps({"conn_type": "kafka", "extra": extra}),
        "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell",
        "ACKLINE_SPARK_MEMORY": "2g",
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def _watched(seen: dict[int, str]) -> Iterator[None]:
    """Collects the command lines of all processes that appear while the block runs."""
    before, over = {pid for pid, _, _ in processes()}, threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            seen.update({pid: argv for pid, argv, _ in processes() if pid not in before and pid != os.getpid()})

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _stored(one: Lab) -> Iterator[str]:
    """Every file below the audit root, as its bytes, and the values in it where it is compressed."""
    for path in Path(one.audit).rglob("*"):
        if path.is_file():
            yield path.read_bytes().decode(errors="replace")
            if path.suffix == ".parquet":
                yield str(pq.ParquetFile(path).read().to_pylist())


def _page(one: Lab) -> str:
    asked = AuditFilter(topic=one.topic, partition=0, limit=lanes.MOST_ROWS)
    page = pages.pipeline(lanes.lane(one.name), lanes.turns(one.name), asked, lanes.audit(one.name, asked))
    assert "RuntimeError" in page
    return page
