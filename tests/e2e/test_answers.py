"""The answers of the command about a real lane: explain, status, history, audit and sql agree with one another."""

import json

import pytest

from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, encoded, fails

HOUR = {"initial_delay": "1h", "period": "1h", "max_retries": 1}


@pytest.fixture
def lane(lab: MakeLab) -> Lab:
    """Six records: 1 fails for good, 3 is skipped by the handler, 4 fails once. The retries are due in an hour."""
    lane = lab(retry=HOUR, topic_config={"retention.ms": "86400000"})
    lane.produce_records(6, {**fails([1], -1), 3: {"skip": True}, **fails([4], 1)})
    done = lane.ackline("run", lane.name, "--json", "--now", lane.now.isoformat())
    assert done.returncode == 0, done.stderr
    return lane


def explain(lane: Lab, *place: str) -> dict[str, object]:
    found: dict[str, object] = lane.ackline_json(
        "explain", lane.name, lane.topic, *place, "--now", lane.now.isoformat()
    )
    return found


def test_explain_follows_a_record_from_unread_to_dead(lane: Lab) -> None:
    states = {offset: explain(lane, "0", str(offset))["state"] for offset in (0, 1, 3, 4, 6)}
    assert states == {0: "acked", 1: "pending", 3: "skipped", 4: "pending", 6: "not yet read"}
    lane.advance_clock(7200)
    assert lane.ackline("run", lane.name, "--now", lane.now.isoformat()).returncode == 0
    dead = explain(lane, "0", "1")
    events = dead["events"]
    assert isinstance(events, list)
    names = ["epoch", "turn", "attempt", "outcome", "error_class", "at", "run_id", "error_place", "tree"]
    assert list(events[0]) == names
    assert [(event["turn"], event["attempt"], event["outcome"]) for event in events] == [
        (1, 1, "failed"), (2, 2, "failed"), (2, 0, "dead"),
    ]  # fmt: skip
    assert (dead["state"], "is dead after 2 attempts" in str(dead["sentence"])) == ("dead", True)
    assert explain(lane, "0", "4")["state"] == "acked"
    assert explain(lane, "0")["held_by"] is None
    lane.judge(settled=True)


def test_an_aborted_record_and_its_marker_are_gaps_by_proof(lab: MakeLab) -> None:
    lane = lab()
    lane.produce_records(2)
    wire.produce_aborted(lane.broker.bootstrap, lane.topic, [encoded({"n": 2})])  # 2, and its marker 3
    lane.produce_records(1)
    lane.run()
    states = [explain(lane, "0", str(offset))["state"] for offset in range(6)]
    assert states == ["acked", "acked", "gap", "gap", "acked", "not yet read"]
    lane.expire(5)
    assert explain(lane, "0", "2")["state"] == "gap", "what was proved stays proved"


def test_history_audit_and_sql_show_the_same_turn(lane: Lab) -> None:
    turns = lane.ackline_json("history", lane.name)["turns"]
    assert [(turn["turn"], turn["kind"], turn["records"]) for turn in turns] == [(1, "run", 6), (0, "genesis", 0)]
    assert turns[0]["outcomes"] == {"acked": 3, "failed": 2, "skipped": 1}
    query = "SELECT outcome, count(*) AS n FROM outcomes GROUP BY ALL ORDER BY outcome"
    counted = {row["outcome"]: row["n"] for row in lane.ackline_json("sql", query, "--pipeline", lane.name)}
    assert counted == turns[0]["outcomes"]
    (run,) = lane.ackline_json("sql", "SELECT * FROM runs", "--pipeline", lane.name)
    assert (run["records"], run["turns"]) == (6, 1)
    assert lane.ackline_json("audit", lane.name, "--run", run["run_id"], "--outcome", "skipped")[0]["offset"] == 3
    refused = lane.ackline("sql", "DROP TABLE outcomes")
    assert (refused.returncode, "one SELECT" in refused.stderr) == (2, True)
    assert json.loads(lane.ackline("sql", "SELECT 1 AS n", "--json").stdout) == [{"n": 1}]
