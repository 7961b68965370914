"""Where the secrets of connections and the records of a pipeline are after runs in an Airflow, and nowhere else (I13).

Each secret and each part of a record is a random text of its own, in connections of Airflow's database. The test looks
for all of them, plain and in the encodings in which a program would pass them on, wherever two runs leave something:
docs/security.md lists the places that may hold them, and so does `EXPECTED`.
"""

import base64
import json
import os
import secrets
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from ackline.delta.object_store import arrow_filesystem
from ackline.local.airflow_servers import LocalAirflow
from ackline.local.processes import free_ports
from tests.airflow.project import ROOT, Project, ServedAirflow, processes
from tests.airflow.served import migrate
from tests.conftest import MakeTopic
from tests.e2e.wire import read
from tests.support.object_store.store import REGION, ObjectStore
from tests.ui.test_page import get

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SECONDS = 400.0
RECORDS = 4
HANDLER = """
import logging, sys
from ackline import Emit

def handle(record):
    print("printed: {said}", file=sys.stderr)
    logging.getLogger("shop").error("logged: {said}")
    if record.offset == 0:
        yield Emit({{"value": record.value.decode()}})
        return
    raise ValueError(f"no price for {{record.key!r}} in {{record.value!r}} with {{record.headers!r}}")
"""
EXPECTED = {
    "said": "Airflow's logs",
    "value": "output table",
}
"""The one place of each text that a handler hands on itself: what it prints, and the rows that it emits."""


def canaries() -> dict[str, str]:
    """Returns a text for each secret and each part of a record. Passwords have characters that an address escapes."""
    passwords = ("kafka password", "key hash secret", "s3 secret key", "spark password", "spark extra")
    made = {name: f"{secrets.token_hex(8)}/+{secrets.token_hex(8)}" for name in passwords}
    return made | {name: f"cnry{secrets.token_hex(10)}" for name in ("key", "value", "header", "said")}


def needles(text: str) -> list[bytes]:
    """Returns a text as it is, in hexadecimal, escaped for an address, and in base64 wherever it may begin there."""
    raw = text.encode()
    found = [raw, raw.hex().encode(), quote(text, safe="").encode(), quote(text).encode(), json.dumps(text).encode()]
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw)
        # The first and the last characters also hold bits of what stands beside the text.
        found.append(encoded[4 if before else 0 : -4])
    return found


def found_in(content: bytes, canaries: Mapping[str, str]) -> set[str]:
    return {name for name, text in canaries.items() if any(needle in content for needle in needles(text))}


@contextmanager
def watched(ui: str) -> Iterator[dict[str, bytes]]:
    """Collects arguments and environment of all processes that appear, and what the REST API of Spark's UI answers."""
    seen: dict[str, bytes] = {}
    before, done = {pid for pid, _, _ in processes()}, threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            for pid, argv, env in processes():
                if pid not in before and pid != os.getpid():
                    seen[f"process {pid} {argv}"] = f"{argv}\n{env}".encode()
            with suppress(OSError, ValueError, LookupError):  # it does not run yet, or not any more
                applications = json.loads(urllib.request.urlopen(ui, timeout=2).read())
                for view in ("environment", "jobs", "stages", "allexecutors", "sql?details=true"):
                    address = f"{ui}/{applications[0]['id']}/{view}"
                    seen[f"Spark's UI: {view}"] = urllib.request.urlopen(address, timeout=2).read()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def connections(project: Project, store: ObjectStore, canaries: Mapping[str, str]) -> dict[str, dict[str, object]]:
    kafka = {
        "bootstrap.servers": project.bootstrap, "security.protocol": "PLAINTEXT",
        "sasl.password": canaries["kafka password"], "ackline.key_hash_secret": canaries["key hash secret"],
    }  # fmt: skip
    s3 = {"endpoint_url": store.endpoint, "region_name": REGION, "allow_http": True}
    return {
        "leaks": {"conn_type": "kafka", "extra": kafka},
        "store": {"conn_type": "aws", "login": "key", "password": canaries["s3 secret key"], "extra": s3},
        "spark_default": {"conn_type": "spark", "host": "local[2]", "password": canaries["spark password"],
                          "extra": {"access_token": canaries["spark extra"]}},
    }  # fmt: skip


def files_of(folder: Path, but: Path | None = None) -> Iterator[tuple[str, bytes]]:
    """Yields each file below a folder, except below `but`. The scheduler repeats what its tasks log."""
    for path in folder.rglob("*"):
        if path.is_file() and but not in path.parents:
            is_log = path.name == "scheduler.log" or "logs" in path.parts
            yield ("Airflow's logs" if is_log else f"file {path.relative_to(folder)}"), path.read_bytes()


def objects_of(root: str) -> Iterator[tuple[str, bytes]]:
    """Yields each object, and the values of those that are compressed. An output table is one place."""
    store, base = arrow_filesystem(root)
    for info in store.get_file_info(pafs.FileSelector(base, recursive=True)):
        if info.is_file:
            content = store.open_input_file(info.path).read()
            if info.path.endswith(".parquet"):
                content += str(pq.read_table(pa.BufferReader(content)).to_pylist()).encode()
            name = info.path.removeprefix(base)
            yield ("output table" if "/outputs/" in name else f"object {name}"), content


