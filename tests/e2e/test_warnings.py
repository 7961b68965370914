"""Nothing quiet: `ackline run`, `plan` and `doctor` warn by name, and a warning is never an error."""

import json

import pytest

from ackline.cli.doctor import examine
from ackline.errors import FatalError
from ackline.kafka.cluster import Cluster
from ackline.steps.topic_warnings import run_warnings
from tests.e2e.fixtures import MakeLab

OVERTAKEN = "retry: a record may wait 30 m for its last attempt, and the topic {} keeps it for 10 m (retention.ms)"


def test_a_retry_budget_that_retention_will_overtake_is_said_by_run_plan_and_doctor(lab: MakeLab) -> None:
    one = lab(topic_config={"retention.ms": "600000"})
    said = OVERTAKEN.format(one.topic)
    for command in ("plan", "run"):
        done = one.command(command, one.name, "--json")
        assert done.returncode == 0
        assert f"ackline: warning: {said}" in done.stderr
        assert json.loads(done.stdout)
    done = one.command("doctor", one.name, "--json")
    assert done.returncode == 0
    [found] = [entry for entry in json.loads(done.stdout) if entry["check"] == "settings"]
    assert found["ok"]
    assert found["detail"].startswith(f"warning: {said}")

    one.define(retry={"max_retries": 1})
    assert "warning" not in one.command("run", one.name).stderr


def test_a_connection_that_would_commit_by_itself_is_said_and_not_followed(lab: MakeLab) -> None:
    one = lab(kafka={"connection": "kafka_shared"})
    extra = {"bootstrap.servers": one.broker.bootstrap, "group.id": "another", "enable.auto.commit": "true"}
    connection = json.dumps({"conn_type": "kafka", "extra": extra})
    one.records(2)
    done = one.command("run", one.name, env={"AIRFLOW_CONN_KAFKA_SHARED": connection})
    assert done.returncode == 0, done.stderr
    for name in ("group.id", "enable.auto.commit"):
        assert f"ackline: warning: connection: its `{name}` is ignored: " in done.stderr
    assert one.committed() == 2


def test_a_broker_that_does_not_tell_topics_settings_breaks_no_run_and_doctor_says_so(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise FatalError("reading the settings of topic x: TOPIC_AUTHORIZATION_FAILED")

    one = lab(guarantee="no_guarantee", topic_config={"retention.ms": "1"})
    monkeypatch.setattr(Cluster, "policies", refuse)
    with one.parts() as parts:
        [said] = run_warnings(parts, [one.topic])
    assert said.startswith("dead_letter.topic: under `guarantee: no_guarantee`")
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)
    found = [entry for entry in examine(one.name) if entry.name == "settings"]
    assert all(entry.ok for entry in found)
    assert any("not known: reading the settings of topic x: TOPIC_AUTH" in entry.detail for entry in found)
