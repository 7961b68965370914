"""Without its broker a lane is shown as its tables have it: since when, and what is not known."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ackline.errors import ConfigError, TransientError
from ackline.ledger.turns import TurnKind
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_kafka import MemoryCluster, MemoryGroup
from tests.support.memory_lane import DEAD, FAILS, OK, TP1, MemoryLane

AWAY = "no broker answers at memory:1: Connection refused"
STORED = "What is shown is the state that turn 1 of epoch 0 has stored at 2026-03-01 12:00:00 UTC."
UNKNOWN = "The logs, the group's commits and the lag are not known."


@pytest.fixture
def lane() -> MemoryLane:
    """A partition with a failed record at its floor and a dead one, and one without any."""
    lane = MemoryLane(OK, FAILS, DEAD, OK, partitions=2, retry={"initial_delay": "1h"})
    return lane.after_run()


def refuse(_: object, wanted: Any = "", **__: Any) -> Any:
    assert wanted == set(), "nothing is asked of a broker that is away"
    return {}


@pytest.fixture
def away(lane: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the lane has run, no broker answers. Each request but the first one would wait for its own time-out."""

    def unreachable(_: MemoryCluster) -> str:
        raise TransientError(AWAY)

    monkeypatch.setattr(MemoryCluster, "reachable", unreachable)
    for name in ("topics", "bounds", "names", "policies", "record_times"):
        monkeypatch.setattr(MemoryCluster, name, refuse)
    for name in ("_fetch_committed", "_describe_members"):
        monkeypatch.setattr(MemoryGroup, name, refuse)


