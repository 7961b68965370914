"""A pipeline whose tables are in an object store, as a user starts it."""

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable

from ackline.delta.object_store import arrow_filesystem
from ackline.ledger.turns import LIVE
from ackline.tables.store import LedgerStore
from tests.e2e.commands import run_here, watched_arguments
from tests.e2e.fixtures import MakeLab
from tests.e2e.forked import FORKED
from tests.e2e.lab import Lab
from tests.support.object_store.store import REGION, SECRET, ObjectStore

COMMANDS, AT_ONCE = 50, 4


def test_i13_a_run_reads_and_writes_its_tables_in_an_object_store_and_shows_no_login(
    lab: MakeLab, s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login is that of a connection. Two turns on real Spark and a real broker, maintenance, and a verdict.

    The first run is a process, with arguments of its own. The other commands run in this process.
    """
    lane = lab(retry={"max_retries": 1, "initial_delay": "0s"})
    lane.audit = s3_server.bucket(f"bucket-{uuid.uuid4()}").replace("s3://", "s3a://") + "/audit/"
    lane.produce_records(20, {3: {"fail": 1}})
    environment = _environment(s3_server)
    with watched_arguments() as arguments:
        first = lane.ackline_process("run", lane.name, "--json", env=environment)
    second = lane.ackline("run", lane.name, "--json", env=environment)
    assert [first.returncode, second.returncode] == [0, 0], first.stderr + second.stderr
    assert json.loads(first.stdout.splitlines()[-1])["outcomes"] == {"acked": 19, "failed": 1}
    assert json.loads(second.stdout.splitlines()[-1])["outcomes"] == {"acked": 1}
    others = [
        lane.ackline(*command, env=environment)
        for command in (["status", lane.name], ["audit", lane.name, "--json"], ["doctor"], ["maintain"])
    ]
    assert [command.returncode for command in others] == [0] * 4, [command.stderr for command in others]
    assert len(json.loads(others[1].stdout)) == 21
    assert lane.committed() == 20
    _judge(lane, environment)
    shown = [text for process in (first, second, *others) for text in (process.stdout, process.stderr)]
    for texts in (shown, list(arguments.values()), _stored_texts(lane.audit, s3_server, monkeypatch)):
        assert any(texts)
        assert not [text[:200] for text in texts if SECRET in text]


@pytest.mark.deep
def test_s68_output_tables_are_in_an_object_store_below_the_root_and_elsewhere(
    lab: MakeLab, s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    items = s3_server.bucket(f"bucket-{uuid.uuid4()}") + "/lake/items"
    outputs = [{"from": "source.counts", "table": "counts"}, {"from": "source.items", "table": items}]
    lane = lab(handler="tests.spark.output_handlers:split", outputs=outputs)
    lane.journalled = False
    lane.audit = s3_server.bucket(f"bucket-{uuid.uuid4()}") + "/audit"
    for number in range(2):
        lane.produce({"id": f"o{number}", "items": [{"product": "a"}, {"product": "b"}]})
        lane.run()
    found = [DeltaTable(table).to_pyarrow_table().to_pylist() for table in (f"{lane.tables}/outputs/counts", items)]
    assert [sorted((row["_turn"], row["order"]) for row in rows) for rows in found] == [
        [(1, "o0"), (2, "o1")],
        [(1, "o0"), (1, "o0"), (2, "o1"), (2, "o1")],
    ]
    # The entry that replaces rows is made by delta-rs, upon the version that has been looked at.
    again = lane.ackline("backfill", lane.name, f"{lane.topic}:0:1-2", "--id", "b", "--yes", "--json")
    assert json.loads(again.stdout.splitlines()[-1])["tables"] == {
        "counts": {"before": 2, "after": 3}, items: {"before": 2, "after": 3}
    }, again.stderr  # fmt: skip
    found = [DeltaTable(table).to_pyarrow_table().to_pylist() for table in (f"{lane.tables}/outputs/counts", items)]
    assert [sorted((row["_lane"], row["order"]) for row in rows) for rows in found] == [
        [("backfill-b", "o1"), ("live", "o0")],
        [("backfill-b", "o1")] * 2 + [("live", "o0")] * 2,
    ]
    assert _staged(lane) == []
    lane.judged = True  # the checker has no login of this process


def _staged(lane: Lab) -> list[str]:
    """The names of all files below the lane's staging folder."""
    store, folder = arrow_filesystem(f"{lane.tables}/.staging")
    left = store.get_file_info(pafs.FileSelector(folder, recursive=True))
    return [info.base_name for info in left if info.is_file]


@pytest.mark.deep
def test_s53_of_fifty_commands_none_fails_and_each_turn_is_taken_once(lab: MakeLab, s3_server: ObjectStore) -> None:
    """Processes of their own, a few at a time. The topic is empty, so no turn needs Spark.

    Each process is forked from one that has imported the command: fifty times the imports would take two minutes.
    """
    lane = lab()
    lane.audit = s3_server.bucket(f"bucket-{uuid.uuid4()}") + "/audit"
    command, environment = ("run", lane.name, "--json"), {**os.environ, **lane.environment, **s3_server.environment}
    with ProcessPoolExecutor(AT_ONCE, FORKED, max_tasks_per_child=1) as pool:
        runs = list(pool.map(run_here, [command] * COMMANDS, [environment] * COMMANDS, timeout=560))
    assert [run.returncode for run in runs] == [0] * COMMANDS, [run.stderr for run in runs if run.returncode]
    turns = Counter(json.loads(run.stdout.splitlines()[-1])["turn"] for run in runs)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment.items():
            patch.setenv(name, value)
        store = LedgerStore(lane.audit, lane.name, LIVE)
        planned, settled = (
            table.read(None, ["turn", "kind"]).to_pylist() for table in (store.plans, store.settlements)
        )
    newest = max(turns)
    assert sorted(row["turn"] for row in planned) == list(range(1, newest + 1)), "each number is planned once"
    assert sorted(row["turn"] for row in settled) == list(range(newest + 1)), "and settled once"
    assert {row["kind"] for row in settled} == {"genesis", "run"}
    assert lane.committed() == 0
    lane.judged = True


def _environment(store: ObjectStore) -> dict[str, str]:
    extra = {"endpoint_url": store.endpoint, "region_name": REGION, "allow_http": True}
    fields = {"conn_type": "aws", "login": "key", "password": SECRET, "extra": extra}
    return {"ACKLINE_AUDIT_CONNECTION": "store", "AIRFLOW_CONN_STORE": json.dumps(fields)}


def _judge(lane: Lab, environment: dict[str, str]) -> None:
    arguments = ["--bootstrap", lane.broker.bootstrap, "--audit", lane.audit, "--pipeline", lane.name, "--group",
                 lane.group, "--topic", lane.topic, "--dead-letter-topic", lane.dead_letter_topic,
                 "--settled"]  # fmt: skip
    command = [sys.executable, "-m", "ackline.verify", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lane.judged = True


def _stored_texts(root: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    filesystem, base = arrow_filesystem(root.replace("s3a://", "s3://").rstrip("/"))
    infos = filesystem.get_file_info(pafs.FileSelector(base, recursive=True))
    return [filesystem.open_input_file(info.path).read().decode(errors="replace") for info in infos if info.is_file]