def answers_of(airflow: LocalAirflow, pipeline: str, topic: str, runs: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yields Airflow's answers about the runs and the connections, and each view of the page."""
    dag = f"/dags/replay__{pipeline}"
    paths = ["/connections", dag, f"{dag}/details", f"{dag}/dagRuns"]
    for run in runs:
        paths += [f"{dag}/dagRuns/{quote(run)}/taskInstances"]
        paths += [
            f"{dag}/dagRuns/{quote(run)}/taskInstances/{task}/xcomEntries" for task in ("plan", "replay", "settle")
        ]
    for path in paths:
        yield f"REST {path}", json.dumps(airflow.call("GET", path)).encode()
    page = f"/ackline/pipelines/{pipeline}"
    views = ["/ackline/", page, f"{page}/partition?topic={topic}&partition=0", f"{page}/turns/0/1", f"{page}/turns/0/2",
             *(f"{page}/record?topic={topic}&partition=0&offset={offset}" for offset in range(RECORDS)),
             f"{page}/failures?kind=dead&error_class=ValueError", f"/ackline/dags/replay__{pipeline}"]  # fmt: skip
    for path in views:
        status, body, _ = get(airflow, path, airflow.token())
        assert status == 200, (path, status)
        yield f"page {path}", body.encode()


def commands_of(pipeline: str, topic: str, environment: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    for words in (["status", pipeline], ["status", pipeline, "--json"], ["explain", pipeline, topic, "0", "1"],
                  ["audit", pipeline, "--all"], ["audit", pipeline, "--json"], ["dead", pipeline], ["doctor", pipeline],
                  ["history", pipeline], ["sql", "SELECT * FROM outcomes", "--csv"]):  # fmt: skip
        command = [str(Path(sys.executable).with_name("ackline")), *words]
        done = subprocess.run(command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0 or words[0] == "doctor", (words, done.stderr)
        yield f"ackline {' '.join(words)}", done.stdout + done.stderr


def test_i13_no_secret_and_no_record_is_anywhere_but_where_the_documents_say(
    project: Project, topic: MakeTopic, pipeline: str, s3_server: ObjectStore, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Records fail, are tried again and become dead letters, one is acked, and its row is published. The connections
    are in Airflow's database, the tables in S3, Spark has its UI and its event log."""
    hidden, (source, letters) = canaries(), (topic(), topic())
    (port,), home, events, scratch = free_ports(1), tmp_path / "airflow", tmp_path / "events", tmp_path / "scratch"
    for folder in (home, events, scratch):
        folder.mkdir()
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    root = f"{s3_server.bucket(f'bucket-{uuid.uuid4()}')}/audit"
    conf = {"spark.ui.enabled": "true", "spark.ui.port": str(port), "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false", "spark.eventLog.dir": events.as_uri()}  # fmt: skip
    project.write(
        pipeline, source, handler="leaking:handle", dead_letter={"topic": letters}, audit={"key_hash": True},
        kafka={"connection": "leaks", "group_id": f"{pipeline}-group", "topics": [source]}, spark={"conf": conf},
        retry={"initial_delay": "0s", "max_retries": 1}, outputs=[{"from": "source", "table": "prices"}],
    )  # fmt: skip
    (project.include / "leaking.py").write_text(HANDLER.format(said=hidden["said"]))
    producer = Producer({"bootstrap.servers": project.bootstrap})
    for _ in range(RECORDS):
        producer.produce(source, hidden["value"].encode(), hidden["key"].encode(), 0,
                         headers=[("h", hidden["header"].encode())])  # fmt: skip
    assert producer.flush(30) == 0
    for name in s3_server.environment:
        monkeypatch.delenv(name)
    migrate(home)
    places: list[tuple[str, bytes]] = []
    environment = {"ACKLINE_AUDIT": root, "ACKLINE_AUDIT_CONNECTION": "store", "TMPDIR": str(scratch)}
    defined = connections(project, s3_server, hidden)
    ui = f"http://127.0.0.1:{port}/api/v1/applications"
    with watched(ui) as seen, ServedAirflow(home, project, environment) as airflow:
        for name, fields in defined.items():
            extra = json.dumps(fields["extra"])
            airflow.call("POST", "/connections", {**fields, "extra": extra, "connection_id": name})
        dag, runs = f"replay__{pipeline}", []
        airflow.unpause(dag)
        for _ in range(2):
            runs.append(airflow.trigger(dag))
            assert airflow.wait(dag, runs[-1], SECONDS) == "success", airflow.log(dag, runs[-1], "replay")
        places += answers_of(airflow, pipeline, source, runs)
    for name, fields in defined.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))
    commands = project.environment | environment
    places += commands_of(pipeline, source, commands)
    monkeypatch.setenv("ACKLINE_AUDIT_CONNECTION", "store")
    places += objects_of(root)
    places += seen.items()
    for folder in (home, events, scratch):
        places += files_of(folder)
    places += files_of(project.folder, but=project.include)
    _check_places(places, hidden)
    assert [letter.value for letter in read(project.bootstrap, letters)] == [hidden["value"].encode()] * 3


def _check_places(places: list[tuple[str, bytes]], hidden: Mapping[str, str]) -> None:
    leaks = {(name, place) for place, content in places for name in found_in(content, hidden)}
    assert leaks == set(EXPECTED.items()), sorted(leaks - set(EXPECTED.items()))
    masked = [line for place, content in places if place == "Airflow's logs" for line in content.split(b"\n")
              if b"***" in line]  # fmt: skip
    assert not masked, "Airflow has masked a secret that a task printed"
    names = [place for place, _ in places]
    for part in ("file airflow.db", "SparkSubmit", "spark.daemon", "Spark's UI: environment", "object /", "page ",
                 "REST /connections"):  # fmt: skip
        assert any(part in name for name in names), (part, "nothing was looked at")
    assert any(b"SparkListenerJobEnd" in content for _, content in places), "no event log was looked at"