@pytest.mark.usefixtures("away")
def test_status_shows_the_stored_state_with_its_time_and_says_what_is_missing(ackline: MemoryCommand) -> None:
    shown = ackline("status", "lane")
    assert (shown.status, shown.errors) == (1, "")
    first, title, *rows = shown.output.splitlines()
    assert first == f"N{AWAY[1:]}. {STORED} {UNKNOWN}"
    assert title == "Pipeline lane"
    assert rows[1].split()[:2] == ["orders[0]", "–"]
    shown_lags = {row[rows[0].index("lag") + 2] for row in rows[1:4]}
    assert shown_lags == {"–"}, "the sum of what is not known is not 0"
    assert "The floor of orders[0] is 1, because offset 1 failed once with " in shown.output
    found = ackline("status", "lane", "--json")
    body, error = json.loads(found.output.splitlines()[-1]), json.loads(found.errors)
    assert (found.status, error["kind"], error["error"]) == (1, "TransientError", AWAY)
    assert body["unreachable"] == {"error": AWAY, "stored_at": "2026-03-01T12:00:00+00:00"}
    (partition, _) = body["partitions"]
    assert (partition["floor"], partition["pending"]["retry"], partition["dead"]) == (1, 1, 1)
    assert {partition[name] for name in ("log_start", "log_end", "committed", "lag", "lag_seconds", "why")} == {None}


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize("place", [[], ["orders", "0"], ["orders", "0", "1"], ["orders", "0", "9"]])
def test_explain_says_it_too_and_nothing_else_goes_to_standard_error(
    ackline: MemoryCommand, place: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        shown = ackline("explain", "lane", *place)
    assert (shown.status, shown.errors, caplog.records) == (1, "", [])
    first, second, *_ = shown.output.splitlines()
    assert first == f"N{AWAY[1:]}. {STORED} {UNKNOWN}"
    answer = {"1": "Offset 1 of orders[0] failed once", "9": "Offset 9 of orders[0] is not read yet"}
    assert second.startswith(answer.get(place[2], "") if len(place) > 2 else "The floor of orders[0] is 1")
    body = json.loads(ackline("explain", "lane", *place, "--json").output)
    assert body["unreachable"]["stored_at"] == "2026-03-01T12:00:00+00:00"


@pytest.mark.usefixtures("away")
def test_the_overview_shows_what_is_stored_and_invents_no_zero(ackline: MemoryCommand, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("name: other\nnonsense: 1\n")
    broken, lane = json.loads(ackline("status", "--json").output)["pipelines"]
    if broken["pipeline"] == "lane":
        broken, lane = lane, broken
    # Its one record died within the last hour, which is worse than what is not known.
    assert [lane[key] for key in ("state", "readable", "pending", "dead", "lag")] == ["failing", False, 1, 1, None]
    keys = ("state", "readable", "pending", "dead", "partitions")
    assert [broken[key] for key in keys] == ["unknown", False, None, None, None]
    lines = ackline("status").output.splitlines()
    assert f"lane: {AWAY}." in lines


@pytest.mark.usefixtures("away")
def test_what_stands_still_by_the_tables_alone_comes_first(ackline: MemoryCommand, lane: MemoryLane) -> None:
    lane.settings["guarantee"] = "no_guarantee"
    first, second, *_ = ackline("status", "lane").output.splitlines()
    assert first.startswith("The lane stands still (ConfigError): guarantee was changed from at_least_once")
    assert second.startswith(f"N{AWAY[1:]}. ")


@pytest.mark.usefixtures("away")
def test_doctor_asks_the_broker_once_and_goes_on(ackline: MemoryCommand) -> None:
    done = ackline("doctor", "lane")
    assert (done.status, done.output.count(AWAY)) == (1, 1)
    assert f"FAIL broker: {AWAY}" in done.output
    assert "ok   pipelines: lane" in done.output


def test_of_a_lane_that_has_not_run_there_is_nothing_else_to_show(ackline: MemoryCommand, away: None) -> None:
    ackline.lane = MemoryLane(OK)
    for command in ("status", "explain"):
        shown = ackline(command, "lane")
        assert (shown.status, shown.output, shown.errors) == (1, "", f"ackline: {AWAY}\n")
    (pipeline,) = json.loads(ackline("status", "--json").output)["pipelines"]
    assert [pipeline[key] for key in ("state", "readable", "problem", "pending")] == ["unknown", False, AWAY, None]
    assert f"FAIL broker: {AWAY}" in ackline("doctor", "lane").output


def test_a_connection_that_is_not_defined_hides_no_stored_state(
    ackline: MemoryCommand, away: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `ackline dev down`: the file names no broker, and none is up."""

    def undefined(_: object) -> None:
        raise ConfigError("the Kafka connection kafka_default is not defined here", key="kafka.connection")

    monkeypatch.setattr("ackline.cli.options.connection_of", undefined)
    shown = ackline("status", "lane")
    assert (shown.status, shown.errors) == (2, "")
    assert shown.output.startswith(f"The Kafka connection kafka_default is not defined here. {STORED}")
    assert ackline("run", "lane").errors.startswith("ackline: the Kafka connection kafka_default is not defined here")


def test_a_partition_that_is_paused_or_let_go_stays_so_without_a_broker(
    ackline: MemoryCommand, lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane.perform(TurnKind.PAUSE, {TP1: 0})
    monkeypatch.setattr(MemoryCluster, "reachable", lambda _: (_ for _ in ()).throw(TransientError(AWAY)))
    rows = json.loads(ackline("status", "lane", "--json").output)["partitions"]
    assert [row["why"] for row in rows] == [None, "paused"]


def test_no_line_of_the_kafka_client_reaches_standard_error(tmp_path: Path) -> None:
    """A process of its own: librdkafka writes to the file of standard error where it has no logger."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "lane.yaml").write_text(
        "name: lane\nhandler: tests.support.journal:handle\ndead_letter: none\n"
        "kafka: {bootstrap_servers: '127.0.0.1:9', group_id: g, topics: [orders]}\n"
    )
    variables = {"ACKLINE_PIPELINES": str(tmp_path / "pipelines"), "ACKLINE_AUDIT": str(tmp_path / "audit")}
    program = (
        "from ackline.kafka import cluster; cluster.CONNECT_TIMEOUT = 1.0; from ackline.cli.app import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "status"],
        env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, ""), done.stderr
    assert done.stdout.startswith("lane: no broker answers at 127.0.0.1:9: "), done.stdout
