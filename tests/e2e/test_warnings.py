"""`ackline run`, `plan` and `doctor` warn by name, and a warning is never an error."""

import json

import pytest

from ackline.errors import FatalError
from ackline.kafka.cluster import Cluster
from ackline.lane.adapters import run_warnings
from tests.e2e.fixtures import MakeLab

OVERTAKEN = "retry: a record may wait 30 m for its last attempt, and the topic {} keeps it for 10 m (retention.ms)"


def test_run_plan_and_doctor_warn_of_retention_that_overtakes_the_retries(lab: MakeLab) -> None:
    lane = lab(topic_config={"retention.ms": "600000"})
    warning = OVERTAKEN.format(lane.topic)
    for command in ("plan", "run"):
        done = lane.ackline(command, lane.name, "--json")
        assert done.returncode == 0
        assert f"ackline: warning: {warning}" in done.stderr
        assert json.loads(done.stdout)
    [check] = [check for check in lane.ackline_json("doctor", lane.name) if check["check"] == "settings"]
    assert check["ok"]
    assert check["detail"].startswith(f"warning: {warning}")
    lane.configure(retry={"max_retries": 1})
    assert "warning" not in lane.ackline("run", lane.name).stderr


def test_a_broker_that_hides_the_settings_of_topics_stops_no_run_and_doctor_names_it(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise FatalError("reading the settings of topic x: TOPIC_AUTHORIZATION_FAILED")

    lane = lab(guarantee="no_guarantee", topic_config={"retention.ms": "1"})
    monkeypatch.setattr(Cluster, "policies", refuse)
    with lane.adapters() as adapters:
        [warning] = run_warnings(adapters, [lane.topic])
    assert warning.startswith("dead_letter.topic: under `guarantee: no_guarantee`")
    checks = [check for check in lane.ackline_json("doctor", lane.name) if check["check"] == "settings"]
    assert all(check["ok"] for check in checks)
    assert any("reading the settings of topic x: TOPIC_AUTH" in check["detail"] for check in checks)
